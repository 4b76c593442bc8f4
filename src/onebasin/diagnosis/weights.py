"""R-hat, ESS and unimodality of single weights, a block of them at a time."""

from dataclasses import dataclass, field

import jax
import numpy as np

from onebasin.inference.diagnostics import by_chain, ess, rhat
from onebasin.posterior import Samples
from onebasin.progress import Progress, reporting
from onebasin.trees import num_parameters, shapes_by_path

BLOCK = 2048  # weights at once, to bound the memory of ranks and spectra
UNIFORM = 0.25  # the folding ratio of a uniform distribution
UNIFORM_STD = np.sqrt(3 / 40)  # divided by √n, the standard deviation of its estimate


@dataclass(frozen=True, eq=False)
class WeightStatistics:
    """One number for each of the selected weights."""

    rhat: np.ndarray = field(repr=False)
    ess: np.ndarray = field(repr=False)
    folding: np.ndarray = field(repr=False)
    """The folding ratio of the pooled draws: below ¼ they are not unimodal."""


def choose_weights(samples: Samples, count: int | None, *, key: jax.Array) -> np.ndarray:
    """Indices into the flattened params of `count` random weights, or of all."""
    total = num_parameters(samples.like)
    if count is None or count >= total:
        return np.arange(total)
    if count < 1:
        raise ValueError(f"weights is the number of weights to diagnose, at least 1, not {count}")
    seed = np.asarray(jax.random.key_data(key)).ravel().tolist()
    return np.sort(np.random.default_rng(seed).choice(total, count, replace=False))


def weight_statistics(
    samples: Samples, weights: np.ndarray, *, progress: Progress = "auto", what: str = "weights"
) -> WeightStatistics:
    """R-hat, ESS and folding ratio of the weights at these indices."""
    blocks = []
    with reporting(progress) as report:
        for start in range(0, len(weights), BLOCK):
            values = series(samples, weights[start : start + BLOCK])
            blocks.append((rhat(values), ess(values), folding_ratio(values)))
            report(what, min(start + BLOCK, len(weights)), len(weights))
    return WeightStatistics(*(np.concatenate(column) for column in zip(*blocks, strict=True)))


def series(samples: Samples, weights: np.ndarray) -> np.ndarray:
    """The draws of the weights at these indices, [chains, draws, weights]."""
    columns, first = [], 0
    for leaf in jax.tree.leaves(samples.draws):
        flat = np.asarray(leaf).reshape(samples.num_draws, -1)
        own = weights[(weights >= first) & (weights < first + flat.shape[1])] - first
        columns.append(flat[:, own])
        first += flat.shape[1]
    return by_chain(np.concatenate(columns, axis=1).astype(np.float64), samples.chain)


def leaf_of_weights(samples: Samples, weights: np.ndarray) -> np.ndarray:
    """The key path of the leaf of each of the weights."""
    shapes = shapes_by_path(samples.like)
    ends = np.cumsum([int(np.prod(shape)) for shape in shapes.values()])
    return np.array(list(shapes))[np.searchsorted(ends, weights, side="right")]


def folding_ratio(values: np.ndarray) -> np.ndarray:
    """min_s Var|X − s| / Var X of every quantity in `values` [chains, draws, ...], pooled.

    Folding a distribution at the right point s maps two modes onto each other and removes most of
    the variance; s = Cov(X, X²)/(2 Var X) does so (Siffer et al. 2018). A symmetric unimodal
    distribution is uniform with a random width W (Khinchin), for which the ratio is
    1 − ¾ E[W]²/E[W²] ≥ ¼, with equality for the uniform distribution itself; two points have 0, a
    normal distribution has 1 − 2/π = 0.36. Below ¼ a distribution is not (symmetric and) unimodal.
    The converse does not hold: two normal modes of equal width are detected if they are three
    standard deviations apart, three or more equal modes are not.
    """
    pooled = values.reshape(-1, *values.shape[2:])
    centred = pooled - pooled.mean(0)
    square = centred**2
    variance = square.mean(0)
    with np.errstate(divide="ignore", invalid="ignore"):
        pivot = (centred * square).mean(0) / (2 * variance)
        return np.abs(centred - pivot).var(0) / variance


def folded_share(folding: np.ndarray, effective: float, level_z: float = 1.645) -> float:
    """The share of weights whose pooled draws are significantly not unimodal, at 5 %.

    For the uniform distribution, the least favourable unimodal one, n independent draws estimate
    the ratio with standard deviation √(3/40)/√n: its influence is −3(V − ½) + (9/4)(V² − ⅓) with
    V = |X| uniform on [0, 1]. So at most 5 % of weights fall below the limit by chance.
    """
    limit = UNIFORM - level_z * UNIFORM_STD / np.sqrt(effective)
    return float(np.mean(folding[np.isfinite(folding)] < limit))


def effective_draws(samples: Samples, weights: np.ndarray) -> float:
    """Median over weights of the effective number of draws within chains.

    Chains are centred first: their disagreement is what is tested, and must not reduce the number
    of draws. Centring makes short chains look better than independent draws, so the result is
    capped at the number of draws.
    """
    values = series(samples, weights[:BLOCK])
    found = float(np.nanmedian(ess(values - values.mean(1, keepdims=True))))
    return min(found, float(samples.num_draws))
