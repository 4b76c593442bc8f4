"""The loss along a path and its barrier.

The excess at t is L(t) − (1−t)·L(0) − t·L(1); the barrier is its maximum over the path. The
excess is zero at both ends by definition, so the barrier is never negative; the signed
largest excess over interior points says more when there is none.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, reduce
from typing import Any

import jax
import numpy as np

from onebasin.data.examples import Examples, examples_of
from onebasin.evaluation import monte_carlo
from onebasin.evaluation.monte_carlo import Points
from onebasin.evaluation.strata import Stratum, strata
from onebasin.likelihoods import LikelihoodLike
from onebasin.networks import NetworkLike, apply_of
from onebasin.paths import DisplacementPath, MixturePath, Path, RepairedPath, line
from onebasin.posterior import Mixture, Posterior, Samples
from onebasin.problem import likelihood_for
from onebasin.progress import Progress, reporting
from onebasin.trees import PyTree, add_axis


@dataclass(frozen=True, eq=False)
class Profile:
    """Loss and accuracy along a path, with Monte Carlo errors.

    Arrays have one entry for each point `t`. `nll` is the plain estimate; it is too large by
    about `nll_bias`, which shrinks as one over the number of samples. Standard errors are over
    draws. `mean_nll` belongs to the network of the mean parameters at t; `draw_nll`
    [samples, points] to every single draw (None for a mixture, whose draws do not move).
    For a repaired path `plain` is the profile of the path as it was before.
    """

    path: str
    points: Points = field(repr=False)
    mean_nll: np.ndarray = field(repr=False)
    mean_accuracy: np.ndarray = field(repr=False)
    draw_nll: np.ndarray | None = field(repr=False)
    num_samples: int
    num_examples: int
    plain: "Profile | None" = None
    note: str = ""

    @property
    def t(self) -> np.ndarray:
        return self.points.t

    @property
    def nll(self) -> np.ndarray:
        return self.points.nll

    @property
    def nll_bias(self) -> np.ndarray:
        return self.points.bias

    @property
    def nll_corrected(self) -> np.ndarray:
        """The loss with its O(1/samples) bias taken off."""
        return self.nll - self.nll_bias

    @property
    def accuracy(self) -> np.ndarray:
        return self.points.accuracy

    @cached_property
    def nll_stderr(self) -> np.ndarray:
        return self.points.stderr(np.eye(len(self.t)))

    @property
    def excess(self) -> np.ndarray:
        return self._chord @ self.nll

    @property
    def excess_bias(self) -> np.ndarray:
        """How much too large the excess is to order 1/samples."""
        return self._chord @ self.nll_bias

    @cached_property
    def excess_stderr(self) -> np.ndarray:
        """Of the excess itself: ends and interior share their draws, so much cancels."""
        return self.points.stderr(self._chord)

    @property
    def barrier(self) -> float:
        return max(0.0, self.largest_excess)

    @property
    def barrier_t(self) -> float:
        """Where the barrier is; the end t = 0 if there is none."""
        return self.largest_excess_t if self.largest_excess > 0 else 0.0

    @property
    def barrier_stderr(self) -> float:
        """Standard error of the excess at the point where it is largest."""
        return float(self.excess_stderr[self._top])

    @property
    def barrier_bias(self) -> float:
        """The O(1/samples) bias of the barrier, at the point where it is."""
        return float(self.excess_bias[self._top])

    @property
    def largest_excess(self) -> float:
        """The signed largest excess over interior points."""
        return float(self.excess[self._top])

    @property
    def largest_excess_t(self) -> float:
        return float(self.t[self._top])

    @cached_property
    def selection_bias(self) -> float:
        """How much too large a maximum over noisy points is, by cross-fitting.

        Half of the draws choose the point and the other half measure there, both ways; the
        halves' losses are taken to first order in their influences. Zero when every choice
        agrees. NaN where there are not four draws to split.
        """
        pairs = zip(self.points.influences, self.points.exact, strict=True)
        random = [influence for influence, exact in pairs if not exact]
        if not random:
            return 0.0
        if min(u.shape[1] for u in random) < 4:
            return float("nan")
        halves = []
        for half in (0, 1):
            moved = sum(u[:, half::2].mean(axis=1) for u in random)
            halves.append(self._chord @ (self.nll + moved))
        inside = slice(1, -1)
        fitted = [
            other[inside][np.argmax(chosen[inside])] for chosen, other in (halves, halves[::-1])
        ]
        return self.largest_excess - float(np.mean(fitted))

    @property
    def mean_excess(self) -> np.ndarray:
        """The excess of the mean networks: the deterministic baseline."""
        return self._chord @ self.mean_nll

    @property
    def mean_barrier(self) -> float:
        return max(0.0, float(self.mean_excess[1:-1].max()))

    @property
    def draw_barriers(self) -> np.ndarray | None:
        """The barrier of every single pair of draws, [samples]."""
        if self.draw_nll is None:
            return None
        return np.maximum(0.0, (self.draw_nll @ self._chord.T)[:, 1:-1].max(axis=1))

    @cached_property
    def _chord(self) -> np.ndarray:
        """The linear map from losses to excesses, [points, points]."""
        chord = np.eye(len(self.t))
        chord[:, 0] -= 1 - self.t
        chord[:, -1] -= self.t
        chord[[0, -1]] = 0.0
        return chord

    @property
    def _top(self) -> int:
        return 1 + int(np.argmax(self.excess[1:-1]))

    def summary(self) -> dict[str, Any]:
        """The profile as JSON-able numbers."""
        draws = self.draw_barriers
        found: dict[str, Any] = {
            "path": self.path,
            "note": self.note,
            "samples": self.num_samples,
            "examples": self.num_examples,
            "barrier": self.barrier,
            "barrier_stderr": self.barrier_stderr,
            "barrier_t": self.barrier_t,
            "barrier_bias": self.barrier_bias,
            "selection_bias": self.selection_bias,
            "largest_excess": self.largest_excess,
            "largest_excess_t": self.largest_excess_t,
            "mean_network_barrier": self.mean_barrier,
            "single_draw_barrier": None if draws is None else float(draws.mean()),
            "single_draw_barrier_std": None if draws is None else float(draws.std()),
        }
        for name in (
            "t",
            "nll",
            "nll_stderr",
            "nll_bias",
            "accuracy",
            "excess",
            "excess_stderr",
            "mean_nll",
            "mean_accuracy",
        ):
            found[name] = getattr(self, name).tolist()
        if self.plain is not None:
            found["plain"] = self.plain.summary()
        return found

    def __repr__(self) -> str:
        return f"Profile({self})"

    def __str__(self) -> str:
        text = (
            f"{self.path}: barrier {self.barrier:.4f} ± {self.barrier_stderr:.4f} nats "
            f"at t = {self.barrier_t:.3g} (largest interior excess {self.largest_excess:+.4f}), "
            f"mean network {self.mean_barrier:.4f}"
        )
        return text if self.plain is None else f"{text}; plain {self.plain}"


def profile(
    path: Path,
    network: NetworkLike,
    data: Examples,
    *,
    key: jax.Array,
    points: int = 25,
    num_samples: int = 128,
    refine: int = 0,
    likelihood: LikelihoodLike | None = None,
    batch_size: int | None = None,
    progress: Progress = "auto",
    plain: Profile | None = None,
) -> Profile:
    """The negative log predictive likelihood (nats per example) and accuracy along a path.

    Args:
      path: from `geodesic`, `mixture_path`, `line` or `repair`, or any function of t in [0, 1]
        that returns a posterior. A repaired path is reported beside the plain one, at the same
        points with the same draws.
      network: `apply(params, x)` (or `apply(params, x, state)`), a `Network` or a `Problem`.
      data: a split with .x and .y, or a pair.
      points: evenly spaced values of t, both ends among them.
      num_samples: draws for each t, the same ones along t (common random numbers). A set of
        Samples is used whole when it has no more draws than that.
      refine: rounds of halving the two intervals beside the largest excess.
      likelihood: the problem's own, else "categorical"; or "gaussian", a value from
        `onebasin.likelihoods`, or a function of (outputs, y).
      batch_size: rows run through the network at once; chosen by size if not given.
      progress: how to show progress, or a function of (what, done, total).
      plain: for a repaired path, the plain path's profile if there already is one.

    >>> import jax, jax.numpy as jnp, onebasin as ob
    >>> q0, q1 = (ob.MeanField({"w": m * jnp.ones((2, 3))}, {"w": jnp.ones((2, 3))})
    ...           for m in (0.0, 1.0))
    >>> data = (jnp.eye(2), jnp.array([0, 1]))
    >>> found = ob.profile(ob.geodesic(q0, q1), lambda p, x: x @ p["w"], data,
    ...                    key=jax.random.key(0), points=5, num_samples=8)
    >>> found.t.tolist()
    [0.0, 0.25, 0.5, 0.75, 1.0]
    """
    if not callable(path):
        raise ValueError(
            f"a {type(path).__name__} is not a path; make one with geodesic, mixture_path, line or "
            "repair, or give a function of t"
        )
    if points < 3:
        raise ValueError(f"a profile needs at least 3 points, both ends among them; got {points}")
    if refine < 0:
        raise ValueError(f"refine counts rounds and cannot be {refine}")
    apply = apply_of(network)
    x, y = examples_of(data)
    resolved = likelihood_for(network, likelihood)
    known = isinstance(path, DisplacementPath | MixturePath | RepairedPath)
    sources = strata(path if known else path(0.0), num_samples, key=key)
    blocks = monte_carlo.prepare(sources, apply, x, y, resolved, points, batch_size)
    if isinstance(path, RepairedPath) and plain is None:
        plain = profile(
            path.path,
            apply,
            data,
            key=key,
            points=points,
            num_samples=num_samples,
            refine=refine,
            likelihood=resolved,
            batch_size=batch_size,
            progress=progress,
        )

    with reporting(progress) as report:

        def evaluate(
            draws: list[Stratum], ts: np.ndarray, change: Any = None, what: str = ""
        ) -> Points:
            return monte_carlo.evaluate(draws, ts, apply, blocks, resolved, change, report, what)

        def run(ts: np.ndarray) -> tuple[Points, Points]:
            if not isinstance(path, DisplacementPath | MixturePath | RepairedPath):
                return _run_open(path, ts, num_samples, key, evaluate)
            change = path.corrections(ts) if isinstance(path, RepairedPath) else None
            found = evaluate(sources, ts, change, f"draws along the {path.kind}")
            if path.deterministic:
                return found, found
            single = strata(_mean_path(path), 1, key=key)
            return found, evaluate(single, ts, change)

        # A refined plain profile chose its own points; the repaired one takes the same first.
        ts = np.linspace(0.0, 1.0, points) if plain is None else plain.t
        found, mean = run(ts)
        for _ in range(refine):
            t = found.t
            top = 1 + int(np.argmax(_profile(path, found, mean, len(x), None).excess[1:-1]))
            halves = np.array([(t[top - 1] + t[top]) / 2, (t[top] + t[top + 1]) / 2])
            extra, extra_mean = run(halves)
            found, mean = found.merged(extra), mean.merged(extra_mean)
    return _profile(path, found, mean, len(x), plain)


def _run_open(
    path: Path,
    ts: np.ndarray,
    num_samples: int,
    key: jax.Array,
    evaluate: Callable[..., Points],
) -> tuple[Points, Points]:
    """A path of the caller's: its posteriors one after another, with the same noise."""
    parts: list[tuple[Points, Points]] = []
    for t in ts:
        q = path(float(t))
        at = np.array([t])
        mean = Samples(add_axis(q.moments()[0]), state=add_axis(mean_state(q)))
        what = f"draws, {len(parts) + 1} of {len(ts)} points"
        parts.append(
            (
                evaluate(strata(q, num_samples, key=key), at, what=what),
                evaluate(strata(mean, 1, key=key), at),
            )
        )
    found, means = zip(*parts, strict=True)
    return reduce(Points.merged, found), reduce(Points.merged, means)


def _profile(
    path: Path, found: Points, mean: Points, num_examples: int, plain: Profile | None
) -> Profile:
    known = isinstance(path, DisplacementPath | MixturePath | RepairedPath)
    coupled = len(found.influences) == 1  # one stratum: its draws can be followed along t
    return Profile(
        path=path.kind if known else getattr(path, "__name__", type(path).__name__),
        points=found,
        mean_nll=mean.nll,
        mean_accuracy=mean.accuracy,
        draw_nll=found.draw_nll[0].T if coupled else None,
        num_samples=sum(u.shape[1] for u in found.influences)
        // (2 if isinstance(path, MixturePath) else 1),
        num_examples=num_examples,
        plain=plain,
        note=path.note if known else "",
    )


def _mean_path(path: DisplacementPath | MixturePath | RepairedPath) -> DisplacementPath:
    """The line between the ends' mean networks, with the ends' average running statistics."""
    if isinstance(path, RepairedPath):
        return _mean_path(path.path)
    means, states = zip(*((q.moments()[0], mean_state(q)) for q in (path.q0, path.q1)), strict=True)
    return line(*means, *states)


def mean_state(q: Posterior) -> PyTree | None:
    """The running statistics of a posterior's mean network: the average over its draws."""
    if isinstance(q, Mixture):
        inner = [mean_state(c) for c in q.components]
        if inner[0] is None:
            return None
        weights = np.asarray(q.weights)
        return jax.tree.map(
            lambda *leaves: sum(w * s for w, s in zip(weights, leaves, strict=True)), *inner
        )
    if isinstance(q, Samples):
        return jax.tree.map(lambda leaf: leaf.mean(0), q.state)
    return q.states(key=jax.random.key(0))  # of a Gaussian: fixed
