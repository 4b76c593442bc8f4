"""A Bayesian inference problem: network, data, likelihood and prior → log posterior.

The scaling is fixed here and written down in docs/scaling.md: everything is *summed* over the
training set; only what is printed is a mean per example.
"""

import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from onebasin.networks import KINDS, Network, to_config
from onebasin.trees import Tree, first_difference, leaves_by_path, shapes_by_path

Likelihood = Literal["categorical", "gaussian"]
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
      data: anything with `.train`, a `Split`, or a pair (x, y).
      likelihood: "categorical" (integer labels) or "gaussian" (real targets).
      noise_std: standard deviation of the Gaussian likelihood.
      prior_variance: v, one number, or one per leaf: a mapping from key paths such as
        "Dense_0/kernel", or a tree like params.
      temperature: T, divides the log likelihood; 1 is the Bayesian posterior.
      augmentation: ρ, the factor by which data augmentation raises the effective number of
        examples; 1 without augmentation.
      network: a JSON-able description of the network, kept in the files fits write.
    """

    apply: Callable[[Tree, jax.Array], jax.Array]
    init: Callable[[jax.Array], Tree]
    data: Any
    likelihood: Likelihood = "categorical"
    noise_std: float = 1.0
    prior_variance: Any = 1.0
    temperature: float = 1.0
    augmentation: float = 1.0
    network: dict[str, Any] | None = None
    x: np.ndarray = field(init=False, repr=False)
    y: np.ndarray = field(init=False, repr=False)
    shapes: Tree = field(init=False, repr=False)
    flops: float = field(init=False, repr=False)
    _prior: Tree = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if self.likelihood not in ("categorical", "gaussian"):
            raise ValueError(
                f"there is no likelihood {self.likelihood!r}; choose 'categorical' or 'gaussian'"
            )
        for name in ("noise_std", "temperature", "augmentation"):
            _check_positive(getattr(self, name), name)
        x, y = _examples(self.data)
        shapes = jax.eval_shape(self.init, jax.random.key(0))
        prior = _prior_tree(self.prior_variance, shapes)
        object.__setattr__(self, "x", x)
        object.__setattr__(self, "y", _targets(y, self.likelihood))
        object.__setattr__(self, "shapes", shapes)
        object.__setattr__(self, "_prior", prior)
        object.__setattr__(self, "flops", self._check_network())

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
        x, _ = _examples(data)
        one = jnp.asarray(x[:1])
        collections = set(jax.eval_shape(net.init, jax.random.key(0), one))
        if collections != {"params"}:
            extra = ", ".join(sorted(collections - {"params"})) or "no params"
            raise ValueError(NO_STATE.format(type(net).__name__, extra))

        def init(key: jax.Array) -> Tree:
            return net.init(key, one)["params"]

        def apply(params: Tree, x: jax.Array) -> jax.Array:
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
    def prior_variances(self) -> Tree:
        """One number per leaf of params."""
        return self._prior

    def log_likelihood(self, outputs: jax.Array, y: jax.Array) -> jax.Array:
        """log p(y | outputs) for each example."""
        if self.likelihood == "categorical":
            return jnp.take_along_axis(jax.nn.log_softmax(outputs), y[:, None], axis=-1)[:, 0]
        residual = (outputs.reshape(y.shape) - y) / self.noise_std
        log_density = -0.5 * (residual**2 + math.log(2 * math.pi)) - math.log(self.noise_std)
        return log_density.reshape(len(y), -1).sum(-1)

    def score(self, outputs: jax.Array, y: jax.Array) -> jax.Array:
        """What is shown beside the loss for each example: hit or miss, or the squared error."""
        if self.likelihood == "categorical":
            return (jnp.argmax(outputs, axis=-1) == y).astype(outputs.dtype)
        return ((outputs.reshape(y.shape) - y) ** 2).reshape(len(y), -1).mean(-1)

    @property
    def score_name(self) -> str:
        return "accuracy" if self.likelihood == "categorical" else "squared_error"

    def summed_log_likelihood(
        self, params: Tree, batch: Batch
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        """(ρ/T) Σ log p over the *batch*, and per-example means of what is shown."""
        outputs = self.apply(params, batch.x)
        log_p = self.log_likelihood(outputs, batch.y)
        score = self.score(outputs, batch.y)
        if batch.weight is not None:
            log_p, score = log_p * batch.weight, score * batch.weight
        count = len(batch.x) if batch.weight is None else jnp.maximum(batch.weight.sum(), 1)
        total = log_p.sum()
        aux = {"nll": -total / count, self.score_name: score.sum() / count}
        return self.likelihood_scale * total, aux

    def log_prior(self, params: Tree) -> jax.Array:
        """Σ log N(θ; 0, v), normalised."""
        terms = jax.tree.map(
            lambda leaf, v: -0.5 * (jnp.sum(leaf**2) / v + leaf.size * math.log(2 * math.pi * v)),
            params,
            self._prior,
        )
        return jax.tree.reduce(jnp.add, terms)

    def log_posterior(self, params: Tree, batch: Any) -> tuple[jax.Array, dict[str, jax.Array]]:
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
        plain = ("likelihood", "noise_std", "temperature", "augmentation", "network")
        return {
            **{f.name: getattr(self, f.name) for f in fields(self) if f.name in plain},
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
        outputs = lowered.out_info
        shape = getattr(outputs, "shape", None)
        if shape is None or shape[:1] != (count,):
            raise ValueError(
                f"apply(params, x) returned {jax.tree.map(lambda o: o.shape, outputs)} for a batch "
                f"of {count}; it must return one array, batch first"
            )
        if self.likelihood == "categorical":
            if len(shape) != 2:
                raise ValueError(
                    f"apply returned shape {shape}; the categorical likelihood needs logits with "
                    "shape [batch, classes]"
                )
            low, high = int(self.y.min()), int(self.y.max())
            if low < 0 or high >= shape[1]:
                raise ValueError(
                    f"the labels reach from {low} to {high}, but the network has {shape[1]} "
                    f"outputs (labels 0 to {shape[1] - 1}); fix the labels or widen the output"
                )
        elif math.prod(shape[1:]) != math.prod(self.y.shape[1:]):
            raise ValueError(
                f"apply returned shape {shape} for targets with shape "
                f"{(count, *self.y.shape[1:])}; give the network one output per target"
            )
        analysis = lowered.cost_analysis() or {}
        return float(analysis.get("flops", 0.0)) / count


def _check_positive(value: Any, name: str) -> None:
    if not (isinstance(value, int | float) and math.isfinite(value) and value > 0):
        raise ValueError(f"{name} must be a positive number, got {value!r}")


def _examples(data: Any) -> tuple[np.ndarray, np.ndarray]:
    split: Any = getattr(data, "train", data)
    if hasattr(split, "x") and hasattr(split, "y"):
        x, y = split.x, split.y
    elif isinstance(split, tuple | list) and len(split) == 2:
        x, y = split
    else:
        raise ValueError(
            f"data is a {type(data).__name__}; give a data set with .train, a split with .x and "
            ".y, or a pair (x, y)"
        )
    x, y = np.asarray(x), np.asarray(y)
    if x.ndim < 2:
        raise ValueError(f"x has shape {x.shape}; it needs a batch axis and at least one more")
    if len(x) == 0:
        raise ValueError("the training data are empty; give at least one example")
    if len(x) != len(y):
        raise ValueError(f"x holds {len(x)} examples and y holds {len(y)}; they must be as many")
    if not np.isfinite(x).all():
        raise ValueError("x holds NaN or infinity; clean the inputs first")
    return x, y


def _targets(y: np.ndarray, likelihood: str) -> np.ndarray:
    if likelihood == "categorical":
        if y.ndim != 1 or not np.issubdtype(y.dtype, np.integer):
            raise ValueError(
                f"y has shape {y.shape} and type {y.dtype}; the categorical likelihood needs one "
                "integer label per example (for real targets give likelihood='gaussian')"
            )
        return y.astype(np.int32)
    if not np.issubdtype(y.dtype, np.number) or not np.isfinite(y).all():
        raise ValueError("y must hold finite numbers for the Gaussian likelihood")
    return y.astype(np.float64 if y.dtype == np.float64 else np.float32)


def _prior_tree(given: Any, shapes: Tree) -> Tree:
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
        _check_positive(float(value), f"prior_variance of '{name}'")
    values = [float(by_path[name]) for name in names]
    return jax.tree.unflatten(jax.tree.structure(shapes), values)


def _config(net: Any, x: np.ndarray) -> dict[str, Any] | None:
    """The JSON-able config of one of OneBasin's own networks; None for any other module."""
    return to_config(net, x.shape[1:]) if type(net) in KINDS.values() else None
