"""The geodesic in another gauge: scale-free units keep the norm of their mean.

Units that a normalisation follows may be scaled freely, and on the plain geodesic their means get
shorter while their noise does not (`alignment/norms.py`). Here the mean of each such unit is scaled
at every t to the norm that is interpolated between those of the ends. The ends stay as they are.
"""

from dataclasses import dataclass, field
from typing import Any, Generic, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from onebasin.alignment.norms import ScaleFree, find_scale_free, norm_factors
from onebasin.networks import NetworkLike
from onebasin.paths.ends import check_t, lerp
from onebasin.paths.geodesics import DisplacementPath
from onebasin.posterior import LowRank, MeanField, Posterior, PosteriorT
from onebasin.symmetry import Symmetry
from onebasin.trees import PyTree, leaves_by_path, with_leaves

Correction: TypeAlias = tuple[tuple[PyTree, PyTree], tuple[PyTree, PyTree] | None]
"""Trees (scale, shift) with a leading axis of points, and the ends of the part of θ_t that is
scaled (None for all of it): θ_t ← θ_t + (scale − 1)·part_t + shift."""


@dataclass(frozen=True, eq=False)
class NormKeepingPath(Generic[PosteriorT]):
    """A path on which scale-free units keep the norm of their mean; made by `keep_norms`.

    `kept` names their kernels.
    """

    path: DisplacementPath[PosteriorT]
    free: ScaleFree = field(repr=False)

    @property
    def kept(self) -> tuple[str, ...]:
        return tuple(self.free.axes)

    @property
    def plain(self) -> DisplacementPath[PosteriorT]:
        """The path in the gauge of its ends."""
        return self.path

    @property
    def q0(self) -> PosteriorT:
        return self.path.q0

    @property
    def q1(self) -> PosteriorT:
        return self.path.q1

    @property
    def kind(self) -> str:
        return f"norm-keeping {self.path.kind}"

    @property
    def note(self) -> str:
        none = "" if self.kept else "no unit is followed by a normalisation, so no norm is kept"
        return "; ".join(part for part in (self.path.note, none) if part)

    @property
    def deterministic(self) -> bool:
        return self.path.deterministic

    def __repr__(self) -> str:
        return f"{self.path!r}, norms of {len(self.kept)} kernels kept"

    def __call__(self, t: float) -> PosteriorT:
        factors = self.factors(check_t(t))
        plain = self.path(t)
        mean = leaves_by_path(plain.moments()[0])
        mean = {name: leaf * factors.get(name, 1.0) for name, leaf in mean.items()}
        return _with_mean(plain, with_leaves(plain.like, mean))

    def factors(self, t: float) -> dict[str, jax.Array]:
        """What the mean of every scale-free kernel is multiplied by at t."""
        (mean0, _), (mean1, _) = (q.moments() for q in (self.q0, self.q1))
        return norm_factors(self.free, t, mean0, mean1, lerp(t, mean0, mean1))

    def corrections(self, ts: np.ndarray) -> Correction:
        """What is done to the params of the plain path at all points `ts`."""
        scales = [self._tree(self.factors(float(t))) for t in ts]
        scale = jax.tree.map(lambda *leaves: jnp.stack(leaves), *scales)
        part = (self.q0.moments()[0], self.q1.moments()[0])
        return (scale, jax.tree.map(jnp.zeros_like, scale)), part

    def _tree(self, factors: dict[str, jax.Array]) -> PyTree:
        like = leaves_by_path(self.q0.like)
        ones = {name: jnp.ones((1,) * leaf.ndim, leaf.dtype) for name, leaf in like.items()}
        return with_leaves(self.q0.like, {**ones, **factors})


def keep_norms(
    path: DisplacementPath[PosteriorT],
    network: NetworkLike,
    x: ArrayLike,
    *,
    symmetry: Symmetry | None = None,
) -> NormKeepingPath[PosteriorT]:
    """The path on which units followed by a normalisation keep the norm of their mean.

    The kernels are found from the trace and tried on a batch. A layer normalisation leaves only
    the scale of a whole kernel free, filter response and batch normalisation that of each unit.

    Args:
      path: a geodesic or displacement between two Gaussians.
      network: `apply(params, x)` (or `apply(params, x, state)`), a `Network` or a `Problem`.
      x: a batch of inputs; a few are enough.
      symmetry: the traced symmetry, found by tracing if not given.

    >>> import onebasin as ob
    >>> def apply(p, x):
    ...     z = x @ p["w1"]
    ...     z = z / jnp.linalg.norm(z, axis=0)
    ...     return jnp.tanh(z + p["b1"]) @ p["w2"]
    >>> def q(first):
    ...     w1 = jnp.array([[first, 1.0], [1.0, first]])
    ...     mean = {"w1": w1, "b1": jnp.zeros(2), "w2": jnp.ones((2, 1))}
    ...     return ob.MeanField(mean, jax.tree.map(jnp.ones_like, mean))
    >>> plain = ob.geodesic(q(1.0), q(-1.0))
    >>> path = ob.keep_norms(plain, apply, jnp.array([[1.0, 2.0], [3.0, -1.0], [0.5, 1.0]]))
    >>> path.kept
    ('w1',)
    >>> [jnp.linalg.norm(p(0.5).mean["w1"], axis=0).round(3).tolist() for p in (plain, path)]
    [[1.0, 1.0], [1.4140000343322754, 1.4140000343322754]]
    """
    if not isinstance(path, DisplacementPath) or not isinstance(path.q0, MeanField | LowRank):
        what = type(path).__name__
        if isinstance(path, DisplacementPath):
            what = f"path between {type(path.q0).__name__}"
        raise ValueError(
            f"a {what} has no noise around a mean whose norm could be kept; give a geodesic "
            "between two Gaussians"
        )
    free = find_scale_free(
        network, path.q0.mean, jnp.asarray(x), symmetry=symmetry, state=path.q0.state
    )
    return NormKeepingPath(path, free)


def _with_mean(q: Posterior, mean: PyTree) -> Any:
    match q:
        case MeanField():
            return MeanField(mean, q.std, q.state)
        case LowRank():
            return LowRank(mean, q.std, q.factors, q.state)
    raise AssertionError(f"no mean to replace in a {type(q).__name__}")
