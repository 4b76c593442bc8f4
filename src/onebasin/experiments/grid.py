"""A sweep: fit two posteriors, align them and measure the barrier, over a grid of options.

    fit:                      # options of `onebasin fit`
      method: vi
      data: digits
      width: [16, 32, 64]     # a list is an axis of the grid
      depth: 1
      epochs: 30
    align: {objective: [w2, correlations]}
    barrier: {points: 9, num-samples: 32}
    repeats: 3                # pairs with seeds of their own

With `planted: [0, 16, 63]` and method map, the second network begins at the weights of the first
one, permuted by so many transpositions in every group.

Every combination of the axes, times the repeats, is one row of the table.
"""

import itertools
import math
import runpy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, get_args, get_type_hints

from onebasin.experiments.common_stages import (
    POSTERIOR,
    Align,
    Measure,
    TimedMethod,
    aligned,
    fits,
    measured,
)
from onebasin.experiments.planted_fit import PlantedFit, planted_fit
from onebasin.experiments.setting import Setting
from onebasin.experiments.stage import Stage
from onebasin.experiments.yaml_files import read_yaml
from onebasin.inference.methods import HMC, MAP, MCLMC, NUTS, VI, Ensemble

METHODS: dict[str, type[TimedMethod]] = {
    "vi": VI,
    "map": MAP,
    "ensemble": Ensemble,
    "hmc": HMC,
    "nuts": NUTS,
    "mclmc": MCLMC,
}
ALIGN = ("objective", "random_starts", "search", "examples")
BARRIER = ("path", "split", "examples", "points", "num_samples", "repair_examples")
MOST_ROWS = 100_000
PLANTED = "planted"
LEAST = {
    "points": 3,
    "depth": 0,
    "random_starts": 0,
    PLANTED: 0,
}  # at least 1 for other counts here
COUNTS = ("width", "depth", "limit", "points", "num_samples", "examples", "repair_examples")

Value = str | int | float | bool | None


@dataclass(frozen=True)
class Cell:
    """One combination of the grid: its place on the axes, and what is run there."""

    axes: Mapping[str, Value]
    repeat: int
    stages: Mapping[str, Stage]
    """`align`, and the barriers `before` and `after`."""


@dataclass(frozen=True)
class Grid:
    """The values of every option, by section; more than one value make an axis."""

    fit: Mapping[str, tuple[Value, ...]]
    align: Mapping[str, tuple[Value, ...]]
    barrier: Mapping[str, tuple[Value, ...]]
    repeats: int = 1
    seed: int = 0

    @property
    def axes(self) -> dict[str, tuple[Value, ...]]:
        """The options that vary, named as in the file: "width", or "align.objective"."""
        return {
            name if section == "fit" else f"{section}.{name}": values
            for section, options in self._sections()
            for name, values in options.items()
            if len(values) > 1
        }

    def cells(self) -> Iterator[Cell]:
        """All combinations, the last axis varying fastest, each with its repeats."""
        axes = self.axes
        for chosen in itertools.product(*axes.values()):
            place = dict(zip(axes, chosen, strict=True))
            options = {
                section: {
                    name: place.get(name if section == "fit" else f"{section}.{name}", values[0])
                    for name, values in given.items()
                }
                for section, given in self._sections()
            }
            for repeat in range(self.repeats):
                yield Cell(place, repeat, self._stages(options, repeat))

    def _sections(self) -> tuple[tuple[str, Mapping[str, tuple[Value, ...]]], ...]:
        return (("fit", self.fit), ("align", self.align), ("barrier", self.barrier))

    def _stages(self, options: Mapping[str, Mapping[str, Value]], repeat: int) -> dict[str, Stage]:
        setting, method = fit_of(options["fit"])
        first = 2 * (self.seed + repeat)  # two posteriors for each repeat
        if PLANTED in options["fit"]:
            known: Any = {"setting": setting, "method": method, "repeat": repeat, "seed": self.seed}
            numbers: tuple[Any, ...] = (None, options["fit"][PLANTED])
            q0, q1 = (planted_fit(PlantedFit(**known, planted=n))[POSTERIOR] for n in numbers)
        else:
            q0, q1 = fits(setting, method, 2, seed=first)
        align = Align(setting, seed=first, **options["align"])  # pyright: ignore[reportArgumentType]
        measure = Measure(setting, seed=first, **options["barrier"])  # pyright: ignore[reportArgumentType]
        moved = aligned(align, q0, q1)
        return {
            "align": moved,
            "before": measured(measure, q0, q1),
            "after": measured(measure, q0, moved[POSTERIOR]),
        }


def fit_of(options: Mapping[str, Value]) -> tuple[Setting, TimedMethod]:
    """The setting and the method that options of `fit` describe."""
    kind = METHODS[str(options.get("method", "vi"))]
    own = {f.name for f in fields(kind)}
    setting = {f.name for f in fields(Setting)}
    rest = {name: value for name, value in options.items() if name != "method"}
    return (
        Setting(**{"data": "digits", **{n: v for n, v in rest.items() if n in setting}}),  # pyright: ignore[reportArgumentType]
        kind(**{n: v for n, v in rest.items() if n in own}),  # pyright: ignore[reportArgumentType]
    )


def read_grid(path: Path) -> Grid:
    """The grid in a YAML file, or the variable or function `grid` of a Python file."""
    if not path.is_file():
        raise FileNotFoundError(
            f"there is no file {path}; `onebasin sweep --help` shows an example"
        )
    content = _from_python(path) if path.suffix == ".py" else _from_yaml(path)
    try:
        return grid_from(content)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path}: {error}") from None


def _from_python(path: Path) -> Any:
    try:
        found = runpy.run_path(str(path), run_name=path.stem)
    except Exception as error:  # of any kind: it is the user's program
        words = " ".join(str(error).split())
        raise ValueError(f"{path} ended with {type(error).__name__}: {words}") from error
    if "grid" not in found:
        raise ValueError(f"{path} has no variable or function 'grid'; it is the grid of the sweep")
    return found["grid"]() if callable(found["grid"]) else found["grid"]


def _from_yaml(path: Path) -> Any:
    try:
        return read_yaml(path)
    except ValueError as error:
        raise ValueError(f"{path} is not YAML ({error}); see the example of --help") from None


def grid_from(content: Any) -> Grid:
    """A grid from a mapping; every combination is checked before anything is run.

    >>> grid = grid_from({"fit": {"width": [8, 16], "depth": 1}, "repeats": 2})
    >>> grid.axes, len(list(grid.cells()))
    ({'width': (8, 16)}, 4)
    """
    if not isinstance(content, Mapping):
        raise ValueError("a sweep needs the sections fit, align and barrier, and repeats")
    known = {f.name: f for f in fields(Grid)}
    for name in content:
        _check_known(str(name), tuple(known), "a section")
    counts = {
        name: _count(name, content[name], 0 if name == "seed" else 1)
        for name in ("repeats", "seed")
        if name in content
    }
    fit = _options("fit", content.get("fit", {}))
    methods = fit.get("method", ("vi",))
    may = {
        *(f.name for f in fields(Setting)),
        *(f.name for m in methods for f in fields(METHODS[str(m)])),
    }
    for name in fit:
        _check_known(name, ("method", PLANTED, *sorted(may)), "fit: an option")
    align = _options("align", content.get("align", {}))
    for name in align:
        _check_known(name, ALIGN, "align: an option")
    barrier = _options("barrier", content.get("barrier", {}))
    for name in barrier:
        _check_known(name, BARRIER, "barrier: an option")
    grid = Grid(fit, align, barrier, **counts)
    combinations = math.prod(len(values) for values in grid.axes.values()) * grid.repeats
    if combinations > MOST_ROWS:
        raise ValueError(f"the grid has {combinations:,} rows; at most {MOST_ROWS:,} are possible")
    for _ in grid.cells():
        pass  # making a cell checks its options
    return grid


def _options(section: str, given: Any) -> dict[str, tuple[Value, ...]]:
    if not isinstance(given, Mapping):
        raise ValueError(f"{section} must map options to values, such as width: [16, 32]")
    found: dict[str, tuple[Value, ...]] = {}
    for raw, value in given.items():
        name = str(raw).replace("-", "_")
        values = tuple(value) if isinstance(value, list | tuple) else (value,)
        if not values or len({repr(v) for v in values}) < len(values):
            raise ValueError(f"{section}.{raw} must list each of its values once")
        for each in values:
            _check_value(section, name, each)
        found[name] = values
    return found


def _check_value(section: str, name: str, value: Any) -> None:
    """Refuse a value of another type, or out of range; methods check their own options again."""
    _check_type(section, name, value)
    if value is None:
        return
    if name in (*COUNTS, *LEAST) and value < LEAST.get(name, 1):
        raise ValueError(f"{section}: {name} cannot be {value}; give at least {LEAST.get(name, 1)}")
    if name in ("prior_variance", "temperature") and not value > 0:
        raise ValueError(f"{section}: {name} cannot be {value}; give a positive number")


def _check_type(section: str, name: str, value: Any) -> None:
    declared = DECLARED[section].get(name, ())
    if any(value == one and type(value) is type(one) for one in declared):
        return
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if number and math.isfinite(value) and (type(value) in declared or float in declared):
        return
    if not number and type(value) in declared and type(value) is not tuple:
        return
    listed = ", ".join(f"'{one}'" for one in declared if isinstance(one, str))
    remedy = f"choose {listed}" if listed else "see `onebasin fit METHOD --help` for its values"
    if declared:
        raise ValueError(f"{section}: {name} cannot be {value!r}; {remedy}")


def _declared(*kinds: type) -> dict[str, tuple[Any, ...]]:
    """The types, or for a Literal the values, that the fields of dataclasses admit."""
    found: dict[str, tuple[Any, ...]] = {}
    for kind in kinds:
        for name, hint in get_type_hints(kind).items():
            members = get_args(hint) or (hint,)
            flat = [one for m in members for one in get_args(m) or (m,)]
            found[name] = tuple(dict.fromkeys((*found.get(name, ()), *flat)))
    return found


DECLARED = {
    "fit": {
        **_declared(Setting, *METHODS.values()),
        "method": tuple(METHODS),
        PLANTED: (int,),
    },
    "align": _declared(Align),
    "barrier": _declared(Measure),
}


def _count(name: str, value: Any, least: int) -> int:
    if type(value) is not int or value < least:
        raise ValueError(f"{name} must be a whole number ≥ {least}, got {value!r}")
    return value


def _check_known(name: str, known: Sequence[str], what: str) -> None:
    if name not in known:
        raise ValueError(f"'{name}' is not {what}; known are {', '.join(known)}")
