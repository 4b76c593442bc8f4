"""Stacks of layers, our own networks, normalisation."""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import nnx

from onebasin.networks import (
    MLP,
    LeNet,
    Network,
    ResNet20,
    from_equinox,
    from_nnx,
)
from zoo.entries import At, at, dense_chain, entry, linen, normal, variables_of

# Our own.


@entry(dense_chain("Dense_0", "Dense_1", "Dense_2", "Dense_3", size=512))
def mlp():
    return linen(MLP(), normal((4, 28, 28, 1)))


@entry(
    [
        (3, [at("Conv_0/kernel", 3), at("Conv_0/bias", 0), at("Conv_1/kernel", 2)]),
        (6, [at("Conv_1/kernel", 3), at("Conv_1/bias", 0), at("Dense_0/kernel", 0, before=4)]),
        (24, [at("Dense_0/kernel", 1), at("Dense_0/bias", 0), at("Dense_1/kernel", 0)]),
    ]
)
def lenet():
    """Pooled to 2 × 2 pixels: the rows of the dense kernel are pixels × channels."""
    return linen(LeNet(width=3), normal((2, 8, 8, 1)))


def build_lenet():
    return linen(LeNet(), normal((2, 28, 28, 1)))


def block(stage: int, number: int, size: int) -> tuple[int, list[At]]:
    """The inner group of a residual block, between its two convolutions."""
    name = f"stage{stage}_block{number}/"
    return (
        size,
        [
            at(name + "conv1/kernel", 3),
            at(name + "norm1/scale", 0),
            at(name + "norm1/bias", 0),
            at(name + "threshold1/threshold", 0),
            at(name + "conv2/kernel", 2),
        ],
    )


def stream(stage: int, size: int) -> tuple[int, list[At]]:
    """A residual stream.

    The stem or the projection and the second convolution of every block write it. The first
    convolution of every block and the layers after the stage read it.
    """
    places = []
    for number in (1, 2, 3):
        name = f"stage{stage}_block{number}/"
        places += [at(name + "conv2/kernel", 3), at(name + "norm2/scale", 0)]
        places += [at(name + "norm2/bias", 0), at(name + "threshold2/threshold", 0)]
        if number > 1 or stage == 1:
            places.append(at(name + "conv1/kernel", 2))
    if stage == 1:
        places += [at("stem/kernel", 3), at("stem_norm/scale", 0), at("stem_norm/bias", 0)]
        places.append(at("stem_threshold/threshold", 0))
    else:
        first = f"stage{stage}_block1/projection"
        places += [at(first + "/kernel", 3), at(first + "_norm/scale", 0)]
        places.append(at(first + "_norm/bias", 0))
    if stage < 3:
        after = f"stage{stage + 1}_block1/"
        places += [at(after + "conv1/kernel", 2), at(after + "projection/kernel", 2)]
    else:
        places.append(at("head/kernel", 0))
    return size, places


@entry(
    [
        *(block(stage, number, 2 * 2**stage) for stage in (1, 2, 3) for number in (1, 2, 3)),
        *(stream(stage, 2 * 2**stage) for stage in (1, 2, 3)),
    ]
)
def build_resnet20():
    return linen(ResNet20(width=4), normal((2, 8, 8, 3)))


# Batch sizes that equal a width, and other coincidences of size.


class Plain(nn.Module):
    width: int = 8

    @nn.compact
    def __call__(self, x):
        for _ in range(2):
            x = nn.gelu(nn.Dense(self.width)(x))
        return nn.Dense(self.width)(x)


@entry(dense_chain("Dense_0", "Dense_1", "Dense_2", size=8))
def linen_dense_all_sizes_equal():
    return linen(Plain(8), normal((8, 8)))


@entry(
    [
        (5, [at("0/w", 1), at("0/b", 0), at("1/w", 0)]),
        (7, [at("1/w", 1), at("1/b", 0), at("2/w", 0)]),
    ]
)
def plain_function_on_lists():
    params = [{"w": normal((a, b), a), "b": normal((b,), b)} for a, b in ((3, 5), (5, 7), (7, 2))]

    def apply(params, x):
        *hidden, last = params
        for layer in hidden:
            x = jnp.maximum(x @ layer["w"] + layer["b"], 0)
        return x @ last["w"] + last["b"]

    return Network(apply, params), normal((5, 3))


@entry(
    [
        (6, [at("layers/0/weight", 0), at("layers/0/bias", 0), at("layers/1/weight", 1)]),
        (6, [at("layers/1/weight", 0), at("layers/1/bias", 0), at("layers/2/weight", 1)]),
    ]
)
def equinox_mlp():
    model = eqx.nn.MLP(3, 2, 6, 2, key=jax.random.key(0))
    return from_equinox(model), normal((6, 3))


# Normalisation.


class Normalised(nn.Module):
    norm: Callable[..., nn.Module]

    @nn.compact
    def __call__(self, x):
        x = nn.relu(self.norm()(nn.Conv(12, (3, 3))(x)))
        return nn.Dense(3)(x.mean((1, 2)))


NORMALISED = [
    at("Conv_0/kernel", 3),
    at("Conv_0/bias", 0),
    at("Dense_0/kernel", 0),
]


@entry([(12, [*NORMALISED, at("LayerNorm_0/scale", 0), at("LayerNorm_0/bias", 0)])])
def layer_norm():
    return linen(Normalised(nn.LayerNorm), normal((2, 6, 6, 2)))


def split_in_groups(place: At, groups: int, within: int) -> tuple[At, At]:
    """The places of the groups, and of the channels within, along an axis of groups × within."""
    return (
        at(place.leaf, place.axis, after=within),
        at(place.leaf, place.axis, before=groups),
    )


GROUP_NORM = [
    split_in_groups(place, 4, 3)
    for place in [*NORMALISED, at("GroupNorm_0/scale", 0), at("GroupNorm_0/bias", 0)]
]


@entry([(4, [outer for outer, _ in GROUP_NORM]), (3, [inner for _, inner in GROUP_NORM])])
def group_norm():
    return linen(Normalised(lambda: nn.GroupNorm(4)), normal((2, 6, 6, 2)))


RUNNING = "state:batch_stats/BatchNorm_0/"


@entry(
    [
        (
            12,
            [
                *NORMALISED,
                at("BatchNorm_0/scale", 0),
                at("BatchNorm_0/bias", 0),
                at(RUNNING + "mean", 0),
                at(RUNNING + "var", 0),
            ],
        )
    ]
)
def batch_norm_running():
    norm = lambda: nn.BatchNorm(use_running_average=True)
    return linen(Normalised(norm), normal((4, 6, 6, 2)))


@entry(
    [(12, [*NORMALISED, at("BatchNorm_0/scale", 0), at("BatchNorm_0/bias", 0)])],
    inert="Conv_0/bias",  # the mean over the batch, which contains it, is subtracted next
)
def batch_norm_of_the_batch():
    """Normalised by batch statistics; running statistics are written and never read."""
    module = Normalised(lambda: nn.BatchNorm(use_running_average=False))
    x = normal((4, 6, 6, 2))
    variables = variables_of(module, x)
    stats = variables["batch_stats"]

    def apply(params, x):
        out, _ = module.apply({"params": params, "batch_stats": stats}, x, mutable=["batch_stats"])
        return out

    return Network(apply, variables["params"]), x


@entry(
    [
        (
            8,
            [
                at("layers/0/kernel", 3),
                at("layers/0/bias", 0),
                at("layers/1/scale", 0),
                at("layers/1/bias", 0),
                at("state:layers/1/mean", 0),
                at("state:layers/1/var", 0),
                at("layers/4/kernel", 0, before=9),
            ],
        )
    ]
)
def nnx_convolution_with_batch_norm():
    rngs = nnx.Rngs(0)
    model = nnx.Sequential(
        nnx.Conv(3, 8, (3, 3), rngs=rngs),
        nnx.BatchNorm(8, rngs=rngs),
        nnx.relu,
        lambda x: nn.max_pool(x, (2, 2), (2, 2)).reshape(x.shape[0], -1),
        nnx.Linear(72, 2, rngs=rngs),
    )
    model.eval()
    return from_nnx(model), normal((2, 6, 6, 3))
