"""A network inside a wider one: the same function, planted units found again, or a refusal."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import onebasin as ob
from network_cases import random_params
from onebasin.cli import main as cli
from onebasin.networks import GPT, MLP, LeNet, ResNet20, ViT, to_config
from onebasin.networks.described import DescribedNetwork
from onebasin.posterior import load, save
from onebasin.symmetry import CannotEmbed, embed
from onebasin.trees import leaves_by_path


def pair(narrow, wide, shape):
    return DescribedNetwork.of_module(narrow, shape), DescribedNetwork.of_module(wide, shape)


def inputs(shape, rows=5):
    return np.random.default_rng(7).uniform(size=(rows, *shape)).astype(np.float32)


VIT: dict[str, Any] = {"patch": 2, "width": 8, "depth": 1, "heads": 2}
PAIRS = [
    (MLP((5, 4), 3), MLP((9, 6), 3), (6,)),
    (MLP((5,), 3, "tanh"), MLP((6,), 3, "tanh"), (6,)),
    (LeNet(2, 3, "swish"), LeNet(3, 3, "swish"), (9, 8, 1)),
    (ResNet20(2, 3), ResNet20(3, 3), (8, 8, 3)),
    (ViT(**VIT, hidden=5), ViT(**VIT, hidden=9), (4, 4, 1)),
    (GPT(context=6, width=8, depth=2, heads=2, hidden=5, num_classes=7),
     GPT(context=6, width=8, depth=2, heads=2, hidden=6, num_classes=7), (6,)),
]  # fmt: skip


@pytest.mark.parametrize(("narrow", "wide", "shape"), PAIRS, ids=lambda v: type(v).__name__)
def test_function_is_the_same_for_other_inputs_and_every_leaf_random(narrow, wide, shape):
    a, b = pair(narrow, wide, shape)
    params, x = random_params(narrow, (1, *shape)), inputs(shape)
    found = embed(params, a, into=b, like=b.shapes, x=x[:2])
    # float32: sums with zeros in other places are rounded otherwise.
    np.testing.assert_allclose(b.apply(found, x), a.apply(params, x), rtol=1e-4, atol=1e-4)
    wide_shapes = leaves_by_path(b.shapes)
    assert all(leaf.shape == wide_shapes[n].shape for n, leaf in leaves_by_path(found).items())
    # What is not zero is what was there.
    total = sum(np.count_nonzero(leaf) for leaf in jax.tree.leaves(found))
    assert total == sum(np.count_nonzero(leaf) for leaf in jax.tree.leaves(params))


def with_heads(params, x):
    """Attention over x whose heads are an axis of their own; each has two dimensions."""
    q, k, v = (jnp.einsum("nti,ihd->nthd", x, params[name]) for name in "qkv")
    weights = jax.nn.softmax(jnp.einsum("nqhd,nkhd->nhqk", q, k) / np.sqrt(q.shape[-1]))
    return jnp.einsum("nhqk,nkhd,hdo->nqo", weights, v, params["o"])


def heads_params(heads, size, seed=0):
    rng = np.random.default_rng(seed)
    made = {name: rng.normal(size=(3, heads, size)) for name in "qkv"}
    made["o"] = rng.normal(size=(heads, size, 4))
    return {name: leaf.astype(np.float32) for name, leaf in made.items()}


def test_heads_may_be_added_and_dimensions_inside_them_may_not():
    x = inputs((5, 3))
    params = heads_params(2, 4)
    found = embed(params, with_heads, into=with_heads, like=heads_params(3, 4), x=x)
    np.testing.assert_allclose(with_heads(found, x), with_heads(params, x), rtol=1e-4, atol=1e-5)
    with pytest.raises(CannotEmbed, match=r"depends on how many units there are of .*'q"):
        embed(params, with_heads, into=with_heads, like=heads_params(2, 6), x=x)


def test_planted_units_are_found_in_a_wider_network():
    """The wide network is the narrow one, shuffled, with noise and with smaller units beside it."""
    narrow, wide = MLP((12, 10), 3), MLP((20, 16), 3)
    a, b = pair(narrow, wide, (6,))
    params = random_params(narrow, (1, 6))
    inside = embed(params, a, into=b, like=b.shapes, x=a.x)
    symmetry = ob.find_symmetry(b, b.shapes, b.x)
    planted = symmetry.random(key=jax.random.key(1))
    rng = np.random.default_rng(2)
    target = jax.tree.map(
        lambda leaf: leaf + 0.1 * np.std(leaf) * rng.normal(size=leaf.shape).astype(np.float32),
        symmetry.act(planted, inside),
    )
    found = ob.align(inside, to=target, symmetry=symmetry, objective="l2")
    for group, real in zip(symmetry.groups, (12, 10), strict=True):
        # new[i] = old[p[i]]: wherever the plant has a real unit, the same one was put.
        at = planted[group.name] < real
        np.testing.assert_array_equal(found.permutation[group.name][at], planted[group.name][at])
    x = inputs((6,), 50)
    np.testing.assert_allclose(
        b.apply(found.posterior, x), a.apply(params, x), rtol=1e-4, atol=1e-5
    )
    # The path goes through the wide network, from one function to the other.
    y = np.asarray(a.apply(params, x)).argmax(-1)
    path = ob.geodesic(
        *(ob.Samples(jax.tree.map(lambda leaf: leaf[None], q)) for q in (target, found.posterior))
    )
    along = ob.profile(path, b.apply, (x, y), key=jax.random.key(0), points=3, progress="silent")
    assert along.accuracy[-1] == 1.0
    before = ob.line(target, inside)
    apart = ob.profile(before, b.apply, (x, y), key=jax.random.key(0), points=3, progress="silent")
    assert along.barrier < 0.1 * apart.barrier


def gaussian(params, scale):
    return ob.MeanField(params, jax.tree.map(lambda leaf: scale + 0 * leaf, params))


def test_every_kind_of_posterior():
    a, b = pair(MLP((4,), 3), MLP((6,), 3), (5,))
    params = random_params(MLP((4,), 3), (1, 5))
    x, given = inputs((5,)), {"into": b, "like": b.shapes, "x": a.x}
    q = gaussian(params, 0.1)
    found = embed(q, a, **given)
    assert found.std["Dense_0"]["kernel"].min() == pytest.approx(1e-7)
    np.testing.assert_array_equal(found.std["Dense_0"]["kernel"][:, :4], q.std["Dense_0"]["kernel"])
    # Draws of the further weights are smaller than the rounding of the others.
    draw = found.sample(key=jax.random.key(0))
    cut = {
        "Dense_0": jax.tree.map(lambda leaf: leaf[..., :4], draw["Dense_0"]),
        "Dense_1": {"kernel": draw["Dense_1"]["kernel"][:4], "bias": draw["Dense_1"]["bias"]},
    }
    np.testing.assert_allclose(b.apply(draw, x), a.apply(cut, x), rtol=1e-5, atol=1e-5)
    factors = jax.tree.map(lambda leaf: leaf[None], params)
    low = embed(ob.LowRank(params, q.std, factors), a, **given)
    assert low.factors["Dense_0"]["kernel"].shape == (1, 5, 6)
    assert not low.factors["Dense_0"]["kernel"][..., 4:].any()
    draws = ob.Samples(jax.tree.map(lambda leaf: np.stack([leaf, 2 * leaf]), params))
    wide = embed(draws, a, **given)
    np.testing.assert_array_equal(
        wide.draw(1)["Dense_0"]["kernel"], embed(draws.draw(1), a, **given)["Dense_0"]["kernel"]
    )
    mixed = embed(ob.Mixture((q, q), jnp.array([0.5, 0.5])), a, **given)
    assert mixed.like["Dense_0"]["bias"].shape == (6,)


def test_running_statistics_stay_finite():
    from flax import linen as nn

    class Normalised(nn.Module):
        width: int

        @nn.compact
        def __call__(self, x, train=False):
            x = nn.Dense(self.width)(x)
            return nn.Dense(2)(nn.relu(nn.BatchNorm(use_running_average=not train)(x)))

    x = inputs((3,))
    networks = []
    for width in (4, 6):
        module = Normalised(width)
        networks.append(
            ob.networks.from_linen(module, module.init(jax.random.key(0), x), train=False)
        )
    narrow, wide = networks
    q = ob.MeanField(narrow.params, jax.tree.map(jnp.ones_like, narrow.params), narrow.state)
    found = embed(q, narrow, into=wide, x=x)
    np.testing.assert_allclose(
        wide.apply(found.mean, x, found.state), narrow.apply(q.mean, x, q.state), rtol=1e-5
    )


@pytest.mark.parametrize(
    ("narrow", "wide", "shape", "says"),
    [
        (ViT(**VIT), ViT(**{**VIT, "width": 12}, hidden=32), (4, 4, 1),
         "units of group 'embedding' are normalised or averaged over"),
        (ViT(**VIT, norm="rms"), ViT(**{**VIT, "width": 12}, hidden=32, norm="rms"), (4, 4, 1),
         "units of group 'embedding' are normalised or averaged over"),
        (ViT(**VIT), ViT(**{**VIT, "depth": 2}), (4, 4, 1), "is one of the wide network only"),
        (MLP((4,), 3), MLP((3,), 3), (5,), "'Dense_0' has 4 units and only 3"),
        (MLP((4,), 3), MLP((4,), 5), (5,), "3 positions that are no units and 5"),
        (MLP((4,), 3), MLP((6,), 3, "tanh"), (5,), "something else inside the wide one"),
    ],
)  # fmt: skip
def test_what_would_change_the_function_is_refused(narrow, wide, shape, says):
    a, b = pair(narrow, wide, shape)
    params = random_params(narrow, (1, *shape))
    with pytest.raises(CannotEmbed, match=says) as caught:
        embed(params, a, into=b, like=b.shapes, x=inputs(shape))
    assert "\n" not in str(caught.value)


def test_channels_of_a_normalised_group_are_refused_by_name():
    from flax import linen as nn

    class Grouped(nn.Module):
        width: int

        @nn.compact
        def __call__(self, x):
            x = nn.GroupNorm(num_groups=2)(nn.Conv(self.width, (1, 1))(x))
            return nn.Dense(2)(nn.relu(x).mean((1, 2)))

    x = inputs((3, 3, 1))
    narrow, wide = (
        ob.networks.from_linen(Grouped(n), Grouped(n).init(jax.random.key(0), x)) for n in (4, 6)
    )
    with pytest.raises(CannotEmbed, match=r"units of group 'Conv_0.*' are normalised or averaged"):
        embed(narrow.params, narrow, into=wide, x=x)


def test_missing_shapes_and_inputs_are_asked_for():
    params = heads_params(2, 4)
    with pytest.raises(ValueError, match="give embed a batch x"):
        embed(params, with_heads, into=with_heads, like=params)
    with pytest.raises(ValueError, match="give embed like="):
        embed(params, with_heads, into=with_heads, x=inputs((5, 3)))


def test_aligning_networks_of_different_widths_points_to_embed():
    narrow, wide = (random_params(MLP((n,), 3), (1, 5)) for n in (4, 6))
    net = DescribedNetwork.of_module(MLP((6,), 3), (5,))
    symmetry = ob.find_symmetry(net, net.shapes, net.x)
    with pytest.raises(ValueError, match="embed"):
        ob.align(narrow, to=wide, symmetry=symmetry)


def test_command(tmp_path, capsys):
    files = []
    for width in (4, 6):
        module = MLP((width,), 3)
        q = gaussian(random_params(module, (1, 8, 8, 1)), 0.1)
        files.append(str(tmp_path / f"{width}.safetensors"))
        save(files[-1], q, network=to_config(module, (8, 8, 1)))
    out, aligned = str(tmp_path / "embedded.safetensors"), str(tmp_path / "aligned.safetensors")
    cli.main(["embed", files[0], "--into", files[1], "--out", out])
    # 64 × n + n weights of the hidden layer, 3 × n + 3 of the output
    assert "275 parameters inside 411" in capsys.readouterr().out
    cli.main(["align", out, "--to", files[1], "--out", aligned])
    x = inputs((8, 8, 1))
    narrow, wide = (DescribedNetwork.of_module(MLP((n,), 3), (8, 8, 1)) for n in (4, 6))
    np.testing.assert_allclose(
        wide.apply(load(aligned).mean, x), narrow.apply(load(files[0]).mean, x), rtol=1e-4
    )
    with pytest.raises(SystemExit):
        cli.main(["embed", files[1], "--into", files[0], "--out", str(tmp_path / "no")])
    assert "has 6 units and only 4" in capsys.readouterr().err
