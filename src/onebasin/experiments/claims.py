"""Claims and their verdicts, computed from numbers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Verdict = Literal["holds", "holds at smaller scale", "does not hold", "not tested"]


@dataclass(frozen=True)
class Requirement:
    """What a fit must reach before anything is concluded from it."""

    what: str
    value: float
    least: float

    @property
    def met(self) -> bool:
        return self.value >= self.least  # a NaN is not

    def __str__(self) -> str:
        return f"{self.what} {self.value:.2%}, of which {self.least:.2%} is needed"


@dataclass(frozen=True)
class Claim:
    """A published statement, what it was measured to be here, and the verdict.

    `criterion` says in words what was computed to decide.
    """

    text: str
    published: str
    source: str
    ours: str
    criterion: str
    conditions: str
    verdict: Verdict
    reason: str = ""
    value: float | None = None
    stderr: float | None = None


def judge(
    text: str,
    holds: bool | None,
    *,
    published: str,
    source: str,
    ours: str,
    criterion: str,
    conditions: str,
    published_scale: bool,
    fits: Sequence[Requirement] = (),
    reason: str = "",
    value: float | None = None,
    stderr: float | None = None,
) -> Claim:
    """The claim with its verdict: nothing holds, or fails, on fits below what they must reach.

    `holds` is the criterion's own answer, None where nothing was measured.
    """
    verdict: Verdict
    missed = [str(fit) for fit in fits if not fit.met]
    if missed or holds is None:
        verdict = "not tested"
        reason = "; ".join(missed) or reason or "not run"
    elif not holds:
        verdict = "does not hold"
    else:
        verdict = "holds" if published_scale else "holds at smaller scale"
    return Claim(
        text=text,
        published=published,
        source=source,
        ours=ours,
        criterion=criterion,
        conditions=conditions,
        verdict=verdict,
        reason=reason if verdict == "not tested" else "",
        value=value,
        stderr=stderr,
    )


def plus_minus(value: float, stderr: float | None, unit: str = "") -> str:
    """A number with its standard error, to the digits the error allows."""
    if stderr is None or not stderr > 0:
        return f"{value:.4g}{unit}"
    if value == 0:
        return f"0 ± {stderr:.1g}{unit}"
    digits = max(0, min(6, 1 - _exponent(stderr)))
    return f"{value:.{digits}f} ± {stderr:.{digits}f}{unit}"


def _exponent(value: float) -> int:
    return int(f"{value:e}".split("e")[1])
