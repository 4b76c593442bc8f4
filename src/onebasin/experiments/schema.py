"""JSON from files that nobody vouches for: limits while reading, and a schema of what is inside.

A schema is a dictionary (an object with these fields), a list of one schema (an array of such
items), `Named(schema)` (an object of such values under any names), `Optional(schema)` (a field that
may be missing or null), or a function that returns what a value must be if it is not that.
"""

import json
import math
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from onebasin.digests import Damaged, unsealed

LARGEST_DEPTH = 40
LARGEST_TEXT = 100_000  # characters
LARGEST = 2**28  # bytes of a file that others do not limit
Check = Callable[[Any], str]
"""Returns "" for a value as it should be, otherwise what it must be."""


@dataclass(frozen=True)
class Named:
    values: Any


@dataclass(frozen=True)
class Optional:
    value: Any


def read_text(path: Path, largest: int) -> str:
    """The text of a regular file of at most `largest` bytes; pipes and devices are not opened."""
    if path.exists() and not stat.S_ISREG(path.stat().st_mode):
        raise Damaged("is not a regular file")
    # Without blocking, in case that a pipe has taken the place of the file meanwhile.
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise Damaged("is not a regular file")
        # `read` reserves all it is asked for: ask for the file, and a byte more to see growth.
        data = file.read(min(status.st_size, largest) + 1)
    if len(data) > largest:
        raise Damaged(f"is larger than {largest // 2**20} MiB")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise Damaged("is not UTF-8 text") from None


def parse_json(text: str) -> Any:
    """The value of a JSON text: finite numbers, unique names, limited depth and text."""
    try:
        value = json.loads(
            text, parse_constant=_refuse, parse_float=_finite, object_pairs_hook=_unique
        )
    except (Damaged, json.JSONDecodeError):
        raise
    except ValueError:
        raise Damaged("holds a number of too many digits") from None
    except RecursionError:
        raise Damaged(f"is nested more than {LARGEST_DEPTH} deep") from None
    _check_limits(value, 0)
    return value


def read_object(path: Path, remedy: str) -> dict[str, Any]:
    """The object in a JSON file, or a ValueError that names the file and ends in the remedy."""
    try:
        value = parse_json(read_text(path, LARGEST))
    except json.JSONDecodeError:
        raise ValueError(f"{path} is not JSON; {remedy}") from None
    except Damaged as error:
        raise ValueError(f"{path} {error}; {remedy}") from None
    if not isinstance(value, dict):
        raise ValueError(f"{path} does not hold an object; {remedy}")
    return value


def read_sealed(path: Path, remedy: str) -> dict[str, Any]:
    """The same without the digest, which must be right if there is one."""
    try:
        return unsealed(read_object(path, remedy))
    except Damaged as error:
        raise ValueError(f"{path} {error}; {remedy}") from None


def check(value: Any, schema: Any, place: str = "") -> None:
    """Raise `Damaged` for the first place of a value that is not as in the schema."""
    here = place or "the whole"
    if isinstance(schema, Optional):
        if value is not None:
            check(value, schema.value, place)
    elif isinstance(schema, Named):
        _require(isinstance(value, dict), here, "an object")
        for name, item in value.items():
            check(item, schema.values, f"{here}[{name[:40]!r}]")
    elif isinstance(schema, list):
        _require(isinstance(value, list), here, "a list")
        for index, item in enumerate(value):
            check(item, schema[0], f"{here}[{index}]")
    elif isinstance(schema, dict):
        _require(isinstance(value, dict), here, "an object")
        for name, inner in schema.items():
            inside = f"{place}.{name}" if place else name
            if name in value or isinstance(inner, Optional):
                check(value.get(name), inner, inside)
            else:
                raise Damaged(f"has no {inside}")
    else:
        expected = schema(value)
        _require(not expected, here, expected)


def is_text(value: Any) -> str:
    return "" if isinstance(value, str) else "text"


def is_bool(value: Any) -> str:
    return "" if isinstance(value, bool) else "true or false"


def is_number(value: Any) -> str:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return "" if number and abs(value) < 1e300 else "a number"


def is_count(value: Any) -> str:
    whole = isinstance(value, int) and not isinstance(value, bool)
    return "" if whole and 0 <= value < 2**53 else "a count"


def is_object(value: Any) -> str:
    return "" if isinstance(value, dict) else "an object"


def anything(value: Any) -> str:
    del value
    return ""


def one_of(*known: str) -> Check:
    return lambda value: "" if value in known else f"one of {', '.join(known)}"


def file_name(value: Any) -> str:
    plain = isinstance(value, str) and value not in ("", ".", "..") and "\0" not in value
    return "" if plain and PurePath(value).name == value else "the name of a file, without a folder"


def table(value: Any) -> str:
    """Whether it is a table with as many cells in every row as columns."""
    try:
        check(value, {"title": is_text, "columns": [is_text], "rows": [[_cell]], "note": is_text})
    except Damaged:
        return "a table with a title, columns, rows and a note"
    same = all(len(row) == len(value["columns"]) for row in value["rows"])
    return "" if same else "a table with one cell per column in every row"


def _cell(value: Any) -> str:
    return "" if value is None or isinstance(value, str | int | float) else "a text or a number"


def _require(met: bool, place: str, expected: str) -> None:
    if not met:
        raise Damaged(f"has a wrong value: {place} is not {expected}")


def _refuse(constant: str) -> None:
    raise Damaged(f"holds {constant}, which is not a finite number")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise Damaged(f"holds {text[:20]}, which is too large for a number")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise Damaged("names a field twice")
    return found


def _check_limits(value: Any, depth: int) -> None:
    if depth > LARGEST_DEPTH:
        raise Damaged(f"is nested more than {LARGEST_DEPTH} deep")
    if isinstance(value, str):
        if len(value) > LARGEST_TEXT:
            raise Damaged(f"holds a text of more than {LARGEST_TEXT:,} characters")
        if any("\ud800" <= letter <= "\udfff" for letter in value):
            raise Damaged("holds half of a surrogate pair, which is not text")
    elif isinstance(value, dict):
        for name, item in value.items():
            _check_limits(name, depth)
            _check_limits(item, depth + 1)
    elif isinstance(value, list):
        for item in value:
            _check_limits(item, depth + 1)
