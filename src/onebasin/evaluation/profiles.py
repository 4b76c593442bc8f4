"""The loss along a path and its barrier.

The excess at t is L(t) − (1−t)·L(0) − t·L(1); the barrier is its maximum over the path. The
excess is zero at both ends by definition, so the barrier is never negative; if there is none, the
signed largest excess over interior points is more informative.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial, reduce
from typing import TYPE_CHECKING, Any, TypeAlias

import jax
import numpy as np

from onebasin.data.examples import Examples, examples_of
from onebasin.evaluation import monte_carlo
from onebasin.evaluation.monte_carlo import Points
from onebasin.evaluation.strata import strata
from onebasin.likelihoods import LikelihoodLike
from onebasin.networks import NetworkLike, apply_of
from onebasin.paths import (
    DisplacementPath,
    MixturePath,
    NormKeepingPath,
    Path,
    RepairedPath,
    TunedPath,
    line,
)
from onebasin.posterior import Mixture, Posterior, Samples
from onebasin.problem import likelihood_for
from onebasin.progress import Progress, reporting
from onebasin.trees import PyTree, add_axis, check_same_shapes

if TYPE_CHECKING:  # Matplotlib is imported only when a figure is made
    from matplotlib.figure import Figure

    from onebasin.figures.canvas import AxesLike

Corrected: TypeAlias = RepairedPath | NormKeepingPath | TunedPath
Known: TypeAlias = DisplacementPath | MixturePath | Corrected
"""The paths whose draws are made once for all t; those of any other path are made at each t."""


@dataclass(frozen=True, eq=False)
class Profile(Points):
    """Loss and accuracy (or RMSE) along a path, with Monte Carlo errors; made by `profile`.

    Arrays have one entry for each point `t`. `score` is the accuracy of the predictive if targets
    are classes, the root mean squared error of its mean if they are numbers; `score_name` says
    which. `nll` is the plain estimate; it is too large by
    about `nll_bias`, which is inversely proportional to the number of samples. Standard errors
    are over draws. `mean_nll` belongs to the network of the mean parameters at t. For a path that
    is repaired, tuned or keeps norms, `plain` is the profile of the geodesic it was made from.

    >>> import jax, jax.numpy as jnp, onebasin as ob
    >>> path = ob.line({"w": jnp.array([1.0])}, {"w": jnp.array([-1.0])})
    >>> found = ob.profile(path, lambda p, x: x * p["w"] ** 2, (jnp.ones((1, 1)), jnp.ones((1, 1))),
    ...                    key=jax.random.key(0), points=3, likelihood="gaussian")
    >>> found.excess.tolist(), found.barrier, found.barrier_t
    ([0.0, 0.5, 0.0], 0.5, 0.5)
    """

    path: str
    mean_nll: np.ndarray
    mean_score: np.ndarray
    """The score of the mean network."""
    num_samples: int
    num_examples: int
    plain: "Profile | None" = None
    note: str = ""

    @property
    def mean_accuracy(self) -> np.ndarray:
        """The accuracy of the mean network; NaN unless targets are classes."""
        return self.mean_score if self.score_name == "accuracy" else np.full(len(self.t), np.nan)

    @property
    def draw_nll(self) -> np.ndarray | None:
        """The loss of every single draw, [samples, points], if draws can be followed along t."""
        return self.draw_nlls[0].T if len(self.draw_nlls) == 1 else None

    @property
    def nll_bias(self) -> np.ndarray:
        return self.bias

    @property
    def nll_corrected(self) -> np.ndarray:
        """The loss with its O(1/samples) bias subtracted."""
        return self.nll - self.nll_bias

    @cached_property
    def nll_stderr(self) -> np.ndarray:
        return self.stderr(np.eye(len(self.t)))

    @property
    def excess(self) -> np.ndarray:
        return self._chord @ self.nll

    @property
    def excess_bias(self) -> np.ndarray:
        """The O(1/samples) bias of the excess."""
        return self._chord @ self.nll_bias

    @cached_property
    def excess_stderr(self) -> np.ndarray:
        """Standard error of the excess; much noise cancels, since all points share their draws."""
        return self.stderr(self._chord)

    @property
    def barrier(self) -> float:
        return max(0.0, self.largest_excess)

    @property
    def barrier_t(self) -> float:
        """The position of the barrier; 0 if there is none."""
        return self.largest_excess_t if self.largest_excess > 0 else 0.0

    @property
    def barrier_stderr(self) -> float:
        """Standard error of the excess at the point where it is largest."""
        return float(self.excess_stderr[self._top])

    @property
    def barrier_bias(self) -> float:
        """The O(1/samples) bias of the excess at the point where it is largest."""
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
        """The upward bias of a maximum over noisy points, by cross-fitting.

        One half of the draws chooses the point and the other half measures there, and vice versa;
        the losses of the halves are taken to first order in their influences. Zero if all choices
        agree, NaN if there are fewer than four draws.
        """
        pairs = zip(self.influences, self.exact, strict=True)
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
        """The excess of the mean networks, the deterministic baseline."""
        return self._chord @ self.mean_nll

    @property
    def mean_barrier(self) -> float:
        return max(0.0, float(self.mean_excess[1:-1].max()))

    @property
    def draw_barriers(self) -> np.ndarray | None:
        """The barrier of every pair of draws, [samples]."""
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

    def plot(
        self, *, ax: "AxesLike | None" = None, logarithmic: bool = False, means: bool = False
    ) -> "Figure":
        """The figure of this profile; several in one are drawn by `profile_figure`.

        Args:
          ax: axes to draw in, instead of a new figure: of the loss, and of the accuracy or RMSE.
          logarithmic: whether the axis of the loss is logarithmic.
          means: whether the loss of the mean networks is drawn too.
        """
        from onebasin.figures.evaluation import profile_figure

        return profile_figure({self.path: self}, logarithmic=logarithmic, means=means, ax=ax)

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
        arrays = "t nll nll_stderr nll_bias excess excess_stderr mean_nll"
        found |= {name: getattr(self, name).tolist() for name in arrays.split()}
        if self.score_name:
            found[self.score_name] = self.score.tolist()
            found[f"mean_{self.score_name}"] = self.mean_score.tolist()
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
    data_shards: int = 1,
    progress: Progress = "auto",
    plain: Profile | None = None,
) -> Profile:
    """The negative log predictive likelihood (nats per example) and accuracy, or RMSE, on a path.

    L(t) = −(1/n) Σ_i log E_{θ~path(t)} p(y_i | x_i, θ).

    Args:
      path: from `geodesic`, `mixture_path`, `line`, `keep_norms`, `repair` or `tune`, or any
        function of t in [0, 1] that returns a posterior. For the last three the plain path is
        profiled as well, at the same points with the same draws.
      network: `apply(params, x)` (or `apply(params, x, state)`), a `Network` or a `Problem`.
      data: a split with .x and .y, or a pair.
      key: the key of the draws.
      points: the number of evenly spaced values of t, including both ends.
      num_samples: draws for each t, shared along t (common random numbers). A set of Samples
        with no more draws is used whole; along a mixture every component has this many draws.
      refine: rounds of halving the two intervals around the largest excess.
      likelihood: by default that of the problem, else "categorical"; or another name, a value from
        `onebasin.likelihoods`, or a function of (outputs, y).
      batch_size: rows run through the network at once; chosen by size if not given.
      data_shards: devices over which these rows are spread.
      progress: how to show progress, or a function of (what, done, total).
      plain: for a repaired path, the profile of the plain path if it is already known.

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
        raise ValueError(f"a profile needs at least 3 points, including both ends; got {points}")
    if refine < 0:
        raise ValueError(f"refine must be a number of rounds from 0 up, got {refine}")
    apply = apply_of(network)
    x, y = examples_of(data)
    resolved = likelihood_for(network, likelihood)
    start = path if isinstance(path, Known) else _posterior_at(path, 0.0)
    sources = strata(start, num_samples, key=key, proportional=False)
    blocks = monte_carlo.prepare(sources, apply, x, y, resolved, points, batch_size, data_shards)

    with reporting(progress) as report:
        given = {"apply": apply, "blocks": blocks, "likelihood": resolved, "report": report}
        evaluate = partial(monte_carlo.evaluate, **given)

        def run(path: Path, ts: np.ndarray) -> tuple[Points, Points]:
            if not isinstance(path, Known):
                assert isinstance(start, Posterior)
                return _run_open(path, start, ts, num_samples, key, evaluate)
            change = path.corrections(ts) if isinstance(path, Corrected) else None
            found = evaluate(sources, ts, correction=change, what=f"draws along the {path.kind}")
            if path.deterministic:
                return found, found
            single = strata(_mean_path(path), 1, key=key)
            return found, evaluate(single, ts, correction=change)

        def refined(path: Path, ts: np.ndarray, plain: Profile | None) -> Profile:
            found, mean = run(path, ts)
            for _ in range(refine):
                top = _profile(path, found, mean, len(x), None)._top
                halves = (found.t[top - 1 : top + 1] + found.t[top : top + 2]) / 2
                extra, extra_mean = run(path, halves)
                found, mean = found.merged(extra), mean.merged(extra_mean)
            return _profile(path, found, mean, len(x), plain)

        ts = np.linspace(0.0, 1.0, points)
        if isinstance(path, Corrected) and plain is None:
            plain = refined(path.plain, ts, None)
        # The refinement of the plain profile chose points; the repaired one starts from those.
        return refined(path, ts if plain is None else plain.t, plain)


def _run_open(
    path: Path,
    start: Posterior,
    ts: np.ndarray,
    num_samples: int,
    key: jax.Array,
    evaluate: Callable[..., Points],
) -> tuple[Points, Points]:
    """A path given as a function: its posteriors one at a time, with the same noise."""
    counts = [s.count for s in strata(start, num_samples, key=key, proportional=False)]
    found: list[Points] = []
    means: list[Points] = []
    for t in ts:
        q = start if t == 0 else _posterior_at(path, float(t))
        check_same_shapes(
            start.like, q.like, f"the posterior at t = {t:g} is over other params and"
        )
        draws = strata(q, num_samples, key=key, proportional=False)
        if [s.count for s in draws] != counts:
            raise ValueError(
                f"the posteriors at t = 0 and t = {t:g} have different numbers of draws or "
                "components; return posteriors of one kind and size along the path"
            )
        at, what = np.array([t]), f"draws, {len(found) + 1} of {len(ts)} points"
        found.append(evaluate(draws, at, what=what))
        mean = Samples(add_axis(q.moments()[0]), state=add_axis(mean_state(q)))
        means.append(evaluate(strata(mean, 1, key=key), at))
    return reduce(Points.merged, found), reduce(Points.merged, means)


def _posterior_at(path: Path, t: float) -> Posterior:
    q = path(t)
    if not isinstance(q, Posterior):
        raise ValueError(f"the path returns a {type(q).__name__} at t = {t:g}; return a posterior")
    return q


def _profile(
    path: Path, found: Points, mean: Points, num_examples: int, plain: Profile | None
) -> Profile:
    known = isinstance(path, Known)
    num_samples = sum(u.shape[1] for u in found.influences)
    return Profile(
        **vars(found),
        path=path.kind if known else getattr(path, "__name__", type(path).__name__),
        mean_nll=mean.nll,
        mean_score=mean.score,
        num_samples=num_samples // 2 if isinstance(path, MixturePath) else num_samples,
        num_examples=num_examples,
        plain=plain,
        note=path.note if known else "",
    )


def _mean_path(path: Known) -> DisplacementPath:
    """The line between the ends' mean networks, with the ends' average running statistics."""
    if isinstance(path, Corrected):
        return _mean_path(path.plain)
    means, states = zip(*((q.moments()[0], mean_state(q)) for q in (path.q0, path.q1)), strict=True)
    return line(*means, *states)


def mean_state(q: Posterior) -> PyTree | None:
    """The running statistics of a posterior's mean network: the average over its draws."""
    if isinstance(q, Mixture):
        inner = [mean_state(c) for c in q.components]
        weights = np.asarray(q.weights)
        return jax.tree.map(
            lambda *leaves: sum(w * s for w, s in zip(weights, leaves, strict=True)), *inner
        )
    if isinstance(q, Samples):
        return jax.tree.map(lambda leaf: leaf.mean(0), q.state)
    return q.states(key=jax.random.key(0))  # the same for every draw of a Gaussian
