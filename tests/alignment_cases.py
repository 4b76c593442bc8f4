"""Networks and posteriors for the alignment tests."""

from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np

from onebasin.posterior import MeanField
from onebasin.symmetry import Symmetry


def random_like(shapes, seed, scale=1.0):
    rng = np.random.default_rng(seed)
    return jax.tree.map(
        lambda shape: jnp.asarray(scale * rng.normal(size=shape)),
        shapes,
        is_leaf=lambda s: isinstance(s, tuple),
    )


def positive_like(shapes, seed):
    return jax.tree.map(lambda a: jnp.exp(0.7 * a), random_like(shapes, seed))


def gaussian(shapes, seed):
    return MeanField(random_like(shapes, seed), positive_like(shapes, seed + 1000))


def mlp_shapes(widths, inputs=5, outputs=3):
    sizes = [inputs, *widths, outputs]
    return {
        f"Dense_{i}": {"kernel": (a, b), "bias": (b,)} for i, (a, b) in enumerate(pairwise(sizes))
    }


def mlp_symmetry(params):
    layers = len(params) - 1
    return Symmetry.by_hand(
        params,
        {
            f"hidden_{i}": [
                (f"Dense_{i}/kernel", 1),
                (f"Dense_{i}/bias", 0),
                (f"Dense_{i + 1}/kernel", 0),
            ]
            for i in range(layers)
        },
    )


def relu_mlp(params, x):
    layers = len(params)
    for i in range(layers):
        x = x @ params[f"Dense_{i}"]["kernel"] + params[f"Dense_{i}"]["bias"]
        if i < layers - 1:
            x = jax.nn.relu(x)
    return x


# A recurrent layer: the hidden units are on both axes of one array.
RECURRENT = {"inputs": (4, 6), "hidden": (6, 6), "bias": (6,), "head": (6, 2)}
RECURRENT_GROUPS = {
    "units": [("inputs", 1), ("hidden", 0), ("hidden", 1), ("bias", 0), ("head", 0)]
}


def same_tree(a, b):
    return all(
        np.array_equal(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    )
