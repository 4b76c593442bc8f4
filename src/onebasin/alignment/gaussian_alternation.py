"""Fit one Gaussian to all members and move each to where its density is highest, in turn.

Neither step lowers the mean log-likelihood of the members. The start must be aligned already: the
wide Gaussian of unaligned members is close to a local optimum.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from onebasin.alignment.aligned_members import AlignedMembers
from onebasin.alignment.gaussian_fit import GaussianFit
from onebasin.alignment.gaussian_target import GaussianTarget
from onebasin.alignment.members import Members
from onebasin.alignment.scores import Indices
from onebasin.alignment.workers import Workers
from onebasin.progress import Reporter

if TYPE_CHECKING:
    from distributed import Client

STEPS = 2  # of EM after every round of moves
POLISH = 10  # of EM at most, once nothing moves; after principal directions it gains little
POLISHED = 1e-2  # EM stops after a step that gains less than this share of its gain so far


class Alternation(NamedTuple):
    """The mean log-likelihood at each stage, whether it converged, and the moves of each round."""

    trace: tuple[float, ...]
    converged: bool
    moves: tuple[int, ...]


def fit_gaussian(aligned: AlignedMembers, rank: int, floor: float) -> GaussianFit:
    """The Gaussian of aligned members, after a few steps of EM."""
    fit = GaussianFit(aligned, rank, floor)
    _polish(fit, STEPS)
    return fit


@dataclass(frozen=True)
class _ToGaussian:
    """Moves a member to where the Gaussian is highest; it can be sent to another process."""

    target: GaussianTarget
    members: Members
    indices: list[Indices]
    max_sweeps: int

    def __call__(self, i: int) -> Indices | None:
        return self.target.best_indices(self.members[i], self.indices[i], self.max_sweeps)


def align_to_gaussian(
    fit: GaussianFit,
    *,
    max_rounds: int,
    tolerance: float,
    max_sweeps: int,
    report: Reporter,
    client: "Client | None" = None,
) -> Alternation:
    """Alternate between moving every member to where the Gaussian is highest and refitting it."""
    aligned = fit.aligned
    trace, moves, converged = [fit.mean_log_likelihood], [], max_rounds == 0
    for number in range(max_rounds):
        with Workers(len(aligned.members), report, client) as workers:
            one = _ToGaussian(fit.target(), aligned.members, aligned.indices, max_sweeps)
            which = range(len(aligned.members))
            found = workers.spread(one, which, f"round {number + 1} to the Gaussian")
            del one
        moves.append(sum(indices is not None for indices in found))
        if moves[-1]:
            pairs = zip(aligned.indices, found, strict=True)
            aligned.indices = [old if new is None else new for old, new in pairs]
            fit.recentre()
            _polish(fit, STEPS)
        trace.append(fit.mean_log_likelihood)
        if trace[-1] - trace[-2] <= tolerance * (trace[-1] - trace[0]):
            converged = True
            break
    _polish(fit, POLISH)
    trace.append(fit.mean_log_likelihood)
    return Alternation(tuple(trace), converged, tuple(moves))


def _polish(fit: GaussianFit, steps: int) -> None:
    """Steps of EM until they gain little; a diagonal Gaussian needs one."""
    first = before = fit.mean_log_likelihood
    for _ in range(steps if fit.gaussian.rank else 1):
        fit.improve()
        now = fit.mean_log_likelihood
        if now - before <= POLISHED * (now - first):
            break
        before = now
