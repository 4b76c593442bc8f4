"""The mixture path (1−t)·q0 + t·q1: a draw comes from one end or from the other."""

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp

from onebasin.paths.ends import check_ends, check_t
from onebasin.posterior import Mixture


@dataclass(frozen=True, eq=False)
class MixturePath:
    """t → the mixture with weights (1−t, t).

    The predictive of a mixture is the mixture of the predictives, and −log is convex, so the
    loss along it never rises above the chord (Jensen): the contrast to a geodesic.
    """

    q0: Any
    q1: Any
    kind: str = "mixture"
    note: str = ""
    deterministic: bool = False

    def __call__(self, t: float) -> Mixture:
        t = check_t(t)
        return Mixture((self.q0, self.q1), jnp.asarray([1 - t, t], jnp.float32))

    def __repr__(self) -> str:
        return f"mixture of a {type(self.q0).__name__} and a {type(self.q1).__name__}"


def mixture_path(q0: Any, q1: Any) -> MixturePath:
    """The path (1−t)·q0 + t·q1 between any two posteriors over the same params.

    >>> from onebasin.posterior import MeanField
    >>> q = MeanField({"w": jnp.zeros(2)}, {"w": jnp.ones(2)})
    >>> mixture_path(q, q)(0.25).weights.tolist()
    [0.75, 0.25]
    """
    check_ends(q0, q1)
    return MixturePath(q0, q1)
