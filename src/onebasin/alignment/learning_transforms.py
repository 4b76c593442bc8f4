"""Learning scales, rotations and invertible maps on the loss of a path, with the permutations.

The element that moves the second end is E·P·T: T the start, P the permutations of groups whose
units are permuted one by one, relaxed and annealed as in `learning.py`, and E scales and matrices.
A step follows the slopes of both. That of a matrix is taken at the matrix itself (`tangents.py`),
and moves it by the exponential of a small direction; so every element on the way is one of the
symmetry. From time to time P is projected and E·P·T is judged on examples that are not learned
from; the best is kept. Then E alone is learned further, at the best permutations, and at last units
are exchanged. The order of whole heads is that of the start, and a unit keeps its sign unless
another one takes its place.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from onebasin.alignment.learning import (
    EVERY,
    Examples,
    Learned,
    Learner,
    Momentum,
    downhill,
    late,
    relaxed,
)
from onebasin.alignment.path_loss import (
    Batch,
    Judge,
    Part,
    PathLoss,
    PathLosses,
    PathPoint,
    Side,
    moved,
    one_draw,
)
from onebasin.alignment.soft_action import matrices_of, single_units, soft_act
from onebasin.alignment.tangents import at_rest, exponential, in_algebra, tangent_act
from onebasin.alignment.unit_scores import Scores, project
from onebasin.progress import Reporter
from onebasin.symmetry import Permutation, Symmetry, Transform
from onebasin.trees import PyTree

FALL = 0.1  # of the size of steps, from the first to the last


@dataclass
class Position:
    """Where learning is: E·P·T, with P as scores, and what the steps remember."""

    start: Transform
    turned: Transform
    logs: dict[str, Any]
    scores: dict[str, Any]
    signs: Mapping[str, np.ndarray]
    momentum: Any = None
    potentials: Any = field(default_factory=dict)


class TransformLearner:
    """Learns elements of one symmetry by one objective."""

    def __init__(self, objective: PathLoss, losses: PathLosses) -> None:
        self.objective, self.losses, self.symmetry = objective, losses, losses.symmetry
        self._step = jax.jit(self._one_step)
        self._rest = at_rest(self.symmetry)
        self._scaled = [n for n in self._rest if self.symmetry.mixings[n].matrices is None]

    def learn(
        self,
        best: Learned[Transform],
        judge: Judge,
        examples: Examples,
        start: Transform,
        scores: Scores,
        signs: Mapping[str, np.ndarray],
        steps: int,
        report: Reporter,
    ) -> None:
        """Gradient steps from a start; without scores, on scales and matrices alone.

        The scores are of units of the second end as the start moves it, and the signs those of
        pairs of units, for groups that have them. `best` receives every element that is better.
        """
        objective = self.objective
        what = "learning" if scores else "turning"
        latent = {name: jnp.asarray(s, jnp.float32) for name, s in scores.items()}
        zeros = {name: jnp.asarray(self._rest[name]) for name in self._rest}
        now = Position(
            start,
            self.symmetry.as_transform(self.symmetry.identity()),
            {name: zeros[name] for name in self._scaled},
            latent,
            signs,
            (Momentum.at_rest(latent), Momentum.at_rest(_rows(zeros))),
            jax.tree.map(jnp.zeros_like, latent),
        )
        hard = objective.relaxation == "straight-through"
        for number, (sides, at, batch) in zip(range(steps), examples, strict=False):
            if late(objective, best):
                break
            self._follow(now, number / max(steps - 1, 1), hard, sides, at, batch)
            best.steps += 1
            if (number + 1) % EVERY == 0 or number + 1 == steps:
                element = self._element(now)
                best.offer(element, judge(element))
                report(what, number + 1, steps, f"loss {best.loss:.4f}")

    def _follow(
        self,
        now: Position,
        share: float,
        hard: bool,
        sides: tuple[Side, Side],
        at: PathPoint,
        batch: Batch,
    ) -> None:
        """One step; `share` is how much of all steps is done."""
        first, last = self.objective.temperatures
        temperature = first * (last / first) ** share
        projected = matrices_of(project(now.scores)) if hard and now.scores else None
        target, mover = sides
        there = moved(
            self.symmetry, self.symmetry.compose(now.turned, now.start), one_draw(mover, at.draw)
        )
        way, now.scores, now.momentum, now.potentials = self._step(
            now.scores,
            now.logs,
            now.momentum,
            now.potentials,
            temperature,
            projected,
            now.signs,
            (target, there),
            at,
            batch,
        )
        rate = self.objective.turning_rate * FALL**share
        step = {name: rate * own for name, own in way.items()}
        now.logs = {name: now.logs[name] + step.pop(name) for name in now.logs}
        if step:
            now.turned = self.symmetry.compose(exponential(self.symmetry, step), now.turned)

    def _one_step(
        self,
        scores: Any,
        logs: Any,
        momentum: Any,
        potentials: Any,
        temperature: Any,
        projected: Any,
        signs: Any,
        sides: Any,
        at: PathPoint,
        batch: Batch,
    ) -> tuple[Any, Any, Any, Any]:
        def loss(scores: Any, directions: Any) -> tuple[jax.Array, Any]:
            soft, found = relaxed(scores, potentials, temperature, projected)
            mix = partial(self._mix, soft, signs, directions)
            return self.losses.mixed(mix, sides, at, batch), found

        directions = {**self._rest, **logs}
        slopes, potentials = jax.grad(loss, argnums=(0, 1), has_aux=True)(scores, directions)
        of_scores, of_elements = momentum
        if scores:
            down, of_scores = downhill(slopes[0], of_scores)
            rate = self.objective.learning_rate * temperature
            scores = {name: s + rate * down[name] for name, s in scores.items()}
        turns = _rows(in_algebra(self.symmetry, slopes[1]))
        down = {}
        if turns:
            down, of_elements = downhill(turns, of_elements)
        way = {name: _unrolled(own, self._rest[name]) for name, own in down.items()}
        return way, scores, (of_scores, of_elements), potentials

    def _mix(self, soft: Any, signs: Any, directions: Any, tree: PyTree, part: Part) -> PyTree:
        """The second end with E·P, its units mixed softly and its matrices to first order."""
        if part == "state":
            return soft_act(self.symmetry, soft, tree, where="state")
        flips = None if part == "spread" else signs
        tree = soft_act(self.symmetry, soft, tree, signs=flips)
        return tangent_act(self.symmetry, directions, tree, spread=part == "spread")

    def _element(self, now: Position) -> Transform:
        """E·P·T with P projected."""
        turned = self.symmetry.compose(exponential(self.symmetry, now.logs), now.turned)
        permuted = self.ordered(now.start, now.signs, project(now.scores))
        return self.symmetry.compose(turned, permuted)

    def ordered(
        self, start: Transform, signs: Mapping[str, np.ndarray], permutation: Permutation
    ) -> Transform:
        """The start with single units permuted, each with the sign of its pair."""
        order = self.symmetry.as_transform(lifted(self.symmetry, permutation))
        own = {name: s[np.arange(len(s)), permutation[name]] for name, s in signs.items()}
        signed = Transform(order.permutation, {**order.signs, **own}, order.scales, order.matrices)
        return self.symmetry.compose(signed, start)

    def polish(
        self, best: Learned[Transform], judge: Judge, examples: Examples, report: Reporter
    ) -> None:
        """Exchanges of single units of the best, each kept only if the judged loss falls.

        The second end of the examples is as the best moves it.
        """
        start, together = best.element, self.symmetry.compose
        still = Permutation({n: self.symmetry.identity()[n] for n in single_units(self.symmetry)})
        inner = Learned(still, best.loss, best.began)
        Learner(self.objective, self.losses).polish(
            inner,
            lambda permutation: judge(together(lifted(self.symmetry, permutation), start)),
            examples,
            report,
        )
        best.element, best.loss = together(lifted(self.symmetry, inner.element), start), inner.loss
        best.losses += inner.losses[1:]
        best.seconds += inner.seconds[1:]
        best.trials += inner.trials


def lifted(symmetry: Symmetry, permutation: Permutation) -> Permutation:
    """The permutation of some groups as one of all."""
    return Permutation({**symmetry.identity().indices, **permutation.indices})


def scores_and_signs(
    symmetry: Symmetry, kinds: Iterable[Scores]
) -> tuple[list[Scores], Mapping[str, np.ndarray]]:
    """The scores of single units, |correlations| where they have signs, and these signs."""
    names = single_units(symmetry)
    found: list[Scores] = []
    signs: dict[str, np.ndarray] = {}
    for scores in kinds:
        own = {name: scores[name] for name in names}
        for name in names:
            if name in symmetry.mixings and symmetry.mixings[name].signs is not None:
                # One sign for each pair, that of the first kind of scores.
                signs.setdefault(name, np.where(own[name] < 0, -1.0, 1.0).astype(np.float32))
                own[name] = own[name] * signs[name]
        found.append(own)
    return found, signs


def _rows(directions: Mapping[str, Any]) -> dict[str, Any]:
    """One row for each unit, as `downhill` counts them."""
    return {
        name: own.reshape(-1, own.shape[-1]) if own.ndim == 3 else own.T
        for name, own in directions.items()
    }


def _unrolled(rows: Any, like: np.ndarray) -> Any:
    return rows.reshape(like.shape) if like.ndim == 3 else rows.T
