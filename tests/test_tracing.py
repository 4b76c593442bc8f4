"""Adversarial cases for the trace and for the check."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from jax import lax

import zoo
from onebasin.symmetry import NotASymmetry, Symmetry, UncheckedWarning, find_symmetry
from onebasin.symmetry.axes import (
    Atom,
    Concat,
    Fixed,
    Product,
    Uniform,
    atom,
    atoms_in,
    cut,
    join,
    resolve,
    split,
)
from onebasin.symmetry.recording import Recorder, record

n = zoo.normal


def sizes(apply, params, x, **kwargs) -> list[int]:
    return [group.size for group in find_symmetry(apply, params, x, **kwargs).groups]


class TestAxes:
    """The algebra of axes: unification with refinement."""

    pytestmark = pytest.mark.fast

    def test_an_atom_takes_on_a_structure_wherever_it_occurs(self):
        """What is learnt of an atom holds in all arrays that have it, also those seen before."""
        whole, before, after = atom(64), atom(64), atom(64)
        join(whole, before)
        join(after, whole)
        inside = Concat((atom(3), Product((atom(2), whole))))
        heads, dimensions = atom(4), atom(16)
        join(whole, Product((heads, dimensions)))
        for elsewhere in (whole, before, after):
            assert atoms_in(elsewhere) == [heads, dimensions]
        assert atoms_in(inside)[2:] == [heads, dimensions]

    def test_two_by_three_against_three_by_two_is_fixed(self):
        a, b = Product((atom(2), atom(3))), Product((atom(3), atom(2)))
        assert join(a, b) == Fixed(6)
        assert atoms_in(a) == atoms_in(b) == []

    def test_common_refinement_of_four_by_six_and_eight_by_three(self):
        a, b = Product((atom(4), atom(6))), Product((atom(8), atom(3)))
        assert [x.size for x in atoms_in(join(a, b))] == [4, 2, 3]

    def test_uniform_constrains_nothing(self):
        a, b = atom(5), atom(5)
        assert join(a, Uniform(5)) is a
        assert join(Uniform(5), b) is b
        assert resolve(a) is not resolve(b)

    def test_a_repeated_value_constrains_only_its_own_factor(self):
        units, wide = atom(3), atom(6)
        joined = join(Product((units, Uniform(2))), wide)
        assert [x.size for x in atoms_in(joined)] == [3, 2]
        assert atoms_in(joined)[0] is resolve(units)

    def test_a_cut_between_rows_of_a_product_cuts_its_outer_factor(self):
        outer, inner = atom(4), atom(3)
        first, second = cut(Product((outer, inner)), [6, 6])
        assert [x.size for x in atoms_in(first)] == [2, 3]
        assert [x.size for x in atoms_in(outer)] == [2, 2]
        assert atoms_in(first)[1] is atoms_in(second)[1]

    def test_a_cut_within_a_row_of_a_product_fixes_it(self):
        whole = Product((atom(4), atom(3)))
        cut(whole, [5, 7])
        assert atoms_in(whole) == []

    def test_equal_pieces_become_a_product_if_all_move_together(self):
        pieces = [atom(4) for _ in range(3)]
        three, four = split(Concat(tuple(pieces)), [3, 4])
        assert three == Fixed(3)
        assert {resolve(p) for p in pieces} == {resolve(four)}

    def test_an_axis_against_its_own_rotation(self):
        """Rotating 12 positions by 4 leaves groups of 4; rotating them by 1 leaves nothing."""
        for shift, expected in ((4, [4, 4, 4]), (1, [])):
            whole = Atom(12)
            head, tail = cut(whole, [12 - shift, shift])
            join(whole, Concat((resolve(tail), resolve(head))))
            assert [a.size for a in atoms_in(whole)] == expected

    def test_long_axes_do_not_exhaust_the_stack(self):
        whole = Atom(3000)
        head, tail = cut(whole, [2999, 1])
        assert join(whole, Concat((resolve(tail), resolve(head)))) == Fixed(3000)


def test_indexing_along_mapped_rows_keeps_them_tied():
    """The result of take_along_axis varies along the rows even if its indices do not."""

    def apply(p, x):
        h = jnp.tanh(x @ p["w"]).T
        picked = jax.vmap(lambda row, j: row[j])(h, jnp.zeros(h.shape[0], int))
        return picked @ p["o"] + x.sum()

    symmetry = find_symmetry(apply, {"w": n((3, 4)), "o": n((4, 2), 1)}, n((5, 3)), check=False)
    assert [len(group.places) for group in symmetry.groups] == [2]


def test_a_strided_slice_that_stops_short_fixes_what_it_reads():
    def apply(p, x):
        h = jnp.tanh(x @ p["w"])
        return lax.slice(h, (0, 2), (5, 5), (1, 3)).sum(-1) + (h @ p["o"]).sum(-1)

    params = {"w": n((3, 6)), "o": n((6, 2), 1)}
    assert sizes(apply, params, n((5, 3)), check=False) == [2]  # the two columns of the output

    def interleaved(p, x):
        h = jnp.tanh(x @ p["w"])
        return (h[:, ::2] * h[:, 1::2]) @ p["o"]

    assert sizes(interleaved, {"w": n((3, 6)), "o": n((3, 2), 1)}, n((5, 3))) == [3]


def test_rotations_of_wide_layers():
    params = {"w": n((3, 1500)), "o": n((1500, 2), 1)}

    def apply(p, x):
        h = jnp.tanh(x @ p["w"])
        return (h + jnp.roll(h, 1, -1)) @ p["o"]

    assert sizes(apply, params, n((2, 3))) == []


def test_stack_tile_and_scatter():
    params = {"w": n((3, 4)), "token": n((1, 1, 4), 1), "b": n((4,), 2), "o": n((4, 2), 3)}

    def apply(p, x):
        h = jnp.stack([jnp.tanh(x @ p["w"]), x @ p["w"]], axis=1)
        h = jnp.concatenate([jnp.tile(p["token"], (x.shape[0], 1, 1)), h], axis=1)
        h = h.at[:, 0].add(p["b"]).at[:, 1].set(0.5)
        first, *_ = jnp.unstack(h, axis=1)
        return (first + h.mean(1)) @ p["o"]

    assert sizes(apply, params, n((5, 3))) == [4]


def test_segment_sums_of_a_graph_network():
    params = {"w": n((3, 4)), "u": n((4, 5), 1), "o": n((5, 2), 2)}
    sender, receiver = jnp.array([0, 1, 2, 3, 4, 0]), jnp.array([1, 2, 3, 4, 0, 2])

    def apply(p, x):
        h = jnp.tanh(x @ p["w"])
        messages = jax.ops.segment_sum(h[sender], receiver, num_segments=5)
        return jnp.tanh(messages @ p["u"]) @ p["o"]

    assert sizes(apply, params, n((5, 3))) == [4, 5]


def test_debug_callbacks_constrain_nothing():
    params = {"w": n((3, 4)), "o": n((4, 2), 1)}

    def apply(p, x):
        h = jnp.tanh(x @ p["w"])
        jax.debug.callback(lambda _: None, h)
        return h @ p["o"]

    assert sizes(apply, params, n((5, 3))) == [4]


def test_units_that_are_sorted_may_be_permuted():
    params = {"w": n((3, 4)), "o": n((4, 2), 1)}
    apply = lambda p, x: jnp.sort(jnp.tanh(x @ p["w"]), axis=-1) @ p["o"]
    symmetry = find_symmetry(apply, params, n((5, 3)))
    assert [str(p) for group in symmetry.groups for p in group.places] == ["w[1]"]


class TestOddParams:
    def test_python_numbers(self):
        params = {"w": n((3, 4)), "o": n((4, 2), 1), "s": 1.5}
        apply = lambda p, x: jnp.tanh(x[0] @ p["w"] * p["s"]) @ p["o"] + x[1]
        assert sizes(apply, params, (n((5, 3)), 0.5)) == [4]

    def test_a_key_that_looks_like_a_state(self):
        params = {"state:w": n((3, 4)), "o": n((4, 2), 1)}
        assert sizes(lambda p, x: jnp.tanh(x @ p["state:w"]) @ p["o"], params, n((5, 3))) == [4]

    def test_shapes_without_numbers(self):
        shapes = {"w": (3, 4), "o": (4, 2)}
        params = {k: jax.ShapeDtypeStruct(s, jnp.float32) for k, s in shapes.items()}
        assert sizes(lambda p, x: jnp.tanh(x @ p["w"]) @ p["o"], params, n((5, 3))) == [4]

    def test_complex_parameters(self):
        params = {"w": n((3, 4)) + 1j * n((3, 4), 1), "o": n((4, 2), 2) + 0j}
        assert sizes(lambda p, x: ((x @ p["w"]) ** 2) @ p["o"], params, n((5, 3))) == [4]

    @pytest.mark.parametrize(
        ("params", "x", "message"),
        [
            ({}, np.ones((2, 3)), "no leaves"),
            ({"w": n((3, 4)), "act": jnp.tanh}, np.ones((2, 3)), "leaf 'act' is a"),
            ({"w": n((3, 4))}, np.ones((0, 3), np.float32), "no rows"),
        ],
    )
    def test_networks_that_cannot_be_traced_are_refused(self, params, x, message):
        apply = lambda p, x: jnp.tanh(x @ p["w"]).sum(-1)
        with pytest.raises(ValueError, match=message):
            find_symmetry(apply, params, x)


class TestCheck:
    """Wrong groups must fail, and right ones must pass."""

    KEY = jax.random.key(0)

    def refuse(self, apply, params, x, groups):
        with pytest.raises(NotASymmetry):
            Symmetry.by_hand(params, groups).check(apply, params, x, key=self.KEY)

    def test_a_function_invariant_only_under_rotations(self):
        def apply(p, x):
            h = jnp.tanh(x @ p["w"])
            return (h * jnp.roll(h, 1, -1) ** 2).sum(-1, keepdims=True) * jnp.arange(1.0, 3)

        self.refuse(apply, {"w": n((4, 3))}, n((5, 4)), {"g": [("w", 1)]})

    def test_a_large_offset_hides_nothing(self):
        params = {"w": n((3, 4)), "o": n((4, 2), 1)}
        net = lambda p, x: jnp.tanh(x @ p["w"]) @ p["o"]
        wrong = {"g": [("w", 1)]}
        self.refuse(lambda p, x: 1e7 + net(p, x), params, n((5, 3)), wrong)
        several = lambda p, x: {"a": net(p, x), "big": 1e9 * x}
        self.refuse(several, params, n((5, 3)), wrong)

    def test_an_imaginary_part_is_seen(self):
        params = {"w": n((3, 4)), "o": n((4, 2), 1)}
        apply = lambda p, x: x[:, :2] + 1j * (jnp.tanh(x @ p["w"]) @ p["o"])
        self.refuse(apply, params, n((5, 3)), {"g": [("w", 1)]})

    def test_a_single_number_is_enough_of_an_output(self):
        params = {"w": n((3, 4)), "o": n((4, 2), 1)}
        assert sizes(lambda p, x: (jnp.tanh(x @ p["w"]) @ p["o"])[0, 0], params, n((5, 3))) == [4]

    def test_rows_that_other_inputs_index_are_kept(self):
        params = {"w": n((3, 4)), "o": n((4, 2), 1)}
        x = {"x": n((9, 3)), "rows": jnp.array([8, 1, 7, 6, 2])}
        apply = lambda p, x: jnp.take(jnp.tanh(x["x"] @ p["w"]), x["rows"], axis=0) @ p["o"]
        assert sizes(apply, params, x) == [4]

    def test_parameters_under_a_root_keep_their_sign(self):
        params = {"v": jnp.array([1e-6, 1.0, 100.0, 3.0]), "w": n((3, 4)), "o": n((4, 2), 1)}
        apply = lambda p, x: jnp.tanh(x @ p["w"] * jnp.sqrt(p["v"])) @ p["o"]
        for seed in range(3):
            symmetry = find_symmetry(apply, params, n((5, 3)))
            symmetry.check(apply, params, n((5, 3)), key=jax.random.key(seed))

    def test_a_chaotic_network_cannot_be_checked(self):
        params = {"w": 4 * n((200, 40, 40)) / 40**0.5, "i": n((3, 40), 1), "o": n((40, 2), 2)}

        def apply(p, x):
            step = lambda h, w: (jnp.tanh(h @ w), None)
            return lax.scan(step, x @ p["i"], p["w"])[0] @ p["o"]

        with pytest.raises(NotASymmetry, match="check is inconclusive"):
            find_symmetry(apply, params, n((2, 3)))

    def test_a_group_that_the_outputs_do_not_depend_on_is_named(self):
        params = {"w": n((3, 4)), "o": n((4, 2), 1), "c": n((3, 2), 2)}

        def apply(p, x):
            dead = jax.nn.relu(-1e6 - jnp.abs(x @ p["w"])) @ p["o"]
            return dead + x @ p["c"]

        with pytest.warns(UncheckedWarning, match="group 'w' could not be checked"):
            find_symmetry(apply, params, n((5, 3)))


class TestByHand:
    @pytest.mark.parametrize(
        "places",
        [
            ("w", 1),
            [("w",)],
            [("w", "1")],
            [("w", 1, 2)],
            [("w", 1, (0, 1))],
            [("w", 1, (-2, -1))],
            [],
        ],
    )
    def test_malformed_places_are_refused(self, places):
        with pytest.raises(ValueError, match="group 'h'"):
            Symmetry.by_hand({"w": n((3, 4))}, {"h": places})

    def test_unknown_groups_and_fractional_counts_are_refused(self):
        symmetry = Symmetry.by_hand({"w": n((3, 4))}, {"h": [("w", 1)]})
        key = jax.random.key(0)
        with pytest.raises(KeyError, match="typo"):
            symmetry.random(key=key, transpositions={"typo": 2})
        with pytest.raises(TypeError):
            symmetry.random(key=key, transpositions=1.9)  # pyright: ignore[reportArgumentType]
        with pytest.raises(ValueError, match="give a Permutation"):
            symmetry.act({"h": [0, 1, 2, 3]}, {})  # pyright: ignore[reportArgumentType]

    def test_double_precision_is_kept_where_jax_defaults_to_single(self):
        symmetry = Symmetry.by_hand({"w": n((3, 4))}, {"h": [("w", 1)]})
        with jax.enable_x64(True):
            params = {"w": jnp.ones((3, 4), jnp.float64)}
        assert symmetry.act(symmetry.identity(), params)["w"].dtype == jnp.float64


class TestRecording:
    def network(self):
        class Net(nn.Module):
            @nn.compact
            def __call__(self, x):
                x = nn.relu(nn.Conv(6, (3, 3))(x))
                y = nn.LayerNorm()(nn.Conv(6, (3, 3), use_bias=False)(x))
                x = nn.relu(x + y)
                x = nn.gelu(nn.Dense(7)(x.reshape(x.shape[0], -1)))
                return nn.Dense(3)(x)

        module = Net()
        network, x = zoo.linen(module, n((5, 4, 4, 2)))
        return module, network, x

    def test_units_and_pre_activations_are_those_flax_captures(self):
        module, network, x = self.network()
        symmetry = find_symmetry(network.apply, network.params, x)
        recorder = Recorder(network.apply, network.params, x, symmetry)
        _, captured = module.apply({"params": network.params}, x, capture_intermediates=True)
        inner: dict[str, Any] = {
            k: v["__call__"][0] for k, v in captured["intermediates"].items() if k != "__call__"
        }
        units = recorder.units(network.params)
        # Single precision and sums in another order.
        close = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
        close(units["Dense_0"], jax.nn.gelu(inner["Dense_0"]).T)
        stream = jax.nn.relu(inner["Conv_0"])
        after = jax.nn.relu(stream + inner["LayerNorm_0"])
        both = [s.reshape(-1, 6).T for s in (stream, after)]
        assert units["Conv_0"].shape == (6, 2 * both[0].shape[1])
        close(np.sort(units["Conv_0"], axis=1), np.sort(np.concatenate(both, 1), axis=1))
        layers = {layer.kernel: layer for layer in recorder.layers}
        assert layers["Conv_1/kernel"].gain == "LayerNorm_0/scale"
        assert layers["Conv_1/kernel"].shift == "LayerNorm_0/bias"
        assert layers["Dense_0/kernel"].shift == "Dense_0/bias"
        assert "Dense_1/kernel" not in layers
        for layer, array in zip(
            recorder.layers, recorder.pre_activations(network.params), strict=True
        ):
            owner = {"Conv_1": "LayerNorm_0"}.get(layer.kernel[:6], layer.kernel.split("/")[0])
            values = inner[owner]
            close(array, values.reshape(-1, values.shape[-1]).T)

    def test_recorded_units_move_with_the_permutation(self):
        _, network, x = self.network()
        symmetry = find_symmetry(network.apply, network.params, x)
        recorder = Recorder(network.apply, network.params, x, symmetry)
        permutation = symmetry.random(key=jax.random.key(0))
        before = recorder.units(network.params)
        after = recorder.units(symmetry.act(permutation, network.params))
        for name in permutation:
            np.testing.assert_allclose(after[name], before[name][permutation[name]], atol=1e-5)

    def test_groups_that_cannot_be_recorded_are_named(self):
        network, x = zoo.transformer_encoder()
        symmetry = find_symmetry(network.apply, network.params, x, check=False)
        recorder = Recorder(network.apply, network.params, x, symmetry)
        assert len(recorder.unseen) == 1  # the dimensions inside queries and keys
        assert set(recorder.units(network.params)) | set(recorder.unseen) == {
            group.name for group in symmetry.groups
        }
        with pytest.raises(ValueError, match="cannot be recorded"):
            record(network.apply, network.params, x, symmetry)

    def test_state_must_be_given_where_it_is_needed(self):
        network, x = zoo.batch_norm_running()
        symmetry = find_symmetry(network.apply, network.params, x, state=network.state, check=False)
        recorder = Recorder(network.apply, network.params, x, symmetry, network.state)
        with pytest.raises(ValueError, match="running statistics"):
            recorder.units(network.params)
        assert recorder.units(network.params, network.state)
