"""OneBasin: move posteriors of Bayesian neural networks into one basin.

The public names are looked up when first used, so that importing the package (and
`onebasin --help`) stays quick.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from onebasin import networks as networks
    from onebasin.alignment import Activations as Activations
    from onebasin.alignment import align as align
    from onebasin.alignment import align_many as align_many
    from onebasin.compaction import compact as compact
    from onebasin.data import Dataset as Dataset
    from onebasin.data import load_dataset as load_dataset
    from onebasin.diagnosis import diagnose as diagnose
    from onebasin.evaluation.barrier import profile as profile
    from onebasin.evaluation.measures import accuracy as accuracy
    from onebasin.evaluation.measures import agreement as agreement
    from onebasin.evaluation.measures import calibration_error as calibration_error
    from onebasin.evaluation.measures import nll as nll
    from onebasin.evaluation.measures import total_variation as total_variation
    from onebasin.evaluation.predictive import predict as predict
    from onebasin.evaluation.reference import reference_table as reference_table
    from onebasin.inference.fit import fit as fit
    from onebasin.inference.methods import HMC as HMC
    from onebasin.inference.methods import MAP as MAP
    from onebasin.inference.methods import NUTS as NUTS
    from onebasin.inference.methods import VI as VI
    from onebasin.inference.methods import Ensemble as Ensemble
    from onebasin.paths import geodesic as geodesic
    from onebasin.paths import line as line
    from onebasin.paths import mixture as mixture
    from onebasin.paths import repair as repair
    from onebasin.posterior import LowRank as LowRank
    from onebasin.posterior import MeanField as MeanField
    from onebasin.posterior import Mixture as Mixture
    from onebasin.posterior import Samples as Samples
    from onebasin.posterior import load as load
    from onebasin.posterior import read_header as read_header
    from onebasin.posterior import save as save
    from onebasin.problem import Problem as Problem
    from onebasin.pruning import prune as prune
    from onebasin.symmetry import Permutation as Permutation
    from onebasin.symmetry import Symmetry as Symmetry
    from onebasin.symmetry import find_symmetry as find_symmetry
    from onebasin.symmetry import transpositions as transpositions

# Where each public name is defined; a name that maps to None is a submodule.
_PUBLIC: dict[str, str | None] = {
    "networks": None,
    "Dataset": "onebasin.data",
    "load_dataset": "onebasin.data",
    "Problem": "onebasin.problem",
    "fit": "onebasin.inference.fit",
    "VI": "onebasin.inference.methods",
    "MAP": "onebasin.inference.methods",
    "Ensemble": "onebasin.inference.methods",
    "HMC": "onebasin.inference.methods",
    "NUTS": "onebasin.inference.methods",
    "MeanField": "onebasin.posterior",
    "Samples": "onebasin.posterior",
    "LowRank": "onebasin.posterior",
    "Mixture": "onebasin.posterior",
    "save": "onebasin.posterior",
    "load": "onebasin.posterior",
    "read_header": "onebasin.posterior",
    "Symmetry": "onebasin.symmetry",
    "find_symmetry": "onebasin.symmetry",
    "Permutation": "onebasin.symmetry",
    "transpositions": "onebasin.symmetry",
    "align": "onebasin.alignment",
    "align_many": "onebasin.alignment",
    "Activations": "onebasin.alignment",
    "geodesic": "onebasin.paths",
    "mixture": "onebasin.paths",
    "line": "onebasin.paths",
    "repair": "onebasin.paths",
    "predict": "onebasin.evaluation.predictive",
    "profile": "onebasin.evaluation.barrier",
    "nll": "onebasin.evaluation.measures",
    "accuracy": "onebasin.evaluation.measures",
    "calibration_error": "onebasin.evaluation.measures",
    "agreement": "onebasin.evaluation.measures",
    "total_variation": "onebasin.evaluation.measures",
    "compact": "onebasin.compaction",
    "prune": "onebasin.pruning",
    "diagnose": "onebasin.diagnosis",
    "reference_table": "onebasin.evaluation.reference",
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
