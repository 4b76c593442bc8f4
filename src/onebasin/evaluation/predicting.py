"""The posterior predictive by Monte Carlo, streamed over data and draws."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Required, TypeAlias, TypedDict, Unpack, overload

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from onebasin.evaluation.linearising import Linearised, mean_of
from onebasin.evaluation.mixture_predictive import MixturePredictive
from onebasin.evaluation.strata import Ends, Stratum, each_draw, strata
from onebasin.evaluation.streaming import cut, log_probabilities, raw_outputs
from onebasin.keys import subkey
from onebasin.likelihoods import (
    Categorical,
    Classification,
    Likelihood,
    LikelihoodLike,
    Regression,
)
from onebasin.networks import NetworkLike, apply_of
from onebasin.networks.network import Apply
from onebasin.posterior import Posterior
from onebasin.problem import Problem, likelihood_for
from onebasin.progress import Progress, Reporter, reporting
from onebasin.trees import PyTree


@dataclass(frozen=True, eq=False)
class Predictive:
    """The predictive distribution over classes for every example; made by `predictive`.

    Where a network predicts at several `positions` of an example, such as the next character of a
    sequence, each of them is a prediction: n counts them all, example by example.

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
    likelihood: Classification = field(default_factory=Categorical)
    positions: tuple[int, ...] = ()
    """The shape of the predictions for one example."""

    def __repr__(self) -> str:
        examples, classes = len(self) // math.prod(self.positions), self.log_probs.shape[1]
        if self.positions:
            return (
                f"Predictive({examples:,} examples of {self.positions[0]} positions, {classes} "
                f"classes, {self.num_samples} samples)"
            )
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


AnyPredictive: TypeAlias = Predictive | MixturePredictive


class Options(TypedDict, total=False):
    """The keyword arguments of `predict` and `predictive`."""

    key: Required[jax.Array]
    likelihood: LikelihoodLike | None
    num_samples: int
    batch_size: int | None
    data_shards: int
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
    key: jax.Array, likelihood: LikelihoodLike | None = None, num_samples: int = 128,
    batch_size: int | None = None, data_shards: int = 1, common_noise: bool = True,
    linearised: bool = False, progress: Progress = "auto",
) -> np.ndarray | list[np.ndarray]:  # fmt: skip
    """Class probabilities [n, classes], or the mean of numeric targets, over draws.

    p(y | x) = E_θ p(y | x, θ). A Bernoulli likelihood gives two columns, for 0 and 1; a network
    that predicts at several positions [n, positions, classes]. `predictive`
    takes the same arguments and gives the whole distribution: logarithms and entropies for classes;
    stds, intervals and samples for numbers.

    Args:
      posterior: one posterior, or a list of them, which gives a list.
      network: `apply(params, x)`, a `Network` or a `Problem`.
      x: a batch of inputs.
      key: the key of the draws.
      likelihood: by default that of the problem, else "categorical"; or another name, or a value
        from `onebasin.likelihoods`.
      num_samples: the number of draws. A set of Samples with no more draws is used whole.
      batch_size: rows run through the network at once; chosen by size if not given.
      data_shards: devices over which these rows are spread.
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
        posterior, network, x, key=key, likelihood=likelihood, num_samples=num_samples,
        batch_size=batch_size, data_shards=data_shards, common_noise=common_noise,
        linearised=linearised, progress=progress,
    )  # fmt: skip
    return [_array(one) for one in found] if isinstance(found, list) else _array(found)


def _array(found: AnyPredictive) -> np.ndarray:
    """The probabilities, example by example, or the means."""
    values = np.asarray(found)
    if isinstance(found, Predictive) and found.positions:
        return values.reshape(-1, *found.positions, values.shape[-1])
    return values


@overload
def predictive(
    posterior: Posterior, network: NetworkLike, x: ArrayLike, **options: Unpack[Options]
) -> AnyPredictive: ...
@overload
def predictive(
    posterior: Sequence[Posterior], network: NetworkLike, x: ArrayLike, **options: Unpack[Options]
) -> list[AnyPredictive]: ...
def predictive(
    posterior: Posterior | Sequence[Posterior], network: NetworkLike, x: ArrayLike, *,
    key: jax.Array, likelihood: LikelihoodLike | None = None, num_samples: int = 128,
    batch_size: int | None = None, data_shards: int = 1, common_noise: bool = True,
    linearised: bool = False, progress: Progress = "auto",
) -> AnyPredictive | list[AnyPredictive]:  # fmt: skip
    """The predictive distribution, by the likelihood: of classes or of numbers.

    A set of Samples with at most `num_samples` draws is used whole, so the predictive of an
    ensemble is its plain average. The components of a Mixture have their exact weights. Draws are
    made one at a time and data are processed in blocks, so only the result has the size of the
    data: for classes their probabilities, for numbers the outputs of every draw.

    Args:
      posterior, network, x, key, likelihood, num_samples, batch_size, data_shards, common_noise,
        linearised, progress: as for `predict`.

    Returns:
      A `Predictive` if targets are classes, a `MixturePredictive` if they are numbers.

    >>> import jax, jax.numpy as jnp, onebasin as ob
    >>> q = ob.MeanField({"w": jnp.zeros((2, 3))}, {"w": jnp.ones((2, 3))})
    >>> found = ob.predictive(q, lambda p, x: x @ p["w"], jnp.eye(2), key=jax.random.key(0))
    >>> found.log_probs.shape, found.expected_entropy.shape
    ((2, 3), (2,))
    """
    several = isinstance(posterior, Sequence)
    apply, x = apply_of(network), np.asarray(x)
    resolved = predicting_likelihood(network, likelihood)
    shape = network.y.shape[1:] if isinstance(network, Problem) else None
    if x.ndim < 1 or len(x) == 0:
        raise ValueError(f"x has shape {x.shape}; give at least one example")
    results: list[AnyPredictive] = []
    with reporting(progress) as report:
        for i, q in enumerate(posterior if several else [posterior]):
            own = key if common_noise or not several else jax.random.fold_in(key, i)
            if not isinstance(q, Posterior):
                raise ValueError(
                    f"cannot predict with a {type(q).__name__}; give a posterior such as a "
                    "MeanField or Samples (that of a path at t is path(t))"
                )
            sources = strata(q, num_samples, key=own)
            run = apply
            if linearised:
                mean = mean_of(q)
                sources, run = [_about(mean, source) for source in sources], Linearised(apply)
            if isinstance(resolved, Classification):
                found = _of_classes(sources, run, resolved, x, batch_size, report, data_shards)
            else:
                found = of_numbers(
                    sources, run, resolved, x, shape, batch_size, report, data_shards, key=own
                )
            results.append(found)
    return results if several else results[0]


def _about(mean: PyTree, source: Stratum) -> Stratum:
    """The draws of a stratum as the pairs (mean, draw) that a linearised network takes."""

    def ends(s: int) -> Ends:
        params, state, _, _ = source.ends(s)
        return (mean, params), state, (mean, params), state

    return replace(source, ends=ends)


def predicting_likelihood(
    network: NetworkLike, given: LikelihoodLike | None
) -> Classification | Regression:
    """The likelihood, refused if it does not say what a prediction is."""
    found: Likelihood = likelihood_for(network, given)
    if not isinstance(found, Classification | Regression):
        raise ValueError(
            f"the {found.name} likelihood does not say what a prediction is; write it as a class "
            "with the base likelihoods.Regression or likelihoods.Classification"
        )
    return found


def _of_classes(
    sources: list[Stratum],
    apply: Apply,
    likelihood: Classification,
    x: np.ndarray,
    batch_size: int | None,
    report: Reporter,
    data_shards: int = 1,
) -> Predictive:
    """Class probabilities, accumulated in log space."""
    params, state, _, _ = sources[0].ends(0)
    bytes_per_row = lambda width: 12 * max(width, 2) + 16
    blocks = cut(
        apply, params, state, x, bytes_per_row, batch_size,
        likelihood=likelihood, data_shards=data_shards,
    )  # fmt: skip
    count, done = sum(source.count for source in sources), 0
    log_probs, entropies = [], []
    for part, _, real in blocks:
        total, entropy = None, jnp.zeros(blocks.rows * blocks.each)
        for weight, params, state in each_draw(sources):
            log_p, one = log_probabilities(apply, likelihood, params, state, part)
            total, entropy = _accumulate(total, entropy, log_p, one, weight)
            done += 1
            report("draws", done, count * len(blocks))
        log_probs.append(np.asarray(total)[: real * blocks.each])
        entropies.append(np.asarray(entropy)[: real * blocks.each])
    positions = blocks.outputs[:-1] if isinstance(likelihood, Categorical) else ()
    return Predictive(
        np.concatenate(log_probs), np.concatenate(entropies), count, likelihood, positions
    )


def of_numbers(
    sources: list[Stratum],
    apply: Apply,
    likelihood: Regression,
    x: np.ndarray,
    target_shape: tuple[int, ...] | None,
    batch_size: int | None,
    report: Reporter,
    data_shards: int = 1,
    *,
    key: jax.Array,
) -> MixturePredictive:
    """The outputs of every draw. Without a problem, one number per example has the shape ()."""
    params, state, _, _ = sources[0].ends(0)
    count, done = sum(source.count for source in sources), 0
    bytes_per_row = lambda width: 4 * width * (count + 2)
    blocks = cut(
        apply, params, state, x, bytes_per_row, batch_size,
        likelihood=likelihood, data_shards=data_shards,
    )  # fmt: skip
    parts, weights = [], []
    for part, _, real in blocks:
        outputs, weights = [], []
        for weight, params, state in each_draw(sources):
            outputs.append(np.asarray(raw_outputs(apply, params, state, part))[:real])
            weights.append(weight)
            done += 1
            report("draws", done, count * len(blocks))
        parts.append(np.stack(outputs))
    every = np.concatenate(parts, axis=1)
    if target_shape is None:
        flat = jax.ShapeDtypeStruct((math.prod(every.shape[2:]),), jnp.float32)
        own: tuple[int, ...] = jax.eval_shape(likelihood.mean, flat).shape
        target_shape = () if own == (1,) else own
    return MixturePredictive(
        every, np.array(weights, np.float64), likelihood, target_shape, subkey(key, "targets")
    )


@jax.jit
def _accumulate(
    total: jax.Array | None, entropy: jax.Array, log_p: jax.Array, own: jax.Array, weight: float
) -> tuple[jax.Array, jax.Array]:
    weighted = log_p + jnp.log(weight)
    total = weighted if total is None else jnp.logaddexp(total, weighted)
    return total, entropy + weight * own
