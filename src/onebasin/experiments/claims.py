"""Claims and their verdicts, computed from numbers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypedDict

Verdict = Literal["holds", "holds at smaller scale", "does not hold", "not tested"]


@dataclass(frozen=True)
class Requirement:
    """What a fit must reach before anything is concluded from it."""

    what: str
    value: float
    least: float

    @property
    def met(self) -> bool:
        return self.value >= self.least  # False for NaN

    def __str__(self) -> str:
        return f"{self.what} {self.value:.2%}, of which {self.least:.2%} is needed"


@dataclass(frozen=True)
class Claim:
    """A published statement, what was measured here, and the verdict.

    `criterion` states in words what is computed to decide.
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
    ours: str,
    criterion: str,
    conditions: str,
    published_scale: bool,
    published: str = "not in the paper",
    source: str = "ours",
    fits: Sequence[Requirement] = (),
    reason: str = "",
    value: float | None = None,
    stderr: float | None = None,
) -> Claim:
    """The claim with its verdict.

    `holds` is the answer of the criterion, None if nothing was measured. If a fit misses its
    requirement the claim is not tested, whatever the criterion says.
    """
    verdict: Verdict = "does not hold"
    missed = [str(fit) for fit in fits if not fit.met]
    if missed or holds is None:
        verdict, reason = "not tested", "; ".join(missed) or reason or "not run"
    elif holds:
        verdict = "holds" if published_scale else "holds at smaller scale"
    reason = reason if verdict == "not tested" else ""
    return Claim(
        text, published, source, ours, criterion, conditions, verdict, reason, value, stderr
    )


class Measured(TypedDict):
    """A number and its standard error, as keyword arguments of `judge`."""

    value: float
    stderr: float


def measured_in(row: Mapping[str, Any], name: str) -> Measured:
    """A measure of a row of numbers with its standard error."""
    return {"value": row[name], "stderr": row[f"{name}_stderr"]}


def text_of(row: Mapping[str, Any], name: str, times: float = 1) -> str:
    """The same as text, multiplied by `times`."""
    return plus_minus(times * row[name], times * row[f"{name}_stderr"])


def plus_minus(value: float, stderr: float | None) -> str:
    """A number with its standard error, to the digits that the error warrants."""
    if stderr is None or not stderr > 0:
        return f"{value:.4g}"
    if value == 0:
        return f"0 ± {stderr:.1g}"
    digits = max(0, min(6, 1 - _exponent(stderr)))
    return f"{value:.{digits}f} ± {stderr:.{digits}f}"


def _exponent(value: float) -> int:
    return int(f"{value:e}".split("e")[1])
