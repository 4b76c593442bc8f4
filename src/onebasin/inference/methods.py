"""The methods of `fit`, as plain values: what a flag can set and nothing else.

This module imports nothing heavy, so the command line can describe every option without
loading JAX.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

Optimiser = Literal["adam", "sgd"]
Schedule = Literal["cosine", "constant", "linear", "exponential"]


@dataclass(frozen=True)
class VI:
    """Mean-field variational inference: θ = mean + std·ε with fresh ε for every step.

    The loss is the negative ELBO per example; the std is optimised as its logarithm.
    """

    epochs: int = 100
    """Passes over the training data."""
    batch_size: int = 500
    """Examples per step (all of them if there are fewer)."""
    num_samples: int = 1
    """Monte Carlo samples of the weights per step."""
    antithetic: bool = True
    """Mirror the noise in the second half of each batch, where most of it cancels."""
    initial_std: float = 0.01
    """Standard deviation of every weight at the start."""
    learning_rate: float = 3e-3
    """Learning rate of the means."""
    std_learning_rate: float | None = None
    """Of log std; by default a quarter of the means' (Adam), or the same (SGD)."""
    std_schedule: Schedule = "constant"
    """Course of the std's learning rate."""
    optimiser: Optimiser = "adam"
    """Adam, or stochastic gradient descent."""
    momentum: float = 0.9
    """β₁ of Adam, or the heavy-ball momentum of SGD."""
    schedule: Schedule = "cosine"
    """Course of the means' learning rate."""
    warmup_epochs: int = 0
    """Epochs over which the learning rates rise from 0."""
    learning_rate_on: Literal["mean", "sum"] = "mean"
    """Whether rates are for the loss per example or for its sum."""
    kl: Literal["analytic", "monte-carlo"] = "analytic"
    """In closed form, or by the samples (sticking the landing)."""

    def __post_init__(self) -> None:
        _positive_integers(self, "epochs", "batch_size", "num_samples")
        _positive(self, "initial_std", "learning_rate")
        if self.std_learning_rate is not None:
            _positive(self, "std_learning_rate")
        _between(self, "momentum", 0, 1)
        _not_negative(self, "warmup_epochs")


@dataclass(frozen=True)
class MAP:
    """The posterior mode, by minibatch gradients; the posterior is `Samples` with one draw."""

    epochs: int = 50
    """Passes over the training data."""
    batch_size: int = 500
    """Examples per step (all of them if there are fewer)."""
    learning_rate: float = 1e-3
    """Learning rate."""
    optimiser: Optimiser = "adam"
    """Adam, or stochastic gradient descent."""
    momentum: float = 0.9
    """β₁ of Adam, or the heavy-ball momentum of SGD."""
    schedule: Schedule = "cosine"
    """Course of the learning rate over the steps."""
    warmup_epochs: int = 0
    """Epochs over which the learning rate rises from 0."""
    learning_rate_on: Literal["mean", "sum"] = "mean"
    """Whether the learning rate is meant for the loss per example or summed over the data."""

    def __post_init__(self) -> None:
        _positive_integers(self, "epochs", "batch_size")
        _positive(self, "learning_rate")
        _between(self, "momentum", 0, 1)
        _not_negative(self, "warmup_epochs")


@dataclass(frozen=True)
class Ensemble:
    """A deep ensemble: independent MAP fits in one program; the posterior is `Samples`."""

    members: int = 5
    """Independent networks."""
    epochs: int = 50
    """Passes over the training data."""
    batch_size: int = 500
    """Examples per step (all of them if there are fewer)."""
    learning_rate: float = 1e-3
    """Learning rate."""
    optimiser: Optimiser = "adam"
    """Adam, or stochastic gradient descent."""
    momentum: float = 0.9
    """β₁ of Adam, or the heavy-ball momentum of SGD."""
    schedule: Schedule = "cosine"
    """Course of the learning rate over the steps."""
    warmup_epochs: int = 0
    """Epochs over which the learning rate rises from 0."""
    learning_rate_on: Literal["mean", "sum"] = "mean"
    """Whether the learning rate is meant for the loss per example or summed over the data."""

    def __post_init__(self) -> None:
        _positive_integers(self, "members")
        self.member()

    def member(self) -> MAP:
        """The fit of one member."""
        return MAP(**{f.name: getattr(self, f.name) for f in fields(MAP)})


@dataclass(frozen=True)
class HMC:
    """Hamiltonian Monte Carlo with full-batch gradients and trajectories of fixed length."""

    draws: int = 1000
    """Draws kept from each chain."""
    warmup: int = 500
    """Transitions before the first kept draw; the step size adapts during them."""
    thin: int = 1
    """Keep every so manieth draw."""
    chains: int = 4
    """Independent chains, run side by side."""
    leapfrog_steps: int = 50
    """Steps of the integrator per transition."""
    step_size: float = 1e-3
    """Step of the integrator, or where its adaptation starts; if none, the warm-up grows to it."""
    jitter: float = 0.1
    """Each transition takes a step size drawn evenly from this share around the one in force, so
    that trajectories do not fall in with a period of the posterior; 0 for none, as published."""
    adapt_step_size: bool = True
    """Adapt the step size during warm-up (dual averaging)."""
    adapt_mass: bool = False
    """Also adapt a diagonal mass matrix during warm-up (Stan's windows)."""
    masses: tuple[tuple[str, float], ...] = ()
    """Masses of arrays by name, such as Dense_1/kernel 2; 1 for the others."""
    target_acceptance: float = 0.8
    """Acceptance probability the step size is adapted to."""
    data_chunk: int = 2000
    """Examples per gradient chunk: bounds the memory a full-batch gradient takes."""

    def __post_init__(self) -> None:
        _positive_integers(self, "leapfrog_steps")
        _between(self, "jitter", 0, 1)
        _check_sampler(self)
        object.__setattr__(self, "masses", _pairs(self.masses))
        for name, mass in self.masses:
            _check_positive(mass, _label(self, f"the mass of '{name}'"))
        if self.masses and self.adapt_mass:
            raise ValueError("HMC adapts masses or is given them; leave out adapt_mass or masses")


@dataclass(frozen=True)
class NUTS:
    """The no-U-turn sampler with full-batch gradients."""

    draws: int = 1000
    """Draws kept from each chain."""
    warmup: int = 500
    """Transitions before the first kept draw; step size and mass adapt during them."""
    thin: int = 1
    """Keep every so manieth draw."""
    chains: int = 4
    """Independent chains, run side by side."""
    step_size: float = 1e-2
    """Step of the integrator, or where its adaptation starts; if none, the warm-up grows to it."""
    adapt_step_size: bool = True
    """Adapt the step size during warm-up (dual averaging)."""
    adapt_mass: bool = True
    """Also adapt a diagonal mass matrix during warm-up (Stan's windows)."""
    target_acceptance: float = 0.8
    """Acceptance probability the step size is adapted to."""
    max_doublings: int = 10
    """A trajectory is at most 2 to this power steps long."""
    data_chunk: int = 2000
    """Examples per gradient chunk: bounds the memory a full-batch gradient takes."""

    def __post_init__(self) -> None:
        _positive_integers(self, "max_doublings")
        _check_sampler(self)


Method = VI | MAP | Ensemble | HMC | NUTS


def to_config(method: Method) -> dict[str, Any]:
    """A method as its files keep it: JSON gives the same thing back."""
    config = {"name": type(method).__name__, **asdict(method)}
    return {k: dict(v) if k == "masses" else v for k, v in config.items()}


def _check_sampler(method: Any) -> None:
    _positive_integers(method, "draws", "thin", "chains", "data_chunk")
    _not_negative(method, "warmup")
    _positive(method, "step_size")
    _between(method, "target_acceptance", 0, 1)


def _pairs(masses: Any) -> tuple[tuple[str, float], ...]:
    """Names and masses in one order, from pairs or a mapping."""
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


def _label(method: Any, name: str) -> str:
    return f"{name} of {type(method).__name__}"


def _positive_integers(method: Any, *names: str) -> None:
    for name in names:
        value = getattr(method, name)
        if not (isinstance(value, int) and not isinstance(value, bool) and value > 0):
            raise ValueError(f"{_label(method, name)} must be a whole number ≥ 1, got {value!r}")


def _not_negative(method: Any, name: str) -> None:
    value = getattr(method, name)
    if not (isinstance(value, int) and not isinstance(value, bool) and value >= 0):
        raise ValueError(f"{_label(method, name)} must be a whole number ≥ 0, got {value!r}")


def _positive(method: Any, *names: str) -> None:
    for name in names:
        _check_positive(getattr(method, name), _label(method, name))


def _check_positive(value: Any, label: str) -> None:
    if not (isinstance(value, int | float) and math.isfinite(value) and value > 0):
        raise ValueError(f"{label} must be a positive number, got {value!r}")


def _between(method: Any, name: str, low: float, high: float) -> None:
    value = getattr(method, name)
    if not (isinstance(value, int | float) and low <= value < high):
        raise ValueError(f"{_label(method, name)} must lie between {low} and {high}, got {value!r}")
