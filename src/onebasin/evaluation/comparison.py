"""Two posteriors side by side: their predictives, their distance, and one aligned to the other."""

from contextlib import suppress
from typing import Any

import jax

from onebasin.alignment import align
from onebasin.alignment.activations import objective_on
from onebasin.choices import ObjectiveName
from onebasin.evaluation import measures
from onebasin.evaluation.distances import aligned_distance, l2, wasserstein
from onebasin.evaluation.predicting import Predictive
from onebasin.networks import NetworkLike
from onebasin.posterior import Posterior, PosteriorT
from onebasin.symmetry import Symmetry


def align_and_measure(
    q0: Posterior,
    q1: PosteriorT,
    *,
    network: NetworkLike,
    symmetry: Symmetry,
    objective: ObjectiveName,
    x: Any,
    key: jax.Array,
) -> tuple[PosteriorT, dict[str, Any]]:
    """q1 aligned to q0, and the distances before and after as a JSON-able report.

    `x` holds the inputs of the objectives on data: activations and correlations.
    """
    score = objective_on(objective, network, x)
    found = align(q1, to=q0, symmetry=symmetry, objective=score, key=key)
    pair = aligned_distance(q0, q1, found.permutation, symmetry)
    return found.posterior, {
        "objective": objective,
        "distance_before": found.distance_before,
        "distance_after": found.distance_after,
        "squared_distance_of_means": pair.squared,
        "transpositions": int(pair.transpositions.total),
        "seconds": found.seconds,
    }


def predictive_measures(p: Predictive, y: Any) -> dict[str, float]:
    """Scores of a predictive against labels, and its mean uncertainties."""
    return {
        "nll": measures.nll(p, y),
        "accuracy": measures.accuracy(p, y),
        "brier": measures.brier(p, y),
        "calibration_error": measures.calibration_error(p, y),
        "entropy": float(measures.entropy(p).mean()),
        "mutual_information": float(measures.mutual_information(p).mean()),
    }


def detection_measures(inside: Predictive, outside: Predictive) -> dict[str, float]:
    """AUROC with which two uncertainties separate out-of-distribution inputs from the others."""
    return {
        f"ood_auroc_{measure.__name__}": measures.auroc(measure(inside), measure(outside))
        for measure in (measures.entropy, measures.mutual_information)
    }


def closed_form_distances(p: Posterior, q: Posterior) -> dict[str, float]:
    """The distance of the means, and W2 where it has a closed form."""
    found = {"l2": l2(p, q)}
    with suppress(ValueError):
        found["w2"] = wasserstein(p, q)
    return found
