"""R-hat, ESS and unimodality of single weights, a block of them at a time."""

from dataclasses import dataclass, field

import jax
import numpy as np

from onebasin.inference.diagnostics import by_chain, ess, rhat
from onebasin.posterior import Samples
from onebasin.progress import Progress, reporting
from onebasin.trees import num_parameters, shapes_by_path

BLOCK = 2048  # weights at once: bounds what ranks and spectra take
UNIFORM = 0.25  # the folding ratio of a uniform law
UNIFORM_SPREAD = np.sqrt(3 / 40)  # times 1/√n, the standard deviation of its estimate


@dataclass(frozen=True, eq=False)
class WeightStatistics:
    """One number for each of the weights looked at."""

    rhat: np.ndarray = field(repr=False)
    ess: np.ndarray = field(repr=False)
    folding: np.ndarray = field(repr=False)
    """The folding ratio of the pooled draws: below ¼ they are not unimodal."""


def choose_weights(samples: Samples, count: int | None, *, key: jax.Array) -> np.ndarray:
    """Numbers of `count` weights in the order of the flattened params, or of all."""
    total = num_parameters(samples.like)
    if count is None or count >= total:
        return np.arange(total)
    if count < 1:
        raise ValueError(f"there must be at least one weight to look at, not {count}")
    seed = np.asarray(jax.random.key_data(key)).ravel().tolist()
    return np.sort(np.random.default_rng(seed).choice(total, count, replace=False))


def weight_statistics(
    samples: Samples, weights: np.ndarray, *, progress: Progress = "auto", what: str = "weights"
) -> WeightStatistics:
    """R-hat, ESS and folding ratio of the numbered weights."""
    blocks = []
    with reporting(progress) as report:
        for start in range(0, len(weights), BLOCK):
            values = series(samples, weights[start : start + BLOCK])
            blocks.append((rhat(values), ess(values), folding_ratio(values)))
            report(what, min(start + BLOCK, len(weights)), len(weights))
    return WeightStatistics(*(np.concatenate(column) for column in zip(*blocks, strict=True)))


def series(samples: Samples, weights: np.ndarray) -> np.ndarray:
    """The draws of the numbered weights, [chains, draws, weights]."""
    columns, first = [], 0
    for leaf in jax.tree.leaves(samples.draws):
        flat = np.asarray(leaf).reshape(samples.num_draws, -1)
        own = weights[(weights >= first) & (weights < first + flat.shape[1])] - first
        columns.append(flat[:, own])
        first += flat.shape[1]
    return by_chain(np.concatenate(columns, axis=1).astype(np.float64), samples.chain)


def leaf_of_weights(samples: Samples, weights: np.ndarray) -> np.ndarray:
    """The key path of the leaf that each numbered weight is in."""
    shapes = shapes_by_path(samples.like)
    ends = np.cumsum([int(np.prod(shape)) for shape in shapes.values()])
    return np.array(list(shapes))[np.searchsorted(ends, weights, side="right")]


def folding_ratio(values: np.ndarray) -> np.ndarray:
    """min_s Var|X − s| / Var X of every quantity in `values` [chains, draws, ...], pooled.

    Folding a law at the right point s brings two modes onto each other and takes most of the
    variance away; s = Cov(X, X²)/(2 Var X) does it (Siffer et al. 2018). A symmetric unimodal
    law is a uniform one of random width W (Khinchin), for which the ratio is
    1 − ¾ E[W]²/E[W²] ≥ ¼, with equality for the uniform law itself; two points have 0, a normal
    law has 1 − 2/π = 0.36. Below ¼ a law is not (symmetric and) unimodal; above it, it need not
    be unimodal: two normal modes of one width are seen once they are three deviations apart,
    three or more even modes are not.
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

    Under the uniform law, the unimodal one that is hardest to tell, n independent draws estimate
    the ratio with standard deviation √(3/40)/√n: its influence is −3(V − ½) + (9/4)(V² − ⅓) with
    V = |X| uniform on [0, 1]. So at most 5 % of weights fall below by chance.
    """
    limit = UNIFORM - level_z * UNIFORM_SPREAD / np.sqrt(effective)
    return float(np.mean(folding[np.isfinite(folding)] < limit))


def effective_draws(samples: Samples, weights: np.ndarray) -> float:
    """Median over weights of the effective number of draws within chains.

    Chains are centred first: a disagreement between them is what is tested, and must not count
    against the number of draws. Centring makes short chains look better than independent ones,
    so there are never more than there are draws.
    """
    values = series(samples, weights[:BLOCK])
    found = float(np.nanmedian(ess(values - values.mean(1, keepdims=True))))
    return min(found, float(samples.num_draws))
