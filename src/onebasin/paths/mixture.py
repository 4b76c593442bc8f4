"""The mixture path (1−t)·q0 + t·q1: a draw comes from one end or from the other."""

from dataclasses import dataclass

import jax.numpy as jnp

from onebasin.paths.ends import check_ends, check_t
from onebasin.posterior import Mixture, Posterior


@dataclass(frozen=True, eq=False)
class MixturePath:
    """t → the mixture with weights (1−t, t).

    The predictive of a mixture is the mixture of the predictives, and −log is convex, so by
    Jensen's inequality the loss along it never rises above the chord.
    """

    q0: Posterior
    q1: Posterior
    kind: str = "mixture"
    note: str = ""
    deterministic: bool = False

    def __call__(self, t: float) -> Mixture:
        t = check_t(t)
        return Mixture((self.q0, self.q1), jnp.asarray([1 - t, t], jnp.float32))

    def __repr__(self) -> str:
        return f"mixture of a {type(self.q0).__name__} and a {type(self.q1).__name__}"


def mixture_path(q0: Posterior, q1: Posterior) -> MixturePath:
    """The path (1−t)·q0 + t·q1 of mixtures, between any two posteriors over the same params.

    It has no barrier, in contrast to a geodesic: the loss is convex along it.

    >>> import jax.numpy as jnp, onebasin as ob
    >>> q = ob.MeanField({"w": jnp.zeros(2)}, {"w": jnp.ones(2)})
    >>> ob.mixture_path(q, q)(0.25).weights.tolist()
    [0.75, 0.25]
    """
    check_ends(q0, q1)
    return MixturePath(q0, q1)
