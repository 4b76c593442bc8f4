"""A network linearised in its weights at the mean of a posterior.

f(x; m) + J(x)(θ − m) is the network whose posterior a Laplace approximation with the Gauss–Newton
matrix describes (Immer et al. 2021). With the network itself, the draws of such a posterior often
leave the region in which the Gaussian holds.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from onebasin.derivatives import along
from onebasin.networks.network import Apply
from onebasin.posterior import Mixture, Posterior, Samples
from onebasin.trees import PyTree


@dataclass(frozen=True)
class Linearised:
    """`apply` linearised in its params, as a function of (mean, params) and the inputs."""

    apply: Apply

    def __call__(self, params: tuple[PyTree, PyTree], *inputs: jax.Array) -> jax.Array:
        mean, draw = params
        tangent = jax.tree.map(jnp.subtract, draw, mean)
        value, change = along(lambda p: self.apply(p, *inputs), mean, tangent)
        return value + change


def mean_of(posterior: Posterior) -> PyTree:
    """The weights at which a network is linearised; only Gaussians have such a point."""
    if isinstance(posterior, Samples | Mixture):
        raise ValueError(
            f"a {type(posterior).__name__} has no one point at which to linearise the network; "
            "give a Gaussian, or leave out linearised"
        )
    return posterior.moments()[0]
