"""The loss on the path between two posteriors, as an objective of alignment.

Distances of weights or activations are stand-ins for what alignment is for: a path without a
barrier. `PathLoss` is that loss itself,

    E_t E_θ [ −(1/N) Σᵢ log p(yᵢ | f(xᵢ; θ)) ],   θ from the geodesic between q₀ and P#q₁ at t,

with t from the middle of the path, where barriers are: at the ends P does not change the function,
and a loss averaged over all of the path would be one of its flat parts. It is not an
inner product of features, so there is no linear assignment to solve; P is learned (`learning.py`).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from onebasin.alignment.moments import Alignable, state_of
from onebasin.alignment.norms import ScaleFree, keep_norms
from onebasin.alignment.soft_action import Matrices, single_units, soft_act
from onebasin.choices import check_choice
from onebasin.data.examples import TrainingData, training_examples
from onebasin.likelihoods import LikelihoodLike
from onebasin.networks import NetworkLike, apply_of
from onebasin.posterior import LowRank, MeanField, Posterior, Samples
from onebasin.problem import Problem, likelihood_for
from onebasin.progress import Progress, check_progress
from onebasin.symmetry import Permutation, Symmetry, Transform
from onebasin.symmetry.action import move_tree
from onebasin.symmetry.linear_action import leaf_actions, multiplied_tree
from onebasin.trees import PyTree, add_axis, num_parameters, take_entry

FLAT = 1e-4  # nats
JUDGED_AT_ONCE = 100  # examples that are judged at one point of the path, with one draw

Relaxation: TypeAlias = Literal["soft", "straight-through"]
Part: TypeAlias = Literal["location", "spread", "factors", "state"]


@dataclass(frozen=True, eq=False)
class PathLoss:
    """The objective that learns the permutation on the loss of the path itself.

    Most training examples are used to learn, and `judged` others to choose: what is learned is kept
    only if it lowers the loss on those, so the result is never worse there than the start. The
    method relaxes permutations to doubly stochastic matrices, anneals them, projects them by exact
    assignment, and then tries exchanges of units. With a symmetry that has scales and matrices
    (`find_symmetry(..., kinds="all")`) these are learned as well, at first together with the
    permutations and then alone. It needs a `key`, and is deterministic given that, unless the time
    limit cuts it short.

    >>> import onebasin as ob
    >>> def apply(params, x):
    ...     return jnp.tanh(x @ params["w1"]) @ params["w2"]
    >>> rng = np.random.default_rng(0)
    >>> params = {"w1": rng.normal(size=(2, 3)), "w2": rng.normal(size=(3, 2))}
    >>> x = rng.normal(size=(60, 2))
    >>> y = np.asarray(apply(params, x)).argmax(axis=1)
    >>> symmetry = ob.find_symmetry(apply, params, x[:2])
    >>> shuffled = symmetry.act(ob.Permutation({"w1": np.array([2, 0, 1])}), params)
    >>> objective = ob.PathLoss(apply, (x, y), steps=5, exchanges=5, judged=20)
    >>> found = ob.align(shuffled, to=params, symmetry=symmetry, objective=objective,
    ...                  key=jax.random.key(0))
    >>> bool((found.posterior["w1"] == params["w1"]).all())
    True

    Args:
      network: a `Problem`, whose data and likelihood are used, a `Network`, or `apply(params, x)`.
      data: training examples, if the network is not a `Problem` or others are wanted.
      likelihood: by default that of the problem, else "categorical".
      steps: gradient steps on the relaxed permutations.
      batch_size: examples in each step.
      judged: training examples on which permutations are judged; they are not learned from.
      turns: further gradient steps on scales and matrices alone, if the symmetry has any.
      turning_rate: how far the first step moves a unit by scales and matrices, relative to its
        weights: the norm, root mean square over all units. It falls to a tenth in the last step.
      learning_rate: how far a step moves the scores of a unit, divided by their temperature: the
        norm, root mean square over all units. Scores begin with correlations, at most 1.
      temperatures: by which scores are divided in the first and the last step; between them it
        falls geometrically. At the lower the matrices are nearly permutations.
      relaxation: "soft" runs the network with the doubly stochastic matrices; "straight-through"
        with their projections, and takes the gradients of the soft ones.
      exchanges: trials of the final polish, each of which exchanges units and is kept only if the
        loss falls.
      span: the part of the path from which t is drawn, evenly.
      keep_norms: learn on the path on which scale-free units keep the norm of their mean
        (`onebasin.keep_norms`), not on the plain geodesic.
      time_limit: seconds after which the best permutation so far is returned.
      progress: how to show progress, or a function of (what, done, total).
      name: the name of the objective in results and messages.
    """

    network: NetworkLike
    data: TrainingData | None = None
    likelihood: LikelihoodLike | None = None
    steps: int = 600
    batch_size: int = 100
    judged: int = 500
    turns: int = 600
    turning_rate: float = 0.03
    learning_rate: float = 0.7
    temperatures: tuple[float, float] = (0.1, 0.02)
    relaxation: Relaxation = "soft"
    exchanges: int = 300
    span: tuple[float, float] = (0.4, 0.6)
    keep_norms: bool = False
    time_limit: float | None = None
    progress: Progress = "auto"
    name: str = "path-loss"

    def __post_init__(self) -> None:
        if self.data is None and not isinstance(self.network, Problem):
            raise ValueError("PathLoss needs training data; give a Problem, or data=(x, y)")
        check_choice(self.relaxation, Relaxation, "relaxation")
        check_progress(self.progress)
        for name in ("steps", "exchanges", "turns"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}; give a number from 0 up")
        for name in ("batch_size", "judged"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; use at least one example")
        first, last = self.temperatures
        if not 0 < last <= first:
            raise ValueError(
                f"temperatures are {self.temperatures}; give two positive numbers that do not rise"
            )
        if not 0 < self.span[0] <= self.span[1] < 1:
            raise ValueError(f"span is {self.span}; give two rising numbers between 0 and 1")
        for name in ("learning_rate", "turning_rate"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)}; give a positive number")
        if self.time_limit is not None and not self.time_limit > 0:
            raise ValueError(f"time_limit is {self.time_limit} seconds; give a positive number")
        count = len(self.examples[0])
        if self.judged >= count:
            raise ValueError(
                f"judged is {self.judged} of {count} training examples; leave some to learn from"
            )

    def __repr__(self) -> str:
        norms = ", norms kept" if self.keep_norms else ""
        return f"PathLoss({self.relaxation}, {self.steps} steps{norms})"

    @cached_property
    def examples(self) -> tuple[np.ndarray, np.ndarray]:
        """x and y of the training examples."""
        if self.data is None:
            assert isinstance(self.network, Problem)
            return self.network.x, self.network.y
        x, y = training_examples(self.data)
        return x, likelihood_for(self.network, self.likelihood).targets(y)

    def steps_on(self, symmetry: Symmetry) -> int:
        """How many gradient steps learning takes, if no time limit ends it."""
        if not symmetry.mixings:
            return self.steps
        return self.steps * bool(single_units(symmetry)) + self.turns

    def at(self, share: Any) -> Any:
        """The t at a share of the span."""
        return self.span[0] + (self.span[1] - self.span[0]) * share


class Side(NamedTuple):
    """One end of a path: what is needed to draw from it. Every tree has the params' containers."""

    location: PyTree  # with a leading axis of draws
    spread: PyTree | None
    factors: PyTree | None  # with a leading axis of factors
    state: PyTree | None  # with the axis of `location`, or none if there is one for all draws


def side_of(posterior: Alignable) -> Side:
    """A posterior, or a params tree, as an end of a path."""
    state = state_of(posterior)
    match posterior:
        case MeanField():
            return Side(add_axis(posterior.mean), posterior.std, None, _lead(state))
        case LowRank():
            factors = posterior.factors
            return Side(add_axis(posterior.mean), posterior.std, factors, _lead(state))
        case Samples():
            return Side(posterior.draws, None, None, state)
        case Posterior():
            mean, std = posterior.moments()
            return Side(add_axis(mean), std, None, None)
    return Side(add_axis(jax.tree.map(jnp.asarray, posterior)), None, None, None)


def _lead(state: PyTree | None) -> PyTree | None:
    return None if state is None else add_axis(state)


def moved(symmetry: Symmetry, element: Permutation | Transform, side: Side) -> Side:
    """The end with its units permuted, and multiplied by what else the element has."""
    permutation = element.permutation if isinstance(element, Transform) else element
    indices = permutation.indices
    permuted = Side(
        move_tree(side.location, 1, symmetry.layouts, indices),
        None if side.spread is None else move_tree(side.spread, 0, symmetry.layouts, indices),
        None if side.factors is None else move_tree(side.factors, 1, symmetry.layouts, indices),
        None if side.state is None else move_tree(side.state, 1, symmetry.state_layouts, indices),
    )
    if not isinstance(element, Transform):
        return permuted
    actions = leaf_actions(element, symmetry.groups, symmetry.mixings, dict(symmetry.shapes))
    location, spread, factors, state = permuted
    return Side(
        multiplied_tree(location, 1, actions),
        None if spread is None else multiplied_tree(spread, 0, actions, std=True),
        None if factors is None else multiplied_tree(factors, 1, actions),
        state,
    )


def one_draw(side: Side, draw: int) -> Side:
    """The end with only the draw (and the running statistics) that a point of the path uses."""

    def taken(tree: PyTree | None) -> PyTree | None:
        if tree is None:
            return None
        return add_axis(take_entry(tree, draw % len(jax.tree.leaves(tree)[0])))

    return Side(taken(side.location), side.spread, side.factors, taken(side.state))


class PathPoint(NamedTuple):
    """Where on the path, and with which noise, the loss is taken.

    The noise is one vector for all leaves and then all factors, and not drawn where the loss is
    compiled: a random number generator for each leaf is most of the time of the compiler.
    """

    t: Any  # a number
    noise: jax.Array | np.ndarray
    draw: int  # of an end that consists of draws

    @classmethod
    def random(
        cls, t: float, sides: tuple[Side, Side], draw: int, rng: np.random.Generator
    ) -> "PathPoint":
        """A point with fresh noise."""
        size = max(noise_size(side) for side in sides)
        return cls(np.float32(t), rng.standard_normal(size, np.float32), draw)


def noise_size(side: Side) -> int:
    """How many standard normal numbers a draw from this end needs."""
    if side.spread is None:
        return 0
    rank = 0 if side.factors is None else len(jax.tree.leaves(side.factors)[0])
    return num_parameters(side.spread) + rank


class Drawn(NamedTuple):
    """One draw from an end: its mean, the noise around it, and its running statistics."""

    mean: PyTree
    noise: PyTree | None
    state: PyTree | None


class Batch(NamedTuple):
    x: jax.Array | np.ndarray
    y: jax.Array | np.ndarray


class PathLosses:
    """The loss between two ends at points of their geodesic, compiled once."""

    def __init__(self, objective: PathLoss, symmetry: Symmetry, free: ScaleFree) -> None:
        self.symmetry, self.free = symmetry, free
        self.log_likelihood = likelihood_for(objective.network, objective.likelihood)
        self.apply = apply_of(objective.network)
        self.hard = jax.jit(self._loss)

    def soft(
        self, matrices: Matrices, sides: tuple[Side, Side], at: PathPoint, batch: Batch
    ) -> jax.Array:
        """The loss with the units of the second end mixed by matrices; differentiable in them."""

        def mix(tree: PyTree, part: Part) -> PyTree:
            where = "state" if part == "state" else "params"
            return soft_act(self.symmetry, matrices, tree, where=where)

        return self.mixed(mix, sides, at, batch)

    def mixed(
        self,
        mix: Callable[[PyTree, Part], PyTree],
        sides: tuple[Side, Side],
        at: PathPoint,
        batch: Batch,
    ) -> jax.Array:
        """The loss with `mix` applied to the second end; only the draw that is used is mixed."""
        target, mover = sides
        mover = one_draw(mover, at.draw)
        only = lambda tree, part: add_axis(mix(take_entry(tree, 0), part))
        each = jax.vmap(lambda factor: mix(factor, "factors"))
        mixed = Side(
            only(mover.location, "location"),
            None if mover.spread is None else mix(mover.spread, "spread"),
            None if mover.factors is None else each(mover.factors),
            None if mover.state is None else only(mover.state, "state"),
        )
        return self._loss((target, mixed), at, batch)

    def _loss(self, sides: tuple[Side, Side], at: PathPoint, batch: Batch) -> jax.Array:
        """The mean loss of one draw of the path at t."""
        start, end = (drawn(side, at) for side in sides)
        between = lerp(at.t, start.mean, end.mean)
        if self.free:
            between = keep_norms(self.free, at.t, start.mean, end.mean, between)
        if start.noise is not None and end.noise is not None:
            between = jax.tree.map(jnp.add, between, lerp(at.t, start.noise, end.noise))
        if start.state is None or end.state is None:
            outputs = self.apply(between, batch.x)
        else:
            outputs = self.apply(between, batch.x, lerp(at.t, start.state, end.state))
        return -jnp.mean(self.log_likelihood(outputs, jnp.asarray(batch.y)))


def lerp(t: Any, a: PyTree, b: PyTree) -> PyTree:
    return jax.tree.map(lambda x, y: (1 - t) * x + t * y, a, b)


def drawn(side: Side, at: PathPoint) -> Drawn:
    """A draw from an end. Both ends take the same noise: that is the geodesic."""
    mean = take_entry(side.location, at.draw % len(jax.tree.leaves(side.location)[0]))
    state = side.state
    if state is not None:
        state = take_entry(state, at.draw % len(jax.tree.leaves(state)[0]))
    if side.spread is None:
        return Drawn(mean, None, state)
    leaves, structure = jax.tree.flatten(side.spread)
    parts, start = [], 0
    for leaf in leaves:
        own = at.noise[start : start + leaf.size].reshape(leaf.shape)
        parts.append(leaf * own.astype(leaf.dtype))
        start += leaf.size
    noise = jax.tree.unflatten(structure, parts)
    if side.factors is not None:
        weights = at.noise[start : start + len(jax.tree.leaves(side.factors)[0])]
        noise = jax.tree.map(
            lambda n, f: n + jnp.tensordot(weights.astype(f.dtype), f, axes=1), noise, side.factors
        )
    return Drawn(mean, noise, state)


@dataclass(frozen=True, eq=False)
class Judge:
    """The loss of a permutation or transform on fixed examples, points of the path and draws."""

    losses: PathLosses
    sides: tuple[Side, Side]
    batches: tuple[Batch, ...]
    points: tuple[PathPoint, ...]

    @classmethod
    def of(
        cls,
        losses: PathLosses,
        sides: tuple[Side, Side],
        data: Batch,
        objective: PathLoss,
        rng: np.random.Generator,
    ) -> "Judge":
        """A judge who sees every example once, each batch at its own point of the path."""
        count = -(-len(data.x) // min(objective.batch_size, JUDGED_AT_ONCE))
        edges = np.linspace(0, len(data.x), count + 1).astype(int)
        batches = [
            Batch(jnp.asarray(data.x[a:b]), jnp.asarray(data.y[a:b])) for a, b in pairwise(edges)
        ]
        ts = objective.at((np.arange(count) + 0.5) / count)
        points = [PathPoint.random(t, sides, i, rng) for i, t in enumerate(ts)]
        return cls(losses, sides, tuple(batches), tuple(points))

    def between(self, target: Side, mover: Side) -> "Judge":
        """The same judge of other ends."""
        return replace(self, sides=(target, mover))

    def __call__(self, element: Permutation | Transform) -> float:
        return self._mean(element)

    def is_flat(self, element: Permutation | Transform) -> bool:
        """Whether the loss is the same at both ends as between them, with the same noise.

        So it is between a posterior and its relabelled copy. There is nothing to learn from such a
        path; among many permutations some would only by chance be judged better.
        """
        between = self._mean(element)
        return all(abs(between - self._mean(element, end)) <= FLAT for end in (0.0, 1.0))

    def _mean(self, element: Permutation | Transform, t: float | None = None) -> float:
        """The mean loss over the examples, each batch at its own point or all at t."""
        target, mover = self.sides
        sides = (target, moved(self.losses.symmetry, element, mover))
        total, count = 0.0, 0
        for batch, at in zip(self.batches, self.points, strict=True):
            here = at if t is None else at._replace(t=np.float32(t))
            total += len(batch.y) * float(self.losses.hard(sides, here, batch))
            count += len(batch.y)
        return total / count
