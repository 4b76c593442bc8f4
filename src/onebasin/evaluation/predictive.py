"""The posterior predictive by Monte Carlo, streamed over data and draws."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from onebasin.evaluation.likelihood import check_logits
from onebasin.evaluation.strata import strata
from onebasin.evaluation.streaming import Blocks, cut, log_probabilities, plain_outputs
from onebasin.posterior import LowRank, MeanField, Mixture, Samples


@dataclass(frozen=True, eq=False)
class Predictive:
    """A predictive distribution over classes for every example.

    `log_probs` [n, classes] is the log of the averaged probabilities; `expected_entropy` [n]
    is the average entropy of single draws, so that entropy − expected_entropy is the mutual
    information between the label and the parameters. Measures take it as it is.
    """

    log_probs: np.ndarray = field(repr=False)
    expected_entropy: np.ndarray = field(repr=False)
    samples: int

    @property
    def probs(self) -> np.ndarray:
        return np.exp(self.log_probs)

    @property
    def labels(self) -> np.ndarray:
        return self.log_probs.argmax(-1)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        del copy
        return self.probs if dtype is None else self.probs.astype(dtype)

    def __len__(self) -> int:
        return len(self.log_probs)


@dataclass(frozen=True, eq=False)
class PredictiveMoments:
    """Mean and standard deviation of the predictive of a regression, [n, ...]."""

    mean: np.ndarray = field(repr=False)
    std: np.ndarray = field(repr=False)
    samples: int


def predict(
    posterior: Any,
    apply: Callable[..., jax.Array],
    x: Any,
    *,
    key: jax.Array,
    samples: int = 128,
    batch_size: int | None = None,
    common_noise: bool = True,
) -> Any:
    """Class probabilities [n, classes], averaged over draws of the posterior.

    A list of posteriors gives a list; with `common_noise` they share theirs, so that their
    differences are not blurred by it. See `predictive` for logs and entropies.
    """
    found = predictive(
        posterior,
        apply,
        x,
        key=key,
        samples=samples,
        batch_size=batch_size,
        common_noise=common_noise,
    )
    return [p.probs for p in found] if isinstance(found, list) else found.probs


def predictive(
    posterior: Any,
    apply: Callable[..., jax.Array],
    x: Any,
    *,
    key: jax.Array,
    samples: int = 128,
    batch_size: int | None = None,
    common_noise: bool = True,
) -> Any:
    """The predictive distribution over classes, accumulated in log space.

    Memory is bounded: draws are made one at a time and data are taken in blocks; only the
    result has the size of the data. A set of Samples is used whole when `samples` reaches its
    size, so an ensemble's predictive is its plain average; the components of a Mixture get
    their shares exactly.
    """
    if isinstance(posterior, Sequence):
        return [
            predictive(
                q,
                apply,
                x,
                samples=samples,
                batch_size=batch_size,
                key=key if common_noise else jax.random.fold_in(key, i),
            )
            for i, q in enumerate(posterior)
        ]
    sources, blocks, shape = _prepare(posterior, apply, x, samples, batch_size, key=key)
    check_logits((2, *shape))
    log_probs, entropies = [], []
    for part, _, real in blocks:
        total, entropy = None, jnp.zeros(blocks.rows)
        for source in sources:
            share = source.weight(0.0) / source.count
            for s in range(source.count):
                params, state, _, _ = source.ends(s)
                log_p, own = log_probabilities(apply, params, state, part)
                total, entropy = _accumulate(total, entropy, log_p, own, share)
        log_probs.append(np.asarray(total)[:real])
        entropies.append(np.asarray(entropy)[:real])
    count = sum(source.count for source in sources)
    return Predictive(np.concatenate(log_probs), np.concatenate(entropies), count)


def predict_moments(
    posterior: Any,
    apply: Callable[..., jax.Array],
    x: Any,
    *,
    key: jax.Array,
    noise_std: float = 0.0,
    samples: int = 128,
    batch_size: int | None = None,
) -> PredictiveMoments:
    """Mean and standard deviation of the outputs over draws, with the noise's variance added.

    The standard deviation is of the finite set of draws (divisor S), as a mixture's is.
    """
    sources, blocks, _ = _prepare(posterior, apply, x, samples, batch_size, key=key)
    means, stds = [], []
    for part, _, real in blocks:
        mean = square = 0.0
        centre: Any = None
        for source in sources:
            share = source.weight(0.0) / source.count
            for s in range(source.count):
                params, state, _, _ = source.ends(s)
                outputs = np.asarray(plain_outputs(apply, params, state, part), np.float64)
                # Squares are taken about the first draw, so that nothing cancels.
                centre = outputs if centre is None else centre
                mean = mean + share * (outputs - centre)
                square = square + share * (outputs - centre) ** 2
        variance = np.maximum(np.asarray(square) - np.asarray(mean) ** 2, 0.0)
        means.append((centre + mean)[:real])
        stds.append(np.sqrt(variance + noise_std**2)[:real])
    count = sum(source.count for source in sources)
    return PredictiveMoments(np.concatenate(means), np.concatenate(stds), count)


def _prepare(
    posterior: Any,
    apply: Callable,
    x: Any,
    samples: int,
    batch_size: int | None,
    *,
    key: jax.Array,
) -> tuple[list, Blocks, tuple[int, ...]]:
    if not isinstance(posterior, MeanField | Samples | LowRank | Mixture):
        raise ValueError(
            f"cannot predict with a {type(posterior).__name__}; give a MeanField, Samples, "
            "LowRank or Mixture (a path at t is path(t))"
        )
    sources = strata(posterior, samples, key=key)
    x = np.asarray(x)
    if x.ndim < 1 or len(x) == 0:
        raise ValueError(f"x has shape {x.shape}; give at least one example")
    params, state, _, _ = sources[0].ends(0)
    blocks, shape = cut(
        apply, params, state, x, None, None, lambda width: 12 * width + 16, batch_size
    )
    return sources, blocks, shape


@jax.jit
def _accumulate(total, entropy, log_p, own, share):
    weighted = log_p + jnp.log(share)
    total = weighted if total is None else jnp.logaddexp(total, weighted)
    return total, entropy + share * own
