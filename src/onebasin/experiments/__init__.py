"""The experiments of both papers, one file each, and the runner of their stages.

This module imports nothing heavy, so that `onebasin reproduce --list` is instant.
"""

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onebasin.experiments.experiment import Experiment

ROSSI = "Rossi et al. 2023"
XIAO = "Xiao et al. 2023"
THEUS = "Theus et al. 2025"
OURS = "ours"

PRESETS = ("toy", "cpu", "paper")


@dataclass(frozen=True)
class Entry:
    """What an experiment is about."""

    source: str
    summary: str
    """One line for the list."""
    title: str
    question: str


EXPERIMENTS = {
    "barriers": Entry(
        ROSSI,
        "the loss between two posteriors, before and after alignment",
        "Barriers between two variational posteriors",
        "Fit the same Bayesian network twice. How far does the loss of the predictive rise along "
        "the path from one posterior to the other, before and after the hidden units of one "
        "are permuted to match those of the other?",
    ),
    "width": Entry(
        ROSSI,
        "the barrier against the width of the network",
        "Barriers against width",
        "Does the barrier that remains after alignment shrink as the network grows wider?",
    ),
    "prior-temperature": Entry(
        ROSSI,
        "the barrier against prior variance and temperature",
        "Barriers against prior variance and temperature",
        "Does alignment still connect posteriors under wider priors and colder likelihoods?",
    ),
    "kl-vs-w2": Entry(
        ROSSI,
        "does KL matching miss symmetries that W2 finds? (figure A1)",
        "KL against Wasserstein matching",
        "Does matching by KL lose the symmetry that matching by W2 finds?",
    ),
    "timings": Entry(
        ROSSI,
        "the time of an alignment against width (figure A2)",
        "How long alignment takes",
        "How does the time of an alignment grow with width, and how much does scoring σ add?",
    ),
    "cifar100": Entry(
        ROSSI,
        "where the method fails (figure A3) and what helps",
        "Where alignment fails",
        "On CIFAR-100 the published method leaves a barrier. Which of our variants reduces it: "
        "better searches, activations, several starts, joint alignment, repair, width?",
    ),
    "landscape": Entry(
        ROSSI,
        "the log posterior on a plane through two posteriors",
        "The log posterior around two posteriors",
        "Do q0 and the aligned q1 lie in one basin, and q1 as fitted in another?",
    ),
    "dynamics": Entry(
        XIAO,
        "the barrier through training (figure 2)",
        "Barriers through training",
        "When does a barrier between two networks arise in training, and does rebasing remove it?",
    ),
    "transpositions": Entry(
        XIAO,
        "planted permutations that rebasing recovers (figure 3)",
        "Planted transpositions",
        "Two networks start from the same weights up to a permutation of known size. Is it "
        "recovered after training, and how do distance and barrier grow with its size?",
    ),
    "unimodality": Entry(
        XIAO,
        "is the posterior unimodal without permutations? (figure 4)",
        "Is the posterior unimodal without permutations?",
        "Remove the permutations from HMC chains. Do the barriers between chains, second modes "
        "of weights and the variance between chains disappear?",
    ),
    "table1": Entry(
        XIAO,
        "one Gaussian in place of HMC draws or an ensemble",
        "One Gaussian in place of many draws",
        "How close does one Gaussian come to the predictive of HMC, fitted to draws before "
        "and after rebasing?",
    ),
    "sigma-pruning": Entry(
        XIAO,
        "pruning the weights of largest std (figure 5)",
        "Pruning by σ",
        "Does σ show which weights matter once all draws are in one basin?",
    ),
    "many": Entry(
        OURS,
        "five posteriors merged into one",
        "Many posteriors merged into one",
        "Can one Gaussian, the barycentre of several aligned posteriors, replace them all: as "
        "accurate as each, as calibrated as their ensemble, at the cost of one?",
    ),
    "transformers": Entry(
        THEUS,
        "barriers between two transformers, by permutations and by all of the symmetry",
        "Barriers between transformers",
        "Train a transformer twice. How much of the barrier between the two do permutations "
        "remove, and how much the whole symmetry of attention and normalised streams?",
    ),
}


def get_experiment(name: str) -> "Experiment":
    """The experiment with this name; imports its module."""
    if name not in EXPERIMENTS:
        raise ValueError(
            f"there is no experiment '{name}'; choose one of {', '.join(EXPERIMENTS)}, or 'all'"
        )
    return import_module(f"onebasin.experiments.{name.replace('-', '_')}").EXPERIMENT
