"""OneBasin: move posteriors of Bayesian neural networks into one basin.

The public names are looked up when first used, so that importing the package (and
`onebasin --help`) stays quick.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from onebasin import networks as networks
    from onebasin.data import Dataset as Dataset
    from onebasin.data import load_dataset as load_dataset
    from onebasin.posterior import LowRank as LowRank
    from onebasin.posterior import MeanField as MeanField
    from onebasin.posterior import Mixture as Mixture
    from onebasin.posterior import Samples as Samples
    from onebasin.posterior import load as load
    from onebasin.posterior import read_header as read_header
    from onebasin.posterior import save as save
    from onebasin.symmetry import Permutation as Permutation
    from onebasin.symmetry import Symmetry as Symmetry
    from onebasin.symmetry import find_symmetry as find_symmetry
    from onebasin.symmetry import transpositions as transpositions

# Where each public name is defined; a name that maps to None is a submodule.
_PUBLIC: dict[str, str | None] = {
    "networks": None,
    "Dataset": "onebasin.data",
    "load_dataset": "onebasin.data",
    "LowRank": "onebasin.posterior",
    "MeanField": "onebasin.posterior",
    "Mixture": "onebasin.posterior",
    "Samples": "onebasin.posterior",
    "load": "onebasin.posterior",
    "read_header": "onebasin.posterior",
    "save": "onebasin.posterior",
    "Permutation": "onebasin.symmetry",
    "Symmetry": "onebasin.symmetry",
    "find_symmetry": "onebasin.symmetry",
    "transpositions": "onebasin.symmetry",
}

__all__ = [*_PUBLIC, "__version__"]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'onebasin' has no attribute '{name}'")
    module = _PUBLIC[name]
    if module is None:
        return import_module(f"onebasin.{name}")
    return getattr(import_module(module), name)


def __dir__() -> list[str]:
    return sorted(__all__)
