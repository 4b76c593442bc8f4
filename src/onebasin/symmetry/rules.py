"""What all tracing rules share: what is known of a value, and the table of rules by primitive.

A rule takes an equation, what is known of its operands, and the trace. It returns what is known of
the results. To add a rule, decorate a function with `@rule("primitive_name")`; the page on tracing
rules in the documentation shows how. A primitive without a rule fixes all axes of its operands.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from jax.extend.core import JaxprEqn

from onebasin.symmetry import pointers
from onebasin.symmetry.axes import (
    Axis,
    Fixed,
    Uniform,
    atoms_in,
    fix,
    fixed_shape,
    resolve,
    settle,
)
from onebasin.symmetry.groups import Role
from onebasin.symmetry.joints import complete, join_arrays
from onebasin.symmetry.values import Value as Value

ShiftKind: TypeAlias = Literal["add", "multiply"]
SEVERAL = -1  # the value depends on more than one contraction

# Primitives after which a value is still the pre-activation of its layer, scaled or shifted.
LINEAR = {
    *("add", "sub", "mul", "div", "neg", "convert_element_type", "broadcast_in_dim"),
    *("reshape", "transpose", "squeeze", "copy"),
}


@dataclass
class Trace:
    """What a trace collects, besides the axes of the values."""

    unknown: dict[str, None] = field(default_factory=dict)
    roles: dict[tuple[str, int], set[Role]] = field(default_factory=dict)
    first_use: dict[str, None] = field(default_factory=dict)
    contractions: list["Contraction"] = field(default_factory=list)
    products: list["Value"] = field(default_factory=list)
    """Both factors of every contraction of data with data, such as queries and keys."""
    shifts: list["Shift"] = field(default_factory=list)
    path: tuple[int, ...] | None = ()
    pinned_by_noise: bool = False
    steps: list[tuple[str, Sequence["Value"], Sequence["Value"]]] = field(default_factory=list)
    """Every equation followed, with its operands and results, to see which units are read."""

    def here(self) -> tuple[int, ...] | None:
        """The site of the first result of the current equation."""
        return None if self.path is None else (*self.path, -1)

    def note(self, value: Value, axis: int, role: Role) -> None:
        """Remember the role of a parameter's axis in the network."""
        if value.leaf is not None:
            for source in value.source(axis):
                self.roles.setdefault((value.leaf, source), set()).add(role)

    def note_shift(
        self, kind: ShiftKind, parameter: Value, operands: Sequence[Value], result: Value
    ) -> None:
        """Remember a parameter that is added to data or multiplied with data."""
        for axis in range(len(parameter.axes)):
            self.note(parameter, axis, kind)
        layer = common_layer(operands)
        if layer is None and kind == "multiply":  # a gain on the norm's scale, not on the data
            layer = common_statistic(operands)
        self.shifts.append(Shift(kind, str(parameter.leaf), layer, result))


@dataclass(frozen=True)
class Contraction:
    """A dense or convolutional layer: data contracted with the kernel in one leaf."""

    data: Value
    kernel: str
    outputs: frozenset[int]  # the kernel's axes that are axes of the result
    result: Value


@dataclass(frozen=True)
class Shift:
    """A parameter added to data or multiplied with data: a bias, a shift or a gain."""

    kind: ShiftKind
    leaf: str
    layer: int | None
    result: Value


def common_layer(values: Sequence[Value]) -> int | None:
    """The contraction that the values depend on, `SEVERAL`, or None."""
    given = {value.layer for value in values} - {None}
    return next(iter(given)) if len(given) == 1 else (SEVERAL if given else None)


def common_statistic(values: Sequence[Value]) -> int | None:
    """The same for values and for statistics of values."""
    return common_layer(
        [v if v.statistic is None else replace(v, layer=v.statistic) for v in values]
    )


def _with_lineage(value: Value, primitive: str, operands: Sequence[Value]) -> Value:
    """The value, marked with the layer whose pre-activation or statistic it is."""
    if value.layer is not None:
        return value
    if primitive in LINEAR and common_layer(operands) is not None:
        return replace(value, layer=common_layer(operands))
    reduced = primitive.startswith("reduce_") or all(v.layer is None for v in operands)
    return replace(value, statistic=common_statistic(operands)) if reduced else value


# Calls whose body runs once, on the operands of the call, and the parameter that holds the body.
CALLS = {
    **dict.fromkeys(("jit", "pjit", "checkpoint", "remat", "remat2"), "jaxpr"),
    **dict.fromkeys(("closed_call", "core_call", "custom_lin"), "call_jaxpr"),
    **dict.fromkeys(("custom_jvp_call", "custom_vjp_call"), "call_jaxpr"),
    "custom_vjp_call_jaxpr": "fun_jaxpr",
}
LOOPS = ("scan", "while", "cond")

# Primitives that draw random numbers.
RANDOM = {"random_bits", "random_gamma", "rng_bit_generator", "rng_uniform", "threefry2x32"}

Rule: TypeAlias = Callable[[JaxprEqn, list[Value], Trace], Sequence[Value]]
RULES: dict[str, Rule] = {}


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Register a rule for the primitives of these names."""

    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, function))
        return function

    return register


def output_shape(eqn: JaxprEqn, index: int = 0) -> tuple[int, ...]:
    return tuple(getattr(eqn.outvars[index].aval, "shape", ()))  # a token has no shape


def fix_all(eqn: JaxprEqn, values: list[Value], trace: Trace) -> list[Value]:
    """Fix all axes; the primitive is noted if this may lose a symmetry."""
    if any(atoms_in(axis) for value in values for axis in value.axes):
        trace.unknown[eqn.primitive.name] = None
    for value in values:
        fix_whole(value)
    return [Value(fixed_shape(output_shape(eqn, i))) for i in range(len(eqn.outvars))]


def fix_whole(value: Value) -> None:
    """Fix all axes of an array, and the axis whose positions it holds."""
    for axis in value.axes:
        fix(axis)
    if value.pointer is not None:
        fix(value.pointer.axis)


def follow(eqn: JaxprEqn, operands: list[Value], trace: Trace) -> list[Value]:
    """What is known of an equation's results, by its rule; results of wrong sizes are not used."""
    name = eqn.primitive.name
    disturbed = (
        [a for v in operands for a in v.free_atoms()] if any(map(is_noise, operands)) else []
    )
    read = pointers.read(eqn, operands, output_shape(eqn)) if _points(operands) else None
    if read is not None:
        trace.steps.append((name, operands, [read]))
        return [read]
    if _points(operands) and name not in CALLS:
        pointers.use(eqn, operands)
    results = RULES.get(name, fix_all)(eqn, operands, trace)
    sizes = [tuple(axis.size for axis in value.axes) for value in results]
    if sizes != [output_shape(eqn, i) for i in range(len(sizes))]:
        results = fix_all(eqn, operands, trace)
    trace.pinned_by_noise |= any(isinstance(resolve(atom), Fixed) for atom in disturbed)
    whole = [replace(value, axes=complete(value.axes)) for value in results]
    whole = [_with_lineage(value, name, operands) for value in whole]
    if name in RANDOM or (any(v.noise for v in operands) and all(map(_noise_or_even, operands))):
        whole = [replace(value, noise=True) for value in whole]
    if len(whole) == 1 and name not in CALLS:
        whole = [pointers.known(eqn, operands, whole[0], output_shape(eqn))]
    trace.steps.append((name, operands, whole))
    return whole


def _points(values: Sequence[Value]) -> bool:
    return any(value.pointer is not None for value in values)


def is_noise(value: Value) -> bool:
    """Whether the array holds random numbers alone, which no permutation moves."""
    return value.noise and not value.free_atoms()


def _noise_or_even(value: Value) -> bool:
    return value.noise or all(isinstance(settle(axis), Uniform) for axis in value.axes)


def elementwise(shape: Sequence[int], values: Sequence[Value]) -> tuple[Axis, ...]:
    """Unify the operands position by position; axes of length one constrain nothing."""
    axes: list[Axis] = [Uniform(size) for size in shape]
    for value in values:
        if len(value.axes) == len(shape):
            pairs = zip(value.axes, shape, strict=True)
            axes = join_arrays(axes, [a if a.size == n else Uniform(n) for a, n in pairs])
    return tuple(axes)
