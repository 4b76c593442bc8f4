"""Checks of the fields of a network, the same for Python and for a config."""

import jax

from onebasin.networks.activations import ACTIVATIONS


def check_count(network: str, field: str, value: object) -> None:
    """Raise unless `value` is a positive integer."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{network}: {field} must be a positive integer, got {value!r}")


def check_counts(network: str, field: str, values: object) -> None:
    """Raise unless `values` is a list or tuple of positive integers."""
    if not isinstance(values, list | tuple):
        raise ValueError(f"{network}: {field} must be a list of integers, got {values!r}")
    for value in values:
        check_count(network, field, value)


def check_activation(network: str, value: object) -> None:
    """Raise unless `value` names an activation."""
    if not isinstance(value, str) or value not in ACTIVATIONS:
        known = ", ".join(ACTIVATIONS)
        raise ValueError(f"{network}: activation must be one of {known}, got {value!r}")


def check_images(network: str, x: jax.Array) -> None:
    """Raise unless `x` is a batch of images."""
    if x.ndim != 4:
        raise ValueError(
            f"{network} takes images of shape [n, height, width, channels], got shape {x.shape}"
        )


def check_flag(network: str, field: str, value: object) -> None:
    """Raise unless `value` is True or False."""
    if not isinstance(value, bool):
        raise ValueError(f"{network}: {field} must be true or false, got {value!r}")


def check_choice_of(network: str, field: str, value: object, known: tuple[str, ...]) -> None:
    """Raise unless `value` is one of the known words."""
    if not isinstance(value, str) or value not in known:
        raise ValueError(f"{network}: {field} must be one of {', '.join(known)}, got {value!r}")
