"""What a diagnosis says, in words: do the chains share one mode, up to permutations?

The variance between the means of chains, as a share of the whole, is compared with two others: that
of the null, where the same alignment brings together chains that share no mode, and that of chains
of one distribution. An alignment that chance explains is no evidence.
"""

import numpy as np

from onebasin.diagnosis.connectivity import Barriers

AGREE = 0.9  # of the variance that only chains of different modes have
APART = 0.1
MARGIN = 2.0  # standard errors


def agreement_of_chains(after: float, null: float, expected: float) -> float:
    """How much of the null's excess of variance between chains the alignment removes.

    1 if the aligned chains are like chains of one distribution, 0 if they are like the null; NaN if
    the null itself is like chains of one distribution, so that nothing can be told.

    >>> agreement_of_chains(after=0.02, null=0.42, expected=0.02)
    1.0
    """
    excess = null - expected
    return float("nan") if excess <= 0.1 * expected else (null - after) / excess


def conclusion(
    removed: float, rhat: float, across: Barriers | None, within: Barriers | None
) -> str:
    """One sentence or two, from the share removed, the median R-hat, and barriers if measured."""
    if not np.isfinite(removed):
        words = (
            "conclusion: nothing can be told from these weights; chains that share no mode look "
            "the same after alignment"
        )
    elif removed >= AGREE and rhat < 1.1:
        words = "conclusion: the chains agree on the weights, up to permutations of units"
    elif removed <= APART:
        words = (
            "conclusion: the chains do not share a mode; alignment brings them no closer than "
            "unrelated chains"
        )
    else:
        words = (
            f"conclusion: the chains agree in part; alignment removes {max(removed, 0.0):.0%} of "
            f"the variance that unrelated chains keep, and the median R-hat is {rhat:.2f}"
        )
    lines = _lines(across, within)
    return f"{words}; {lines}" if lines else words


def _lines(across: Barriers | None, within: Barriers | None) -> str:
    """Whether straight lines across chains are like those within, once aligned."""
    if across is None or within is None or not len(across.barrier) or not len(within.barrier):
        return ""
    a, w = across.summary(), within.summary()
    errors = [one["stderr"] for one in (a, w) if np.isfinite(one["stderr"])]
    if a["mean"] - w["mean"] <= MARGIN * float(np.hypot.reduce([0.0, *errors])):
        return "straight lines between their draws rise no higher than within a chain"
    return (
        f"straight lines between their draws rise higher than within a chain ({a['mean']:.3g} "
        f"against {w['mean']:.3g} nats)"
    )
