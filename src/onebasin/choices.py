"""The names that arguments and flags accept.

Each is defined once: functions check against it and the command line lists it. This module imports
nothing heavy, so that help and errors about flags are instant.
"""

from typing import Literal, TypeAlias, get_args

DataName: TypeAlias = Literal["digits", "pydoc", "mnist", "fashion-mnist", "cifar10", "cifar100"]
SplitName: TypeAlias = Literal["train", "test"]
NetworkName: TypeAlias = Literal["mlp", "lenet", "resnet20", "vit", "gpt"]
Standardise: TypeAlias = Literal["auto", "features", "both", "none"]
DeviceName: TypeAlias = Literal["cpu", "gpu", "tpu"]
LikelihoodName: TypeAlias = Literal[
    "categorical", "bernoulli", "gaussian", "learned-noise", "heteroscedastic", "poisson"
]

WeightObjective: TypeAlias = Literal["w2", "l2", "kl", "reverse-kl", "kl-reduced", "log-density"]
DataObjective: TypeAlias = Literal["activations", "correlations"]
ObjectiveName: TypeAlias = Literal[
    "w2", "l2", "kl", "reverse-kl", "kl-reduced", "log-density", "activations", "correlations"
]
LearnedObjective: TypeAlias = Literal["path-loss"]
StartName: TypeAlias = Literal["auto", "forward", "identity", "random", "shaken"]
KindsName: TypeAlias = Literal["permutation", "all"]
OrderName: TypeAlias = Literal["forward", "backward", "alternate", "random"]

RebaseName: TypeAlias = Literal[
    "likelihood", "contributions", "chain", "barycentre", "anchor", "none"
]
FitTarget: TypeAlias = Literal["weights", "outputs"]
PruningRule: TypeAlias = Literal["magnitude", "snr", "std"]
PruningScope: TypeAlias = Literal["global", "layer"]

PresetName: TypeAlias = Literal["toy", "cpu", "paper"]


def check_choice(value: object, choices: object, what: str) -> None:
    """Refuse a value that is not among the choices of a Literal type.

    >>> check_choice("w3", WeightObjective, "objective")
    Traceback (most recent call last):
        ...
    ValueError: there is no objective 'w3'; choose w2, l2, kl, reverse-kl, kl-reduced or log-density
    """
    known = get_args(choices)
    if value not in known:
        listed = f"{', '.join(known[:-1])} or {known[-1]}"
        raise ValueError(f"there is no {what} {value!r}; choose {listed}")
