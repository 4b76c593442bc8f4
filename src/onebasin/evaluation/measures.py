"""Measures of predictive distributions, against labels and against each other.

Every function takes class probabilities [n, classes], or [n, positions, classes] of which every
position is a prediction, or a `Predictive`, whose logarithms are then used, so that probabilities
too small for float32 still count. Measures of numbers are in `number_measures`; `nll` takes
predictives of both.
"""

from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from onebasin.evaluation.mixture_predictive import MixturePredictive
from onebasin.evaluation.predicting import AnyPredictive, Predictive
from onebasin.likelihoods import check_classes

Probabilities: TypeAlias = AnyPredictive | ArrayLike

SUM_TOLERANCE = 1e-3  # float32 probabilities averaged over many draws sum to one within this


def nll(p: Probabilities, y: ArrayLike) -> float:
    """Negative log likelihood −(1/n) Σ log p(y), in nats per example, of classes or of numbers.

    >>> import onebasin as ob
    >>> round(ob.nll([[0.5, 0.5], [0.25, 0.75]], [0, 1]), 4)
    0.4904
    """
    if isinstance(p, MixturePredictive):
        return -float(p.log_likelihood(y).mean())
    log_p = log_probabilities(p)
    y = _labels(p, y)
    return -float(log_p[np.arange(len(y)), y].mean(dtype=np.float64))


def accuracy(p: Probabilities, y: ArrayLike) -> float:
    """The share of examples whose most probable class is the label.

    >>> import onebasin as ob
    >>> ob.accuracy([[0.9, 0.1], [0.4, 0.6]], [0, 0])
    0.5
    """
    return float((log_probabilities(p).argmax(-1) == _labels(p, y)).mean())


def brier(p: Probabilities, y: ArrayLike) -> float:
    """(1/n) Σ_i Σ_c (p_ic − 1[c = y_i])², between 0 and 2."""
    probs = probabilities(p).astype(np.float64)
    y = _labels(p, y)
    probs[np.arange(len(y)), y] -= 1.0
    return float((probs**2).sum(-1).mean())


@dataclass(frozen=True, eq=False)
class Reliability:
    """Confidence and accuracy in bins of confidence, and the calibration error.

    Empty bins have count 0 and NaN in both columns.
    """

    edges: np.ndarray = field(repr=False)
    confidence: np.ndarray = field(repr=False)
    accuracy: np.ndarray = field(repr=False)
    count: np.ndarray = field(repr=False)
    error: float
    """Expected calibration error: Σ count/n · |accuracy − confidence|."""
    largest: float
    """The largest |accuracy − confidence| of a bin that is not empty."""


def reliability(p: Probabilities, y: ArrayLike, bins: int = 15) -> Reliability:
    """Confidence and accuracy in `bins` bins of equal width (Guo et al. 2017)."""
    if bins < 1:
        raise ValueError(f"reliability needs at least one bin, got {bins}")
    probs = probabilities(p).astype(np.float64)
    y = _labels(p, y)
    top, hit = probs.max(-1), probs.argmax(-1) == y
    edges = np.linspace(0.0, 1.0, bins + 1)
    # A bin includes its upper edge, as in the definition; confidence 0 cannot occur.
    where = np.clip(np.ceil(top * bins).astype(int) - 1, 0, bins - 1)
    count = np.bincount(where, minlength=bins)
    with np.errstate(invalid="ignore"):
        confidence = np.bincount(where, top, bins) / count
        right = np.bincount(where, hit, bins) / count
    gaps = np.abs(right - confidence)[count > 0]
    error = float((gaps * count[count > 0]).sum() / len(y))
    return Reliability(edges, confidence, right, count, error, float(gaps.max()))


def calibration_error(p: Probabilities, y: ArrayLike, bins: int = 15) -> float:
    """Expected calibration error Σ_b n_b/n · |accuracy_b − confidence_b| over bins of confidence.

    >>> import onebasin as ob
    >>> round(ob.calibration_error([[0.8, 0.2]] * 2, [0, 1]), 3)  # confidence 0.8, accuracy 0.5
    0.3
    """
    return reliability(p, y, bins).error


def entropy(p: Probabilities) -> np.ndarray:
    """Entropy of the predictive of every example, in nats: the total uncertainty."""
    log_p = log_probabilities(p)
    probs = np.exp(log_p)
    # 0·log 0 = 0
    return -np.sum(np.where(probs > 0, probs * np.where(probs > 0, log_p, 0.0), 0.0), axis=-1)


def mutual_information(p: AnyPredictive) -> np.ndarray:
    """H[E p] − E H[p] for every example, in nats: the uncertainty due to the parameters."""
    _check_classes_predicted(p)
    if not isinstance(p, Predictive):
        raise ValueError(
            "mutual information needs the entropies of single draws; give what predictive(...) "
            "returns instead of probabilities"
        )
    # Never negative (Jensen), except by rounding.
    return np.maximum(entropy(p) - p.expected_entropy, 0.0)


def auroc(inside: ArrayLike, outside: ArrayLike) -> float:
    """Area under the ROC curve of a score that is higher outside the data distribution.

    The probability that a random outside score is above a random inside one, ties counting
    half: 1 is perfect, ½ is chance. Scores may be entropies or mutual informations.
    """
    inside, outside = np.ravel(inside), np.ravel(outside)
    if len(inside) == 0 or len(outside) == 0:
        raise ValueError("AUROC needs at least one score inside and one outside")
    if not (np.isfinite(inside).all() and np.isfinite(outside).all()):
        raise ValueError("the scores hold NaN or infinity; give finite scores")
    scores = np.sort(inside)
    below = np.searchsorted(scores, outside, side="left")
    up_to = np.searchsorted(scores, outside, side="right")
    return float(((below + up_to) / 2).mean() / len(inside))


def agreement(p: Probabilities, q: Probabilities) -> float:
    """The share of examples for which two predictives have the same most probable class.

    >>> import onebasin as ob
    >>> ob.agreement([[0.9, 0.1], [0.4, 0.6]], [[0.7, 0.3], [0.8, 0.2]])
    0.5
    """
    first, second = _pair(log_probabilities(p), log_probabilities(q))
    return float((first.argmax(-1) == second.argmax(-1)).mean())


def total_variation(p: Probabilities, q: Probabilities) -> float:
    """The mean over examples of ½ Σ_c |p_c − q_c|, between 0 and 1.

    >>> import onebasin as ob
    >>> ob.total_variation([[1.0, 0.0]], [[0.75, 0.25]])
    0.25
    """
    first, second = _pair(probabilities(p), probabilities(q))
    return float(0.5 * np.abs(first.astype(np.float64) - second).sum(-1).mean())


def probabilities(p: Probabilities) -> np.ndarray:
    """Class probabilities [predictions, classes], checked."""
    if isinstance(p, Predictive):
        return p.probs
    _check_classes_predicted(p)
    probs = np.asarray(p)
    if probs.ndim not in (2, 3) or len(probs) == 0:
        raise ValueError(
            "probabilities need the shape [n, classes] or [n, positions, classes], "
            f"got {probs.shape}"
        )
    probs = probs.reshape(-1, probs.shape[-1])
    if not np.isfinite(probs).all() or probs.min() < 0:
        raise ValueError("probabilities must be finite and not negative; these may be logits")
    if np.abs(probs.sum(-1, dtype=np.float64) - 1).max() > SUM_TOLERANCE:
        raise ValueError("the probabilities of an example must sum to 1; these may be logits")
    return probs


def log_probabilities(p: Probabilities) -> np.ndarray:
    """Log class probabilities [n, classes]; −∞ where a probability is zero."""
    if isinstance(p, Predictive):
        return p.log_probs
    _check_classes_predicted(p)
    with np.errstate(divide="ignore"):
        return np.log(probabilities(p))


def _check_classes_predicted(p: object) -> None:
    if isinstance(p, MixturePredictive):
        raise ValueError(
            f"the {p.likelihood.name} likelihood predicts numbers, which have no classes; measure "
            "them by nll, rmse, crps or coverage, and compare two by cramer_distance or mean_shift"
        )


def _labels(p: Probabilities, y: ArrayLike) -> np.ndarray:
    table = log_probabilities(p)
    if isinstance(p, Predictive):
        y, positions = p.likelihood.targets(y), p.positions
    else:
        positions = np.shape(p)[1:-1]
    labels = check_classes(y, table.shape[1], positions).reshape(-1)
    if len(labels) != len(table):
        raise ValueError(
            f"there are {len(table)} predictions and {len(labels)} labels; give one each"
        )
    return labels


def _pair(p: np.ndarray, q: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    if p.shape != q.shape:
        raise ValueError(f"two predictives of shapes {p.shape} and {q.shape} cannot be compared")
    return p, q
