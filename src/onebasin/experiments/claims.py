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
        return f"{self.what} {self.value:.2%}, below the required {self.least:.2%}"


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
    figure: str = ""
    """The published figure or table that the claim belongs to, or "ours"."""
    headline: str = ""
    """Our result in a few words if the claim represents its figure in a summary."""


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
    figure: str = "",
    headline: str = "",
) -> Claim:
    """The claim with its verdict.

    `holds` is the answer of the criterion, None if nothing was measured. If a fit misses its
    requirement the claim is not tested, whatever the criterion says. `figure` is the source
    without the year unless it is given.
    """
    verdict: Verdict = "does not hold"
    missed = [str(fit) for fit in fits if not fit.met]
    if missed or holds is None:
        verdict, reason = "not tested", "; ".join(missed) or reason or "not run"
    elif holds:
        verdict = "holds" if published_scale else "holds at smaller scale"
    reason = reason if verdict == "not tested" else ""
    return Claim(
        text=text,
        published=published,
        source=source,
        ours=ours,
        criterion=criterion,
        conditions=conditions,
        verdict=verdict,
        reason=reason,
        value=value,
        stderr=stderr,
        figure=figure or source.replace(" 2023", ""),
        headline=headline,
    )


NEGLIGIBLE = 0.02
NO_BARRIER = (
    f"barrier at most {NEGLIGIBLE:.0%} of the unaligned barrier and at most {NEGLIGIBLE:g} nats, "
    "or within two standard errors of zero"
)
"""What "no barrier" means wherever it is claimed, whichever method is judged."""


def no_barrier(barrier: float, stderr: float, unaligned: float) -> bool:
    """The criterion `NO_BARRIER`; a standard error of 0 means that nothing was random.

    >>> no_barrier(0.019, 0.0, 1.0), no_barrier(0.021, 0.0, 2.0), no_barrier(0.015, 0.0, 0.5)
    (True, False, False)
    >>> no_barrier(0.03, 0.016, 1.0)
    True
    """
    small = barrier <= NEGLIGIBLE and barrier <= NEGLIGIBLE * unaligned
    return small or (stderr > 0 and barrier <= 2 * stderr)


NONE_BEFORE = "there was no barrier to remove"


def share_left(barrier: float, unaligned: float, digits: int = 1) -> str:
    """What is left of a barrier, in per cent; a dash where there was none.

    >>> share_left(0.1, 0.4), share_left(0.0, 0.0)
    ('25.0%', '–')
    """
    return f"{barrier / unaligned:.{digits}%}" if unaligned > 0 else "–"


def words_left(barrier: float, unaligned: float) -> str:
    """The same in words.

    >>> words_left(0.1, 0.4), words_left(0.0, 0.0)
    ('25.0% remains', 'there was no barrier to remove')
    """
    return f"{share_left(barrier, unaligned)} remains" if unaligned > 0 else NONE_BEFORE


@dataclass(frozen=True)
class Removal:
    """Whether a barrier is gone, in words that say no more than was asked."""

    holds: bool
    words: str
    criterion: str
    whole: bool
    """Whether it is asked that no barrier remains."""

    def beside(self, published: str) -> str:
        """A published statement, with what is claimed here if that is less."""
        return published if self.whole else f"{published} (claimed here: {self.words})"


def removal(
    barrier: float, stderr: float, unaligned: float, largest_share: float | None = None
) -> Removal:
    """Whether no barrier remains, or with `largest_share` whether at most this share of it does.

    The second is a smaller claim, for presets too small to remove a whole barrier.
    """
    if largest_share is None:
        return Removal(
            no_barrier(barrier, stderr, unaligned), "no barrier remains", NO_BARRIER, True
        )
    return Removal(
        barrier <= largest_share * unaligned,
        "most of the barrier is removed",
        f"at most {largest_share:.0%} of the unaligned barrier remains",
        False,
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
