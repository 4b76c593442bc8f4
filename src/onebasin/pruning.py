"""Pruning by the magnitude of weights, or by the certainty of the posterior.

A weight is kept by one of three rules:

* `magnitude`: |mean| is among the highest. It needs no σ and keeps the predictions best.
* `snr`: |mean|/σ is among the highest (Graves 2011, Blundell et al. 2015).
* `std`: its standard deviation σ is among the lowest (as published, Xiao et al.). The data, or
  a narrow prior, have determined it; it may well be certain to be zero.

All parameters compete, biases included, as published: they are few, and their σ is comparable. The
parameter `log_noise` of a learned noise is no weight: it stays, and does not count.
The number kept is exact, the smallest integer that reaches the requested share; ties go to the
weight that comes first in the order of leaves and, within a leaf, of rows.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from onebasin.choices import PruningRule, PruningScope, check_choice
from onebasin.data.examples import Examples, examples_of
from onebasin.evaluation import measures
from onebasin.evaluation.expectations import ScoreName, score_name
from onebasin.evaluation.number_measures import rmse
from onebasin.evaluation.predicting import predicting_likelihood, predictive
from onebasin.evaluation.profiles import mean_state
from onebasin.likelihoods import LearnedNoise, LikelihoodLike
from onebasin.networks import NetworkLike
from onebasin.posterior import Posterior, Samples
from onebasin.posterior.sparse import Pruned
from onebasin.trees import (
    PyTree,
    add_axis,
    check_same_shapes,
    first_non_finite,
    leaves_by_path,
    with_leaves,
)

if TYPE_CHECKING:  # Matplotlib is imported only when a figure is made
    from matplotlib.figure import Figure

    from onebasin.figures.canvas import AxesLike

KEEPS = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.05, 0.01)  # as published


def prune(
    params: PyTree,
    std: PyTree | None = None,
    *,
    keep: float = 0.1,
    by: PruningRule = "magnitude",
    scope: PruningScope = "global",
) -> Pruned:
    """Set all but the share `keep` of the weights to zero.

    Args:
      params: the mean of every weight, e.g. from `posterior.moments()`.
      std: the standard deviation of every weight; not needed with `by="magnitude"`.
      keep: the share of weights that stay.
      by: "magnitude" keeps the highest |mean|, "snr" the highest |mean|/σ, "std" the lowest σ.
      scope: "global" ranks all weights together; "layer" keeps the same share of every layer, a
        layer being the leaves that share a parent ("Dense_0/kernel" and "Dense_0/bias"), or one
        leaf of a flat tree.

    >>> import jax.numpy as jnp, onebasin as ob
    >>> params, std = {"w": jnp.array([3.0, 1.0, 2.0])}, {"w": jnp.array([0.1, 0.2, 0.3])}
    >>> ob.prune(params, keep=0.5).params
    {'w': Array([3., 0., 2.], dtype=float32)}
    >>> ob.prune(params, std, keep=0.5, by="std").params
    {'w': Array([3., 1., 0.], dtype=float32)}
    """
    if not (isinstance(keep, int | float) and 0 < keep <= 1):
        raise ValueError(f"keep is the share of weights that stay, above 0 and up to 1, not {keep}")
    scores = _scores(params, std, by)
    noise = [name for name in LearnedNoise.own_names if name in scores]
    held = {name: np.ones(scores.pop(name).shape, bool) for name in noise}
    masks: dict[str, np.ndarray] = {}
    for names in _layers(list(scores), scope):
        joined = np.concatenate([scores[name].ravel() for name in names])
        # Without the margin, 0.07 of 100 would be 7.000000000000001 and give 8.
        count = math.ceil(keep * len(joined) - 1e-9)
        chosen = np.zeros(len(joined), bool)
        chosen[np.argsort(-joined, kind="stable")[:count]] = True
        ends = np.cumsum([scores[name].size for name in names])[:-1]
        for name, part in zip(names, np.split(chosen, ends), strict=True):
            masks[name] = part.reshape(scores[name].shape)
    mask = with_leaves(params, {n: jnp.asarray(m) for n, m in {**masks, **held}.items()})
    zeroed = jax.tree.map(lambda leaf, m: jnp.where(m, jnp.asarray(leaf), 0), params, mask)
    kept = sum(int(m.sum()) for m in masks.values()) / sum(m.size for m in masks.values())
    return Pruned(zeroed, mask, kept, by, scope)


def _scores(params: PyTree, std: PyTree | None, by: PruningRule) -> dict[str, np.ndarray]:
    """The score of each weight by key path; the highest are kept."""
    check_choice(by, PruningRule, "rule to prune by")
    means = {name: np.asarray(leaf, np.float64) for name, leaf in leaves_by_path(params).items()}
    if not means:
        raise ValueError("params holds no arrays; give the params of a network")
    if by == "magnitude":
        stds = {}
    elif std is None:
        raise ValueError(f"pruning by {by} needs the standard deviations: prune(params, std, ...)")
    else:
        check_same_shapes(params, std, "the std")
        stds = {name: np.asarray(leaf, np.float64) for name, leaf in leaves_by_path(std).items()}
    bad = first_non_finite(means) or first_non_finite(stds)
    if bad:
        raise ValueError(f"leaf '{bad}' holds NaN or infinity; pruning needs finite numbers")
    if by == "std":
        return {name: -stds[name] for name in means}
    if by == "magnitude":
        return {name: np.abs(mean) for name, mean in means.items()}
    # A weight with σ = 0 comes first, unless it is zero.
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = {name: np.abs(mean) / stds[name] for name, mean in means.items()}
    return {name: np.where(means[name] == 0, 0.0, ratio) for name, ratio in ratios.items()}


def _layers(names: list[str], scope: PruningScope) -> list[list[str]]:
    check_choice(scope, PruningScope, "scope")
    if scope == "global":
        return [names]
    layers: dict[str, list[str]] = {}
    for name in names:
        layers.setdefault(name.rpartition("/")[0] or name, []).append(name)
    return list(layers.values())


@dataclass(frozen=True, eq=False)
class PruningCurve:
    """Accuracy (or RMSE) and loss of the pruned mean network against the share of weights kept.

    >>> import jax.numpy as jnp, onebasin as ob
    >>> q = ob.MeanField({"w": jnp.array([[2.0, 1.0]])}, {"w": jnp.array([[0.1, 0.2]])})
    >>> data = jnp.ones((2, 1)), jnp.array([0, 1])
    >>> curve = ob.pruning_curve(q, lambda p, x: x @ p["w"], data, keeps=(1.0, 0.5))
    >>> curve
    PruningCurve(by magnitude, global, 2 shares from 1 to 0.5, 2 examples)
    >>> curve.kept.tolist(), curve.accuracy.tolist()
    ([1.0, 0.5], [0.5, 0.5])
    """

    kept: np.ndarray
    score: np.ndarray
    """Accuracy or RMSE, as `score_name` says."""
    nll: np.ndarray
    by: str
    scope: str
    num_examples: int
    score_name: ScoreName = "accuracy"

    @property
    def accuracy(self) -> np.ndarray:
        """The accuracy at every share; NaN unless targets are classes."""
        return self.score if self.score_name == "accuracy" else np.full_like(self.score, np.nan)

    def plot(self, *, ax: "AxesLike | None" = None) -> "Figure":
        """The score against the share of weights kept; several are drawn by `pruning_figure`.

        Args:
          ax: axes to draw in, instead of a new figure.
        """
        from onebasin.figures.diagnosis import pruning_figure

        return pruning_figure({f"by {self.by}": self}, ax=ax)

    def __repr__(self) -> str:
        shares = f"{len(self.kept)} shares from {self.kept[0]:.3g} to {self.kept[-1]:.3g}"
        return f"PruningCurve(by {self.by}, {self.scope}, {shares}, {self.num_examples:,} examples)"

    def summary(self) -> dict[str, Any]:
        """The curve as JSON-able numbers."""
        arrays = {"kept": self.kept, self.score_name: self.score, "nll": self.nll}
        numbers = {name: array.tolist() for name, array in arrays.items()}
        return {"by": self.by, "scope": self.scope, "examples": self.num_examples, **numbers}

    @classmethod
    def of(cls, summary: Mapping[str, Any]) -> "PruningCurve":
        """The curve from its summary."""
        measure: ScoreName = "accuracy" if "accuracy" in summary else "rmse"
        kept, score, nll = (np.array(summary[name]) for name in ("kept", measure, "nll"))
        return cls(kept, score, nll, summary["by"], summary["scope"], summary["examples"], measure)


def pruning_curve(
    posterior: Posterior,
    network: NetworkLike,
    data: Examples,
    *,
    keeps: Sequence[float] = KEEPS,
    by: PruningRule = "magnitude",
    scope: PruningScope = "global",
    likelihood: LikelihoodLike | None = None,
    batch_size: int | None = None,
) -> PruningCurve:
    """Prune the mean of a posterior to each share and evaluate the pruned network.

    Nothing is random: the pruned mean network is evaluated, not draws. The mean and σ of Samples
    are those of the draws as they are, so align the draws first.

    Args:
      posterior: any posterior whose draws share their running statistics.
      network: `apply(params, x)`, a `Network` or a `Problem`.
      data: a split with .x and .y, or a pair.
      keeps: the shares of weights to keep.
      by, scope: as for `prune`.
      likelihood: by default that of the problem, else "categorical".
      batch_size: rows run through the network at once; chosen by size if not given.

    >>> import jax.numpy as jnp, onebasin as ob
    >>> q = ob.MeanField({"w": jnp.array([[2.0, 1.0]])}, {"w": jnp.array([[0.1, 0.2]])})
    >>> data = jnp.ones((1, 1)), jnp.array([0])
    >>> curve = ob.pruning_curve(q, lambda p, x: x @ p["w"], data, keeps=(1.0, 0.5))
    >>> curve.nll.round(3).tolist()  # log(1 + exp(1 - 2)) and log(1 + exp(0 - 2))
    [0.313, 0.127]
    """
    if not keeps:
        raise ValueError("keeps is empty; give at least one share")
    x, y = examples_of(data)
    resolved = predicting_likelihood(network, likelihood)
    mean, std = posterior.moments()
    if isinstance(posterior, Samples) and posterior.state is not None:
        raise ValueError(
            "every draw has its own running statistics; fit one Gaussian to the draws first"
        )
    state = add_axis(mean_state(posterior))
    kept, scores, losses = [], [], []
    for keep in keeps:
        found = prune(mean, std, keep=keep, by=by, scope=scope)
        point = Samples(add_axis(found.params), state=state)
        key = jax.random.key(0)  # has no effect: the one draw is used
        p = predictive(
            point,
            network,
            x,
            key=key,
            likelihood=resolved,
            num_samples=1,
            batch_size=batch_size,
        )
        kept.append(found.kept)
        scores.append(measures.accuracy(p, y) if resolved.classifies else rmse(p, y))
        losses.append(measures.nll(p, y))
    measure = score_name(resolved)
    return PruningCurve(
        np.array(kept), np.array(scores), np.array(losses), by, scope, len(y), measure
    )
