"""The closing words of a fit: what its statistics say, and what to do where they are not good."""

from collections.abc import Mapping
from typing import Any

import numpy as np

GOOD_RHAT = 1.05
MOVING = 0.3  # mean speed of log std, relative to its learning rate, above which σ is on its way
NOTICEABLE = 0.05  # nats per example
BIAS = 0.05  # of the variances, relative, beyond two standard errors between chains


def closing_words(stats: Mapping[str, Any], draws: int) -> str:
    """R-hat, ESS, acceptance and divergences of chains on one line; empty for other fits.

    >>> closing_words({"rhat_predictions_max": 1.013, "ess_predictions_min": 310.0,
    ...                "acceptance": [0.8, 0.9], "divergences": [0, 3]}, 4000)
    'R-hat of predictions at most 1.01, ESS at least 310, acceptance 0.85, 3 divergences in 4,000 draws'
    """  # noqa: E501
    words = []
    if "rhat_predictions_max" in stats:
        rhat, ess = (
            _number(stats[f"{n}"]) for n in ("rhat_predictions_max", "ess_predictions_min")
        )
        if np.isfinite(rhat):
            words += [f"R-hat of predictions at most {rhat:.2f}", f"ESS at least {ess:,.0f}"]
        else:
            words.append("R-hat is not defined: the predictions are the same in all draws")
    if "acceptance" in stats:
        words.append(f"acceptance {float(np.mean(stats['acceptance'])):.2f}")
    if "divergences" in stats:
        words.append(f"{_divergences(stats):,} divergences in {draws:,} draws")
    return ", ".join(words)


def advice(stats: Mapping[str, Any], draws: int) -> tuple[str, ...]:
    """One sentence, with a remedy, for everything that a fit should not have ended with.

    >>> advice({"rhat_predictions_max": 2.31}, 100)
    ('the chains do not agree: R-hat of predictions is 2.31 and should be below 1.05; give more \
draws and a longer warm-up, or let chains begin near modes (mode_epochs)',)
    """
    notes = []
    rhat = _number(stats.get("rhat_predictions_max"))
    if rhat > GOOD_RHAT:
        notes.append(
            f"the chains do not agree: R-hat of predictions is {rhat:.2f} and should be below "
            f"{GOOD_RHAT}; give more draws and a longer warm-up, or let chains begin near modes "
            "(mode_epochs)"
        )
    if _divergences(stats):
        notes.append(
            f"{_divergences(stats):,} of {draws:,} draws ended a divergent trajectory, where the "
            "posterior is too curved for the step size; give a smaller step size or a higher "
            "target acceptance"
        )
    shares = np.asarray(stats.get("equipartition", 1.0)).reshape(-1)
    bias = float(shares.mean()) - 1
    if abs(bias) > BIAS + 2 * float(shares.std()) / max(1, len(shares) - 1) ** 0.5:
        notes.append(
            f"the draws have a bias: their variances are {100 * abs(bias):.0f} % too "
            f"{'large' if bias > 0 else 'small'} on average (equipartition); give a smaller "
            "energy_error, or AdjustedMCLMC"
        )
    speed = float(np.mean(stats.get("std_speed", 0.0)))
    if speed > MOVING:
        notes.append(
            f"the standard deviations are still on their way: at the last step log std moved with "
            f"{100 * speed:.0f} % of its full speed; give more epochs, smaller batches or a larger "
            "std_learning_rate"
        )
    rise = _number(stats.get("loss_change_of_state"))
    if rise > NOTICEABLE:
        notes.append(
            f"measuring the running statistics of the draws raised the loss per example by "
            f"{rise:.3g} nats: the chains held statistics unlike those of their draws; let them "
            "begin near modes (mode_epochs), or start from a trained network"
        )
    return tuple(notes)


def _number(value: Any) -> float:
    """A statistic as a number; NaN where it is missing, as files keep it."""
    return float("nan") if value is None else float(value)


def _divergences(stats: Mapping[str, Any]) -> int:
    return int(np.sum(stats.get("divergences", 0)))
