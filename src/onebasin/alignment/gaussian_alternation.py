"""Fit one Gaussian to all members and move each to where its density is highest, in turn.

Neither step lowers the mean log-likelihood of the members. The start must be aligned already: the
wide Gaussian of unaligned members is close to a local optimum.
"""

from typing import NamedTuple

from onebasin.alignment.aligned_members import AlignedMembers
from onebasin.alignment.gaussian_fit import GaussianFit
from onebasin.alignment.gaussian_target import GaussianTarget
from onebasin.alignment.scores import Indices
from onebasin.alignment.workers import Workers
from onebasin.progress import Reporter

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


def align_to_gaussian(
    fit: GaussianFit, *, max_rounds: int, tolerance: float, max_sweeps: int, report: Reporter
) -> Alternation:
    """Alternate between moving every member to where the Gaussian is highest and refitting it."""
    aligned = fit.aligned
    trace, moves, converged = [fit.mean_log_likelihood], [], max_rounds == 0
    for number in range(max_rounds):
        with Workers(len(aligned.members), report) as workers:
            target = fit.target()

            def one(i: int, target: GaussianTarget = target) -> Indices | None:
                return target.best_indices(aligned.members[i], aligned.indices[i], max_sweeps)

            which = range(len(aligned.members))
            found = workers.map(one, which, f"round {number + 1} to the Gaussian")
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
