"""The loss and the log posterior on a plane in parameter space.

Points of the plane are origin + a·u + b·v with u and v orthonormal, so distances in a figure are
distances between parameters (up to the unit). Networks are made and run one at a time.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from onebasin.data.examples import Examples, examples_of
from onebasin.evaluation.expectations import (
    ScoreName,
    averaged,
    deviations,
    expectation,
    score_name,
)
from onebasin.evaluation.streaming import cut
from onebasin.likelihoods import Likelihood, LikelihoodLike
from onebasin.networks.network import Apply, NetworkLike, apply_of, forward
from onebasin.posterior import Posterior, Samples
from onebasin.posterior.noise import normal_like
from onebasin.problem import likelihood_for
from onebasin.progress import Progress, reporting
from onebasin.trees import PyTree, check_same_shapes, leaves_by_path, tree_dot, with_leaves

if TYPE_CHECKING:  # Matplotlib is imported only when a figure is made
    from matplotlib.figure import Figure

    from onebasin.figures.canvas import AxesLike
    from onebasin.figures.evaluation import Value


@dataclass(frozen=True, eq=False)
class Plane:
    """The plane origin + a·u + b·v, with the coordinates of the points that define it.

    `a` and `b` are distances in parameter space; filter-normalised directions u and v are not of
    unit length, and coordinates are multiples of the norms of the filters.
    """

    origin: PyTree = field(repr=False)
    u: PyTree = field(repr=False)
    v: PyTree = field(repr=False)
    points: np.ndarray = field(repr=False)
    names: tuple[str, ...]
    unit: str = "distance in parameter space"

    def at(self, a: float, b: float) -> PyTree:
        """The params at coordinates (a, b)."""
        return _on_plane(self.origin, self.u, self.v, a, b)


@dataclass(frozen=True, eq=False)
class Landscape:
    """Values on a grid of a plane, [len(b), len(a)]; made by `landscape`.

    `nll` is in nats per example of the given data. `log_posterior` is up to a constant, with
    the likelihood of the data scaled to the whole training set; None if no prior was given.

    >>> import jax, jax.numpy as jnp, onebasin as ob
    >>> plane = ob.random_plane({"w": jnp.ones((2, 3))}, key=jax.random.key(0))
    >>> data = jnp.eye(2), jnp.array([0, 1])
    >>> found = ob.landscape(plane, lambda p, x: x @ p["w"], data, points=5)
    >>> found
    Landscape(5 × 5 points, 2 examples)
    >>> round(found.nll[2, 2].item(), 3)  # all logits are equal at the origin: log 3
    1.099
    """

    plane: Plane
    a: np.ndarray
    b: np.ndarray
    nll: np.ndarray
    score: np.ndarray
    """The measure `score_name` of every network: accuracy or RMSE; NaN if there is none."""
    log_posterior: np.ndarray | None
    num_examples: int
    score_name: ScoreName = "accuracy"

    @property
    def accuracy(self) -> np.ndarray:
        """The accuracy of every network; NaN unless targets are classes."""
        return self.score if self.score_name == "accuracy" else np.full_like(self.score, np.nan)

    def __repr__(self) -> str:
        return f"Landscape({len(self.a)} × {len(self.b)} points, {self.num_examples:,} examples)"

    def plot(self, value: "Value | None" = None, *, ax: "AxesLike | None" = None) -> "Figure":
        """Contours of the log posterior if it is known, or of the loss, or of `value`.

        Args:
          value: "log_posterior", "nll", "accuracy" or "rmse".
          ax: axes to draw in, instead of a new figure.
        """
        from onebasin.figures.evaluation import landscape_figure

        return landscape_figure(self, value, ax=ax)

    def summary(self) -> dict[str, Any]:
        """The landscape as JSON-able numbers."""
        log_posterior = None if self.log_posterior is None else self.log_posterior.tolist()
        score = {self.score_name: self.score.tolist()} if self.score_name else {}
        return {
            "names": list(self.plane.names),
            "points": self.plane.points.tolist(),
            "unit": self.plane.unit,
            "examples": self.num_examples,
            "a": self.a.tolist(),
            "b": self.b.tolist(),
            "nll": self.nll.tolist(),
            **score,
            "log_posterior": log_posterior,
        }


def plane_through(
    points: Sequence[Posterior | PyTree],
    names: Sequence[str] = ("q0", "q1", "aligned q1"),
    draw: int | None = None,
) -> Plane:
    """The plane through three points, by Gram–Schmidt.

    A point is params or a posterior. A posterior is represented by its mean or, with `draw`, by
    that draw of Samples. The first point is the origin, and the second lies on the first axis.

    >>> import jax.numpy as jnp, onebasin as ob
    >>> points = [{"w": jnp.array(w)} for w in ([0.0, 0.0], [3.0, 0.0], [1.0, 2.0])]
    >>> ob.plane_through(points).points.tolist()
    [[0.0, 0.0], [3.0, 0.0], [1.0, 2.0]]
    """
    if len(points) != 3 or len(names) != 3:
        raise ValueError(f"a plane needs three points and their names, got {len(points)}")
    origin, second, third = (_params(point, draw) for point in points)
    for name, other in zip(names[1:], (second, third), strict=True):
        check_same_shapes(origin, other, f"{name} must have the params of {names[0]} but")
    to_second, to_third = _minus(second, origin), _minus(third, origin)
    base = float(jnp.sqrt(tree_dot(to_second, to_second)))
    if base == 0:
        raise ValueError(f"{names[0]} and {names[1]} are the same point; give three distinct ones")
    u = jax.tree.map(lambda leaf: leaf / base, to_second)
    along = float(tree_dot(u, to_third))
    rest = jax.tree.map(lambda leaf, d: leaf - along * d, to_third, u)
    height = float(jnp.sqrt(tree_dot(rest, rest)))
    if height <= 1e-6 * base:
        raise ValueError(f"{names[2]} is on the line of the other two; give a point off it")
    v = jax.tree.map(lambda leaf: leaf / height, rest)
    coordinates = np.array([[0.0, 0.0], [base, 0.0], [along, height]])
    return Plane(origin, u, v, coordinates, tuple(names))


def random_plane(
    point: Posterior | PyTree,
    *,
    key: jax.Array,
    filter_normalised: bool = True,
    draw: int | None = None,
) -> Plane:
    """The plane through one point along two random directions.

    Args:
      point: params, or a posterior, represented by its mean.
      key: the key of the directions.
      filter_normalised: give every filter (the weights into one unit, the last axis) of a
        direction the norm of the filter at the point (Li et al. 2018), which makes networks of
        different scale comparable; otherwise the directions are orthonormal.
      draw: the draw of Samples to take instead of their mean.

    >>> import jax, jax.numpy as jnp, onebasin as ob
    >>> plane = ob.random_plane({"w": jnp.ones((4, 3))}, key=jax.random.key(0))
    >>> jnp.linalg.norm(plane.u["w"], axis=0).round(3).tolist()
    [2.0, 2.0, 2.0]
    """
    origin = _params(point, draw)
    u, v = (
        _direction(origin, key=k, filter_normalised=filter_normalised)
        for k in jax.random.split(key)
    )
    if not filter_normalised:
        overlap = tree_dot(u, v)
        v = jax.tree.map(lambda b, a: b - overlap * a, v, u)
        size = jnp.sqrt(tree_dot(v, v))
        v = jax.tree.map(lambda b: b / size, v)
    unit = "multiples of the filters' norms" if filter_normalised else "distance"
    return Plane(origin, u, v, np.zeros((1, 2)), ("centre",), unit)


def landscape(
    plane: Plane,
    network: NetworkLike,
    data: Examples,
    *,
    points: int = 25,
    margin: float = 0.3,
    extent: float = 1.0,
    log_prior: Callable[[PyTree], jax.Array] | None = None,
    likelihood_scale: float = 1.0,
    num_train: int | None = None,
    likelihood: LikelihoodLike | None = None,
    state: PyTree | None = None,
    batch_size: int | None = None,
    progress: Progress = "auto",
) -> Landscape:
    """Loss, accuracy (or RMSE) and log posterior on a `points` × `points` grid of the plane.

    Args:
      plane: from `plane_through` or `random_plane`.
      network: `apply(params, x)` (or `apply(params, x, state)`), a `Network` or a `Problem`.
      data: a split with .x and .y, or a pair.
      points: grid points along each axis.
      margin: how far the grid extends beyond the points of the plane, relative to their range.
      extent: for a plane through one point, how far the grid extends in each direction.
      log_prior: `log_prior(params)`, such as that of a problem; gives the log posterior
        likelihood_scale · num_train · mean log likelihood + log prior.
      likelihood_scale: the weight of the log likelihood against the prior.
      num_train: the number of examples to which the likelihood of `data` is scaled; by default
        that of `data`.
      state: running statistics, if the network has any.
      likelihood, batch_size, progress: as for `profile`.

    >>> import jax.numpy as jnp, onebasin as ob
    >>> plane = ob.plane_through([{"w": jnp.array([w])} for w in ([0.0, 0], [1.0, 0], [0.0, 1])])
    >>> data = jnp.ones((1, 1)), jnp.array([0])
    >>> found = ob.landscape(plane, lambda p, x: x @ p["w"], data, points=2, margin=0)
    >>> found.nll.round(3).tolist()  # log(1 + exp(b - a))
    [[0.693, 0.313], [1.313, 0.693]]
    """
    if not isinstance(plane, Plane):
        raise TypeError(
            f"landscape takes a plane, such as random_plane(q, key=key) or plane_through(points), "
            f"got a {type(plane).__name__}"
        )
    if points < 2:
        raise ValueError(f"a grid needs at least 2 points along each axis, got {points}")
    x, y = examples_of(data)
    apply = apply_of(network)
    resolved = likelihood_for(network, likelihood)
    blocks = cut(apply, plane.origin, state, x, lambda _: 16, batch_size, y, resolved)
    a, b = _axes(plane, points, margin, extent)
    grid = [(i, j) for i in range(points) for j in range(points)]
    loss, scores, priors = np.zeros((3, points, points))
    prior = None if log_prior is None else jax.jit(log_prior)
    parts = list(blocks) if len(blocks) == 1 else blocks
    with reporting(progress) as report:
        for done, (i, j) in enumerate(grid, start=1):
            params = plane.at(a[j], b[i])
            for xs, ys, real in parts:
                log_p, own = _scores(apply, resolved, params, state, (xs, ys))
                known = real * blocks.each
                loss[i, j] -= np.asarray(log_p)[:known].sum(dtype=np.float64)
                scores[i, j] += np.asarray(own)[:known].sum(dtype=np.float64)
            if prior is not None:
                priors[i, j] = float(prior(params))
            report("networks on the plane", done, len(grid))
    loss /= blocks.predictions
    measure = score_name(resolved)
    scores = averaged(measure, scores, blocks.predictions)
    total = None
    if prior is not None:
        total = priors - likelihood_scale * (num_train or len(x)) * blocks.each * loss
    return Landscape(plane, a, b, loss, scores, total, len(x), measure)


@partial(jax.jit, static_argnames=("apply", "likelihood"))
def _scores(
    apply: Apply, likelihood: Likelihood, params: PyTree, state: PyTree | None, data: PyTree
) -> tuple[jax.Array, jax.Array]:
    def batch(xy: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        outputs = forward(apply, params, xy[0], state)
        expected = expectation(likelihood, outputs)
        return likelihood(outputs, xy[1]), deviations(likelihood, expected, xy[1])

    log_p, scores = jax.lax.map(batch, data)
    return log_p.reshape(-1), scores.reshape(-1)


@jax.jit
def _on_plane(origin: PyTree, u: PyTree, v: PyTree, a: ArrayLike, b: ArrayLike) -> PyTree:
    def leaf(o: jax.Array, p: jax.Array, q: jax.Array) -> jax.Array:
        return o + (jnp.asarray(a, o.dtype) * p + jnp.asarray(b, o.dtype) * q)

    return jax.tree.map(leaf, origin, u, v)


def _axes(plane: Plane, points: int, margin: float, extent: float) -> tuple[np.ndarray, np.ndarray]:
    if len(plane.points) == 1:
        axis = np.linspace(-extent, extent, points)
        return axis, axis.copy()
    low, high = plane.points.min(axis=0), plane.points.max(axis=0)
    room = margin * (high - low).max()
    a, b = (np.linspace(lo - room, hi + room, points) for lo, hi in zip(low, high, strict=True))
    return a, b


def _params(point: Posterior | PyTree, draw: int | None) -> PyTree:
    if isinstance(point, Samples) and draw is not None:
        if not 0 <= draw < point.num_draws:
            raise ValueError(f"there is no draw {draw}; the Samples have {point.num_draws} draws")
        return point.draw(draw)
    return point.moments()[0] if isinstance(point, Posterior) else point


def _minus(a: PyTree, b: PyTree) -> PyTree:
    return jax.tree.map(jnp.subtract, with_leaves(b, leaves_by_path(a)), b)


def _direction(like: PyTree, *, key: jax.Array, filter_normalised: bool) -> PyTree:
    noise = normal_like(like, None, key=key)
    if not filter_normalised:
        size = jnp.sqrt(tree_dot(noise, noise))
        return jax.tree.map(lambda e: e / size, noise)

    def leaf(point: jax.Array, e: jax.Array) -> jax.Array:
        if point.ndim < 2:
            return jnp.zeros_like(point)  # biases and gains do not vary, as in the paper
        axes = tuple(range(point.ndim - 1))
        norm = lambda w: jnp.sqrt(jnp.sum(w**2, axis=axes, keepdims=True))
        return e * norm(point) / jnp.maximum(norm(e), 1e-30)

    return jax.tree.map(leaf, like, noise)
