"""Joint alignment by `PathLoss`: every member learns its permutation on the paths to the others.

The loss of a set of permutations is the mean, over all pairs of members, of the loss on the path
between the two. Members take turns, as they do with a barycentre: one is learned while the others
stay where they are, and what it learns is kept only if the judged loss of its own pairs falls. So
the loss of all pairs never rises. With two members each end moves towards the other in turn.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations

import jax
import numpy as np

from onebasin.alignment.learned import Task, scores_to_learn, units_of
from onebasin.alignment.learning import Learned, Learner
from onebasin.alignment.moments import Alignable
from onebasin.alignment.path_loss import PathLoss, Side, moved, side_of
from onebasin.alignment.unit_scores import Scores, mean_scores, project
from onebasin.progress import Reporter, reporting
from onebasin.symmetry import Permutation, Symmetry

Frame = tuple[Permutation, ...]
"""One permutation for each member."""


@dataclass
class JointlyLearned:
    """The permutations of all members, and minus their judged loss at the start and every round."""

    permutations: Frame
    trace: list[float]
    converged: bool


def learn_jointly(
    objective: PathLoss,
    members: Sequence[Alignable],
    anchor: int,
    nearest: Frame,
    symmetry: Symmetry,
    key: jax.Array,
    rounds: int,
) -> JointlyLearned:
    """Learn the permutations of all members but the anchor, and then of all again.

    It begins with the best of the members as they are, the permutations that bring them nearest to
    each other, and those that match the units of each with the anchor's by correlation.
    """
    joint = _Joint(objective, members, members[anchor], symmetry, key)

    starts: dict[str, Callable[[], Frame]] = {
        "identity": lambda: (symmetry.identity(),) * len(members),
        "w2": lambda: nearest,
    }
    for kind in joint.units.kinds:
        starts[kind] = partial(joint.matched, kind, members[anchor])
    with reporting(objective.progress) as report:
        joint.start(starts, report)
        if len(members) < 2 or objective.steps == objective.exchanges == 0:
            return JointlyLearned(joint.frame, joint.trace, True)
        for number in range(rounds):
            turns = [i for i in range(len(members)) if number or i != anchor]
            gained = [joint.turn(i, number, report) for i in turns]
            joint.trace.append(-joint.loss())
            if not any(gained):
                return JointlyLearned(joint.frame, joint.trace, True)
    return JointlyLearned(joint.frame, joint.trace, False)


class _Joint:
    """The members, where each of them is now, and the judge of every pair."""

    def __init__(
        self,
        objective: PathLoss,
        members: Sequence[Alignable],
        anchor: Alignable,
        symmetry: Symmetry,
        key: jax.Array,
    ) -> None:
        self.began = time.perf_counter()
        self.task = task = Task.of(objective, anchor, symmetry, key)
        self.learner = Learner(objective, task.losses)
        self.units = units_of(objective, anchor, symmetry)
        self.members = members
        self.sides = [side_of(q) for q in members]
        self.frame: Frame = ()
        self.trace: list[float] = []
        self._judge = task.judge(self.sides[0], self.sides[-1])

    def start(self, starts: Mapping[str, Callable[[], Frame]], report: Reporter) -> None:
        best = np.inf
        for number, (name, make) in enumerate(starts.items()):
            frame = make()
            loss = self.loss(frame)
            if loss < best or not self.frame:
                best, self.frame = loss, frame
            report("starts", number + 1, len(starts), f"{name}: loss {loss:.4f}")
        self.trace.append(-best)

    def matched(self, kind: str, anchor: Alignable) -> Frame:
        """Every member with its units matched with those of the anchor."""
        return tuple(project(self.units.between(q, anchor)[kind]) for q in self.members)

    def loss(self, frame: Frame | None = None) -> float:
        """The judged loss, the mean over all pairs."""
        placed = [self._placed(i, frame or self.frame) for i in range(len(self.members))]
        stay = self.task.symmetry.identity()
        losses = [self._judge.between(a, b)(stay) for a, b in combinations(placed, 2)]
        return float(np.mean(losses)) if losses else 0.0

    def turn(self, i: int, number: int, report: Reporter) -> bool:
        """Learn the permutation of one member while the others stay; whether it has moved."""
        task, objective = self.task, self.task.objective
        others = [j for j in range(len(self.members)) if j != i]
        targets = [self._placed(j, self.frame) for j in others]
        judges = [self._judge.between(target, self.sides[i]) for target in targets]

        def judge(permutation: Permutation) -> float:
            return float(np.mean([one(permutation) for one in judges]))

        before = self.frame[i]
        best = Learned(before, judge(before), self.began)
        if all(one.is_flat(before) for one in judges):
            return False
        stream = task.examples(targets, self.sides[i], f"member {i} in round {number}")
        if objective.steps:
            scores = scores_to_learn(self._kinds(i, others), best.element, judge)
            self.learner.learn(scores, best, judge, stream, report)
        self.learner.polish(best, judge, stream, report)
        self.frame = (*self.frame[:i], best.element, *self.frame[i + 1 :])
        return best.element != before

    def _kinds(self, i: int, others: Sequence[int]) -> dict[str, Scores]:
        """The mean scores with the units of the others, where they are."""
        act = self.task.symmetry.act
        found = [
            self.units.between(self.members[i], act(self.frame[j], self.members[j])) for j in others
        ]
        return mean_scores(found)

    def _placed(self, i: int, frame: Frame) -> Side:
        return moved(self.task.symmetry, frame[i], self.sides[i])
