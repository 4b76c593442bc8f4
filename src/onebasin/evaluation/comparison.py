"""Two posteriors side by side: their predictives, their distance, and one aligned to the other."""

from contextlib import suppress
from typing import Any

import jax

from onebasin.alignment import align
from onebasin.alignment.activations import objective_on
from onebasin.choices import ObjectiveName
from onebasin.evaluation import measures, number_measures
from onebasin.evaluation.distances import aligned_distance, l2, wasserstein
from onebasin.evaluation.mixture_predictive import MixturePredictive
from onebasin.evaluation.predicting import AnyPredictive, Predictive
from onebasin.likelihoods import Poisson
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


def predictive_measures(p: AnyPredictive, y: Any) -> dict[str, float]:
    """Scores of a predictive against targets, and its mean uncertainties."""
    if isinstance(p, Predictive):
        return {
            "nll": measures.nll(p, y),
            "accuracy": measures.accuracy(p, y),
            "brier": measures.brier(p, y),
            "calibration_error": measures.calibration_error(p, y),
            "entropy": float(measures.entropy(p).mean()),
            "mutual_information": float(measures.mutual_information(p).mean()),
        }
    found = {
        "nll": measures.nll(p, y),
        "rmse": number_measures.rmse(p, y),
        "crps": number_measures.crps(p, y),
        "coverage_90": number_measures.coverage(p, y, 0.9),
        "width_90": number_measures.interval_width(p, 0.9),
        "parameter_std": float(p.parameter_std.mean()),
        "noise_std": float(p.noise_std.mean()),
    }
    if isinstance(p.likelihood, Poisson):
        found["deviance"] = number_measures.mean_deviance(p, y)
    return found


def main_measures(p: AnyPredictive, y: Any) -> dict[str, float]:
    """The two measures that a closing line shows: accuracy or RMSE, and NLL or CRPS."""
    if isinstance(p, Predictive):
        return {"accuracy": measures.accuracy(p, y), "nll": measures.nll(p, y)}
    return {"rmse": number_measures.rmse(p, y), "crps": number_measures.crps(p, y)}


def predictive_distances(p: AnyPredictive, q: AnyPredictive) -> dict[str, float]:
    """How far q predicts from p: agreement and total variation, or distances of numbers."""
    if isinstance(p, Predictive):
        return {
            "agreement": measures.agreement(p, q),
            "total_variation": measures.total_variation(p, q),
        }
    return {
        "cramer_distance": number_measures.cramer_distance(p, q),
        "mean_shift": number_measures.mean_shift(p, q),
    }


def detection_measures(inside: AnyPredictive, outside: AnyPredictive) -> dict[str, float]:
    """AUROC with which two uncertainties separate out-of-distribution inputs from the others."""
    if isinstance(inside, Predictive):
        return {
            f"ood_auroc_{measure.__name__}": measures.auroc(measure(inside), measure(outside))
            for measure in (measures.entropy, measures.mutual_information)
        }
    assert isinstance(outside, MixturePredictive)
    return {
        f"ood_auroc_{name}": measures.auroc(getattr(inside, name), getattr(outside, name))
        for name in ("std", "parameter_std")
    }


def closed_form_distances(p: Posterior, q: Posterior) -> dict[str, float]:
    """The distance of the means, and W2 where it has a closed form."""
    found = {"l2": l2(p, q)}
    with suppress(ValueError):
        found["w2"] = wasserstein(p, q)
    return found
