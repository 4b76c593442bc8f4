"""Estimates of the log evidence log Z = log ∫ p(y | θ) p(θ) dθ from a posterior with a density.

With w(θ) = p(y | θ) p(θ)/q(θ), E_q log w is the ELBO, a lower bound; log E_q w is log Z itself, and
the mean of S weights gives a tighter bound; log w at the mean of a Gaussian is Laplace's estimate.
All see only the basin of q. A network has as many copies of that basin as there are permutations of
its hidden units that move it.
"""

import math
from dataclasses import dataclass

import jax
import numpy as np
from scipy.special import gammaln, logsumexp

from onebasin.inference.full_batch import chunked, log_likelihood
from onebasin.posterior import Kronecker, LowRank, LowRankPrecision, MeanField, Samples
from onebasin.posterior.protocol import Density
from onebasin.problem import Batch, Problem
from onebasin.progress import Progress, reporting
from onebasin.symmetry import Symmetry
from onebasin.trees import PyTree, leaves_by_path

CHUNK = 2000  # examples at once
OVERLAP = 0.5  # between a posterior and its copy, from which on the two count as one


@dataclass(frozen=True)
class Evidence:
    """Estimates of the log evidence, in nats; made by `log_evidence`.

    >>> import onebasin as ob
    >>> ob.Evidence(elbo=-12.5, elbo_error=0.1, weighted=-12.1, laplace=-12.0).equivalent_modes
    0.0
    """

    elbo: float
    """E_q log w, a lower bound on the log evidence of the basin of q."""
    elbo_error: float
    """The standard error of the ELBO."""
    weighted: float
    """The logarithm of the mean weight, in expectation a tighter lower bound."""
    laplace: float | None
    """log w at the mean of a Gaussian: exact if q is the posterior, and a bound on nothing."""
    equivalent_modes: float = 0.0
    """The logarithm of the number of copies of the basin, which has been added to all estimates on
    the assumption that no two copies overlap; zero without a symmetry."""


def log_evidence(
    posterior: Density,
    problem: Problem,
    *,
    key: jax.Array,
    num_samples: int = 128,
    symmetry: Symmetry | None = None,
    progress: Progress = "auto",
) -> Evidence:
    """Estimate the log evidence of a problem by an approximation of its posterior.

    Args:
      posterior: a posterior with a density, such as that of `VI` or `Laplace`.
      problem: what it is the posterior of. At another temperature than one, or with augmentation,
        the estimates are of the normaliser of the tempered posterior.
      key: the key of the draws.
      num_samples: the number of draws.
      symmetry: the permutation symmetry of the network. With it, the logarithm of the number of
        equivalent modes is added: copies of the basin under permutations of hidden units, if they
        do not overlap.
      progress: how to show progress, or a function of (what, done, total).

    >>> import jax, jax.numpy as jnp, onebasin as ob
    >>> data = (jnp.ones((1, 1)), jnp.ones(1))
    >>> init = lambda _: {"w": jnp.zeros(1)}
    >>> linear = ob.Problem(lambda p, x: x @ p["w"], init, data, "gaussian")
    >>> q = ob.MeanField({"w": jnp.full(1, 0.5)}, {"w": jnp.full(1, 0.5**0.5)})  # exact
    >>> found = ob.log_evidence(q, linear, key=jax.random.key(0), progress="silent")
    >>> round(found.elbo, 3), round(found.laplace, 3)  # log N(1; 0, 1 + 1)
    (-1.516, -1.516)
    """
    if not isinstance(posterior, Density) or isinstance(posterior, Samples):
        raise ValueError(
            f"a {type(posterior).__name__} has no density; give the posterior of VI or Laplace"
        )
    data = chunked(problem, CHUNK)

    def log_weight(params: PyTree, data: Batch) -> jax.Array:
        log_joint = log_likelihood(problem, data)(params) + problem.log_prior(params)
        return log_joint - posterior.log_prob(params)

    @jax.jit
    def of_draw(s: int, data: Batch) -> jax.Array:
        return log_weight(posterior.sample(key=jax.random.fold_in(key, s)), data)

    weights = np.empty(num_samples)
    with reporting(progress) as report:
        for s in range(num_samples):
            weights[s] = of_draw(s, data)
            report("draws", s + 1, num_samples)
    modes = 0.0 if symmetry is None else log_equivalent_modes(posterior, symmetry)
    gaussian = isinstance(posterior, MeanField | LowRank | LowRankPrecision | Kronecker)
    at_mean = float(log_weight(posterior.moments()[0], data)) + modes if gaussian else None
    return Evidence(
        elbo=float(weights.mean()) + modes,
        elbo_error=float(weights.std(ddof=1) / math.sqrt(num_samples)) if num_samples > 1 else 0.0,
        weighted=float(np.asarray(logsumexp(weights))) - math.log(num_samples) + modes,
        laplace=at_mean,
        equivalent_modes=modes,
    )


def log_equivalent_modes(posterior: Density, symmetry: Symmetry) -> float:
    """Σ log n! over the groups of n units, less Σ log m! over sets of m coincident units.

    Two units coincide if the posterior and its copy with the two exchanged overlap by more than
    half (the Bhattacharyya coefficient of their marginals).
    """
    mean, std = (leaves_by_path(tree) for tree in posterior.moments())
    total = 0.0
    for group in symmetry.groups:
        places = [place for place in group.places if place.where == "params"]
        rows = [
            np.concatenate([place.rows(np.asarray(tree[place.leaf])) for place in places], axis=1)
            for tree in (mean, std)
        ]
        total += float(gammaln(group.size + 1))
        total -= sum(float(gammaln(m + 1)) for m in coincident(*rows))
    return total


def coincident(mean: np.ndarray, std: np.ndarray) -> list[int]:
    """The sizes of the sets of units that coincide, from their marginals [units, coordinates]."""
    count = len(mean)
    mean, std = mean.astype(np.float64), std.astype(np.float64)
    label = np.arange(count)
    for i in range(count):
        others = slice(i + 1, count)
        variances = std[i] ** 2 + std[others] ** 2
        overlap = -((mean[i] - mean[others]) ** 2) / (4 * variances)
        overlap -= 0.5 * np.log(variances / (2 * std[i] * std[others]))
        # Each of the two units takes the place of the other.
        for j in np.flatnonzero(2 * overlap.sum(1) > math.log(OVERLAP)) + i + 1:
            label[label == label[j]] = label[i]
    return np.unique(label, return_counts=True)[1].tolist()
