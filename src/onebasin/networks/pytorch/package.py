"""The optional package torch."""

from importlib import import_module
from typing import Any


def import_torch() -> Any:
    """The module torch, or an error that says how to get it."""
    try:
        return import_module("torch")
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ImportError(
            "PyTorch is not installed; install it with pip install 'onebasin[torch]'"
        ) from None
