"""A Bayesian inference problem: network, data, likelihood and prior define a log posterior.

Log densities are *sums* over the training set; only displayed quantities are means per example. See
docs/scaling.md.
"""

import hashlib
import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from onebasin.data.examples import TrainingData, training_examples
from onebasin.likelihoods import (
    Categorical,
    HasOwnParams,
    Likelihood,
    LikelihoodLike,
    WithOwnParams,
    check_output,
    check_positive,
    likelihood_of,
    settings_of,
)
from onebasin.likelihoods.own_params import InitWithOwnParams
from onebasin.networks import (
    KINDS,
    Apply,
    Network,
    NetworkLike,
    RunningStatistics,
    forward,
    from_linen,
    inference_arguments,
    to_config,
)
from onebasin.networks.described import DescribedNetwork
from onebasin.trees import (
    PyTree,
    first_difference,
    leaves_by_path,
    num_parameters,
    shapes_by_path,
    with_leaves,
)

NOT_STATISTICS = (
    "{} keeps state besides its params ({}), of which only running statistics can be fitted; "
    "adapt it with networks.from_linen"
)


STATISTICS = "batch_stats"  # the collection of running statistics in Flax


class Batch(NamedTuple):
    """Examples, targets, where a batch is padded weights (0 for padding), and running statistics.

    Without `state` those of the problem hold.
    """

    x: jax.Array
    y: jax.Array
    weight: jax.Array | None = None
    state: PyTree | None = None


@dataclass(frozen=True, eq=False)
class Problem:
    """The posterior to infer.

    log p(θ | data) = (ρ/T) Σᵢ log p(yᵢ | f(xᵢ; θ)) + log N(θ; 0, v) + const.

    Args:
      apply: `apply(params, x) -> outputs`, batch first: logits, means or log rates, as the
        likelihood has it.
      init: `init(key) -> params`, the starting point of a fit.
      data: a data set with `.train`, a split with `.x` and `.y`, or a pair (x, y).
      likelihood: "categorical" (integer labels), "bernoulli" (0 or 1, one logit), "gaussian",
        "learned-noise" or "heteroscedastic" (real targets), "poisson" (counts), a value from
        `onebasin.likelihoods` such as `Gaussian(noise_std=0.1)`, a class of your own, or a function
        `log_likelihood(outputs, y) -> [batch]`. With "learned-noise" `apply` and `init` of the
        problem differ from those given: params hold `log_noise` too.
      prior_variance: v, one number, or one per leaf: a mapping from key paths such as
        "Dense_0/kernel", or a tree like params.
      temperature: T, which divides the log likelihood; 1 gives the Bayesian posterior.
      augmentation: ρ, the factor by which data augmentation raises the effective number of
        examples; 1 without augmentation.
      network: a config of the network, serialisable as JSON, kept in the files that fits write.
      state: the running statistics with which a fit begins, if the network has any; `apply` is then
        `apply(params, x, state)`.
      running: how these are updated and measured, as in a `Network` with running statistics.

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
    state: PyTree | None = None
    running: RunningStatistics | None = None
    x: np.ndarray = field(init=False)
    y: np.ndarray = field(init=False)
    shapes: PyTree = field(init=False)
    flops: float = field(init=False)
    log_likelihood: Likelihood = field(init=False)
    """`log_likelihood(outputs, y)` is log p(y | outputs) of every prediction."""
    prior_variances: PyTree = field(init=False)
    """One number per leaf of params."""

    def __post_init__(self) -> None:
        likelihood = likelihood_of(self.likelihood)
        check_positive(self.temperature, "temperature")
        check_positive(self.augmentation, "augmentation")
        if (self.state is None) != (self.running is None):
            raise ValueError(
                "a problem with running statistics has both state and running; an adapter such as "
                "networks.from_linen makes a Network with both, for Problem.from_network"
            )
        x, y = training_examples(self.data)
        y = likelihood.targets(y)
        functions = {"apply": self.apply, "init": self.init}
        if isinstance(likelihood, HasOwnParams) and not isinstance(self.apply, WithOwnParams):
            joined = WithOwnParams(self.apply, likelihood)
            functions = {
                "apply": joined,
                "init": InitWithOwnParams(self.init, likelihood, y),
                "running": _joined_running(self.running, joined),
            }
        shapes = jax.eval_shape(functions["init"], jax.random.key(0))
        derived = {
            **functions,
            "log_likelihood": likelihood,
            "x": x,
            "y": y,
            "shapes": shapes,
            "prior_variances": _prior_tree(self.prior_variance, shapes, likelihood),
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
    def from_network(
        cls, net: nn.Module | Network | str, data: TrainingData, **options: Any
    ) -> "Problem":
        """The problem of fitting a Flax Linen module, a `Network`, or what a function makes.

        Args:
          net: a module, whose `params` are the contents of its collection "params" and whose
            running statistics, if any, those of its other collections; or a `Network` from an
            adapter, in which case every fit starts from its params and state; or the place of a
            function that makes a network, "./net.py:make_network" or "package.module:function", as
            in the shell: files of such fits name it, so that commands can open them.
          data: as in `Problem`.
          options: further fields of `Problem`.
        """
        if isinstance(net, str):
            x, _ = training_examples(data)
            made = DescribedNetwork.own(net, x.shape[1:])
            own = {"state": made.state, "running": made.running, "network": made.config, **options}
            return cls(apply=made.apply, init=made.init, data=data, **own)
        if isinstance(net, Network):
            start = net.params
            init = lambda key: start  # noqa: ARG005
            own = {"state": net.state, "running": net.running, **options}
            return cls(apply=net.apply, init=init, data=data, **own)
        if not isinstance(net, nn.Module):
            raise ValueError(
                f"{type(net).__name__} is not a Flax Linen module; for any other network "
                "give its functions: Problem(apply=..., init=..., data=...)"
            )
        x, _ = training_examples(data)
        one = jnp.asarray(x[:1])
        accepted = inspect.signature(type(net).__call__).parameters
        calm = inference_arguments(accepted)
        collections = set(jax.eval_shape(partial(net.init, **calm), jax.random.key(0), one))

        def init(key: jax.Array) -> PyTree:
            return net.init(key, one, **calm)["params"]

        if collections == {"params", STATISTICS}:
            adapted = from_linen(net, net.init(jax.random.key(0), one, **calm), **calm)
            own = {"state": adapted.state, "running": adapted.running, **options}
            return cls(apply=adapted.apply, init=init, data=data, **own)
        if collections != {"params"}:
            extra = ", ".join(sorted(collections - {"params"})) or "no params"
            raise ValueError(NOT_STATISTICS.format(type(net).__name__, extra))

        def apply(params: PyTree, x: jax.Array) -> jax.Array:
            return cast(jax.Array, net.apply({"params": params}, x, **calm))

        config = to_config(net, x.shape[1:]) if type(net) in KINDS.values() else None
        return cls(apply=apply, init=init, data=data, **{"network": config, **options})

    @property
    def num_examples(self) -> int:
        """The number of training examples."""
        return len(self.x)

    @property
    def likelihood_scale(self) -> float:
        """ρ/T, the weight of the summed log likelihood relative to the prior."""
        return self.augmentation / self.temperature

    def summed_log_likelihood(
        self, params: PyTree, batch: Batch
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        """(ρ/T) Σ log p over the *batch*, and the displayed means per prediction."""
        state = self.state if batch.state is None else batch.state
        return self._summed(forward(self.apply, params, batch.x, state), batch)

    def training_log_likelihood(
        self, params: PyTree, batch: Batch
    ) -> tuple[jax.Array, dict[str, jax.Array], PyTree | None]:
        """`summed_log_likelihood` in training mode, and the running statistics after the batch."""
        if self.running is None:
            return *self.summed_log_likelihood(params, batch), None
        outputs, state = self.running.update(params, batch.x, batch.state)
        kept = jax.tree.map(lambda new, old: new.astype(old.dtype), state, batch.state)
        return *self._summed(outputs, batch), jax.lax.stop_gradient(kept)

    def _summed(self, outputs: jax.Array, batch: Batch) -> tuple[jax.Array, dict[str, jax.Array]]:
        log_p = self.log_likelihood(outputs, batch.y)
        score = self.log_likelihood.score(outputs, batch.y)
        count = len(log_p)
        if batch.weight is not None:
            weight = weight_of_predictions(batch.weight, log_p)
            log_p, score = log_p * weight, score * weight
            count = jnp.maximum(weight.sum(), 1)
        total = log_p.sum()
        aux = {"nll": -total / count, self.log_likelihood.score_name: score.sum() / count}
        return self.likelihood_scale * total, aux

    def log_prior(self, params: PyTree) -> jax.Array:
        """Σ log N(θ; 0, v), normalised."""
        terms = jax.tree.map(
            lambda leaf, v: -0.5 * (jnp.sum(leaf**2) / v + leaf.size * math.log(2 * math.pi * v)),
            params,
            self.prior_variances,
        )
        return jax.tree.reduce(jnp.add, terms)

    def log_posterior(
        self, params: PyTree, batch: Batch | tuple[Any, Any]
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        """The log posterior up to a constant, with the batch scaled up to the whole data set.

        It is unbiased for a uniformly drawn batch and exact for the whole data set.
        """
        batch = batch if isinstance(batch, Batch) else Batch(*batch)
        log_likelihood, aux = self.summed_log_likelihood(params, batch)
        count = len(batch.x) if batch.weight is None else batch.weight.sum()
        scale = self.num_examples / count
        return scale * log_likelihood + self.log_prior(params), aux

    def fingerprint(self) -> dict[str, Any]:
        """A description by which a checkpoint recognises its problem."""
        digest = hashlib.sha256()
        for array in (self.x, self.y):
            digest.update(np.ascontiguousarray(array).data)
        prior = {name: float(v) for name, v in leaves_by_path(self.prior_variances).items()}
        return {
            "likelihood": settings_of(self.log_likelihood),
            "temperature": self.temperature,
            "augmentation": self.augmentation,
            "network": self.network,
            "prior_variance": prior,
            "params": shapes_text(self.shapes),
            "examples": list(self.x.shape),
            "data": digest.hexdigest(),
            **({} if self.state is None else {"state": shapes_text(self.state)}),
        }

    def _check_network(self) -> float:
        """Refuse outputs that do not match the targets; returns forward flops per example."""
        count = min(2, len(self.x))
        x = jax.ShapeDtypeStruct((count, *self.x.shape[1:]), jnp.asarray(self.x[:0]).dtype)
        state = () if self.state is None else (self.state,)
        lowered = jax.jit(self.apply).lower(self.shapes, x, *state)
        if self.running is not None:
            jax.eval_shape(self.running.update, self.shapes, x, self.state)
        shape = check_output(lowered.out_info, count)
        self.log_likelihood.check_outputs(shape, self.y)
        analysis = lowered.cost_analysis() or {}
        return float(analysis.get("flops", 0.0)) / count


def weight_of_predictions(weight: jax.Array, log_p: jax.Array) -> jax.Array:
    """The weights of examples as those of their predictions, of which each has as many."""
    return jnp.repeat(weight, len(log_p) // len(weight))


def _joined_running(
    running: RunningStatistics | None, joined: WithOwnParams
) -> RunningStatistics | None:
    """The statistics of a network whose params hold those of the likelihood as well."""
    if running is None:
        return None

    def update(params: PyTree, x: jax.Array, state: PyTree) -> tuple[jax.Array, PyTree]:
        # Both parts see the same batch: the outputs are joined after the network has run once.
        outputs, after = running.update(joined.network_params(params), x, state)
        given = WithOwnParams(lambda *_: outputs, joined.likelihood)
        return given(params, x), after

    def observe(params: PyTree, x: jax.Array, state: PyTree) -> PyTree:
        return running.observe(joined.network_params(params), x, state)

    return RunningStatistics(update, observe, running.pairs)


def shapes_text(tree: PyTree) -> dict[str, list[int]]:
    """The shapes of the leaves by key path, as JSON."""
    return {name: list(shape) for name, shape in shapes_by_path(tree).items()}


def likelihood_for(network: NetworkLike, given: LikelihoodLike | None) -> Likelihood:
    """The given likelihood, else that of the problem, else the categorical one."""
    if given is None:
        return network.log_likelihood if isinstance(network, Problem) else Categorical()
    return likelihood_of(given)


def _prior_tree(
    given: float | Mapping[str, float] | PyTree, shapes: PyTree, likelihood: Likelihood
) -> PyTree:
    """One variance per leaf, from one number, a mapping from key paths or a tree.

    Parameters of the likelihood have the variance that it gives them, unless they are named.
    """
    expected = dict.fromkeys(leaves_by_path(shapes), ())
    own: dict[str, float] = {}
    if isinstance(likelihood, HasOwnParams):
        own = dict.fromkeys(likelihood.own_names, likelihood.prior_variance)
    if not expected.keys() - own.keys():
        raise ValueError("init(key) returned no arrays; a network needs at least one parameter")
    by_path: dict[str, Any]
    if np.isscalar(given):
        by_path = dict.fromkeys(expected, given)
    elif isinstance(given, Mapping) and all(name in expected for name in given):
        by_path = dict(given)
    else:
        by_path = leaves_by_path(given)
    by_path = {**by_path, **own} if np.isscalar(given) else {**own, **by_path}
    difference = first_difference(expected, {k: np.shape(v) for k, v in by_path.items()})
    if difference:
        raise ValueError(f"prior_variance must give one number for every leaf: {difference}")
    for name, value in by_path.items():
        check_positive(float(value), f"prior_variance of '{name}'")
    return with_leaves(shapes, {name: float(value) for name, value in by_path.items()})
