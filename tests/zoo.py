"""Networks of many hands, each with the groups it must have, written down by hand.

A place is `at(leaf, axis)`, or, for units on a part of an axis, the positions that belong to
each unit: start + b·step + u·after + a for b < before and a < after.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from flax import nnx

from onebasin.networks import (
    MLP,
    LeNet,
    Network,
    ResNet20,
    from_equinox,
    from_linen,
    from_nnx,
)


@dataclass(frozen=True)
class At:
    leaf: str
    axis: int
    start: int = 0
    before: int = 1
    after: int = 1
    step: int | None = None

    def positions(self, size: int) -> np.ndarray:
        step = size * self.after if self.step is None else self.step
        unit = np.arange(size)[:, None, None] * self.after
        outer = np.arange(self.before)[None, :, None] * step
        return (self.start + outer + unit + np.arange(self.after)).reshape(size, -1)


def at(leaf: str, axis: int, start: int = 0, before: int = 1, after: int = 1, step=None) -> At:
    return At(leaf, axis, start, before, after, step)


@dataclass(frozen=True)
class Entry:
    name: str
    build: Callable[[], tuple[Network, Any]]
    groups: list[tuple[int, list[At]]]
    inert: frozenset[str]  # leaves whose order cannot matter to the function


ZOO: list[Entry] = []


def entry(groups: list[tuple[int, list[At]]], inert: str = ""):
    def register(build: Callable[[], tuple[Network, Any]]):
        ZOO.append(Entry(build.__name__, build, groups, frozenset(inert.split())))
        return build

    return register


def normal(shape: tuple[int, ...], seed: int = 0) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), jnp.float32)


def variables_of(module: nn.Module, x: Any) -> Any:
    """Variables of the module's own shapes; drawing them here saves compiling its init."""
    shapes = jax.eval_shape(module.init, jax.random.key(0), x)
    rng = np.random.default_rng(0)

    def draw(path: Any, leaf: Any) -> jax.Array:
        fan_in = max(1, int(np.prod(leaf.shape[:-1])))
        values = rng.standard_normal(leaf.shape) / np.sqrt(fan_in)
        return jnp.asarray(abs(values) if path[0].key == "batch_stats" else values, leaf.dtype)

    return jax.tree_util.tree_map_with_path(draw, shapes)


def linen(module: nn.Module, x: Any) -> tuple[Network, Any]:
    return from_linen(module, variables_of(module, x)), x


def dense_chain(*names: str, size: int) -> list[tuple[int, list[At]]]:
    """The groups of a plain stack of Flax layers: kernel, bias, next kernel."""
    return [
        (size, [at(f"{a}/kernel", 1), at(f"{a}/bias", 0), at(f"{b}/kernel", 0)])
        for a, b in pairwise(names)
    ]


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
    """Pooled to 2 × 2 pixels, which the dense kernel has outside its channels."""
    return linen(LeNet(width=3), normal((2, 8, 8, 1)))


def build_lenet():
    return linen(LeNet(), normal((2, 28, 28, 1)))


def block(stage: int, number: int, size: int) -> tuple[int, list[At]]:
    """The inner group of a residual block: between its two convolutions."""
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
    """A residual stream: written by the stem or the projection and by every block's second
    convolution, read by every block's first and by what follows the stage."""
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


# Batch sizes that equal a width, and other accidents of size.


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
    """An axis of groups × within: the places of the groups and of the channels within."""
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
    inert="Conv_0/bias",  # the batch's mean is taken off right after it is added
)
def batch_norm_of_the_batch():
    """Batch statistics are used; the running ones are written and never read."""
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


# Convolutions.


class Depthwise(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.relu(nn.Conv(6, (1, 1))(x))
        x = nn.relu(nn.Conv(6, (3, 3), feature_group_count=6)(x))
        return nn.Dense(3)(x.mean((1, 2)))


@entry(
    [
        (
            6,
            [
                at("Conv_0/kernel", 3),
                at("Conv_0/bias", 0),
                at("Conv_1/kernel", 3),
                at("Conv_1/bias", 0),
                at("Dense_0/kernel", 0),
            ],
        )
    ]
)
def depthwise_convolution():
    return linen(Depthwise(), normal((2, 6, 6, 6)))


class Grouped(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.relu(nn.Conv(6, (1, 1))(x))
        x = nn.relu(nn.Conv(10, (3, 3), feature_group_count=2)(x))
        return nn.Dense(3)(x.mean((1, 2)))


@entry(
    [
        (
            2,
            [
                at("Conv_0/kernel", 3, after=3),
                at("Conv_0/bias", 0, after=3),
                at("Conv_1/kernel", 3, after=5),
                at("Conv_1/bias", 0, after=5),
                at("Dense_0/kernel", 0, after=5),
            ],
        ),
        (
            3,
            [
                at("Conv_0/kernel", 3, before=2),
                at("Conv_0/bias", 0, before=2),
                at("Conv_1/kernel", 2),
            ],
        ),
        (
            5,
            [
                at("Conv_1/kernel", 3, before=2),
                at("Conv_1/bias", 0, before=2),
                at("Dense_0/kernel", 0, before=2),
            ],
        ),
    ]
)
def grouped_convolution():
    return linen(Grouped(), normal((2, 6, 6, 2)))


class DenselyConnected(nn.Module):
    @nn.compact
    def __call__(self, x):
        first = nn.relu(nn.Conv(4, (3, 3))(x))
        second = nn.relu(nn.Conv(5, (3, 3))(first))
        both = nn.LayerNorm()(jnp.concatenate([first, second], -1))
        third = nn.relu(nn.Conv(3, (1, 1))(both))
        everything = jnp.concatenate([both, third], -1)
        return nn.Dense(2)(everything.reshape(x.shape[0], -1))


@entry(
    [
        (
            4,
            [
                at("Conv_0/kernel", 3),
                at("Conv_0/bias", 0),
                at("Conv_1/kernel", 2),
                at("LayerNorm_0/scale", 0, start=0),
                at("LayerNorm_0/bias", 0, start=0),
                at("Conv_2/kernel", 2, start=0),
                at("Dense_0/kernel", 0, start=0, before=16, step=12),
            ],
        ),
        (
            5,
            [
                at("Conv_1/kernel", 3),
                at("Conv_1/bias", 0),
                at("LayerNorm_0/scale", 0, start=4),
                at("LayerNorm_0/bias", 0, start=4),
                at("Conv_2/kernel", 2, start=4),
                at("Dense_0/kernel", 0, start=4, before=16, step=12),
            ],
        ),
        (
            3,
            [
                at("Conv_2/kernel", 3),
                at("Conv_2/bias", 0),
                at("Dense_0/kernel", 0, start=9, before=16, step=12),
            ],
        ),
    ]
)
def densely_connected():
    return linen(DenselyConnected(), normal((2, 4, 4, 1)))


# Attention.


class Encoder(nn.Module):
    """A transformer encoder block on embedded tokens: 12 features, 3 heads of 4."""

    @nn.compact
    def __call__(self, tokens):
        x = nn.Embed(11, 12)(tokens)
        x = x + self.param("position", nn.initializers.normal(1.0), (tokens.shape[1], 12))
        x = x + nn.MultiHeadDotProductAttention(3)(nn.LayerNorm()(x))
        x = x + nn.Dense(12)(nn.gelu(nn.Dense(20)(nn.LayerNorm()(x))))
        return nn.Dense(5)(nn.LayerNorm()(x).mean(1))


ATTENTION = "MultiHeadDotProductAttention_0/"


@entry(
    [
        (
            12,
            [
                at("Embed_0/embedding", 1),
                at("position", 1),
                *(at(f"LayerNorm_{i}/{leaf}", 0) for i in range(3) for leaf in ("scale", "bias")),
                *(at(f"{ATTENTION}{name}/kernel", 0) for name in ("query", "key", "value")),
                at(ATTENTION + "out/kernel", 2),
                at(ATTENTION + "out/bias", 0),
                at("Dense_1/kernel", 0),
                at("Dense_0/kernel", 1),
                at("Dense_0/bias", 0),
                at("Dense_2/kernel", 0),
            ],
        ),
        (
            3,
            [
                *(at(f"{ATTENTION}{name}/kernel", 1) for name in ("query", "key", "value")),
                *(at(f"{ATTENTION}{name}/bias", 0) for name in ("query", "key", "value")),
                at(ATTENTION + "out/kernel", 0),
            ],
        ),
        (
            4,
            [
                *(at(f"{ATTENTION}{name}/kernel", 2) for name in ("query", "key")),
                *(at(f"{ATTENTION}{name}/bias", 1) for name in ("query", "key")),
            ],
        ),
        (
            4,
            [
                at(ATTENTION + "value/kernel", 2),
                at(ATTENTION + "value/bias", 1),
                at(ATTENTION + "out/kernel", 1),
            ],
        ),
        (20, [at("Dense_1/kernel", 1), at("Dense_1/bias", 0), at("Dense_0/kernel", 0)]),
    ],
    inert=ATTENTION + "key/bias",  # softmax cancels what it adds to all scores of a query
)
def transformer_encoder():
    tokens = jnp.arange(12).reshape(3, 4) % 11
    return linen(Encoder(), tokens)


@entry(
    [
        (2, [at(f"{n}_proj/weight", 0, after=3) for n in ("query", "key", "value")]
            + [at("output_proj/weight", 1, after=3)]),
        (3, [at(f"{n}_proj/weight", 0, before=2) for n in ("query", "key")]),
        (3, [at("value_proj/weight", 0, before=2), at("output_proj/weight", 1, before=2)]),
    ]
)  # fmt: skip
def equinox_attention():
    """Heads and their dimensions are one flat axis of 2 × 3 here."""
    model = eqx.nn.MultiheadAttention(2, 6, key=jax.random.key(0))

    class Model(eqx.Module):
        inner: Any

        def __call__(self, x):
            return self.inner(x, x, x)

    network = from_equinox(Model(model))
    inner = network.params["inner"]
    return Network(lambda p, x: network.apply({"inner": p}, x), inner), normal((4, 5, 6))


FUSED = [at("qkv", 1, start=8 * i, after=4) for i in range(3)]
FUSED_INNER = [at("qkv", 1, start=8 * i, before=2) for i in range(3)]


@entry(
    [
        (2, [*FUSED, at("out", 0, after=4)]),
        (4, FUSED_INNER[:2]),
        (4, [FUSED_INNER[2], at("out", 0, before=2)]),
    ]
)
def fused_query_key_value():
    """One kernel for queries, keys and values of 2 heads of 4, cut in three."""
    params = {"qkv": normal((6, 24)), "out": normal((8, 3), 1)}

    def apply(params, x):
        parts = jnp.split(x @ params["qkv"], 3, axis=-1)
        q, k, v = (p.reshape(*x.shape[:-1], 2, 4) for p in parts)
        weights = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k), axis=-1)
        mixed = jnp.einsum("bhqk,bkhd->bqhd", weights, v)
        return mixed.reshape(*x.shape[:-1], 8) @ params["out"]

    return Network(apply, params), normal((2, 5, 6))


@entry([(5, [at("gated", 1, start=0), at("gated", 1, start=5), at("out", 0)])])
def gated_linear_unit():
    params = {"gated": normal((3, 10)), "out": normal((5, 2), 1)}

    def apply(params, x):
        value, gate = jnp.split(x @ params["gated"], 2, axis=-1)
        return (value * jax.nn.sigmoid(gate)) @ params["out"]

    return Network(apply, params), normal((5, 3))


# Recurrence.


class Recurrent(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(2)(nn.RNN(nn.GRUCell(6))(x)[:, -1])


@entry(
    [
        (
            6,
            [
                *(at(f"GRUCell_0/i{g}/kernel", 1) for g in "rzn"),
                *(at(f"GRUCell_0/i{g}/bias", 0) for g in "rzn"),
                *(at(f"GRUCell_0/h{g}/kernel", axis) for g in "rzn" for axis in (0, 1)),
                at("GRUCell_0/hn/bias", 0),
                at("Dense_0/kernel", 0),
            ],
        )
    ]
)
def linen_gru_by_scan():
    return linen(Recurrent(), normal((2, 5, 3)))


@entry(
    [
        (
            4,
            [
                *(at("cell/weight_ih", 0, start=4 * i) for i in range(3)),
                *(at("cell/weight_hh", 0, start=4 * i) for i in range(3)),
                at("cell/weight_hh", 1),
                *(at("cell/bias", 0, start=4 * i) for i in range(3)),
                at("cell/bias_n", 0),
                at("out/weight", 1),
            ],
        )
    ]
)
def equinox_gru_with_fused_gates():
    class Model(eqx.Module):
        cell: eqx.nn.GRUCell
        out: eqx.nn.Linear

        def __call__(self, x):
            step = lambda h, x: (self.cell(x, h), None)
            h, _ = jax.lax.scan(step, jnp.zeros(4), x)
            return self.out(h)

    keys = jax.random.split(jax.random.key(0))
    model = Model(eqx.nn.GRUCell(3, 4, key=keys[0]), eqx.nn.Linear(4, 2, key=keys[1]))
    return from_equinox(model), normal((3, 5, 3))


@entry([(4, [at("w", 1), at("u", 0), at("u", 1)]), (4, [at("v", 1), at("t", 0), at("t", 1)])])
def two_recurrences_from_one_zero_carry():
    """One array of zeros starts both loops; it must not tie their units."""
    params = {"w": normal((3, 4)), "u": normal((4, 4), 1), "v": normal((3, 4), 2)}
    params["t"] = normal((4, 4), 3)

    def apply(params, x):
        zeros = jnp.zeros((x.shape[0], 4))

        def loop(kernel, recurrent):
            step = lambda h, x: (jnp.tanh(x @ kernel + h @ recurrent), None)
            return jax.lax.scan(step, zeros, x.swapaxes(0, 1))[0].sum(-1)

        return jnp.stack([loop(params["w"], params["u"]), loop(params["v"], params["t"])], -1)

    return Network(apply, params), normal((4, 5, 3))


@entry(
    [
        (6, [at("embed", 1), at("layers/w1", 1), at("layers/w2", 2), at("out", 0)]),
        (7, [at("layers/w1", 2), at("layers/b1", 1), at("layers/w2", 1)]),
    ]
)
def layers_stacked_for_scan():
    """Layers that share one stacked array can only be permuted alike."""
    params = {
        "embed": normal((3, 6)),
        "layers": {"w1": normal((4, 6, 7)), "b1": normal((4, 7)), "w2": normal((4, 7, 6))},
        "out": normal((6, 2)),
    }

    @jax.checkpoint
    def block(x, layer):
        return x + jax.nn.relu(x @ layer["w1"] + layer["b1"]) @ layer["w2"], None

    def apply(params, x):
        x, _ = jax.lax.scan(block, x @ params["embed"], params["layers"])
        return x @ params["out"]

    return Network(apply, params), normal((6, 3))


@entry([(5, [at("w", 1), at("u", 0), at("u", 1), at("out", 0)])])
def weights_tied_across_iterations():
    params = {"w": normal((3, 5)), "u": normal((5, 5), 1) / 4, "out": normal((5, 2), 2)}

    def apply(params, x):
        body = lambda _, h: jnp.tanh(h @ params["u"])
        return jax.lax.fori_loop(0, 3, body, x @ params["w"]) @ params["out"]

    return Network(apply, params), normal((5, 3))


# Tied weights, branches and curiosities.


@entry([(5, [at("w", 1), at("b", 0)])])
def autoencoder_with_tied_weights():
    params = {"w": normal((4, 5)), "b": normal((5,), 1), "c": normal((4,), 2)}

    def apply(params, x):
        return jnp.tanh(x @ params["w"] + params["b"]) @ params["w"].T + params["c"]

    return Network(apply, params), normal((5, 4))


@entry([(6, [at("embedding", 1), at("w", 0), at("w", 1)])])
def embedding_tied_to_the_output():
    params = {"embedding": normal((9, 6)), "w": normal((6, 6), 1)}

    def apply(params, tokens):
        h = params["embedding"][tokens]
        h = h + jnp.tanh(h @ params["w"])
        return h.mean(1) @ params["embedding"].T

    return Network(apply, params), jnp.arange(6).reshape(2, 3)


@entry(
    [(4, [at("w", 1), at("a", 0), at("c", 0), at("out", 0)])],
    inert="c",  # in the branch that the data at hand does not take
)
def branches_chosen_by_the_data():
    params = {"w": normal((3, 4)), "a": normal((4,), 1), "c": normal((4,), 2)}
    params["out"] = normal((4, 2), 3)

    def apply(params, x):
        h = x @ params["w"]
        choose = (lambda h: jnp.tanh(h + params["a"]), lambda h: jax.nn.relu(h * params["c"]))
        return jax.lax.cond(x.sum() > 0, *choose, h) @ params["out"]

    return Network(apply, params), normal((4, 3))


@entry([(4, [at("w", 1), at("out", 0)]), (4, [at("v", 1), at("t", 0)])])
def uniform_values_tie_nothing():
    """A constant array that is in fact constant, a broadcast scalar, a scalar parameter."""
    params = {"w": normal((3, 4)), "out": normal((4, 2), 1), "v": normal((3, 4), 2)}
    params |= {"t": normal((4, 2), 3), "scale": jnp.ones(())}
    ones = np.full((5, 4), 0.5, np.float32)

    def apply(params, x):
        shared = jnp.broadcast_to(params["scale"], (5, 4)) * ones
        first = jnp.tanh(x @ params["w"] + shared) @ params["out"]
        return first + jnp.tanh(x @ params["v"] * shared) @ params["t"]

    return Network(apply, params), normal((5, 3))


@entry([])
def nothing_to_permute():
    params = {"w": normal((3, 2)), "b": normal((2,))}
    return Network(lambda p, x: x @ p["w"] + p["b"], params), normal((4, 3))


@entry([])
def order_of_the_units_matters():
    """A cumulative sum, a reversal, an argmax and a window see the order of hidden units."""
    params = {"w": normal((3, 4)), "out": normal((4, 2), 1)}

    def apply(params, x):
        h = jnp.cumsum(jnp.tanh(x @ params["w"]), axis=-1)
        return h[:, ::-1] @ params["out"]

    return Network(apply, params), normal((4, 3))


@entry([(2, [at("w", 1, after=3), at("out", 0, after=3)])])
def order_within_a_product_matters():
    """6 = 2 × 3 where the three are read in order: only the two may move."""
    params = {"w": normal((4, 6)), "out": normal((6, 2), 1)}

    def apply(params, x):
        h = jnp.cumsum(jnp.tanh(x @ params["w"]).reshape(-1, 2, 3), axis=-1)
        return h.reshape(-1, 6) @ params["out"]

    return Network(apply, params), normal((4, 4))


@entry([(4, [at("w", 1), at("out", 0)])])
def dead_parameters():
    params = {"w": normal((3, 4)), "out": normal((4, 2), 1), "dead": normal((4, 4), 2)}

    def apply(params, x):
        h = jax.jit(lambda h, d: (jnp.tanh(h), h @ d))(x @ params["w"], params["dead"])[0]
        return h @ params["out"]

    return Network(apply, params), normal((4, 3))
