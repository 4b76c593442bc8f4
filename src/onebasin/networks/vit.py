"""A small vision transformer (Dosovitskiy et al. 2021) with pre-norm blocks."""

import jax
import jax.numpy as jnp
from flax import linen as nn

from onebasin.networks.checks import check_count, check_images
from onebasin.networks.transformer import Block, check_transformer, normalisation


class ViT(nn.Module):
    """Patches of `patch`×`patch` pixels, `depth` pre-norm blocks, the mean over patches, a head.

    Pixels in [0, 1] are mapped to [-1, 1] first. Positions are learned. Outputs are read from the
    mean over patches after the last normalisation (Beyer et al. 2022), without a class token.

    Args:
      patch: side of a patch, which divides that of the images.
      width: size of the residual stream, a multiple of `heads`.
      depth: number of blocks.
      heads: attention heads of a block.
      hidden: hidden units of the feed-forward layers; 4 `width` by default.
      num_classes: outputs.
      norm: "layer" or "rms".
      activation: of the feed-forward layers.
      use_bias: whether linear layers and LayerNorm have a bias; the head always has one.
    """

    patch: int = 4
    width: int = 192
    depth: int = 6
    heads: int = 4
    hidden: int | None = None
    num_classes: int = 10
    norm: str = "layer"
    activation: str = "gelu"
    use_bias: bool = True

    def __post_init__(self) -> None:
        check_count("ViT", "patch", self.patch)
        check_count("ViT", "num_classes", self.num_classes)
        check_transformer(
            "ViT",
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
        check_images("ViT", x)
        n, height, width, channels = x.shape
        side = self.patch
        if height % side or width % side:
            raise ValueError(
                f"ViT: images of {height}×{width} pixels do not divide into patches of "
                f"{side}×{side}; give a patch that divides both"
            )
        x = x.reshape(n, height // side, side, width // side, side, channels)
        x = x.transpose(0, 1, 3, 2, 4, 5).reshape(n, -1, side * side * channels)
        x = nn.Dense(self.width, use_bias=self.use_bias, name="embedding")(2 * x - 1)
        shape = (x.shape[1], self.width)
        x = x + self.param("positions", nn.initializers.normal(0.02), shape).astype(x.dtype)
        for i in range(self.depth):
            x = Block(
                heads=self.heads,
                hidden=self.hidden or 4 * self.width,
                norm=self.norm,
                activation=self.activation,
                use_bias=self.use_bias,
                causal=False,
                name=f"block{i + 1}",
            )(x)
        x = normalisation(self.norm, self.use_bias, "norm")(x)
        return nn.Dense(self.num_classes, name="head")(jnp.mean(x, axis=1))
