"""Rules of primitives that compute position by position, reduce, or move positions about."""

from collections.abc import Sequence
from typing import Any

from onebasin.symmetry.axes import Axis, Uniform, concat, cut, fix, product, split
from onebasin.symmetry.rules import (
    NO_AXES,
    Shift,
    Trace,
    Value,
    common_layer,
    common_statistic,
    elementwise,
    fixed_shape,
    output_shape,
    rule,
    without_rule,
)

# fmt: off
ELEMENTWISE = [
    "abs", "acos", "acosh", "add_any", "and", "asin", "asinh", "atan", "atan2", "atanh",
    "bessel_i0e", "bessel_i1e", "cbrt", "ceil", "clamp", "clz", "complex", "conj", "cos", "cosh",
    "digamma", "div", "eq", "erf", "erf_inv", "erfc", "exp", "exp2", "expm1", "floor", "ge", "gt",
    "igamma", "igammac", "imag", "integer_pow", "is_finite", "le", "lgamma", "log", "log1p",
    "logistic", "lt", "max", "min", "ne", "neg", "nextafter", "not", "or", "polygamma",
    "population_count", "pow", "real", "regularized_incomplete_beta", "rem", "round", "rsqrt",
    "select_n", "shift_left", "shift_right_arithmetic", "shift_right_logical", "sign", "sin",
    "sinh", "sqrt", "square", "sub", "tan", "tanh", "xor", "zeta", "eq_to", "le_to", "lt_to",
]
# fmt: on


@rule(*ELEMENTWISE)
def _elementwise(eqn: Any, values: list[Value], trace: Trace) -> Sequence[Value]:
    del trace
    return [Value(elementwise(output_shape(eqn), values))]


@rule("add", "mul")
def _add_or_multiply(eqn: Any, values: list[Value], trace: Trace) -> Sequence[Value]:
    """As any elementwise primitive, but a lone parameter's part in it is worth knowing."""
    axes = elementwise(output_shape(eqn), values)
    parameters = [value for value in values if value.leaf is not None]
    if len(parameters) != 1:
        return [Value(axes)]
    others = [value for value in values if value.leaf is None]
    if eqn.primitive.name == "mul" and all(
        isinstance(axis, Uniform) for value in others for axis in value.axes
    ):
        return [parameters[0].relaid(axes, parameters[0].sources)]  # a scaled parameter
    result = Value(axes, site=trace.here())
    kind = "add" if eqn.primitive.name == "add" else "multiply"
    for axis in range(len(parameters[0].axes)):
        trace.note(parameters[0], axis, kind)
    layer = common_layer(values)
    if layer is None and kind == "multiply":  # a gain put on the norm's scale instead of the data
        layer = common_statistic(values)
    trace.shifts.append(Shift(kind, str(parameters[0].leaf), layer, result))
    return [result]


@rule(
    "convert_element_type",
    "copy",
    "copy_p",
    "stop_gradient",
    "reduce_precision",
    "optimization_barrier",
    "sharding_constraint",
    "device_put",
    "name",
    "bitcast_convert_type",
)
def _same(eqn: Any, values: list[Value], trace: Trace) -> Sequence[Value]:
    if any(output_shape(eqn, i) != tuple(a.size for a in v.axes) for i, v in enumerate(values)):
        return without_rule(eqn, values, trace)  # a bitcast that changes the width
    return [value.relaid(value.axes, value.sources) for value in values]


@rule("broadcast_in_dim")
def _broadcast(eqn: Any, values: list[Value], trace: Trace) -> Sequence[Value]:
    del trace
    shape, value = output_shape(eqn), values[0]
    axes: list[Axis] = [Uniform(n) for n in shape]
    sources = [NO_AXES] * len(shape)
    for i, dimension in enumerate(eqn.params["broadcast_dimensions"]):
        if value.axes[i].size == shape[dimension]:
            axes[dimension] = value.axes[i]
            sources[dimension] = value.source(i)
    return [value.relaid(axes, sources)]


@rule("transpose")
def _transpose(eqn: Any, values: list[Value], trace: Trace) -> Sequence[Value]:
    del trace
    order, value = eqn.params["permutation"], values[0]
    return [value.relaid([value.axes[i] for i in order], [value.source(i) for i in order])]


@rule("squeeze")
def _squeeze(eqn: Any, values: list[Value], trace: Trace) -> Sequence[Value]:
    del trace
    value = values[0]
    kept = [i for i in range(len(value.axes)) if i not in eqn.params["dimensions"]]
    return [value.relaid([value.axes[i] for i in kept], [value.source(i) for i in kept])]


@rule("reshape")
def _reshape(eqn: Any, values: list[Value], trace: Trace) -> Sequence[Value]:
    """A row-major reshape is made of blocks of axes with equal products, smallest first."""
    value, shape = values[0], output_shape(eqn)
    if eqn.params.get("dimensions") is not None or 0 in shape:
        return without_rule(eqn, values, trace)
    axes: list[Axis] = [Uniform(1)] * len(shape)
    sources = [NO_AXES] * len(shape)
    old = [i for i, axis in enumerate(value.axes) if axis.size > 1]
    new = [i for i, n in enumerate(shape) if n > 1]
    while old:
        block, targets = [old.pop(0)], [new.pop(0)]
        have, want = value.axes[block[0]].size, shape[targets[0]]
        while have != want:
            if have < want:
                block.append(old.pop(0))
                have *= value.axes[block[-1]].size
            else:
                targets.append(new.pop(0))
                want *= shape[targets[-1]]
        merged = product([value.axes[i] for i in block])
        origin = frozenset().union(*(value.source(i) for i in block))
        for target, part in zip(targets, split(merged, [shape[i] for i in targets]), strict=True):
            axes[target] = part
            sources[target] = origin
    return [value.relaid(axes, sources)]


@rule("concatenate")
def _concatenate(eqn: Any, values: list[Value], trace: Trace) -> Sequence[Value]:
    del trace
    dimension, shape = eqn.params["dimension"], output_shape(eqn)
    across = concat([value.axes[dimension] for value in values])
    others = [Value((*v.axes[:dimension], across, *v.axes[dimension + 1 :])) for v in values]
    return [Value(elementwise(shape, others))]


@rule("stack")
def _stack(eqn: Any, values: list[Value], trace: Trace) -> Sequence[Value]:
    del trace
    shape, new = output_shape(eqn), eqn.params["axis"]
    rest = elementwise((*shape[:new], *shape[new + 1 :]), values)
    return [Value((*rest[:new], *fixed_shape([shape[new]]), *rest[new:]))]


@rule("unstack")
def _unstack(eqn: Any, values: list[Value], trace: Trace) -> Sequence[Value]:
    del trace
    value, gone = values[0], eqn.params["axis"]
    fix(value.axes[gone])
    return [Value((*value.axes[:gone], *value.axes[gone + 1 :]))] * len(eqn.outvars)


@rule("tile")
def _tile(eqn: Any, values: list[Value], trace: Trace) -> Sequence[Value]:
    del trace
    repeats = eqn.params["reps"]
    axes = [product([Uniform(n), a]) for n, a in zip(repeats, values[0].axes, strict=True)]
    return [Value(tuple(axes))]


@rule("debug_callback", "debug_print")
def _look(eqn: Any, values: list[Value], trace: Trace) -> Sequence[Value]:
    """Looking at a value changes nothing."""
    del values, trace
    return [Value(fixed_shape(output_shape(eqn, i))) for i in range(len(eqn.outvars))]


@rule("psum", "pmax", "pmin")
def _positional_reduce(eqn: Any, values: list[Value], trace: Trace) -> Sequence[Value]:
    """Under vmap a collective over the mapped axis is a reduction of an ordinary one."""
    axes = eqn.params["axes"]
    if eqn.params["axis_index_groups"] is not None or not all(isinstance(a, int) for a in axes):
        return without_rule(eqn, values, trace)
    return [Value(tuple(a for i, a in enumerate(v.axes) if i not in axes)) for v in values]


@rule("pad")
def _pad(eqn: Any, values: list[Value], trace: Trace) -> Sequence[Value]:
    """Padding lays one value along the whole margin, so the margin is uniform."""
    del trace
    axes: list[Axis] = []
    shape = output_shape(eqn)
    for axis, (low, high, interior), size in zip(
        values[0].axes, eqn.params["padding_config"], shape, strict=True
    ):
        if (low, high, interior) == (0, 0, 0):
            axes.append(axis)
        elif min(low, high) >= 0 and interior == 0:
            axes.append(concat([Uniform(low), axis, Uniform(high)]))
        else:
            fix(axis)
            axes.append(fixed_shape([size])[0])
    return [Value(tuple(axes))]


def slice_axis(axis: Axis, start: int, stop: int, stride: int = 1) -> Axis:
    """Positions start, start + stride, … of an axis.

    A stride that divides the axis takes one column of it written as rows × stride, so
    interleaved pairs (rotary embeddings) keep the symmetry of their rows.
    """
    if stride == 1:
        if (start, stop) == (0, axis.size):
            return axis
        return cut(axis, [start, stop - start, axis.size - stop])[1]
    taken = len(range(start, stop, stride))
    if axis.size % stride == 0 and start < stride and taken * stride == axis.size:
        rows, column = split(axis, [axis.size // stride, stride])
        fix(column)
        return rows
    fix(axis)
    return fixed_shape([taken])[0]


@rule("slice")
def _slice(eqn: Any, values: list[Value], trace: Trace) -> Sequence[Value]:
    del trace
    value = values[0]
    starts, stops = eqn.params["start_indices"], eqn.params["limit_indices"]
    strides = eqn.params["strides"] or (1,) * len(starts)
    axes = [
        slice_axis(axis, *bounds)
        for axis, *bounds in zip(value.axes, starts, stops, strides, strict=True)
    ]
    return [value.relaid(axes, value.sources)]


@rule("split")
def _split(eqn: Any, values: list[Value], trace: Trace) -> Sequence[Value]:
    del trace
    value, dimension = values[0], eqn.params["axis"]
    return [
        value.relaid((*value.axes[:dimension], part, *value.axes[dimension + 1 :]), value.sources)
        for part in cut(value.axes[dimension], list(eqn.params["sizes"]))
    ]


@rule(
    "reduce_sum",
    "reduce_max",
    "reduce_min",
    "reduce_prod",
    "reduce_and",
    "reduce_or",
    "reduce_xor",
)
def _reduce(eqn: Any, values: list[Value], trace: Trace) -> Sequence[Value]:
    """Symmetric in the positions they reduce, which therefore stay free."""
    del trace
    dropped = eqn.params["axes"]
    return [Value(tuple(a for i, a in enumerate(values[0].axes) if i not in dropped))]


@rule("argmax", "argmin")
def _argmax(eqn: Any, values: list[Value], trace: Trace) -> Sequence[Value]:
    """The result is a position, so the positions must stay."""
    for i in eqn.params["axes"]:
        fix(values[0].axes[i])
    return _reduce(eqn, values, trace)


@rule("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp")
def _cumulative(eqn: Any, values: list[Value], trace: Trace) -> Sequence[Value]:
    del trace
    return [_with_fixed(values[0], [eqn.params["axis"]])]


@rule("rev")
def _reverse(eqn: Any, values: list[Value], trace: Trace) -> Sequence[Value]:
    del trace
    return [_with_fixed(values[0], eqn.params["dimensions"])]


@rule("sort")
def _sort(eqn: Any, values: list[Value], trace: Trace) -> Sequence[Value]:
    """Sorting one array forgets its order; sorting several by one ties all of them."""
    del trace
    dimension = eqn.params["dimension"]
    if len(values) == 1:
        axes = list(values[0].axes)
        axes[dimension] = fixed_shape([axes[dimension].size])[0]
        return [Value(tuple(axes))]
    fixed = [_with_fixed(value, [dimension]) for value in values]
    tied = Value(elementwise(output_shape(eqn), fixed))
    return [tied] * len(eqn.outvars)


@rule("top_k")
def _top_k(eqn: Any, values: list[Value], trace: Trace) -> Sequence[Value]:
    del trace
    value, dimension = values[0], eqn.params.get("axis", len(values[0].axes) - 1)
    fix(value.axes[dimension])
    kept = fixed_shape([output_shape(eqn)[dimension]])
    axes = value.axes[:dimension] + kept + value.axes[dimension + 1 :]
    return [Value(axes), Value(axes)]


def _with_fixed(value: Value, dimensions: Sequence[int]) -> Value:
    return Value(tuple(fix(a) if i in dimensions else a for i, a in enumerate(value.axes)))


@rule("iota")
def _iota(eqn: Any, values: list[Value], trace: Trace) -> Sequence[Value]:
    del values, trace
    shape, along = output_shape(eqn), eqn.params["dimension"]
    fixed = fixed_shape(shape)
    return [Value(tuple(fixed[i] if i == along else Uniform(n) for i, n in enumerate(shape)))]
