"""A small decoder-only transformer for characters (Radford et al. 2019) with pre-norm blocks."""

import jax
import jax.numpy as jnp
from flax import linen as nn

from onebasin.networks.checks import check_count
from onebasin.networks.transformer import Block, check_transformer, normalisation


class GPT(nn.Module):
    """Logits of the next character at every position: [n, positions] to [n, positions, classes].

    Inputs are the numbers of characters, as integers or as floats that hold them. A position sees
    itself and earlier ones. The table of characters is not tied to the head.

    Args:
      context: the largest number of positions.
      width: size of the residual stream, a multiple of `heads`.
      depth: number of blocks.
      heads: attention heads of a block.
      hidden: hidden units of the feed-forward layers; 4 `width` by default.
      num_classes: characters.
      norm: "layer" or "rms".
      activation: of the feed-forward layers.
      use_bias: whether linear layers and LayerNorm have a bias; the head has none.
    """

    context: int = 64
    width: int = 128
    depth: int = 4
    heads: int = 4
    hidden: int | None = None
    num_classes: int = 96
    norm: str = "layer"
    activation: str = "gelu"
    use_bias: bool = True

    def __post_init__(self) -> None:
        check_count("GPT", "context", self.context)
        check_count("GPT", "num_classes", self.num_classes)
        check_transformer(
            "GPT",
            width=self.width,
            depth=self.depth,
            heads=self.heads,
            hidden=self.hidden,
            norm=self.norm,
            activation=self.activation,
            use_bias=self.use_bias,
        )
        super().__post_init__()

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        if x.ndim != 2:
            raise ValueError(f"GPT takes characters [n, positions], got shape {x.shape}")
        length = x.shape[1]
        if length > self.context:
            raise ValueError(
                f"GPT: {length} positions are more than its context of {self.context}; give "
                "shorter sequences, or a larger context"
            )
        init = nn.initializers.normal(0.02)
        table = self.param("characters", init, (self.num_classes, self.width))
        positions = self.param("positions", init, (self.context, self.width))
        x = table[x.astype(jnp.int32)] + positions[:length]
        for i in range(self.depth):
            x = Block(
                heads=self.heads,
                hidden=self.hidden or 4 * self.width,
                norm=self.norm,
                activation=self.activation,
                use_bias=self.use_bias,
                causal=True,
                name=f"block{i + 1}",
            )(x)
        x = normalisation(self.norm, self.use_bias, "norm")(x)
        return nn.Dense(self.num_classes, use_bias=False, name="head")(x)
