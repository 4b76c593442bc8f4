"""Both papers' experiments, one file each, and the runner that resumes and shares their stages.

This module imports nothing heavy: `onebasin reproduce --list` is instant.
"""

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onebasin.experiments.experiment import Experiment

ROSSI = "Rossi et al. 2023"
XIAO = "Xiao et al. 2023"
OURS = "ours"

PRESETS = ("toy", "cpu", "paper")


@dataclass(frozen=True)
class Entry:
    """What the list of experiments says of one."""

    source: str
    summary: str


EXPERIMENTS = {
    "barriers": Entry(ROSSI, "the loss on the way between two posteriors, before and after"),
    "width": Entry(ROSSI, "the barrier against the width of the network"),
    "prior-temperature": Entry(ROSSI, "the barrier against prior variance and temperature"),
    "kl-vs-w2": Entry(ROSSI, "does KL matching miss symmetries that W2 finds (figure A1)"),
    "timings": Entry(ROSSI, "how long alignment takes as width grows (figure A2)"),
    "cifar100": Entry(ROSSI, "where the method fails (figure A3), and what helps"),
    "landscape": Entry(ROSSI, "the log posterior on the plane of two posteriors"),
    "dynamics": Entry(XIAO, "the barrier through training (figure 2)"),
    "transpositions": Entry(XIAO, "planted permutations: what rebasin finds (figure 3)"),
    "table1": Entry(XIAO, "one Gaussian in place of HMC draws or an ensemble"),
    "sigma-pruning": Entry(XIAO, "pruning the weights of largest deviation (figure 5)"),
    "unimodality": Entry(XIAO, "is the posterior unimodal once permutations are gone (figure 4)"),
    "many": Entry(OURS, "five posteriors merged into one"),
}


def get_experiment(name: str) -> "Experiment":
    """The experiment of a name; its module is imported now."""
    if name not in EXPERIMENTS:
        raise ValueError(
            f"there is no experiment '{name}'; choose among {', '.join(EXPERIMENTS)}, or 'all'"
        )
    return import_module(f"onebasin.experiments.{name.replace('-', '_')}").EXPERIMENT
