"""The rules' common ground: what is known of a value, and the table of rules by primitive.

A rule takes the equation, what is known of its operands, and the trace, and says what is
known of its results. To add one, decorate a function with `@rule("primitive_name")`; see
docs/tracing-rules.md. A primitive without a rule fixes every axis it touches.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from onebasin.symmetry.axes import Axis, Fixed, Uniform, atoms_in, fix, join

SEVERAL = -1  # stems from more than one contraction
NO_AXES: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Value:
    """What is known of one array: its axes, and the parameter leaf it merely re-lays-out.

    `sources` gives, for each axis, the axes of that leaf it came from. `site` says where
    the array is computed, so that it can be recorded in a later run. `layer` is the number
    of the contraction it stems from through sums and products alone; `statistic` is that
    number for what was made from a reduction of such a value (a norm's mean and variance).
    """

    axes: tuple[Axis, ...]
    leaf: str | None = None
    sources: tuple[frozenset[int], ...] = ()
    site: tuple[int, ...] | None = None
    layer: int | None = None
    statistic: int | None = None

    def relaid(self, axes: Sequence[Axis], sources: Sequence[frozenset[int]]) -> "Value":
        """The same numbers in another layout."""
        if self.leaf is None:
            return Value(tuple(axes))
        return Value(tuple(axes), self.leaf, tuple(sources))

    def source(self, axis: int) -> frozenset[int]:
        return self.sources[axis] if self.sources else NO_AXES


@dataclass
class Trace:
    """What is collected on the way through a network."""

    unknown: dict[str, None] = field(default_factory=dict)
    roles: dict[tuple[str, int], set[str]] = field(default_factory=dict)
    first_use: dict[str, None] = field(default_factory=dict)
    contractions: list["Contraction"] = field(default_factory=list)
    shifts: list["Shift"] = field(default_factory=list)
    path: tuple[int, ...] | None = ()

    def here(self) -> tuple[int, ...] | None:
        """Where the first result of the present equation is computed."""
        return None if self.path is None else (*self.path, -1)

    def note(self, value: Value, axis: int, role: str) -> None:
        """Remember what part a parameter's axis plays in the network."""
        if value.leaf is not None:
            for source in value.source(axis):
                self.roles.setdefault((value.leaf, source), set()).add(role)


@dataclass(frozen=True)
class Contraction:
    """A dense or convolutional layer: data against the kernel of one leaf."""

    data: Value
    kernel: str
    outputs: frozenset[int]  # the kernel's axes that the result has
    result: Value


@dataclass(frozen=True)
class Shift:
    """A parameter added to, or multiplied with, data: a bias, a shift or a gain."""

    kind: str
    leaf: str
    layer: int | None
    result: Value


def common_layer(values: Sequence[Value]) -> int | None:
    """The one contraction that all values (but those that stem from none) stem from."""
    return _common([value.layer for value in values])


def common_statistic(values: Sequence[Value]) -> int | None:
    return _common(
        [value.layer if value.statistic is None else value.statistic for value in values]
    )


def _common(numbers: list[int | None]) -> int | None:
    given = {number for number in numbers if number is not None}
    return next(iter(given)) if len(given) == 1 else (SEVERAL if given else None)


Rule = Callable[[Any, list[Value], Trace], Sequence[Value]]
RULES: dict[str, Rule] = {}


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Register a rule for the primitives of these names."""

    def register(function: Rule) -> Rule:
        for name in names:
            RULES[name] = function
        return function

    return register


def fixed_shape(shape: Sequence[int]) -> tuple[Axis, ...]:
    return tuple(Fixed(n) if n != 1 else Uniform(1) for n in shape)


def output_shape(eqn: Any, index: int = 0) -> tuple[int, ...]:
    return tuple(getattr(eqn.outvars[index].aval, "shape", ()))


def without_rule(eqn: Any, values: list[Value], trace: Trace) -> list[Value]:
    """Fix everything; the primitive is named if that may have cost a symmetry."""
    if any(atoms_in(axis) for value in values for axis in value.axes):
        trace.unknown[eqn.primitive.name] = None
    for value in values:
        for axis in value.axes:
            fix(axis)
    return [Value(fixed_shape(output_shape(eqn, i))) for i in range(len(eqn.outvars))]


def elementwise(shape: Sequence[int], values: Sequence[Value]) -> tuple[Axis, ...]:
    """Tie the operands position by position; scalars and axes of length one constrain nothing."""
    axes: list[Axis] = []
    for i, size in enumerate(shape):
        joined: Axis = Uniform(size)
        for value in values:
            if len(value.axes) == len(shape) and value.axes[i].size == size:
                joined = join(joined, value.axes[i])
        axes.append(joined)
    return tuple(axes)
