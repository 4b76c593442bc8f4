"""The loss along a path and its barrier.

The excess at t is L(t) − (1−t)·L(0) − t·L(1); the barrier is its maximum over the path. The
excess is zero at both ends by definition, so the barrier is never negative; the signed
largest excess over interior points says more when there is none.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import jax
import numpy as np

from onebasin.evaluation import monte_carlo
from onebasin.evaluation.likelihood import examples, resolve
from onebasin.evaluation.monte_carlo import Points, Progress
from onebasin.evaluation.strata import strata
from onebasin.paths import Displacement, Mixing, Path, Repaired, line


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
    samples: int
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
            "samples": self.samples,
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

    def __str__(self) -> str:
        text = (
            f"{self.path}: barrier {self.barrier:.4f} ± {self.barrier_stderr:.4f} nats "
            f"at t = {self.barrier_t:.3g} (largest interior excess {self.largest_excess:+.4f}), "
            f"mean network {self.mean_barrier:.4f}"
        )
        return text if self.plain is None else f"{text}; plain {self.plain}"


def profile(
    path: Path,
    apply: Callable[..., jax.Array],
    data: Any,
    *,
    key: jax.Array,
    points: int = 25,
    samples: int = 128,
    refine: int = 0,
    likelihood: Any = "categorical",
    batch_size: int | None = None,
    progress: Progress | None = None,
    plain: Profile | None = None,
) -> Profile:
    """The negative log predictive likelihood (nats per example) and accuracy along a path.

    Args:
      path: from `geodesic`, `mixture`, `line` or `repair`. A repaired path is reported beside
        the plain one, at the same points with the same draws.
      apply: `apply(params, x)`, or `apply(params, x, state)` with running statistics.
      data: a split with .x and .y, or a pair.
      points: evenly spaced values of t, both ends among them.
      samples: draws for each t, the same ones along t (common random numbers). A set of
        Samples is used whole when it has no more draws than that.
      refine: rounds of halving the two intervals beside the largest excess.
      likelihood: "categorical", "gaussian", `Gaussian(noise_std)`, or a function of
        (outputs, y) such as a problem's `log_likelihood`.
      batch_size: rows run through the network at once; chosen by size if not given.
      progress: called with (draws done, draws in all).
      plain: for a repaired path, the plain path's profile if there already is one.
    """
    if not isinstance(path, Displacement | Mixing | Repaired):
        raise ValueError(
            f"a {type(path).__name__} is no path; make one with geodesic, mixture, line or repair"
        )
    if points < 3:
        raise ValueError(f"a profile needs at least 3 points, both ends among them; got {points}")
    if refine < 0:
        raise ValueError(f"refine counts rounds and cannot be {refine}")
    x, y = examples(data)
    resolved = resolve(likelihood)
    sources = strata(path, samples, key=key)
    blocks = monte_carlo.prepare(sources, apply, x, y, resolved, points, batch_size)
    if isinstance(path, Repaired) and plain is None:
        plain = profile(
            path.path,
            apply,
            data,
            key=key,
            points=points,
            samples=samples,
            refine=refine,
            likelihood=likelihood,
            batch_size=batch_size,
            progress=progress,
        )
    mean_path = _mean_path(path)

    def run(ts: np.ndarray) -> tuple[Points, Points]:
        change = path.corrections(ts) if isinstance(path, Repaired) else None
        found = monte_carlo.evaluate(sources, ts, apply, blocks, resolved, change, progress)
        if path.deterministic:
            return found, found
        single = strata(mean_path, 1, key=key)
        return found, monte_carlo.evaluate(single, ts, apply, blocks, resolved, change)

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


def _profile(
    path: Path, found: Points, mean: Points, num_examples: int, plain: Profile | None
) -> Profile:
    moving = not isinstance(path, Mixing)
    return Profile(
        path=path.kind,
        points=found,
        mean_nll=mean.nll,
        mean_accuracy=mean.accuracy,
        draw_nll=found.draw_nll[0].T if moving else None,
        samples=sum(u.shape[1] for u in found.influences) // (1 if moving else 2),
        num_examples=num_examples,
        plain=plain,
        note=path.note,
    )


def _mean_path(path: Path) -> Displacement:
    """The line between the ends' mean networks, with the ends' average running statistics."""
    if isinstance(path, Repaired):
        return _mean_path(path.path)
    states = [_mean_state(q) for q in (path.q0, path.q1)]
    return line(path.q0.moments()[0], path.q1.moments()[0], *states)


def _mean_state(q: Any) -> Any:
    state = getattr(q, "state", None)
    if state is None or not hasattr(q, "num_draws"):
        if hasattr(q, "components"):
            inner = [_mean_state(c) for c in q.components]
            if inner[0] is None:
                return None
            weights = np.asarray(q.weights)
            return jax.tree.map(
                lambda *leaves: sum(w * s for w, s in zip(weights, leaves, strict=True)), *inner
            )
        return state
    return jax.tree.map(lambda leaf: leaf.mean(0), state)
