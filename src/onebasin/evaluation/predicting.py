"""The posterior predictive by Monte Carlo, streamed over data and draws."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Required, TypedDict, Unpack, overload

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from onebasin.evaluation.linearising import Linearised, mean_of
from onebasin.evaluation.strata import each_draw, strata
from onebasin.evaluation.streaming import cut, log_probabilities
from onebasin.likelihoods import check_logits
from onebasin.networks import NetworkLike, apply_of
from onebasin.posterior import Posterior
from onebasin.progress import Progress, reporting


@dataclass(frozen=True, eq=False)
class Predictive:
    """A predictive distribution over classes for every example; made by `predictive`.

    `log_probs` [n, classes] is the logarithm of the averaged probabilities; `expected_entropy` [n]
    is the average entropy of single draws, so that entropy − expected_entropy is the mutual
    information between the label and the parameters. `nll`, `accuracy` and the other measures
    take it in place of probabilities.

    >>> import jax, jax.numpy as jnp, onebasin as ob
    >>> q = ob.Samples({"w": jnp.array([[[0.0, 0.0]], [[0.0, 9.0]]])})
    >>> found = ob.predictive(q, lambda p, x: x @ p["w"], jnp.ones((5, 1)), key=jax.random.key(0))
    >>> found
    Predictive(5 examples, 2 classes, 2 samples)
    >>> found.labels.tolist()
    [1, 1, 1, 1, 1]
    """

    log_probs: np.ndarray
    expected_entropy: np.ndarray
    num_samples: int

    def __repr__(self) -> str:
        examples, classes = self.log_probs.shape
        return f"Predictive({examples:,} examples, {classes} classes, {self.num_samples} samples)"

    @property
    def probs(self) -> np.ndarray:
        """Class probabilities [n, classes]."""
        return np.exp(self.log_probs)

    @property
    def labels(self) -> np.ndarray:
        """The most probable class of every example."""
        return self.log_probs.argmax(-1)

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> np.ndarray:
        del copy
        return self.probs if dtype is None else self.probs.astype(dtype)

    def __len__(self) -> int:
        return len(self.log_probs)


class Options(TypedDict, total=False):
    """The keyword arguments of `predict` and `predictive`."""

    key: Required[jax.Array]
    num_samples: int
    batch_size: int | None
    common_noise: bool
    linearised: bool
    progress: Progress


@overload
def predict(
    posterior: Posterior, network: NetworkLike, x: ArrayLike, **options: Unpack[Options]
) -> np.ndarray: ...
@overload
def predict(
    posterior: Sequence[Posterior], network: NetworkLike, x: ArrayLike, **options: Unpack[Options]
) -> list[np.ndarray]: ...
def predict(
    posterior: Posterior | Sequence[Posterior], network: NetworkLike, x: ArrayLike, *,
    key: jax.Array, num_samples: int = 128, batch_size: int | None = None,
    common_noise: bool = True, linearised: bool = False, progress: Progress = "auto",
) -> np.ndarray | list[np.ndarray]:  # fmt: skip
    """Class probabilities [n, classes], averaged over draws of the posterior.

    p(y | x) = E_θ p(y | x, θ). `predictive` takes the same arguments and also gives logarithms
    and entropies.

    Args:
      posterior: one posterior, or a list of them, which gives a list.
      network: `apply(params, x)`, a `Network` or a `Problem`.
      x: a batch of inputs.
      key: the key of the draws.
      num_samples: the number of draws. A set of Samples with no more draws is used whole.
      batch_size: rows run through the network at once; chosen by size if not given.
      common_noise: whether the posteriors of a list share their noise, so that it largely cancels
        in their differences.
      linearised: use the network linearised in its weights at the mean of the posterior, for which
        a Laplace approximation is made.
      progress: how to show progress, or a function of (what, done, total).

    >>> import jax, jax.numpy as jnp, onebasin as ob
    >>> q = ob.MeanField({"w": jnp.zeros((2, 3))}, {"w": jnp.ones((2, 3))})
    >>> probs = ob.predict(q, lambda p, x: x @ p["w"], jnp.eye(2), key=jax.random.key(0))
    >>> probs.shape, bool(abs(probs.sum(axis=1) - 1).max() < 1e-6)
    ((2, 3), True)
    """
    found = predictive(
        posterior, network, x, key=key, num_samples=num_samples, batch_size=batch_size,
        common_noise=common_noise, linearised=linearised, progress=progress,
    )  # fmt: skip
    return [one.probs for one in found] if isinstance(found, list) else found.probs


@overload
def predictive(
    posterior: Posterior, network: NetworkLike, x: ArrayLike, **options: Unpack[Options]
) -> Predictive: ...
@overload
def predictive(
    posterior: Sequence[Posterior], network: NetworkLike, x: ArrayLike, **options: Unpack[Options]
) -> list[Predictive]: ...
def predictive(
    posterior: Posterior | Sequence[Posterior], network: NetworkLike, x: ArrayLike, *,
    key: jax.Array, num_samples: int = 128, batch_size: int | None = None,
    common_noise: bool = True, linearised: bool = False, progress: Progress = "auto",
) -> Predictive | list[Predictive]:  # fmt: skip
    """The predictive distribution over classes, accumulated in log space.

    Memory is bounded: draws are made one at a time and data are processed in blocks, so only the
    result has the size of the data. A set of Samples with at most `num_samples` draws is used
    whole, so the predictive of an ensemble is its plain average. The components of a Mixture
    have their exact weights.

    Args:
      posterior, network, x, key, num_samples, batch_size, common_noise, linearised, progress: as
        for `predict`.

    >>> import jax, jax.numpy as jnp, onebasin as ob
    >>> q = ob.MeanField({"w": jnp.zeros((2, 3))}, {"w": jnp.ones((2, 3))})
    >>> found = ob.predictive(q, lambda p, x: x @ p["w"], jnp.eye(2), key=jax.random.key(0))
    >>> found.log_probs.shape, found.expected_entropy.shape
    ((2, 3), (2,))
    """
    several = isinstance(posterior, Sequence)
    apply, x = apply_of(network), np.asarray(x)
    if x.ndim < 1 or len(x) == 0:
        raise ValueError(f"x has shape {x.shape}; give at least one example")
    results = []
    with reporting(progress) as report:
        for i, q in enumerate(posterior if several else [posterior]):
            own = key if common_noise or not several else jax.random.fold_in(key, i)
            if not isinstance(q, Posterior):
                raise ValueError(
                    f"cannot predict with a {type(q).__name__}; give a posterior such as a "
                    "MeanField or Samples (that of a path at t is path(t))"
                )
            sources = strata(q, num_samples, key=own)
            params, state, _, _ = sources[0].ends(0)
            mean = mean_of(q) if linearised else None
            run = Linearised(apply) if linearised else apply
            params = (mean, params) if linearised else params
            blocks = cut(run, params, state, x, lambda width: 12 * width + 16, batch_size)
            check_logits((2, *blocks.outputs))
            count, done = sum(source.count for source in sources), 0
            log_probs, entropies = [], []
            for part, _, real in blocks:
                total, entropy = None, jnp.zeros(blocks.rows)
                for weight, params, state in each_draw(sources):
                    params = (mean, params) if linearised else params
                    log_p, one = log_probabilities(run, params, state, part)
                    total, entropy = _accumulate(total, entropy, log_p, one, weight)
                    done += 1
                    report("draws", done, count * len(blocks))
                log_probs.append(np.asarray(total)[:real])
                entropies.append(np.asarray(entropy)[:real])
            found = Predictive(np.concatenate(log_probs), np.concatenate(entropies), count)
            results.append(found)
    return results if several else results[0]


@jax.jit
def _accumulate(
    total: jax.Array | None, entropy: jax.Array, log_p: jax.Array, own: jax.Array, weight: float
) -> tuple[jax.Array, jax.Array]:
    weighted = log_p + jnp.log(weight)
    total = weighted if total is None else jnp.logaddexp(total, weighted)
    return total, entropy + weight * own
