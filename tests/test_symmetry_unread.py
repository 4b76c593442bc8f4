"""Parts of parameters that the outputs do not depend on, random numbers, and names of groups."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from onebasin import Symmetry, find_symmetry
from onebasin.symmetry import NoiseWarning, UncheckedWarning
from zoo import normal


def embedding(length, rows=64):
    """Tokens with learned positions: `pos[:length]`, then a hidden layer over features."""
    params = {"embed": normal((7, 5)), "pos": normal((rows, 5), 1), "out": normal((5, 3), 2)}

    def apply(params, tokens):
        h = params["embed"][tokens] + params["pos"][: tokens.shape[1]]
        return jnp.tanh(h).mean(1) @ params["out"]

    return apply, params, jnp.arange(2 * length).reshape(2, length) % 7


def test_rows_that_were_not_read_are_named_and_never_permuted():
    apply, params, tokens = embedding(16)
    symmetry = find_symmetry(apply, params, tokens)
    assert symmetry.unused == ("pos[16:64]",)
    assert [group.size for group in symmetry.groups] == [5]
    longer = embedding(40)[2]
    moved = symmetry.act(symmetry.random(key=jax.random.key(0)), params)
    np.testing.assert_allclose(apply(moved, longer), apply(params, longer), atol=1e-5)


def test_parts_cut_away_after_other_operations_are_named_in_all_leaves():
    params = {"a": normal((2, 6)), "b": normal((6,), 1), "out": normal((4, 3), 2)}

    def apply(params, x):
        return jnp.tanh(x @ params["a"] + params["b"])[:, 1:5] @ params["out"]

    # Units 0 and 5 are single positions, which nothing permutes; with more they would be a group.
    assert [g.size for g in find_symmetry(apply, params, normal((4, 2))).groups] == [4]
    params = {"a": normal((2, 9)), "b": normal((9,), 1), "out": normal((4, 3), 2)}
    symmetry = find_symmetry(apply, params, normal((4, 2)))
    assert [g.size for g in symmetry.groups] == [4]
    assert symmetry.unused == ("a[:, 5:9]", "b[5:9]")


def test_units_that_are_read_elsewhere_keep_their_group():
    params = {"a": normal((2, 6)), "out": normal((3, 3), 2)}

    def apply(params, x):
        h = jnp.tanh(x @ params["a"])
        return h[:, :3] @ params["out"] + h[:, 3:].sum(-1, keepdims=True)

    symmetry = find_symmetry(apply, params, normal((4, 2)))
    assert [g.size for g in symmetry.groups] == [3, 3]
    assert symmetry.unused == ()


def test_a_group_with_one_place_is_known_to_matter_or_reported():
    params = {"w": normal((3, 6)), "out": normal((1, 2))}

    def summed(params, x):
        return jnp.tanh(x @ params["w"]).sum(-1, keepdims=True) @ params["out"]

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [g.size for g in find_symmetry(summed, params, normal((4, 3))).groups] == [6]

    def ignored(params, x):
        hidden = jnp.tanh(x @ params["w"]).sum(-1, keepdims=True)
        return jnp.where(hidden > 1e6, hidden, x[:, :1]) @ params["out"]

    with pytest.warns(UncheckedWarning, match="do not depend on its units"):
        find_symmetry(ignored, params, normal((4, 3)))


def test_unused_parts_of_leaves_and_of_statistics_survive_a_file(tmp_path):
    apply, params, tokens = embedding(16)
    state = {"mean": jnp.zeros(5), "count": jnp.zeros(3)}

    def with_state(params, tokens, state):
        return apply(params, tokens) + state["mean"].sum()

    symmetry = find_symmetry(with_state, params, tokens, state=state)
    assert symmetry.unused == ("state:count", "pos[16:64]")
    assert "state:count, pos[16:64]" in symmetry.table()
    assert Symmetry.load(symmetry.save(tmp_path / "symmetry.json")).unused == symmetry.unused


NOISY = {"w": normal((3, 6)), "s": normal((3, 6), 1), "out": normal((6, 2), 2)}


class TestRandomNumbersInTheForwardPass:
    def test_noise_on_units_holds_them_and_says_so(self):
        def sampled(params, x):
            noise = jax.random.normal(jax.random.key(0), (len(x), 6))
            return (x @ params["w"] + jnp.exp(x @ params["s"]) * noise) @ params["out"]

        with pytest.warns(NoiseWarning, match="random numbers"):
            symmetry = find_symmetry(sampled, NOISY, normal((4, 3)))
        assert symmetry.groups == ()

    def test_noise_on_the_inputs_holds_nothing(self):
        def noisy(params, x):
            x = x + jax.random.normal(jax.random.key(0), x.shape)
            x = jnp.where(jax.random.bernoulli(jax.random.key(1), 0.9, x.shape), x, 0.0)
            return jnp.tanh(x @ params["w"] + x @ params["s"]) @ params["out"]

        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert [g.size for g in find_symmetry(noisy, NOISY, normal((4, 3))).groups] == [6]


def test_groups_of_dotted_names_are_called_after_their_layers():
    params = {
        "layers.0.weight": normal((6, 3)),
        "layers.0.bias": normal((6,)),
        "layers.1.weight": normal((5, 6), 1),
        "head.weight": normal((2, 5), 2),
    }

    def apply(params, x):
        x = jnp.tanh(x @ params["layers.0.weight"].T + params["layers.0.bias"])
        x = jnp.tanh(x @ params["layers.1.weight"].T)
        return x @ params["head.weight"].T

    names = [group.name for group in find_symmetry(apply, params, normal((4, 3))).groups]
    assert names == ["layers.0", "layers.1"]
    nested = find_symmetry(lambda p, x: apply(p["net"], x), {"net": params}, normal((4, 3)))
    assert [group.name for group in nested.groups] == ["net/layers.0", "net/layers.1"]
