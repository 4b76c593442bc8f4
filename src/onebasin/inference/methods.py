"""The methods of `fit` as plain values: each field is one option of `onebasin fit`.

Importing this module does not import JAX, so the command line prints its help at once.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, TypeAlias, get_args

OptimiserName: TypeAlias = Literal["adam", "sgd"]
CurvatureName: TypeAlias = Literal["diagonal", "low-rank", "kronecker"]
ScheduleName: TypeAlias = Literal["cosine", "constant", "linear", "exponential"]
IntegratorName: TypeAlias = Literal["two-stage", "leapfrog"]


_Rule: TypeAlias = tuple[Callable[[Any], bool], str]
COUNT: _Rule = (lambda v: type(v) is int and v >= 1, "a whole number ≥ 1")
COUNT_OR_ZERO: _Rule = (lambda v: type(v) is int and v >= 0, "a whole number ≥ 0")
POSITIVE: _Rule = (lambda v: isinstance(v, int | float) and 0 < v < math.inf, "a positive number")
FRACTION: _Rule = (lambda v: isinstance(v, int | float) and 0 <= v < 1, "at least 0 and below 1")


@dataclass(frozen=True, repr=False)
class _Options:
    def __repr__(self) -> str:
        """The options that differ from their defaults."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        changed = [
            f"{f.name}={values[f.name]!r}" for f in fields(self) if values[f.name] != f.default
        ]
        return f"{type(self).__name__}({', '.join(changed)})"

    def _check(self, rule: _Rule, *names: str) -> None:
        for name in names:
            self._check_value(rule, name, getattr(self, name))

    def _check_value(self, rule: _Rule, name: str, value: object) -> None:
        holds, text = rule
        if not holds(value):
            raise ValueError(f"{name} of {type(self).__name__} must be {text}, got {value!r}")


@dataclass(frozen=True, kw_only=True, repr=False)
class BatchMethod(_Options):
    """The options of every method that draws minibatches."""

    epochs: int = 50
    """Passes over the training data."""
    batch_size: int = 500
    """Examples per step (all of them if there are fewer)."""
    learning_rate: float = 1e-3
    """Learning rate."""
    momentum: float = 0.9
    """β₁ of Adam, or the heavy-ball momentum of SGD."""
    schedule: ScheduleName = "cosine"
    """Course of the learning rate over the steps."""
    warmup_epochs: int = 0
    """Epochs over which the learning rate rises from 0."""

    def __post_init__(self) -> None:
        self._check(COUNT, "batch_size")
        for rule, name in ((COUNT, "epochs"), (POSITIVE, "learning_rate")):
            if getattr(self, name) is not None:  # VI chooses them itself
                self._check(rule, name)
        self._check(FRACTION, "momentum")
        self._check(COUNT_OR_ZERO, "warmup_epochs")


@dataclass(frozen=True, kw_only=True, repr=False)
class MinibatchMethod(BatchMethod):
    """The options of every method that follows minibatch gradients with an optimiser."""

    optimiser: OptimiserName = "adam"
    """Adam, or stochastic gradient descent."""
    learning_rate_on: Literal["mean", "sum"] = "mean"
    """Whether the learning rate is meant for the loss per example or summed over the data."""


@dataclass(frozen=True, kw_only=True, repr=False)
class VI(MinibatchMethod):
    """Mean-field variational inference: θ = mean + std·ε, with new noise ε at every step.

    The loss is the negative ELBO per example; the optimiser works on the logarithm of the std.
    The posterior is a `MeanField`. What is not given follows from the prior, the number of examples
    and the number of steps, so that short and long fits both end near their optimum.

    >>> import onebasin as ob
    >>> ob.VI(epochs=30, initial_std=0.02)
    VI(epochs=30, initial_std=0.02)
    """

    # None is replaced before the shared code reads it (`vi_defaults.settled`).
    epochs: int | None = None  # pyright: ignore[reportIncompatibleVariableOverride]
    """Passes over the data; by default 100, or enough for 5,000 steps."""
    learning_rate: float | None = None  # pyright: ignore[reportIncompatibleVariableOverride]
    """Learning rate of the means; by default from prior and steps."""
    num_samples: int = 1
    """Monte Carlo samples of the weights per step."""
    antithetic: bool = True
    """Mirror the noise in the second half of each batch, so that most of it cancels."""
    initial_std: float | None = None
    """σ of weights at the start; by default 0.3 of the prior's or less."""
    std_learning_rate: float | None = None
    """Learning rate of log std; by default from the steps (a quarter of means' if std is given)."""
    std_schedule: ScheduleName | None = None
    """Course of the learning rate of log std; by default cosine, constant if its rate is given."""
    kl: Literal["analytic", "monte-carlo"] = "analytic"
    """The KL term in closed form, or estimated from the samples (sticking the landing)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check(COUNT, "num_samples")
        for name in ("initial_std", "std_learning_rate"):
            if getattr(self, name) is not None:
                self._check(POSITIVE, name)


@dataclass(frozen=True, kw_only=True, repr=False)
class MAP(MinibatchMethod):
    """The mode of the posterior by minibatch gradients; the posterior is `Samples` with one draw.

    >>> import onebasin as ob
    >>> ob.MAP(epochs=20, optimiser="sgd")
    MAP(epochs=20, optimiser='sgd')
    """


@dataclass(frozen=True, kw_only=True, repr=False)
class Ensemble(MinibatchMethod):
    """A deep ensemble: independent MAP fits in one program; the posterior is `Samples`.

    >>> import onebasin as ob
    >>> ob.Ensemble(members=10, epochs=20)
    Ensemble(epochs=20, members=10)
    """

    members: int = 5
    """Independent networks."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check(COUNT, "members")


@dataclass(frozen=True, kw_only=True, repr=False)
class IVON(BatchMethod):
    """Mean-field variational inference by natural gradients, at about the cost of Adam.

    The improved variational online Newton method (Shen et al. 2024): a running estimate of the
    Hessian's diagonal is both the step size and the variance. The posterior is a `MeanField`.

    >>> import onebasin as ob
    >>> ob.IVON(epochs=30, learning_rate=0.05)
    IVON(epochs=30, learning_rate=0.05)
    """

    epochs: int = 100
    """Passes over the training data."""
    learning_rate: float = 0.1
    """Learning rate of the means, relative to a full Newton step."""
    momentum: float = 0.9
    """Factor by which the average of the gradient forgets at every step."""
    num_samples: int = 1
    """Monte Carlo samples of the weights per step."""
    initial_hessian: float = 0.1
    """Curvature of the loss per example with which every weight starts."""
    hessian_momentum: float = 0.999
    """Factor by which the average of the curvature forgets at every step."""
    clip_radius: float = 1.0
    """Largest Newton step of any weight, before it is multiplied by the learning rate."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check(COUNT, "num_samples")
        self._check(POSITIVE, "initial_hessian", "clip_radius")
        self._check(FRACTION, "hessian_momentum")


@dataclass(frozen=True, kw_only=True, repr=False)
class SWAG(MinibatchMethod):
    """A Gaussian with the moments of an SGD trajectory; the posterior is a `LowRank`.

    After `start` of the epochs the learning rate stays at `collect_rate`, and the weights are
    collected at regular steps (Maddox et al. 2019).

    >>> import onebasin as ob
    >>> ob.SWAG(epochs=30, rank=10)
    SWAG(epochs=30, rank=10)
    """

    epochs: int = 100
    """Passes over the training data."""
    learning_rate: float = 0.05
    """Learning rate at the start."""
    optimiser: OptimiserName = "sgd"
    """Adam, or stochastic gradient descent."""
    start: float = 0.5
    """Fraction of the epochs before weights are collected."""
    collect_rate: float = 0.01
    """Constant learning rate while weights are collected."""
    collect_per_epoch: int = 1
    """Times per epoch that weights are collected."""
    rank: int = 20
    """Number of the last deviations that become the low-rank part."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check(FRACTION, "start")
        self._check(POSITIVE, "collect_rate")
        self._check(COUNT, "collect_per_epoch")
        self._check((lambda v: type(v) is int and v >= 2, "a whole number ≥ 2"), "rank")


@dataclass(frozen=True, kw_only=True, repr=False)
class Laplace(_Options):
    """A Gaussian at a mode of the posterior, with the curvature there as its precision.

    The curvature is the generalised Gauss–Newton matrix. The posterior is a `MeanField`, of low
    rank a `LowRankPrecision`, and with Kronecker factors a `Kronecker`.

    >>> import onebasin as ob
    >>> ob.Laplace(structure="diagonal", mode_epochs=30)
    Laplace(mode_epochs=30, structure='diagonal')
    """

    mode_epochs: int = 50
    """Epochs of Adam that lead to the mode; 0 if the problem's init is the mode."""
    mode_rate: float = 1e-3
    """Learning rate of these epochs."""
    structure: CurvatureName = "low-rank"
    """What is kept of the curvature: its diagonal, a few directions, or two factors per array."""
    rank: int = 50
    """Number of these directions (Lanczos steps, each with a pass over the data)."""
    tune_prior: bool = False
    """Scale the variance of the prior to the largest estimate of the evidence, at the same mode."""
    data_chunk: int = 2000
    """Examples per chunk of a full-batch pass; bounds its memory."""

    def __post_init__(self) -> None:
        self._check(COUNT, "rank", "data_chunk")
        self._check(COUNT_OR_ZERO, "mode_epochs")
        self._check(POSITIVE, "mode_rate")
        names = get_args(CurvatureName)
        self._check((lambda v: v in names, ", ".join(names[:-1]) + f" or {names[-1]}"), "structure")


@dataclass(frozen=True, kw_only=True, repr=False)
class ChainMethod(_Options):
    """The options of every method that runs Markov chains with full-batch gradients."""

    draws: int = 1000
    """Draws kept from each chain."""
    warmup: int = 500
    """Transitions before the first draw is kept; adaptation takes place during them."""
    thin: int = 1
    """Keep one draw out of this many."""
    chains: int = 4
    """Independent chains, run in parallel."""
    step_size: float = 1e-3
    """Step size of the integrator: the start of its adaptation, or what the warm-up grows to."""
    adapt_step_size: bool = True
    """Adapt the step size during warm-up (dual averaging)."""
    adapt_mass: bool = False
    """Also adapt a diagonal mass matrix during warm-up (Stan's windows)."""
    target_acceptance: float = 0.8
    """Acceptance probability that the adaptation of the step size aims at."""
    data_chunk: int = 2000
    """Examples per chunk of a full-batch gradient; bounds its memory."""
    mode_epochs: int = 0
    """Epochs of Adam before the warm-up, so that every chain begins near a mode of its own."""
    mode_rate: float = 1e-3
    """Learning rate of these epochs."""

    def __post_init__(self) -> None:
        self._check(COUNT, "draws", "thin", "chains", "data_chunk")
        self._check(COUNT_OR_ZERO, "warmup", "mode_epochs")
        self._check(POSITIVE, "mode_rate")
        self._check(POSITIVE, "step_size")
        self._check(FRACTION, "target_acceptance")


@dataclass(frozen=True, kw_only=True, repr=False)
class HMC(ChainMethod):
    """Hamiltonian Monte Carlo with a fixed number of leapfrog steps; the posterior is `Samples`.

    The step size is jittered so that no trajectory resonates with a period of the posterior.

    >>> import onebasin as ob
    >>> ob.HMC(draws=200, leapfrog_steps=20, masses=(("Dense_1/kernel", 2.0),))
    HMC(draws=200, leapfrog_steps=20, masses=(('Dense_1/kernel', 2.0),))
    """

    leapfrog_steps: int = 50
    """Steps of the integrator per transition."""
    jitter: float = 0.1
    """Relative half-width of the uniform jitter of the step size at each transition; 0 for none."""
    masses: tuple[tuple[str, float], ...] = ()
    """Masses of arrays by name, such as Dense_1/kernel 2; 1 for the others."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check(COUNT, "leapfrog_steps")
        self._check(FRACTION, "jitter")
        object.__setattr__(self, "masses", _pairs(self.masses))
        for name, mass in self.masses:
            self._check_value(POSITIVE, f"the mass of '{name}'", mass)
        if self.masses and self.adapt_mass:
            raise ValueError("HMC adapts masses or is given them; leave out adapt_mass or masses")


@dataclass(frozen=True, kw_only=True, repr=False)
class AdjustedMCLMC(ChainMethod):
    """Microcanonical Hamiltonian trajectories of fixed length with a Metropolis correction.

    The momentum has unit length and a new direction after every trajectory (Robnik et al. 2023).
    The draws have no bias; the posterior is `Samples`.

    >>> import onebasin as ob
    >>> ob.AdjustedMCLMC(draws=200, leapfrog_steps=20)
    AdjustedMCLMC(draws=200, leapfrog_steps=20)
    """

    step_size: float = 1e-3
    """Distance that a typical weight moves in a step: the start, or what the warm-up grows to."""
    target_acceptance: float = 0.9
    """Acceptance probability that the adaptation of the step size aims at."""
    leapfrog_steps: int = 25
    """Steps of the integrator per transition."""
    integrator: IntegratorName = "two-stage"
    """Two gradients per step (the minimal-norm integrator of McLachlan), or leapfrog with one."""
    jitter: float = 0.1
    """Relative half-width of the uniform jitter of the step size at each transition; 0 for none."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check(COUNT, "leapfrog_steps")
        self._check(FRACTION, "jitter")


@dataclass(frozen=True, kw_only=True, repr=False)
class MCLMC(_Options):
    """Microcanonical Langevin Monte Carlo, without a Metropolis correction.

    Every step counts: there are no rejections, and each step changes the direction a little
    (Robnik and Seljak 2023). The draws have a bias, which `energy_error` bounds. With `mode_epochs`
    and many chains it is a microcanonical Langevin ensemble. The posterior is `Samples`.

    >>> import onebasin as ob
    >>> ob.MCLMC(chains=12, draws=100, thin=20, mode_epochs=20)
    MCLMC(draws=100, thin=20, chains=12, mode_epochs=20)
    """

    draws: int = 1000
    """Draws kept from each chain."""
    warmup: int = 1000
    """Steps before the first draw is kept; step size and length are tuned during them."""
    thin: int = 10
    """Steps between two draws."""
    chains: int = 4
    """Independent chains, run in parallel."""
    step_size: float = 1e-3
    """Distance that a typical weight moves in a step; the start of its tuning."""
    energy_error: float = 5e-4
    """Variance of the energy error per step and weight that the tuning of the step size aims at."""
    length: float | None = None
    """Distance of a typical weight after which the direction is forgotten; by default tuned."""
    integrator: IntegratorName = "two-stage"
    """Two gradients per step (the minimal-norm integrator of McLachlan), or leapfrog with one."""
    data_chunk: int = 2000
    """Examples per chunk of a full-batch gradient; bounds its memory."""
    mode_epochs: int = 0
    """Epochs of Adam before the warm-up, so that every chain begins near a mode of its own."""
    mode_rate: float = 1e-3
    """Learning rate of these epochs."""

    def __post_init__(self) -> None:
        self._check(COUNT, "draws", "thin", "chains", "data_chunk")
        self._check(COUNT_OR_ZERO, "warmup", "mode_epochs")
        self._check(POSITIVE, "step_size", "energy_error", "mode_rate")
        if self.length is not None:
            self._check(POSITIVE, "length")


@dataclass(frozen=True, kw_only=True, repr=False)
class NUTS(ChainMethod):
    """The no-U-turn sampler; the posterior is `Samples`.

    >>> import onebasin as ob
    >>> ob.NUTS(chains=2, max_doublings=8)
    NUTS(chains=2, max_doublings=8)
    """

    step_size: float = 1e-2
    """Step size of the integrator: the start of its adaptation, or what the warm-up grows to."""
    adapt_mass: bool = True
    """Also adapt a diagonal mass matrix during warm-up (Stan's windows)."""
    max_doublings: int = 10
    """Limit on the doublings of a trajectory, which has at most 2 to this power steps."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check(COUNT, "max_doublings")


@dataclass(frozen=True, kw_only=True, repr=False)
class _StochasticGradient(_Options):
    """The options of chains with minibatch gradients."""

    draws: int = 100
    """Draws kept from each chain."""
    warmup_epochs: int = 50
    """Epochs before draws are kept: once, or without noise in every cycle."""
    thin_epochs: int = 1
    """Epochs between two draws."""
    cycle_epochs: int = 0
    """Epochs over which the step size falls to zero, again and again; 0 keeps it constant."""
    chains: int = 4
    """Independent chains, run in parallel."""
    batch_size: int = 500
    """Examples per step (all of them if there are fewer)."""
    learning_rate: float = 1e-2
    """Step size, as a learning rate of the loss per example."""

    def __post_init__(self) -> None:
        self._check(COUNT, "draws", "thin_epochs", "chains", "batch_size")
        self._check(COUNT_OR_ZERO, "warmup_epochs", "cycle_epochs")
        self._check(POSITIVE, "learning_rate")
        least = self.warmup_epochs + self.thin_epochs
        if 0 < self.cycle_epochs < least:
            raise ValueError(
                f"cycle_epochs of {type(self).__name__} is {self.cycle_epochs}, too short for a "
                f"draw after warmup_epochs and thin_epochs; give at least {least}"
            )


@dataclass(frozen=True, kw_only=True, repr=False)
class SGLD(_StochasticGradient):
    """Stochastic-gradient Langevin dynamics; the posterior is `Samples`.

    The draws have a bias from the step size and from the noise of minibatch gradients.

    >>> import onebasin as ob
    >>> ob.SGLD(warmup_epochs=15, cycle_epochs=20, draws=30)
    SGLD(draws=30, warmup_epochs=15, cycle_epochs=20)
    """


@dataclass(frozen=True, kw_only=True, repr=False)
class SGHMC(_StochasticGradient):
    """Stochastic-gradient Hamiltonian Monte Carlo, with friction; the posterior is `Samples`.

    The draws have a bias from the step size and from the noise of minibatch gradients, which
    `stats["kinetic_temperature"]` shows: without it, it is one.

    >>> import onebasin as ob
    >>> ob.SGHMC(warmup_epochs=15, cycle_epochs=20, draws=30)
    SGHMC(draws=30, warmup_epochs=15, cycle_epochs=20)
    """

    momentum: float = 0.9
    """Share of the momentum kept at every step."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check(FRACTION, "momentum")


FullBatchMethod: TypeAlias = HMC | NUTS | AdjustedMCLMC | MCLMC
"""The Markov chains with full-batch gradients."""
StochasticGradientMethod: TypeAlias = SGLD | SGHMC
"""The Markov chains with minibatch gradients."""
SampleMethod: TypeAlias = MAP | Ensemble | FullBatchMethod | StochasticGradientMethod
"""The methods whose posterior is `Samples`."""
MeanFieldMethod: TypeAlias = VI | IVON
"""The methods whose posterior is a `MeanField`."""
LowRankMethod: TypeAlias = SWAG
"""The methods whose posterior is a `LowRank`."""
Method: TypeAlias = MeanFieldMethod | LowRankMethod | Laplace | SampleMethod


def to_config(method: Method) -> dict[str, Any]:
    """A method as JSON data, the form in which files keep it."""
    config = {"name": type(method).__name__, **asdict(method)}
    if not config.get("mode_epochs", 1):  # without an opening, as in files of earlier versions
        config = {k: v for k, v in config.items() if not k.startswith("mode_")}
    return {k: dict(v) if k == "masses" else v for k, v in config.items()}


def _pairs(masses: object) -> tuple[tuple[str, float], ...]:
    """Names and masses, sorted by name, from pairs or a mapping."""
    given = list(masses.items()) if isinstance(masses, Mapping) else masses
    if not isinstance(given, list | tuple) or not all(
        isinstance(pair, list | tuple) and len(pair) == 2 and isinstance(pair[0], str)
        for pair in given
    ):
        raise ValueError(f"masses of HMC must be pairs of a name and a number, got {masses!r}")
    named: dict[str, float] = dict(given)
    if len(named) != len(given):
        raise ValueError(f"masses of HMC must name every array once, got {masses!r}")
    return tuple(sorted(named.items()))
