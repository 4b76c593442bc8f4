"""Real targets with one unknown noise std per target, inferred with the network's parameters."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from onebasin.likelihoods.checks import check_positive
from onebasin.likelihoods.heteroscedastic import Heteroscedastic

LEAF = "log_noise"


@dataclass(frozen=True)
class LearnedNoise(Heteroscedastic):
    """Σ log N(y; f, (noise_std·exp u)²) with u ~ N(0, prior_variance) for every target.

    A `Problem` adds u to the params as the leaf `log_noise` and appends log std to the outputs of
    the network, so that they are those of `Heteroscedastic`. Posteriors hold u like every other
    parameter; no permutation moves it. Functions on such a posterior take the `Problem` as their
    network.

    Args:
      noise_std: the std where a fit starts, and the median of its prior.
      prior_variance: the prior variance of u; with 1 the std is within a factor of 7 of its
        median, at 95 %.

    >>> import jax, jax.numpy as jnp, onebasin as ob
    >>> problem = ob.Problem(lambda p, x: x @ p["w"], lambda key: {"w": jnp.ones((2, 1))},
    ...                      (jnp.ones((3, 2)), jnp.zeros(3)), likelihood="learned-noise")
    >>> params = problem.init(jax.random.key(0))
    >>> params["log_noise"], problem.apply(params, jnp.ones((1, 2))).tolist()
    (Array([0.], dtype=float32), [[2.0, 0.0]])
    """

    noise_std: float = 1.0
    prior_variance: float = 1.0
    name: ClassVar[str] = "learned-noise"
    own_names: ClassVar[tuple[str, ...]] = (LEAF,)

    def __post_init__(self) -> None:
        check_positive(self.noise_std, "noise_std")
        check_positive(self.prior_variance, "prior_variance")

    def own_params(self, y: np.ndarray) -> dict[str, jax.Array]:
        """u = 0 for every target."""
        return {LEAF: jnp.zeros(max(1, int(np.prod(y.shape[1:]))))}

    def check_outputs(self, shape: tuple[int, ...], y: np.ndarray) -> None:
        means, targets = math.prod(shape[1:]) // 2, math.prod(y.shape[1:])
        if means != targets:
            raise ValueError(
                f"the network returns {means} outputs for {targets} target(s) per example; give it "
                "one output per target (the std of the noise is learned beside them)"
            )

    def join(self, outputs: jax.Array, own: Mapping[str, jax.Array]) -> jax.Array:
        """The outputs [batch, targets] with the log std of every target appended."""
        mean = outputs.reshape(len(outputs), -1)
        log_std = own[LEAF].astype(mean.dtype) + jnp.log(self.noise_std).astype(mean.dtype)
        return jnp.concatenate([mean, jnp.broadcast_to(log_std, mean.shape)], axis=-1)
