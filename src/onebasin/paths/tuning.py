"""A path whose gains and shifts are tuned on training data.

Repairing restores two statistics of every unit; a few gradient steps on the gains and shifts of the
hidden units, at every t, do what statistics cannot. All other parameters stay those of the path,
and so do the ends. Labels are used, so this is further from the plain geodesic than any other path
here: it says how near a low loss is, and not that the two ends are connected.
"""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Generic, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import optax

from onebasin.keys import check_key, subkey
from onebasin.paths.ends import check_t
from onebasin.paths.geodesics import DisplacementPath
from onebasin.paths.norm_keeping import Correction, NormKeepingPath
from onebasin.paths.repairing import RepairedPath, moved_mean
from onebasin.posterior import PosteriorT
from onebasin.problem import Problem
from onebasin.symmetry import Symmetry, find_symmetry
from onebasin.trees import PyTree, leaves_by_path, with_leaves

Base: TypeAlias = DisplacementPath | NormKeepingPath | RepairedPath


@dataclass(frozen=True, eq=False)
class TunedPath(Generic[PosteriorT]):
    """A path with tuned gains and shifts; made by `tune`. `tuned` names their leaves."""

    path: Base
    tuned: tuple[str, ...]
    problem: Problem = field(repr=False)
    key: jax.Array = field(repr=False)
    steps: int
    learning_rate: float
    batch_size: int
    _known: dict[float, dict[str, jax.Array]] = field(default_factory=dict, repr=False)

    @property
    def plain(self) -> DisplacementPath:
        """The path without any change, in the gauge of its ends."""
        return self.path if isinstance(self.path, DisplacementPath) else self.path.plain

    @property
    def kind(self) -> str:
        return f"tuned {self.path.kind}"

    @property
    def note(self) -> str:
        return self.path.note

    @property
    def deterministic(self) -> bool:
        return self.path.deterministic

    def __repr__(self) -> str:
        return f"{self.path!r}, {len(self.tuned)} leaves tuned"

    def __call__(self, t: float) -> PosteriorT:
        return moved_mean(self.path(t), self._tree(self.change(t)))

    def change(self, t: float) -> dict[str, jax.Array]:
        """What is added to the mean of every tuned leaf at t; nothing at the ends."""
        t = check_t(t)
        if t not in self._known:
            self._known[t] = {} if t in (0.0, 1.0) else self._tune(t)
        return self._known[t]

    def corrections(self, ts: np.ndarray) -> Correction:
        """What is done to the params of the plain path at all points `ts`."""
        trees = [self._tree(self.change(float(t))) for t in ts]
        added = jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)
        if isinstance(self.path, DisplacementPath):
            return (jax.tree.map(jnp.ones_like, added), added), None
        (scale, shift), part = self.path.corrections(ts)
        return (scale, jax.tree.map(jnp.add, shift, added)), part

    def _tree(self, change: dict[str, jax.Array]) -> PyTree:
        like = self.plain.q0.like
        leaves = leaves_by_path(like)
        zeros = {
            n: jnp.zeros(leaf.shape if n in self.tuned else (1,) * len(leaf.shape), leaf.dtype)
            for n, leaf in leaves.items()
        }
        return with_leaves(like, {**zeros, **change})

    def _tune(self, t: float) -> dict[str, jax.Array]:
        """Adam on the mean loss of draws at t over mini-batches; the same batches at every t."""
        q = self.path(t)
        leaves = leaves_by_path(q.like)
        change: Any = {
            name: jnp.zeros(leaves[name].shape, leaves[name].dtype) for name in self.tuned
        }
        state = self._optimiser.init(change)
        x, y = self.problem.x, self.problem.y
        seed = np.asarray(jax.random.key_data(subkey(self.key, "batches"))).tolist()
        rng = np.random.default_rng(seed)
        for number in range(self.steps):
            picks = np.sort(rng.choice(len(x), min(self.batch_size, len(x)), replace=False))
            params = q.sample(key=jax.random.fold_in(self.key, number))
            change, state = self._step(change, state, params, x[picks], y[picks])
        return change

    @cached_property
    def _optimiser(self) -> optax.GradientTransformation:
        return optax.adam(self.learning_rate)

    @cached_property
    def _step(self) -> Any:
        def step(change: Any, state: Any, params: PyTree, x: Any, y: Any) -> tuple[Any, Any]:
            leaves = leaves_by_path(params)

            def loss(change: Any) -> jax.Array:
                tuned = {name: leaves[name] + change[name] for name in change}
                outputs = self.problem.apply(with_leaves(params, {**leaves, **tuned}), x)
                return -jnp.mean(self.problem.log_likelihood(outputs, y))

            moves, state = self._optimiser.update(jax.grad(loss)(change), state)
            return optax.apply_updates(change, moves), state

        return jax.jit(step)


def tune(
    path: Base,
    problem: Problem,
    *,
    key: jax.Array,
    symmetry: Symmetry | None = None,
    steps: int = 20,
    learning_rate: float = 0.01,
    batch_size: int = 100,
) -> TunedPath:
    """The path with gains and shifts of hidden units tuned by a few gradient steps at every t.

    Args:
      path: from `geodesic`, `displacement`, `line`, `keep_norms` or `repair`.
      problem: the problem whose training loss is lowered.
      key: the key of the batches and draws.
      symmetry: the traced symmetry, which says what are gains and shifts; found if not given.
      steps: steps of Adam at every t.
      learning_rate: of Adam.
      batch_size: examples in each step.

    >>> import onebasin as ob
    >>> def apply(p, x):
    ...     return jnp.tanh(x @ p["w1"] + p["b1"]) @ p["w2"]
    >>> params = {"w1": jnp.ones((1, 2)), "b1": jnp.zeros(2), "w2": jnp.ones((2, 1))}
    >>> problem = ob.Problem(apply, lambda key: params, (np.ones((4, 1)), np.ones(4)), "gaussian")
    >>> path = ob.tune(ob.line(params, params), problem, key=jax.random.key(0))
    >>> path.tuned
    ('b1',)
    >>> bool((path(0.5).draw(0)["b1"] != 0).all()), path(1.0).draw(0)["b1"].tolist()
    (True, [0.0, 0.0])
    """
    if not isinstance(path, Base):
        raise ValueError(
            f"a {type(path).__name__} cannot be tuned; give a path from geodesic, displacement, "
            "line, keep_norms or repair"
        )
    if not isinstance(problem, Problem):
        raise ValueError("tune lowers the training loss of a Problem; give one, not a network")
    if steps < 1 or batch_size < 1 or not learning_rate > 0:
        raise ValueError(
            f"steps, batch_size and learning_rate are {steps}, {batch_size} and {learning_rate}; "
            "give positive numbers"
        )
    symmetry = find_symmetry(problem) if symmetry is None else symmetry
    places = [place for group in symmetry.groups for place in group.places]
    named = dict.fromkeys(
        place.leaf
        for place in places
        if place.where == "params" and place.role in ("add", "multiply")
    )
    if not named:
        raise ValueError("no gain and no shift of hidden units was found; nothing can be tuned")
    return TunedPath(path, tuple(named), problem, check_key(key), steps, learning_rate, batch_size)
