"""Convolutions and attention."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from flax import linen as nn

from onebasin.networks import Network, from_equinox
from zoo.entries import at, entry, linen, normal

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


class GroupedPredictive(nn.Module):
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
    return linen(GroupedPredictive(), normal((2, 6, 6, 2)))


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
    inert=ATTENTION + "key/bias",  # adds the same to all scores of a query, which softmax cancels
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
    """Heads and their dimensions share one flat axis of 2 × 3."""
    model = eqx.nn.MultiheadAttention(2, 6, key=jax.random.key(0))

    class Model(eqx.Module):
        inner: Any

        def __call__(self, x):
            return self.inner(x, x, x)

    network = from_equinox(Model(model))
    inner = network.params["inner"]
    return Network(lambda p, x: network.apply({"inner": p}, x), inner), normal((4, 5, 6))


FUSED = [at("qkv", 1, start=8 * i, after=4) for i in range(3)]
FUSED_BIAS = [at("bias", 0, start=8 * i, after=4) for i in range(3)]
FUSED_INNER = [at("qkv", 1, start=8 * i, before=2) for i in range(3)]


@entry(
    [
        (2, [*FUSED, at("out", 0, after=4)]),
        (4, FUSED_INNER[:2]),
        (4, [FUSED_INNER[2], at("out", 0, before=2)]),
    ]
)
def fused_query_key_value():
    """One kernel for the queries, keys and values of 2 heads of 4, cut in three."""
    params = {"qkv": normal((6, 24)), "out": normal((8, 3), 1)}

    def apply(params, x):
        parts = jnp.split(x @ params["qkv"], 3, axis=-1)
        q, k, v = (p.reshape(*x.shape[:-1], 2, 4) for p in parts)
        weights = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k), axis=-1)
        mixed = jnp.einsum("bhqk,bkhd->bqhd", weights, v)
        return mixed.reshape(*x.shape[:-1], 8) @ params["out"]

    return Network(apply, params), normal((2, 5, 6))


@entry(
    [
        (2, [*FUSED, *FUSED_BIAS, at("out", 0, after=4)]),
        (4, [*FUSED_INNER[:2], *(at("bias", 0, start=8 * i, before=2) for i in range(2))]),
        (4, [FUSED_INNER[2], at("bias", 0, start=16, before=2), at("out", 0, before=2)]),
    ],
    inert="bias",  # that of the keys, which softmax cancels
)  # fmt: skip
def fused_query_key_value_by_reshape():
    """The same by a reshape to (3, heads, 4), a transposition and an index, as in many ViTs."""
    params = {"qkv": normal((6, 24)), "bias": normal((24,), 2), "out": normal((8, 3), 1)}

    def apply(params, x):
        fused = (x @ params["qkv"] + params["bias"]).reshape(*x.shape[:-1], 3, 2, 4)
        q, k, v = jnp.transpose(fused, (2, 0, 3, 1, 4))
        weights = jax.nn.softmax(q @ jnp.swapaxes(k, -1, -2) / 2, axis=-1)
        mixed = jnp.swapaxes(weights @ v, 1, 2)
        return mixed.reshape(*x.shape[:-1], 8) @ params["out"]

    return Network(apply, params), normal((2, 5, 6))


@entry([
    (2, [at("w", 1, after=12), at("out", 0, after=4)]),
    (4, [at("w", 1, start=4 * i, before=2, step=12) for i in range(2)]),
    (4, [at("w", 1, start=8, before=2, step=12), at("out", 0, before=2)]),
])  # fmt: skip
def fused_query_key_value_inside_heads():
    """A kernel of heads × (query, key, value) × 4, as in GPT-NeoX."""
    params = {"w": normal((6, 24)), "out": normal((8, 3), 1)}

    def apply(params, x):
        fused = (x @ params["w"]).reshape(*x.shape[:-1], 2, 3, 4)
        q, k, v = (fused[..., i, :] for i in range(3))
        weights = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k), axis=-1)
        mixed = jnp.einsum("bhqk,bkhd->bqhd", weights, v)
        return mixed.reshape(*x.shape[:-1], 8) @ params["out"]

    return Network(apply, params), normal((2, 5, 6))


@entry(
    [
        (2, [at("in", 0, start=8 * i, after=4) for i in range(3)] + [at("out", 1, after=4)]),
        (4, [at("in", 0, start=8 * i, before=2) for i in range(2)]),
        (4, [at("in", 0, start=16, before=2), at("out", 1, before=2)]),
    ]
)
def fused_in_projection():
    """As `nn.MultiheadAttention` does it: unflatten to (3, 8), move the 3 in front, split heads."""
    params = {"in": normal((24, 8)), "out": normal((3, 8), 1)}

    def apply(params, x):
        b, n, e = x.shape
        fused = (x @ params["in"].T).reshape(b, n, 3, e)[None].swapaxes(0, -2)[..., 0, :]
        q, k, v = (
            fused[i].transpose(1, 0, 2).reshape(n, b * 2, 4).swapaxes(0, 1) for i in range(3)
        )
        weights = jax.nn.softmax(q @ k.swapaxes(1, 2), axis=-1)
        mixed = (weights @ v).swapaxes(0, 1).reshape(n, b, e).swapaxes(0, 1)
        return mixed @ params["out"].T

    return Network(apply, params), normal((2, 5, 8))


@entry([(5, [at("gated", 1, start=0), at("gated", 1, start=5), at("out", 0)])])
def gated_linear_unit():
    params = {"gated": normal((3, 10)), "out": normal((5, 2), 1)}

    def apply(params, x):
        value, gate = jnp.split(x @ params["gated"], 2, axis=-1)
        return (value * jax.nn.sigmoid(gate)) @ params["out"]

    return Network(apply, params), normal((5, 3))
