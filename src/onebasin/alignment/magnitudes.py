"""Weights far from one in magnitude: their products under- or overflow in single precision.

Such moments are multiplied by powers of two, which is exact, before they are scored. The scores
of the named objectives allow it: those of `w2` and `l2` are bilinear, so each side may have a
factor of its own; all others depend only on ratios, so one factor for both sides changes nothing.
"""

from collections.abc import Iterable
from dataclasses import replace
from math import frexp

import numpy as np

from onebasin.alignment.moments import Leaves, Moments, Reading
from onebasin.alignment.objective import FeaturePair

ORDINARY = 2.0**-40, 2.0**60  # sums of squares that need no look at each weight
LARGEST_EXPONENT = 30  # of the largest weight, in either direction, without rescaling
LARGEST_SCORE = 2.0**126
EXACT_SCORES = -1000, 900  # exponents of scores that are numbers of double precision
RESOLUTION = 2.0**-40  # least ratio of means to standard deviations that scores can tell from zero


def in_range(
    objective: str | None, mover: Reading, target: Reading
) -> tuple[Moments, Moments, float]:
    """The moments of both, rescaled if need be, and the factor that turns scores back.

    `objective` is the name of one of ours, or None for another, whose scores may not scale.
    """
    low, high = ORDINARY
    if all(low <= norm <= high for norm in (*mover.norms, *target.norms)):
        return mover.moments, target.moments, 1.0
    mine, theirs = mover.moments, target.moments
    if objective == "l2":
        mine, theirs = replace(mine, std=None), replace(theirs, std=None)
    else:
        for side, name in ((mine, "posterior"), (theirs, "target")):
            check_means(side, name)
    b, a = (_exponent([q.mean, q.std or {}]) for q in (mine, theirs))
    if objective in ("w2", "l2"):
        if not EXACT_SCORES[0] < a + b < EXACT_SCORES[1]:
            raise ValueError(
                f"the weights are of the order of 2^{max(a, b, key=abs)}, and their products "
                "exceed double precision; rescale the posteriors"
            )
        return scaled(mine, -b), scaled(theirs, -a), 2.0 ** (a + b)
    both = max(a, b, key=abs)
    if objective is None and both:
        raise ValueError(
            f"the weights are of the order of 2^{both}, and their products exceed single "
            "precision; rescale the posteriors, or use objective 'l2' or 'w2'"
        )
    return scaled(mine, -both), scaled(theirs, -both), 1.0


def check_features(pair: FeaturePair, objective: str) -> None:
    """Refuse features whose scores may overflow: |⟨t, m⟩| ≤ max |t| Σ |m|."""
    for target, mover in zip(pair.target, pair.mover, strict=True):
        with np.errstate(over="ignore", invalid="ignore"):
            total = sum(float(np.abs(leaf).sum(dtype=np.float64)) for leaf in mover.values())
            bound = largest([target]) * total
        if not bound <= LARGEST_SCORE:  # NaN included
            raise ValueError(
                f"objective '{objective}' exceeds single precision: some means and standard "
                "deviations are too many orders of magnitude apart; use objective 'w2' or 'l2'"
            )


def joint_scale(q: Moments) -> int:
    """The exponent by which to divide the moments of all members; 0 if they are ordinary."""
    check_means(q, "members")
    return _exponent([q.mean, q.std or {}])


def check_means(q: Moments, name: str) -> None:
    """Refuse means that an objective of means and standard deviations cannot tell from zero."""
    mean, std = largest([q.mean]), largest([q.std or {}])
    if 0 < mean < RESOLUTION * std:
        raise ValueError(
            f"the means of the {name} are at most {mean:.1e} and its standard deviations up to "
            f"{std:.1e}, so that the objective cannot tell the means from zero; use objective 'l2'"
        )


def scaled(q: Moments, exponent: int) -> Moments:
    """The moments times 2^exponent; the same arrays if it is zero."""
    if not exponent:
        return q
    mean, std = (
        leaves and {k: np.ldexp(leaf, exponent) for k, leaf in leaves.items()}
        for leaves in (q.mean, q.std)
    )
    return replace(q, mean=mean, std=std)


def largest(trees: Iterable[Leaves]) -> float:
    """The largest magnitude in some trees of arrays; 0 if they are empty."""
    arrays = [leaf for tree in trees for leaf in tree.values() if leaf.size]
    return max((float(max(a.max(), -a.min())) for a in arrays), default=0.0)


def _exponent(trees: Iterable[Leaves]) -> int:
    """The binary exponent of the largest magnitude, or 0 if it is ordinary."""
    exponent = frexp(largest(trees))[1]
    return exponent if abs(exponent) > LARGEST_EXPONENT else 0
