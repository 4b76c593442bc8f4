"""Likelihoods by name, and as plain values in files."""

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, TypeAlias

import jax

from onebasin.choices import LikelihoodName, check_choice
from onebasin.likelihoods.bernoulli import Bernoulli
from onebasin.likelihoods.categorical import Categorical
from onebasin.likelihoods.custom import Custom
from onebasin.likelihoods.gaussian import Gaussian
from onebasin.likelihoods.heteroscedastic import Heteroscedastic
from onebasin.likelihoods.learned_noise import LearnedNoise
from onebasin.likelihoods.poisson import Poisson
from onebasin.likelihoods.protocol import Likelihood

LikelihoodLike: TypeAlias = (
    Likelihood | LikelihoodName | Callable[[jax.Array, jax.Array], jax.Array]
)
Named: TypeAlias = (
    type[Categorical]
    | type[Bernoulli]
    | type[Gaussian]
    | type[LearnedNoise]
    | type[Heteroscedastic]
    | type[Poisson]
)
NAMED: dict[str, Named] = {
    "categorical": Categorical,
    "bernoulli": Bernoulli,
    "gaussian": Gaussian,
    "learned-noise": LearnedNoise,
    "heteroscedastic": Heteroscedastic,
    "poisson": Poisson,
}


def likelihood_of(given: LikelihoodLike) -> Likelihood:
    """A likelihood from a name, a likelihood, or a function of (outputs, y)."""
    if isinstance(given, Likelihood):
        return given
    if callable(given):
        return Custom(given)
    return likelihood_named(given)


def likelihood_named(name: LikelihoodName, noise_std: float | None = None) -> Likelihood:
    """A likelihood by name.

    Args:
      name: the name.
      noise_std: of "gaussian" the std of the noise, and of "learned-noise" the median of its prior.

    >>> likelihood_named("gaussian", noise_std=0.1)
    Gaussian(noise_std=0.1)
    """
    check_choice(name, LikelihoodName, "likelihood")
    if noise_std is None:
        return NAMED[name]()
    kind = NAMED[name]
    if kind is Gaussian or kind is LearnedNoise:
        return kind(noise_std=noise_std)
    raise ValueError(
        f"the {name} likelihood has no noise std to give; drop it, or take gaussian or "
        "learned-noise"
    )


def settings_of(likelihood: Likelihood) -> dict[str, Any]:
    """The likelihood as a JSON value: its name, and the plain fields of a dataclass.

    A custom function is recorded only as "custom".
    """
    names = [field.name for field in fields(likelihood)] if is_dataclass(likelihood) else []
    own = {name: getattr(likelihood, name) for name in names}
    plain = {
        name: value for name, value in own.items() if isinstance(value, bool | int | float | str)
    }
    return {"name": likelihood.name, **plain}


def likelihood_from(settings: Mapping[str, Any]) -> Likelihood:
    """The likelihood that `settings_of` recorded; one of your own is refused.

    >>> likelihood_from({"name": "gaussian", "noise_std": 0.1})
    Gaussian(noise_std=0.1)
    """
    options = dict(settings)
    name = options.pop("name", None)
    kind = NAMED.get(str(name))
    if kind is None or not set(options) <= {field.name for field in fields(kind)}:
        raise ValueError(
            f"the likelihood '{name}' of this posterior is not a built-in one; give likelihood= "
            "the one it was fitted with"
        )
    return kind(**options)
