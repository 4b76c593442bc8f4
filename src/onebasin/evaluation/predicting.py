"""The posterior predictive by Monte Carlo, streamed over data and draws."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Required, TypedDict, Unpack, overload

import jax
import jax.numpy as jnp
import numpy as np

from onebasin.evaluation.strata import strata
from onebasin.evaluation.streaming import Blocks, cut, log_probabilities, plain_outputs
from onebasin.likelihoods import check_logits
from onebasin.networks import Apply, NetworkLike, apply_of
from onebasin.posterior import Posterior
from onebasin.progress import Progress, Reporter, reporting


@dataclass(frozen=True, eq=False)
class Predictive:
    """A predictive distribution over classes for every example.

    `log_probs` [n, classes] is the log of the averaged probabilities; `expected_entropy` [n]
    is the average entropy of single draws, so that entropy − expected_entropy is the mutual
    information between the label and the parameters. Measures take it as it is.
    """

    log_probs: np.ndarray = field(repr=False)
    expected_entropy: np.ndarray = field(repr=False)
    num_samples: int

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


class Options(TypedDict, total=False):
    """The options of `predict` and `predictive`."""

    key: Required[jax.Array]
    num_samples: int
    batch_size: int | None
    common_noise: bool
    progress: Progress


@dataclass(frozen=True, eq=False)
class PredictiveMoments:
    """Mean and standard deviation of the predictive of a regression, [n, ...]."""

    mean: np.ndarray = field(repr=False)
    std: np.ndarray = field(repr=False)
    num_samples: int


@overload
def predict(
    posterior: Posterior, network: NetworkLike, x: Any, **options: Unpack[Options]
) -> np.ndarray: ...
@overload
def predict(
    posterior: Sequence[Posterior], network: NetworkLike, x: Any, **options: Unpack[Options]
) -> list[np.ndarray]: ...
def predict(
    posterior: Posterior | Sequence[Posterior],
    network: NetworkLike,
    x: Any,
    **options: Unpack[Options],
) -> np.ndarray | list[np.ndarray]:
    """Class probabilities [n, classes], averaged over draws of the posterior.

    A list of posteriors gives a list. `predictive` takes the same arguments and also gives logs
    and entropies.

    Args:
      posterior: one, or a list of them.
      network: `apply(params, x)`, a `Network` or a `Problem`.
      x: a batch of inputs.
      key: from which the draws are made.
      num_samples: draws of the weights; 128 by default.
      batch_size: rows run through the network at once; chosen by size if not given.
      common_noise: whether the posteriors of a list share their noise, so that their differences
        are not blurred by it; True by default.
      progress: how to show progress, or a function of (what, done, total).

    >>> import jax, jax.numpy as jnp, onebasin as ob
    >>> q = ob.MeanField({"w": jnp.zeros((2, 3))}, {"w": jnp.ones((2, 3))})
    >>> probs = ob.predict(q, lambda p, x: x @ p["w"], jnp.eye(2), key=jax.random.key(0))
    >>> probs.shape, bool(abs(probs.sum(axis=1) - 1).max() < 1e-6)
    ((2, 3), True)
    """
    if isinstance(posterior, Sequence):
        return [found.probs for found in predictive(posterior, network, x, **options)]
    return predictive(posterior, network, x, **options).probs


@overload
def predictive(
    posterior: Posterior, network: NetworkLike, x: Any, **options: Unpack[Options]
) -> Predictive: ...
@overload
def predictive(
    posterior: Sequence[Posterior], network: NetworkLike, x: Any, **options: Unpack[Options]
) -> list[Predictive]: ...
def predictive(
    posterior: Posterior | Sequence[Posterior],
    network: NetworkLike,
    x: Any,
    **options: Unpack[Options],
) -> Predictive | list[Predictive]:
    """The predictive distribution over classes, accumulated in log space.

    The arguments are those of `predict`. Memory is bounded: draws are made one at a time and data
    are taken in blocks; only the result has the size of the data. A set of Samples is used whole
    when `num_samples` reaches its size, so an ensemble's predictive is its plain average; the
    components of a Mixture get their shares exactly.
    """
    with reporting(options.get("progress", "auto")) as report:
        if not isinstance(posterior, Sequence):
            return _predictive(posterior, network, x, options, options["key"], report)
        common = options.get("common_noise", True)
        keys = [
            options["key"] if common else jax.random.fold_in(options["key"], i)
            for i in range(len(posterior))
        ]
        pairs = zip(posterior, keys, strict=True)
        return [_predictive(q, network, x, options, key, report) for q, key in pairs]


def _predictive(
    posterior: Posterior,
    network: NetworkLike,
    x: Any,
    options: Options,
    key: jax.Array,
    report: Reporter,
) -> Predictive:
    apply = apply_of(network)
    num_samples, batch_size = options.get("num_samples", 128), options.get("batch_size")
    sources, blocks, shape = _prepare(posterior, apply, x, num_samples, batch_size, key=key)
    check_logits((2, *shape))
    log_probs, entropies = [], []
    done, work = 0, sum(s.count for s in sources) * -(-len(blocks.x) // blocks.rows)
    for part, _, real in blocks:
        total, entropy = None, jnp.zeros(blocks.rows)
        for source in sources:
            share = source.weight(0.0) / source.count
            for s in range(source.count):
                params, state, _, _ = source.ends(s)
                log_p, own = log_probabilities(apply, params, state, part)
                total, entropy = _accumulate(total, entropy, log_p, own, share)
                done += 1
                report("draws", done, work)
        log_probs.append(np.asarray(total)[:real])
        entropies.append(np.asarray(entropy)[:real])
    count = sum(source.count for source in sources)
    return Predictive(np.concatenate(log_probs), np.concatenate(entropies), count)


def predict_moments(
    posterior: Posterior,
    network: NetworkLike,
    x: Any,
    *,
    key: jax.Array,
    noise_std: float = 0.0,
    num_samples: int = 128,
    batch_size: int | None = None,
) -> PredictiveMoments:
    """Mean and standard deviation of the outputs over draws, with the noise's variance added.

    The standard deviation is of the finite set of draws (divisor S), as a mixture's is.
    """
    apply = apply_of(network)
    sources, blocks, _ = _prepare(posterior, apply, x, num_samples, batch_size, key=key)
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
    posterior: Posterior,
    apply: Apply,
    x: Any,
    num_samples: int,
    batch_size: int | None,
    *,
    key: jax.Array,
) -> tuple[list, Blocks, tuple[int, ...]]:
    if not isinstance(posterior, Posterior):
        raise ValueError(
            f"cannot predict with a {type(posterior).__name__}; give a MeanField, Samples, "
            "LowRank or Mixture (a path at t is path(t))"
        )
    sources = strata(posterior, num_samples, key=key)
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
