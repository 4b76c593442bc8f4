"""A Bayesian inference problem: network, data, likelihood and prior give a log posterior.

The scaling is fixed here and documented in docs/scaling.md: everything is *summed* over the
training set; only what is printed is a mean per example.
"""

import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from onebasin.data.examples import TrainingData, training_examples
from onebasin.likelihoods import (
    Categorical,
    Likelihood,
    LikelihoodLike,
    check_output,
    check_positive,
    likelihood_of,
    settings_of,
)
from onebasin.networks import KINDS, Apply, Network, NetworkLike, to_config
from onebasin.trees import PyTree, first_difference, leaves_by_path, num_parameters, shapes_by_path

NO_STATE = (
    "{} keeps state besides its params ({}), and running statistics are not fitted; "
    "use a normalisation without them, such as filter response normalisation"
)


class Batch(NamedTuple):
    """Examples and targets; `weight` (one number per example) counts padding as nothing."""

    x: jax.Array
    y: jax.Array
    weight: jax.Array | None = None


@dataclass(frozen=True, eq=False)
class Problem:
    """log p(θ | data) = (ρ/T) Σᵢ log p(yᵢ | f(xᵢ; θ)) + log N(θ; 0, v) + const.

    Args:
      apply: `apply(params, x) -> outputs`, batch first; logits for the categorical likelihood.
      init: `init(key) -> params`, where a fit starts.
      data: a data set with `.train`, a split with `.x` and `.y`, or a pair (x, y).
      likelihood: "categorical" (integer labels), "gaussian" (real targets), or a value from
        `onebasin.likelihoods` such as `Gaussian(noise_std=0.1)`.
      prior_variance: v, one number, or one per leaf: a mapping from key paths such as
        "Dense_0/kernel", or a tree like params.
      temperature: T, divides the log likelihood; 1 is the Bayesian posterior.
      augmentation: ρ, the factor by which data augmentation raises the effective number of
        examples; 1 without augmentation.
      network: a JSON-able description of the network, kept in the files that fits write.

    >>> import onebasin as ob
    >>> data = ob.load_dataset("digits")
    >>> ob.Problem.from_network(ob.networks.MLP(widths=(8,)), data, prior_variance=0.1)
    Problem(610 parameters, 1,442 examples of shape (8, 8, 1), categorical likelihood)
    """

    apply: Apply
    init: Callable[[jax.Array], PyTree]
    data: TrainingData
    likelihood: LikelihoodLike = "categorical"
    prior_variance: float | Mapping[str, float] | PyTree = 1.0
    temperature: float = 1.0
    augmentation: float = 1.0
    network: dict[str, Any] | None = None
    x: np.ndarray = field(init=False, repr=False)
    y: np.ndarray = field(init=False, repr=False)
    shapes: PyTree = field(init=False, repr=False)
    flops: float = field(init=False, repr=False)
    log_likelihood: Likelihood = field(init=False, repr=False)
    """`log_likelihood(outputs, y)` is log p(y | outputs) of every example."""
    _prior: PyTree = field(init=False, repr=False)

    def __post_init__(self) -> None:
        likelihood = likelihood_of(self.likelihood)
        for name in ("temperature", "augmentation"):
            check_positive(getattr(self, name), name)
        x, y = training_examples(self.data)
        shapes = jax.eval_shape(self.init, jax.random.key(0))
        derived = {
            "log_likelihood": likelihood,
            "x": x,
            "y": likelihood.targets(y),
            "shapes": shapes,
            "_prior": _prior_tree(self.prior_variance, shapes),
        }
        for name, value in derived.items():
            object.__setattr__(self, name, value)
        object.__setattr__(self, "flops", self._check_network())

    def __repr__(self) -> str:
        return (
            f"Problem({num_parameters(self.shapes):,} parameters, {len(self.x):,} examples of "
            f"shape {self.x.shape[1:]}, {self.log_likelihood.name} likelihood)"
        )

    @classmethod
    def from_network(cls, net: Any, data: Any, **options: Any) -> "Problem":
        """The problem of fitting a Flax Linen module; `options` are the fields of `Problem`.

        `params` is the module's inner dictionary, without Flax's collection name. A `Network` from
        one of the adapters is taken too; every fit of it starts from its own params.
        """
        if isinstance(net, Network):
            if net.state is not None:
                raise ValueError(NO_STATE.format("the network", "state"))
            start = net.params
            return cls(apply=net.apply, init=lambda key: start, data=data, **options)  # noqa: ARG005
        if not (hasattr(net, "init") and hasattr(net, "apply")):
            raise ValueError(
                f"{type(net).__name__} is no Flax Linen module; for any other network "
                "give its functions: Problem(apply=..., init=..., data=...)"
            )
        x, _ = training_examples(data)
        one = jnp.asarray(x[:1])
        collections = set(jax.eval_shape(net.init, jax.random.key(0), one))
        if collections != {"params"}:
            extra = ", ".join(sorted(collections - {"params"})) or "no params"
            raise ValueError(NO_STATE.format(type(net).__name__, extra))

        def init(key: jax.Array) -> PyTree:
            return net.init(key, one)["params"]

        def apply(params: PyTree, x: jax.Array) -> jax.Array:
            return net.apply({"params": params}, x)

        return cls(apply=apply, init=init, data=data, **{"network": _config(net, x), **options})

    @property
    def num_examples(self) -> int:
        return len(self.x)

    @property
    def likelihood_scale(self) -> float:
        """ρ/T, the weight of the summed log likelihood against the prior."""
        return self.augmentation / self.temperature

    @property
    def prior_variances(self) -> PyTree:
        """One number per leaf of params."""
        return self._prior

    def summed_log_likelihood(
        self, params: PyTree, batch: Batch
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        """(ρ/T) Σ log p over the *batch*, and per-example means of what is shown."""
        outputs = self.apply(params, batch.x)
        log_p = self.log_likelihood(outputs, batch.y)
        score = self.log_likelihood.score(outputs, batch.y)
        if batch.weight is not None:
            log_p, score = log_p * batch.weight, score * batch.weight
        count = len(batch.x) if batch.weight is None else jnp.maximum(batch.weight.sum(), 1)
        total = log_p.sum()
        aux = {"nll": -total / count, self.log_likelihood.score_name: score.sum() / count}
        return self.likelihood_scale * total, aux

    def log_prior(self, params: PyTree) -> jax.Array:
        """Σ log N(θ; 0, v), normalised."""
        terms = jax.tree.map(
            lambda leaf, v: -0.5 * (jnp.sum(leaf**2) / v + leaf.size * math.log(2 * math.pi * v)),
            params,
            self._prior,
        )
        return jax.tree.reduce(jnp.add, terms)

    def log_posterior(self, params: PyTree, batch: Any) -> tuple[jax.Array, dict[str, jax.Array]]:
        """The log posterior up to a constant, with the batch scaled up to the whole data set.

        Unbiased when the batch is drawn uniformly; exact when it is all the data.
        """
        batch = Batch(*batch)
        log_likelihood, aux = self.summed_log_likelihood(params, batch)
        count = len(batch.x) if batch.weight is None else batch.weight.sum()
        scale = self.num_examples / count
        return scale * log_likelihood + self.log_prior(params), aux

    def fingerprint(self) -> dict[str, Any]:
        """What a checkpoint keeps to tell whether it belongs to this problem."""
        digest = hashlib.sha256()
        for array in (self.x, self.y):
            digest.update(np.ascontiguousarray(array).data)
        prior = {name: float(v) for name, v in leaves_by_path(self._prior).items()}
        return {
            "likelihood": settings_of(self.log_likelihood),
            "temperature": self.temperature,
            "augmentation": self.augmentation,
            "network": self.network,
            "prior_variance": prior,
            "params": {name: list(shape) for name, shape in shapes_by_path(self.shapes).items()},
            "examples": list(self.x.shape),
            "data": digest.hexdigest(),
        }

    def _check_network(self) -> float:
        """Refuse outputs that do not fit the targets; returns forward flops per example."""
        count = min(2, len(self.x))
        x = jax.ShapeDtypeStruct((count, *self.x.shape[1:]), jnp.asarray(self.x[:0]).dtype)
        lowered = jax.jit(self.apply).lower(self.shapes, x)
        shape = check_output(lowered.out_info, count)
        self.log_likelihood.check_outputs(shape, self.y)
        analysis = lowered.cost_analysis() or {}
        return float(analysis.get("flops", 0.0)) / count


def likelihood_for(network: NetworkLike, given: LikelihoodLike | None) -> Likelihood:
    """The likelihood that was given, else the problem's own, else the categorical one."""
    if given is None:
        return network.log_likelihood if isinstance(network, Problem) else Categorical()
    return likelihood_of(given)


def _prior_tree(given: Any, shapes: PyTree) -> PyTree:
    names = list(leaves_by_path(shapes))
    if not names:
        raise ValueError("init(key) returned no arrays; a network needs at least one parameter")
    by_path: dict[str, Any]
    if np.isscalar(given):
        by_path = dict.fromkeys(names, given)
    elif isinstance(given, Mapping) and all(k in names for k in given):
        by_path = dict(given)
    else:
        by_path = leaves_by_path(given)
    missing = first_difference(
        dict.fromkeys(names, ()), {k: np.shape(v) for k, v in by_path.items()}
    )
    if missing:
        raise ValueError(f"prior_variance must give one number for every leaf: {missing}")
    for name, value in by_path.items():
        check_positive(float(value), f"prior_variance of '{name}'")
    values = [float(by_path[name]) for name in names]
    return jax.tree.unflatten(jax.tree.structure(shapes), values)


def _config(net: Any, x: np.ndarray) -> dict[str, Any] | None:
    """The JSON-able config of one of OneBasin's own networks; None for any other module."""
    return to_config(net, x.shape[1:]) if type(net) in KINDS.values() else None
