"""What our transformers share: attention, normalisation and the pre-norm block."""

import jax
import jax.numpy as jnp
from flax import linen as nn

from onebasin.networks.activations import ACTIVATIONS
from onebasin.networks.checks import check_activation, check_choice_of, check_count, check_flag

NORMS = ("layer", "rms")
EPSILON = 1e-6


def check_transformer(
    network: str,
    *,
    width: int,
    depth: int,
    heads: int,
    hidden: int | None,
    norm: str,
    activation: str,
    use_bias: bool,
) -> None:
    """Raise unless the fields that both transformers have are sensible."""
    for field, value in (("width", width), ("depth", depth), ("heads", heads)):
        check_count(network, field, value)
    if hidden is not None:
        check_count(network, "hidden", hidden)
    if width % heads:
        raise ValueError(
            f"{network}: width {width} does not divide into {heads} heads; give a multiple of it"
        )
    check_choice_of(network, "norm", norm, NORMS)
    check_activation(network, activation)
    check_flag(network, "use_bias", use_bias)


def normalisation(norm: str, use_bias: bool, name: str) -> nn.Module:
    """LayerNorm or RMSNorm over the last axis, with a gain."""
    if norm == "rms":
        return nn.RMSNorm(epsilon=EPSILON, name=name)
    return nn.LayerNorm(epsilon=EPSILON, use_bias=use_bias, use_fast_variance=False, name=name)


class Attention(nn.Module):
    """Multi-head self-attention; if `causal`, a position attends to itself and earlier ones only.

    The kernels are [width, width]; unit h·(width / heads) + d of query, key and value is dimension
    d of head h.
    """

    heads: int
    causal: bool
    use_bias: bool

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        n, length, width = x.shape
        size = width // self.heads

        def of_heads(name: str) -> jax.Array:
            whole = nn.Dense(width, use_bias=self.use_bias, name=name)(x)
            return whole.reshape(n, length, self.heads, size)

        query, key, value = of_heads("query"), of_heads("key"), of_heads("value")
        scores = jnp.einsum("nqhd,nkhd->nhqk", query * size**-0.5, key)
        if self.causal:
            seen = jnp.tril(jnp.ones((length, length), bool))
            scores = jnp.where(seen, scores, jnp.finfo(scores.dtype).min)
        mixed = jnp.einsum("nhqk,nkhd->nqhd", jax.nn.softmax(scores), value)
        mixed = mixed.reshape(n, length, width)
        return nn.Dense(width, use_bias=self.use_bias, name="out")(mixed)


class Block(nn.Module):
    """x + attention(norm(x)), then x + feed-forward(norm(x)) with one layer of `hidden` units."""

    heads: int
    hidden: int
    norm: str
    activation: str
    use_bias: bool
    causal: bool

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        y = normalisation(self.norm, self.use_bias, "norm1")(x)
        x = x + Attention(self.heads, self.causal, self.use_bias, name="attention")(y)
        y = normalisation(self.norm, self.use_bias, "norm2")(x)
        y = nn.Dense(self.hidden, use_bias=self.use_bias, name="up")(y)
        y = ACTIVATIONS[self.activation](y)
        return x + nn.Dense(x.shape[-1], use_bias=self.use_bias, name="down")(y)
