"""Measures of predictive distributions: against labels, and of two against each other.

Every function takes class probabilities [n, classes], or a `Predictive`, whose logs are then
used, so that probabilities too small for float32 still count.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from onebasin.evaluation.predicting import Predictive
from onebasin.likelihoods import check_classes

# Probabilities in float32 that were averaged over many draws sum to one within this.
SUM_TOLERANCE = 1e-3


def nll(p: Any, y: Any) -> float:
    """−(1/n) Σ log p(y), in nats per example."""
    log_p = log_probabilities(p)
    y = _labels(log_p, y)
    return -float(log_p[np.arange(len(y)), y].mean(dtype=np.float64))


def accuracy(p: Any, y: Any) -> float:
    """The share of examples whose most probable class is the label."""
    log_p = log_probabilities(p)
    return float((log_p.argmax(-1) == _labels(log_p, y)).mean())


def brier(p: Any, y: Any) -> float:
    """(1/n) Σ_i Σ_c (p_ic − 1[c = y_i])², between 0 and 2."""
    probs = probabilities(p).astype(np.float64)
    y = _labels(probs, y)
    probs[np.arange(len(y)), y] -= 1.0
    return float((probs**2).sum(-1).mean())


@dataclass(frozen=True, eq=False)
class Reliability:
    """Confidence against accuracy in bins of confidence, and what they add up to.

    Empty bins have count 0 and NaN in both columns.
    """

    edges: np.ndarray = field(repr=False)
    confidence: np.ndarray = field(repr=False)
    accuracy: np.ndarray = field(repr=False)
    count: np.ndarray = field(repr=False)
    error: float
    """Expected calibration error: Σ count/n · |accuracy − confidence|."""
    largest: float
    """The largest such gap over bins that are not empty."""


def reliability(p: Any, y: Any, bins: int = 15) -> Reliability:
    """Confidence and accuracy in `bins` bins of equal width (Guo et al. 2017)."""
    if bins < 1:
        raise ValueError(f"reliability needs at least one bin, got {bins}")
    probs = probabilities(p).astype(np.float64)
    y = _labels(probs, y)
    top, hit = probs.max(-1), probs.argmax(-1) == y
    edges = np.linspace(0.0, 1.0, bins + 1)
    # A bin holds its upper edge, as in the definition; confidence 0 cannot occur.
    where = np.clip(np.ceil(top * bins).astype(int) - 1, 0, bins - 1)
    count = np.bincount(where, minlength=bins)
    with np.errstate(invalid="ignore"):
        confidence = np.bincount(where, top, bins) / count
        right = np.bincount(where, hit, bins) / count
    gaps = np.abs(right - confidence)[count > 0]
    error = float((gaps * count[count > 0]).sum() / len(y))
    return Reliability(edges, confidence, right, count, error, float(gaps.max()))


def calibration_error(p: Any, y: Any, bins: int = 15) -> float:
    """Expected calibration error; `reliability` has the bins behind it."""
    return reliability(p, y, bins).error


def entropy(p: Any) -> np.ndarray:
    """Entropy of the predictive of every example, in nats: all uncertainty there is."""
    log_p = log_probabilities(p)
    probs = np.exp(log_p)
    # 0·log 0 = 0
    return -np.sum(np.where(probs > 0, probs * np.where(probs > 0, log_p, 0.0), 0.0), axis=-1)


def mutual_information(p: Predictive) -> np.ndarray:
    """H[E p] − E H[p] for every example, in nats: what knowing the parameters would tell."""
    if not isinstance(p, Predictive):
        raise ValueError(
            "mutual information needs the entropies of single draws; give what predictive(...) "
            "returns instead of probabilities"
        )
    # Never negative (Jensen); rounding may make it so by a hair.
    return np.maximum(entropy(p) - p.expected_entropy, 0.0)


def auroc(inside: Any, outside: Any) -> float:
    """How well a score tells data outside the distribution (high) from data inside (low).

    The probability that a random outside score is above a random inside one, ties counting
    half: 1 is perfect, ½ is chance. Scores may be entropies or mutual informations.
    """
    inside, outside = np.ravel(inside), np.ravel(outside)
    if len(inside) == 0 or len(outside) == 0:
        raise ValueError("AUROC needs at least one score inside and one outside")
    if not (np.isfinite(inside).all() and np.isfinite(outside).all()):
        raise ValueError("the scores hold NaN or infinity")
    scores = np.sort(inside)
    below = np.searchsorted(scores, outside, side="left")
    up_to = np.searchsorted(scores, outside, side="right")
    return float(((below + up_to) / 2).mean() / len(inside))


def agreement(p: Any, q: Any) -> float:
    """The share of examples for which two predictives have the same most probable class."""
    p, q = _pair(log_probabilities(p), log_probabilities(q))
    return float((p.argmax(-1) == q.argmax(-1)).mean())


def total_variation(p: Any, q: Any) -> float:
    """Mean over examples of ½ Σ_c |p_c − q_c|, between 0 and 1."""
    p, q = _pair(probabilities(p), probabilities(q))
    return float(0.5 * np.abs(p.astype(np.float64) - q).sum(-1).mean())


def probabilities(p: Any) -> np.ndarray:
    """Class probabilities [n, classes], checked."""
    if isinstance(p, Predictive):
        return p.probs
    probs = np.asarray(p)
    if probs.ndim != 2 or len(probs) == 0:
        raise ValueError(f"probabilities need the shape [n, classes], got {probs.shape}")
    if not np.isfinite(probs).all() or probs.min() < 0:
        raise ValueError("probabilities must be finite and not negative; these may be logits")
    if np.abs(probs.sum(-1, dtype=np.float64) - 1).max() > SUM_TOLERANCE:
        raise ValueError("the probabilities of an example must sum to 1; these may be logits")
    return probs


def log_probabilities(p: Any) -> np.ndarray:
    """Log class probabilities [n, classes]; −∞ where a probability is zero."""
    if isinstance(p, Predictive):
        return p.log_probs
    with np.errstate(divide="ignore"):
        return np.log(probabilities(p))


def _labels(table: np.ndarray, y: Any) -> np.ndarray:
    y = check_classes(y, table.shape[1])
    if len(y) != len(table):
        raise ValueError(f"there are {len(table)} predictions and {len(y)} labels")
    return y


def _pair(p: np.ndarray, q: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    if p.shape != q.shape:
        raise ValueError(f"two predictives of shapes {p.shape} and {q.shape} cannot be compared")
    return p, q
