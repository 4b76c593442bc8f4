"""Learning permutations on the loss of a path: anneal, project, polish.

1. Every group has a matrix of scores, at first the correlations of the two networks' units. Divided
   by a temperature and made doubly stochastic (`doubly_stochastic.py`), it mixes units; the loss on
   the path is differentiable in it, and Adam lowers it on mini-batches while the temperature falls.
2. From time to time the scores are projected to permutations by exact assignment, and the loss of
   these is judged on examples that are not learned from. The best is kept.
3. The polish exchanges pairs of units in the best permutation. To first order, exchanging the units
   at i and j changes the loss by what ∂loss/∂P says; the most promising exchanges are tried
   together, then in halves. A trial is kept only if the judged loss falls.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from onebasin.alignment.doubly_stochastic import log_soften_all
from onebasin.alignment.path_loss import (
    Batch,
    PathLoss,
    PathLosses,
    PathPoint,
    Side,
)
from onebasin.alignment.soft_action import matrices_of
from onebasin.alignment.unit_scores import Scores, project
from onebasin.progress import Reporter
from onebasin.symmetry import Permutation, Transform

Element = TypeVar("Element", Permutation, Transform)
Exchange: TypeAlias = tuple[str, int, int]
Judging: TypeAlias = Callable[[Permutation], float]
EVERY = 10  # steps between two projections
TOGETHER = 32  # exchanges tried at once at first
FORGET, FORGET_SQUARE = 0.9, 0.99  # of the running means of slopes and of their squares
PATIENCE = 3  # rounds without an exchange that helps
SLOPES = 4  # batches that ∂loss/∂P is averaged over


@dataclass
class Learned(Generic[Element]):
    """The best permutation (or transform) so far, its judged loss, and how it was reached."""

    element: Element
    loss: float
    began: float
    losses: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    steps: int = 0
    trials: int = 0

    def __post_init__(self) -> None:
        self._note()

    def offer(self, element: Element, loss: float) -> bool:
        """Keep an element if its judged loss is lower."""
        if not loss < self.loss:
            return False
        self.element, self.loss = element, loss
        self._note()
        return True

    def _note(self) -> None:
        self.losses.append(self.loss)
        self.seconds.append(time.perf_counter() - self.began)


class Examples:
    """Random points of the path with mini-batches and draws, a deterministic stream of them.

    With several targets, they take turns.
    """

    def __init__(
        self,
        objective: PathLoss,
        data: Batch,
        targets: Sequence[Side],
        mover: Side,
        rng: np.random.Generator,
    ) -> None:
        self.objective, self.data = objective, data
        self._size = min(objective.batch_size, len(data.x))
        self._targets, self._mover, self._rng, self._count = targets, mover, rng, 0

    def __iter__(self) -> "Examples":
        return self

    def __next__(self) -> tuple[tuple[Side, Side], PathPoint, Batch]:
        picks = np.sort(self._rng.choice(len(self.data.x), self._size, replace=False))
        t = float(self.objective.at(self._rng.uniform()))
        turn, target = divmod(self._count, len(self._targets))
        sides = (self._targets[target], self._mover)
        at = PathPoint.random(t, sides, turn, self._rng)
        self._count += 1
        return sides, at, Batch(self.data.x[picks], self.data.y[picks])


class Momentum(NamedTuple):
    """Running means of the slopes and of the squared norm of those of a unit."""

    mean: Any
    square: Any
    count: Any

    @classmethod
    def at_rest(cls, scores: Mapping[str, Any]) -> "Momentum":
        return cls(jax.tree.map(jnp.zeros_like, dict(scores)), jnp.zeros(()), jnp.zeros(()))


def downhill(slopes: Mapping[str, Any], momentum: Momentum) -> tuple[dict[str, Any], Momentum]:
    """The direction against the mean slopes, in which the scores of a unit move by about one.

    That is the norm of a row, root mean square over all units of all groups. As in Adam, with a
    single second moment: with one for each entry those that hardly matter would move as far as the
    others, and the scores fill with noise. Rows and not entries are counted because a unit has but
    a few candidates, however wide the network is.
    """
    units = sum(len(slope) for slope in slopes.values())
    square = sum(jnp.sum(slope**2) for slope in slopes.values()) / units
    count = momentum.count + 1
    mean = {n: FORGET * momentum.mean[n] + (1 - FORGET) * slope for n, slope in slopes.items()}
    square = FORGET_SQUARE * momentum.square + (1 - FORGET_SQUARE) * square
    root = jnp.sqrt(square / (1 - FORGET_SQUARE**count))
    scale = jnp.where(root > 0, 1 / (jnp.where(root > 0, root, 1) * (1 - FORGET**count)), 0.0)
    return {n: -scale * m for n, m in mean.items()}, Momentum(mean, square, count)


def relaxed(
    scores: Any, potentials: Any, temperature: Any, projected: Any
) -> tuple[dict[str, jax.Array], Any]:
    """The doubly stochastic matrices of scores, and the potentials for the next step.

    The potentials of the last step make few iterations enough. With `projected` matrices, these are
    the values, with the gradients of the soft ones.
    """
    logs = log_soften_all(
        {
            name: (s + jax.lax.stop_gradient(potentials[name])) / temperature
            for name, s in scores.items()
        }
    )
    soft = {name: jnp.exp(log) for name, log in logs.items()}
    if projected is not None:
        soft = {name: p + jax.lax.stop_gradient(projected[name] - p) for name, p in soft.items()}
    found = {name: temperature * log - scores[name] for name, log in logs.items()}
    return soft, jax.lax.stop_gradient(found)


class Learner:
    """Learns permutations of one network by one objective, compiled once for any number of them."""

    def __init__(self, objective: PathLoss, losses: PathLosses) -> None:
        self.objective, self.losses = objective, losses
        self._step = jax.jit(self._one_step)
        self._slope = jax.jit(jax.grad(losses.soft))

    def _one_step(
        self,
        scores: Any,
        momentum: Any,
        potentials: Any,
        temperature: Any,
        projected: Any,
        sides: Any,
        at: PathPoint,
        batch: Batch,
    ) -> tuple[Any, Any, Any]:
        def loss(scores: Any) -> tuple[jax.Array, Any]:
            soft, found = relaxed(scores, potentials, temperature, projected)
            return self.losses.soft(soft, sides, at, batch), found

        slopes, potentials = jax.grad(loss, has_aux=True)(scores)
        way, momentum = downhill(slopes, momentum)
        rate = self.objective.learning_rate * temperature
        scores = {name: s + rate * way[name] for name, s in scores.items()}
        return scores, momentum, potentials

    def learn(
        self,
        scores: Scores,
        best: Learned[Permutation],
        judge: Judging,
        examples: Examples,
        report: Reporter,
    ) -> None:
        """Gradient steps on the scores; `best` receives every projection that is better."""
        objective = self.objective
        hard_forward = objective.relaxation == "straight-through"
        latent: Any = {name: jnp.asarray(s, jnp.float32) for name, s in scores.items()}
        momentum = Momentum.at_rest(latent)
        potentials = jax.tree.map(jnp.zeros_like, latent)
        first, last = objective.temperatures
        projected = matrices_of(project(latent)) if hard_forward else None
        for number, (sides, at, batch) in zip(range(objective.steps), examples, strict=False):
            if late(objective, best):
                break
            temperature = first * (last / first) ** (number / max(objective.steps - 1, 1))
            latent, momentum, potentials = self._step(
                latent, momentum, potentials, temperature, projected, sides, at, batch
            )
            best.steps += 1
            if hard_forward:
                projected = matrices_of(project(latent))
            if best.steps % EVERY == 0 or best.steps == objective.steps:
                permutation = project(latent)
                best.offer(permutation, judge(permutation))
                report("learning", best.steps, objective.steps, f"loss {best.loss:.4f}")

    def polish(
        self, best: Learned[Permutation], judge: Judging, examples: Examples, report: Reporter
    ) -> None:
        """Exchanges of units, each kept only if the judged loss falls."""
        objective = self.objective

        def try_all(exchanges: Sequence[Exchange]) -> bool:
            """Try some exchanges together, and if they do not help, each half of them."""
            if not exchanges or best.trials >= objective.exchanges or late(objective, best):
                return False
            permutation = exchanged(best.element, exchanges)
            best.trials += 1
            kept = best.offer(permutation, judge(permutation))
            report("polishing", best.trials, objective.exchanges, f"loss {best.loss:.4f}")
            if kept or len(exchanges) == 1:
                return kept
            half = len(exchanges) // 2
            parts = [try_all(part) for part in (exchanges[:half], exchanges[half:])]
            return any(parts)

        failures = 0  # in a row; slopes on other batches rank other exchanges
        while failures < PATIENCE and best.trials < objective.exchanges:
            if late(objective, best):
                break
            matrices = matrices_of(best.element)
            slopes: dict[str, np.ndarray] = {}
            for _, (sides, at, batch) in zip(range(SLOPES), examples, strict=False):
                for name, value in self._slope(matrices, sides, at, batch).items():
                    slopes[name] = slopes.get(name, 0.0) + np.asarray(value, np.float64) / SLOPES
            failures = 0 if try_all(promising(best.element, slopes)) else failures + 1


def exchanged(permutation: Permutation, exchanges: Sequence[Exchange]) -> Permutation:
    """The permutation with the images of pairs of units exchanged."""
    indices = {name: np.array(permutation[name]) for name in permutation}
    for name, i, j in exchanges:
        indices[name][[i, j]] = indices[name][[j, i]]
    return Permutation(indices)


def promising(permutation: Permutation, slopes: Mapping[str, np.ndarray]) -> list[Exchange]:
    """Disjoint exchanges that lower the loss to first order, the most promising first.

    P[i, p(i)] and P[j, p(j)] become zero, P[i, p(j)] and P[j, p(i)] one.
    """
    found: list[tuple[float, Exchange]] = []
    for name in permutation:
        moved = slopes[name][:, permutation[name]]  # [i, j]: the slope for p(j) at i
        own = np.diag(moved)
        change = moved + moved.T - own[:, None] - own[None, :]
        rows, columns = np.nonzero(np.triu(change < 0, 1))
        best = np.argsort(change[rows, columns], kind="stable")[: 8 * TOGETHER]
        found += [
            (float(change[i, j]), (name, int(i), int(j)))
            for i, j in zip(rows[best], columns[best], strict=True)
        ]
    chosen: list[Exchange] = []
    taken: set[tuple[str, int]] = set()
    for _, (name, i, j) in sorted(found):
        if len(chosen) < TOGETHER and taken.isdisjoint({(name, i), (name, j)}):
            chosen.append((name, i, j))
            taken |= {(name, i), (name, j)}
    return chosen


def late(objective: PathLoss, best: Learned[Any]) -> bool:
    limit = objective.time_limit
    return limit is not None and time.perf_counter() - best.began > limit
