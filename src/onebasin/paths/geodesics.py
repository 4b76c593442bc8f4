"""Displacement: every draw of one end moves in a straight line to its partner at the other.

θ_t = (1−t)·θ₀ + t·θ₁ for a coupling of θ₀ ~ q0 and θ₁ ~ q1. If the coupling is optimal for the
squared distance, the distribution of θ_t is the Wasserstein geodesic (McCann 1997):

* MeanField: the same noise ε at both ends is optimal, so m_t and s_t are linear in t.
* Samples: an optimal pairing of the draws.
* LowRank: the same noise is *not* optimal in general (the optimal map needs the square roots
  of full covariances), so the path is called a displacement. The factors of q1 are first rotated
  onto those of q0: FFᵀ does not change, and the path becomes shorter.
"""

from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeAlias

import jax
import jax.numpy as jnp

from onebasin.paths.ends import check_ends, check_states, check_t, lerp
from onebasin.paths.pairing import pair_draws, rotate_factors
from onebasin.posterior import LowRank, MeanField, Mixture, Posterior, PosteriorT, Samples
from onebasin.trees import PyTree, add_axis, check_same_shapes, leaves_by_path, with_leaves

Kind: TypeAlias = Literal["line", "geodesic", "displacement"]
Coupled: TypeAlias = MeanField | Samples | LowRank


@dataclass(frozen=True, eq=False)
class DisplacementPath(Generic[PosteriorT]):
    """The path t → (1−t)·q0 + t·q1 in the parameters of two coupled posteriors.

    Made by `geodesic`, `displacement` or `line`. Running statistics are interpolated too.
    """

    q0: PosteriorT
    q1: PosteriorT
    kind: Kind
    note: str = ""

    def __call__(self, t: float) -> PosteriorT:
        return _between(check_t(t), self.q0, self.q1)

    @property
    def deterministic(self) -> bool:
        """Whether the path consists of single networks, so that nothing along it is random."""
        return isinstance(self.q0, Samples) and self.q0.num_draws == 1

    def __repr__(self) -> str:
        return f"{self.kind} of {type(self.q0).__name__}s"


_between = jax.jit(lerp)


def geodesic(q0: PosteriorT, q1: PosteriorT) -> DisplacementPath[PosteriorT]:
    """The Wasserstein geodesic from q0 to q1.

    For two MeanFields it has a closed form, N((1−t)·m₀ + t·m₁, ((1−t)·s₀ + t·s₁)²). For two
    Samples it is the displacement along an optimal pairing of the draws; the larger set is first
    thinned evenly to the size of the smaller. If an end is a LowRank, the result is
    `displacement(q0, q1)`, as its `kind` says. A Mixture has no closed form: use `mixture_path`,
    or compact it first.

    >>> import jax.numpy as jnp, onebasin as ob
    >>> q0 = ob.MeanField({"w": jnp.zeros(2)}, {"w": jnp.ones(2)})
    >>> q1 = ob.MeanField({"w": jnp.ones(2)}, {"w": 3 * jnp.ones(2)})
    >>> ob.geodesic(q0, q1)(0.5).std["w"].tolist()
    [2.0, 2.0]
    """
    return _displacement(q0, q1, "geodesic")


def displacement(q0: PosteriorT, q1: PosteriorT) -> DisplacementPath[PosteriorT]:
    """Displacement with shared noise, for LowRank ends, whose geodesic has no cheap form.

    >>> import jax.numpy as jnp, onebasin as ob
    >>> q0, q1 = (ob.LowRank({"w": jnp.zeros(2)}, {"w": jnp.ones(2)}, {"w": jnp.full((1, 2), f)})
    ...           for f in (1.0, -3.0))
    >>> ob.displacement(q0, q1)(0.5).factors["w"].tolist()  # -3 is rotated to 3 first
    [[2.0, 2.0]]
    """
    return _displacement(q0, q1, "displacement")


def line(
    params0: PyTree, params1: PyTree, state0: PyTree | None = None, state1: PyTree | None = None
) -> DisplacementPath[Samples]:
    """The straight line between two networks; `line(...)(t)` is a point mass (Samples of one draw).

    Args:
      params0, params1: the networks at t = 0 and t = 1.
      state0, state1: their running statistics, if they have any.

    >>> import jax.numpy as jnp, onebasin as ob
    >>> float(ob.line({"w": jnp.zeros(())}, {"w": jnp.ones(())})(0.25).draw(0)["w"])
    0.25
    """
    for name, params in (("params0", params0), ("params1", params1)):
        if isinstance(params, Posterior):
            raise ValueError(f"{name} is a posterior; line joins params, geodesic joins posteriors")
        if not leaves_by_path(params):
            raise ValueError(f"{name} holds no arrays; give the params of a network")
    check_same_shapes(params0, params1, "params1 must have the shapes of params0 but")
    check_states(state0, state1)
    arrays = jax.tree.map(jnp.asarray, ((params0, state0), (params1, state1)))
    q0, q1 = (Samples(add_axis(params), state=add_axis(state)) for params, state in arrays)
    return DisplacementPath(q0, q1, "line")


def _displacement(q0: Posterior, q1: Posterior, kind: Kind) -> DisplacementPath[Any]:
    check_ends(q0, q1)
    if isinstance(q0, Mixture) or isinstance(q1, Mixture):
        raise ValueError(
            "a Mixture has no geodesic in closed form; use mixture_path(q0, q1), or compact the "
            "Mixture to one Gaussian first"
        )
    if isinstance(q0, Samples) and isinstance(q1, Samples):
        paired0, paired1, note = pair_draws(q0, _in_containers_of(q0, q1))
        return DisplacementPath(paired0, paired1, kind, note)
    if isinstance(q0, MeanField) and isinstance(q1, MeanField):
        return DisplacementPath(q0, _in_containers_of(q0, q1), kind)
    if isinstance(q0, MeanField | LowRank) and isinstance(q1, MeanField | LowRank):
        rank = max(q.rank if isinstance(q, LowRank) else 0 for q in (q0, q1))
        low0, low1 = _with_rank(q0, rank), _with_rank(_in_containers_of(q0, q1), rank)
        note = "shared noise after rotating the factors of q1; not the Wasserstein geodesic"
        return DisplacementPath(low0, rotate_factors(low0, low1), "displacement", note)
    raise ValueError(
        f"there is no coupling between a {type(q0).__name__} and a {type(q1).__name__}; draw "
        "Samples from the Gaussian or fit a Gaussian to the Samples with compact"
    )


def _in_containers_of(q0: Coupled, q1: Coupled) -> Any:
    """q1 in the containers of q0: equal key paths may belong to different kinds of mapping."""
    check_states(q0.state, q1.state)
    return q1.relabel(
        lambda tree, _: with_leaves(q0.like, leaves_by_path(tree)),
        lambda state, _: with_leaves(q0.state, leaves_by_path(state)),
    )


def _with_rank(q: MeanField | LowRank, rank: int) -> LowRank:
    """The same Gaussian with `rank` factors; the added ones are zero."""
    if not isinstance(q, LowRank):
        factors = jax.tree.map(lambda m: jnp.zeros((rank, *m.shape), m.dtype), q.mean)
        return LowRank(q.mean, q.std, factors, q.state)
    if q.rank == rank:
        return q
    factors = jax.tree.map(
        lambda f: jnp.concatenate([f, jnp.zeros((rank - q.rank, *f.shape[1:]), f.dtype)]), q.factors
    )
    return LowRank(q.mean, q.std, factors, q.state)
