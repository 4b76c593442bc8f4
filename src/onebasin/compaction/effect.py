"""What compaction did to prediction: the members' predictive against that of the Gaussian."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from onebasin.data.examples import Examples, examples_of
from onebasin.evaluation.comparison import main_measures, predictive_distances
from onebasin.evaluation.predicting import AnyPredictive, Predictive, predictive
from onebasin.likelihoods import LikelihoodLike
from onebasin.networks import NetworkLike
from onebasin.posterior import Posterior
from onebasin.progress import Progress

WORSE = 0.05  # nats per example
SURE = 2.0  # standard errors over examples


@dataclass(frozen=True)
class Effect:
    """The predictive before and after: made by `Compact.effect`.

    >>> import jax, jax.numpy as jnp, onebasin as ob
    >>> from onebasin.compaction.effect import effect
    >>> w = jnp.array([[[4.0, 0.0]], [[0.0, 4.0]]])
    >>> data = jnp.ones((2, 1)), jnp.array([0, 1])
    >>> found = effect(ob.Samples({"w": w}), ob.Samples({"w": w[:1]}), lambda p, x: x @ p["w"],
    ...                data, key=jax.random.key(0))
    >>> print(found)
    accuracy 50.00 % → 50.00 %, NLL 0.6931 → 2.018, agreement 100.0 % with the predictive before
    >>> found.suffers  # by 1.3 nats, which two examples do not show
    False
    """

    before: dict[str, float]
    after: dict[str, float]
    distances: dict[str, float]
    """How far the predictive after is from that before."""
    nll_rise: float
    """By how much the NLL rises, in nats per example."""
    nll_rise_stderr: float = field(repr=False)
    num_examples: int

    @property
    def suffers(self) -> bool:
        """Whether the NLL rises by more than 0.05 nats, and by more than 2 standard errors."""
        return self.nll_rise > max(WORSE, SURE * self.nll_rise_stderr)

    def summary(self) -> dict[str, Any]:
        """The numbers as a JSON value."""
        return {
            "examples": self.num_examples,
            "before": self.before,
            "after": self.after,
            **self.distances,
            "nll_rise": self.nll_rise,
            "nll_rise_stderr": self.nll_rise_stderr,
            "suffers": self.suffers,
        }

    def __str__(self) -> str:
        words = [
            f"{_label(name)} {_shown(name, value)} → {_shown(name, self.after[name])}"
            for name, value in self.before.items()
        ]
        if "agreement" in self.distances:
            distance = f"agreement {100 * self.distances['agreement']:.1f} %"
        else:
            distance = f"mean shifted by {self.distances['mean_shift']:.2g} predictive std from"
            return f"{', '.join(words)}, {distance} the predictive before"
        return f"{', '.join(words)}, {distance} with the predictive before"


def effect(
    before: Posterior,
    after: Posterior,
    network: NetworkLike,
    data: Examples,
    *,
    key: jax.Array,
    likelihood: LikelihoodLike | None = None,
    num_samples: int = 128,
    progress: Progress = "auto",
) -> Effect:
    """Measure on `data` how prediction changes from one posterior to another.

    Args:
      before, after: such as draws and the Gaussian that replaces them.
      network: `apply(params, x)`, a `Network` or a `Problem`.
      data: a split with .x and .y, or a pair.
      key: the key of the draws.
      likelihood: by default that of the problem, else "categorical".
      num_samples: draws of each.
      progress: how to show progress, or a function of (what, done, total).
    """
    x, y = examples_of(data)
    pair: Sequence[Posterior] = [before, after]
    p, q = predictive(
        pair, network, x, key=key, likelihood=likelihood, num_samples=num_samples, progress=progress
    )
    rise = _log_likelihood(p, y) - _log_likelihood(q, y)
    error = rise.std(ddof=1) / np.sqrt(len(rise)) if len(rise) > 1 else float("nan")
    return Effect(
        main_measures(p, y), main_measures(q, y), predictive_distances(p, q),
        float(rise.mean()), float(error), len(y),
    )  # fmt: skip


def _log_likelihood(p: AnyPredictive, y: np.ndarray) -> np.ndarray:
    if isinstance(p, Predictive):
        labels = p.likelihood.targets(y).reshape(-1)
        return p.log_probs[np.arange(len(labels)), labels].astype(np.float64)
    return p.log_likelihood(y)


def _label(name: str) -> str:
    return name if name == "accuracy" else name.upper()


def _shown(name: str, value: float) -> str:
    return f"{100 * value:.2f} %" if name == "accuracy" else f"{value:.4g}"
