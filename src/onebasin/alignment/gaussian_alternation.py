"""Fit one Gaussian to all members and move each to where it is densest, in turn.

Neither step lowers the mean log-likelihood of the members. Begun where unaligned members lie it
would stay there: the wide Gaussian of unaligned members suits each of them as it is.
"""

from dataclasses import dataclass

from onebasin.alignment.aligned_members import AlignedMembers
from onebasin.alignment.gaussian_fit import GaussianFit
from onebasin.alignment.gaussian_target import GaussianTarget
from onebasin.alignment.scores import Indices
from onebasin.alignment.workers import Workers
from onebasin.progress import Reporter

STEPS = 2  # of EM after every round of moves
POLISH = 10  # at most, of EM once nothing moves any more; from principal directions it gains little
POLISHED = 1e-2  # of what EM gained so far: a step that gains less is the last


@dataclass(frozen=True)
class Alternation:
    """How a Gaussian and its members came to rest."""

    trace: tuple[float, ...]
    rounds: int
    converged: bool
    moves: tuple[int, ...]


def fit_gaussian(aligned: AlignedMembers, rank: int, floor: float) -> GaussianFit:
    """The Gaussian of members as they lie, after a few steps of EM."""
    fit = GaussianFit(aligned, rank, floor)
    _polish(fit, STEPS)
    return fit


def align_to_gaussian(
    fit: GaussianFit,
    *,
    max_rounds: int,
    tolerance: float,
    max_sweeps: int,
    report: Reporter,
) -> Alternation:
    """Move every member to where the Gaussian is highest, fit it again, and so on."""
    aligned = fit.aligned
    trace, moves, converged = [fit.mean_log_likelihood], [], max_rounds == 0
    for number in range(max_rounds):
        with Workers(len(aligned.members), report) as workers:
            target = fit.target()

            def one(i: int, target: GaussianTarget = target) -> Indices | None:
                return target.best_indices(aligned.members[i], aligned.indices[i], max_sweeps)

            what = f"round {number + 1} to the Gaussian"
            found = workers.map(one, range(len(aligned.members)), what)
        moves.append(sum(indices is not None for indices in found))
        if moves[-1]:
            aligned.indices = [
                old if new is None else new for old, new in zip(aligned.indices, found, strict=True)
            ]
            fit.recentre()
            _polish(fit, STEPS)
        trace.append(fit.mean_log_likelihood)
        if trace[-1] - trace[-2] <= tolerance * (trace[-1] - trace[0]):
            converged = True
            break
    _polish(fit, POLISH)
    trace.append(fit.mean_log_likelihood)
    return Alternation(tuple(trace), len(moves), converged, tuple(moves))


def _polish(fit: GaussianFit, steps: int) -> None:
    """Steps of EM until they gain little; a diagonal Gaussian needs one."""
    first = before = fit.mean_log_likelihood
    for _ in range(steps if fit.gaussian.rank else 1):
        fit.improve()
        now = fit.mean_log_likelihood
        if now - before <= POLISHED * (now - first):
            break
        before = now
