"""Displacement: every draw of one end moves in a straight line to its partner at the other.

θ_t = (1−t)·θ₀ + t·θ₁ for a coupling of θ₀ ~ q0 and θ₁ ~ q1. When the coupling is the optimal
one for the squared distance, the law of θ_t is the Wasserstein geodesic (McCann 1997):

* MeanField: the same noise ε on both sides is optimal, so m_t and s_t are linear in t.
* Samples: an optimal pairing of the draws.
* LowRank: the same noise is *not* optimal in general (the optimal map needs the square roots
  of full covariances), so that path is called `displacement` and not geodesic. The factors of
  q1 are first rotated onto those of q0: FFᵀ does not change, the path gets shorter.
"""

from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from onebasin.paths.ends import check_ends, check_states, check_t, lerp
from onebasin.paths.pairing import pair_draws, rotate_factors
from onebasin.posterior import LowRank, MeanField, Mixture, Posterior, Samples
from onebasin.trees import PyTree, check_same_shapes, leaves_by_path, with_leaves

Kind = Literal["line", "geodesic", "displacement"]


@dataclass(frozen=True, eq=False)
class DisplacementPath:
    """The path t → (1−t)·q0 + t·q1 in the parameters of q0 and q1, which are coupled already.

    Made by `geodesic`, `displacement` or `line`. Running statistics are interpolated too.
    """

    q0: Any
    q1: Any
    kind: Kind
    note: str = ""

    def __call__(self, t: float) -> Any:
        return _between(check_t(t), self.q0, self.q1)

    @property
    def deterministic(self) -> bool:
        """Whether the path is one of single networks, so that nothing is random along it."""
        return isinstance(self.q0, Samples) and self.q0.num_draws == 1

    def __repr__(self) -> str:
        return f"{self.kind} of {type(self.q0).__name__}s"


_between = jax.jit(lerp)


def geodesic(q0: Any, q1: Any) -> DisplacementPath:
    """The Wasserstein geodesic from q0 to q1.

    Closed form for two MeanFields; for two Samples the displacement along an optimal pairing
    of draws (of sets that differ in size, the larger one is thinned evenly to the smaller's
    size). Where a LowRank is involved the result is `displacement(q0, q1)` and says so in its
    `kind`. A Mixture has no closed form: use `mixture`, or compact it first.

    >>> import jax.numpy as jnp
    >>> q0 = MeanField({"w": jnp.zeros(2)}, {"w": jnp.ones(2)})
    >>> q1 = MeanField({"w": jnp.ones(2)}, {"w": 3 * jnp.ones(2)})
    >>> geodesic(q0, q1)(0.5).std["w"].tolist()
    [2.0, 2.0]
    """
    return _displacement(q0, q1, "geodesic")


def displacement(q0: Any, q1: Any) -> DisplacementPath:
    """Displacement with shared noise; for LowRank ends, whose geodesic has no cheap form."""
    return _displacement(q0, q1, "displacement")


def line(
    params0: PyTree, params1: PyTree, state0: PyTree = None, state1: PyTree = None
) -> DisplacementPath:
    """The straight line between two networks; `line(...)(t)` is a point mass (Samples of one).

    >>> import jax.numpy as jnp
    >>> float(line({"w": jnp.zeros(())}, {"w": jnp.ones(())})(0.25).draw(0)["w"])
    0.25
    """
    for name, params in (("params0", params0), ("params1", params1)):
        if isinstance(params, Posterior):
            raise ValueError(f"{name} is a posterior; line joins params, geodesic joins posteriors")
        if not leaves_by_path(params):
            raise ValueError(f"{name} holds no arrays")
    check_same_shapes(params0, params1, "params1 has another shape than params0 and")
    check_states(state0, state1)
    ends = [
        Samples(
            *(jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf)[None]), tree) for tree in pair)
        )
        for pair in ((params0, None, state0), (params1, None, state1))
    ]
    return DisplacementPath(*ends, kind="line")


def _displacement(q0: Any, q1: Any, kind: Kind) -> DisplacementPath:
    check_ends(q0, q1)
    if isinstance(q0, Mixture) or isinstance(q1, Mixture):
        raise ValueError(
            "a Mixture has no geodesic in closed form; use mixture_path(q0, q1), or compact the "
            "Mixture to one Gaussian first"
        )
    check_states(q0.state, q1.state)
    q1 = _in_containers_of(q0, q1)
    if isinstance(q0, Samples) and isinstance(q1, Samples):
        paired0, paired1, note = pair_draws(q0, q1)
        return DisplacementPath(paired0, paired1, kind, note)
    if isinstance(q0, MeanField) and isinstance(q1, MeanField):
        return DisplacementPath(q0, q1, kind)
    if isinstance(q0, MeanField | LowRank) and isinstance(q1, MeanField | LowRank):
        rank = max(q.rank if isinstance(q, LowRank) else 0 for q in (q0, q1))
        low0, low1 = _with_rank(q0, rank), _with_rank(q1, rank)
        note = "shared noise after rotating the factors of q1; not the Wasserstein geodesic"
        return DisplacementPath(low0, rotate_factors(low0, low1), "displacement", note)
    raise ValueError(
        f"there is no coupling between a {type(q0).__name__} and a {type(q1).__name__}; draw "
        "Samples from the Gaussian or fit a Gaussian to the Samples with compact"
    )


def _in_containers_of(q0: Any, q1: Any) -> Any:
    """q1 in the containers of q0: the same key paths may sit in another kind of mapping."""

    def rehang(tree: PyTree, like: PyTree) -> PyTree:
        return with_leaves(like, leaves_by_path(tree))

    state = None if q0.state is None else rehang(q1.state, q0.state)
    match q1:
        case MeanField():
            return MeanField(rehang(q1.mean, q0.like), rehang(q1.std, q0.like), state)
        case Samples():
            return Samples(rehang(q1.draws, q0.like), q1.chain, state)
        case LowRank():
            trees = (rehang(tree, q0.like) for tree in (q1.mean, q1.std, q1.factors))
            return LowRank(*trees, state=state)
    return q1


def _with_rank(q: MeanField | LowRank, rank: int) -> LowRank:
    """The same Gaussian with as many factors as asked for; the new ones are zero."""
    if isinstance(q, LowRank) and q.rank == rank:
        return q
    if isinstance(q, LowRank):
        missing = rank - q.rank
        factors = jax.tree.map(
            lambda f: jnp.concatenate([f, jnp.zeros((missing, *f.shape[1:]), f.dtype)]), q.factors
        )
    else:
        factors = jax.tree.map(lambda m: jnp.zeros((rank, *m.shape), m.dtype), q.mean)
    return LowRank(q.mean, q.std, factors, q.state)
