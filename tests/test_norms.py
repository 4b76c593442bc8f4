"""The gauge of scale-free units: which they are, and paths that keep their norms."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from onebasin.alignment.norms import ScaleFree, find_scale_free, keep_norms
from onebasin.networks.convolution import Conv
from onebasin.networks.normalisation import FilterResponseNorm

X = jnp.asarray(np.random.default_rng(0).normal(size=(4, 6, 6, 2)), jnp.float32)


class Blocks(nn.Module):
    """Two convolutions, each with a normalisation, and a dense output."""

    norm: type[nn.Module] | None

    @nn.compact
    def __call__(self, x):
        for number in range(2):
            x = Conv(4, name=f"conv{number}")(x)
            if self.norm is nn.GroupNorm:
                x = nn.GroupNorm(num_groups=2, name=f"norm{number}")(x)
            elif self.norm is not None:
                x = self.norm(name=f"norm{number}")(x)
            x = nn.relu(x)
        return nn.Dense(3, name="head")(x.mean(axis=(1, 2)))


def network(norm, seed=0):
    module = Blocks(norm)
    apply = lambda params, x: jnp.asarray(module.apply({"params": params}, x))
    template = jax.eval_shape(module.init, jax.random.key(0), X)["params"]
    rng = np.random.default_rng(seed)
    params = jax.tree.map(lambda s: jnp.asarray(rng.normal(size=s.shape), jnp.float32), template)
    return apply, params


@pytest.mark.parametrize(
    ("norm", "axis"),
    [(FilterResponseNorm, 3), (nn.LayerNorm, None), (nn.GroupNorm, None), (None, "not free")],
)
def test_kernels_before_a_normalisation_are_scale_free(norm, axis):
    apply, params = network(norm)
    found = find_scale_free(apply, params, X)
    kernels = {"conv0/kernel", "conv1/kernel"}
    expected = {} if axis == "not free" else dict.fromkeys(kernels, axis)
    assert found.axes == expected


@pytest.mark.parametrize("axis", [3, None])
def test_norms_are_interpolated_and_the_ends_stay(x64, axis):
    rng = np.random.default_rng(0)
    ends = [{"k": jnp.asarray(rng.normal(size=(3, 3, 2, 4))), "b": jnp.ones(4)} for _ in range(2)]
    free = ScaleFree({"k": axis})
    for t in (0.0, 0.3, 1.0):
        plain = jax.tree.map(lambda a, b, t=t: (1 - t) * a + t * b, *ends)
        kept = keep_norms(free, t, ends[0], ends[1], plain)
        norm = lambda k: np.sqrt(np.sum(np.asarray(k) ** 2, axis=(0, 1, 2) if axis else None))
        goal = (1 - t) * norm(ends[0]["k"]) + t * norm(ends[1]["k"])
        np.testing.assert_allclose(norm(kept["k"]), goal, rtol=1e-12)
        np.testing.assert_allclose(  # only the length changes
            kept["k"] / norm(kept["k"]), plain["k"] / norm(plain["k"]), rtol=1e-12
        )
        assert kept["b"] is plain["b"]
        if t in (0.0, 1.0):
            np.testing.assert_allclose(kept["k"], ends[int(t)]["k"], rtol=1e-12)


def test_a_mean_of_zero_is_left_alone():
    ends = [{"k": jnp.ones((2, 3))}, {"k": -jnp.ones((2, 3))}]
    middle = {"k": jnp.zeros((2, 3))}
    assert not keep_norms(ScaleFree({"k": 1}), 0.5, ends[0], ends[1], middle)["k"].any()
