"""Rules for primitives that work elementwise, reduce, or rearrange positions."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from jax.extend.core import JaxprEqn

from onebasin.symmetry import axes as ax
from onebasin.symmetry import joints, pointers
from onebasin.symmetry.axes import Axis, Uniform
from onebasin.symmetry.rules import Trace, Value, elementwise, fix_all, output_shape, rule

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
IDENTITY = [
    "bitcast_convert_type", "convert_element_type", "copy", "copy_p", "device_put", "name",
    "optimization_barrier", "reduce_precision", "sharding_constraint", "stop_gradient",
]
REDUCTIONS = [
    "reduce_and", "reduce_max", "reduce_min", "reduce_or", "reduce_prod", "reduce_sum",
    "reduce_xor",
]
# fmt: on


@rule(*ELEMENTWISE)
def _elementwise(eqn: JaxprEqn, values: list[Value], _: Trace) -> Sequence[Value]:
    return [Value(elementwise(output_shape(eqn), values))]


@rule("add", "mul")
def _add_or_multiply(eqn: JaxprEqn, values: list[Value], trace: Trace) -> Sequence[Value]:
    """Elementwise; if one operand is a parameter, its role is noted."""
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
    trace.note_shift(kind, parameters[0], values, result)
    return [result]


@rule(*IDENTITY)
def _same(eqn: JaxprEqn, values: list[Value], trace: Trace) -> Sequence[Value]:
    if any(output_shape(eqn, i) != tuple(a.size for a in v.axes) for i, v in enumerate(values)):
        return fix_all(eqn, values, trace)  # a bitcast that changes the width
    return [value.relaid(value.axes, value.sources) for value in values]


@rule("broadcast_in_dim")
def _broadcast(eqn: JaxprEqn, values: list[Value], _: Trace) -> Sequence[Value]:
    shape, value = output_shape(eqn), values[0]
    axes: list[Axis] = [Uniform(n) for n in shape]
    sources = [frozenset[int]()] * len(shape)
    for i, dimension in enumerate(eqn.params["broadcast_dimensions"]):
        if value.axes[i].size == shape[dimension]:
            axes[dimension] = value.axes[i]
            sources[dimension] = value.source(i)
    return [value.relaid(axes, sources)]


@rule("transpose")
def _transpose(eqn: JaxprEqn, values: list[Value], _: Trace) -> Sequence[Value]:
    order, value = eqn.params["permutation"], values[0]
    return [value.relaid([value.axes[i] for i in order], [value.source(i) for i in order])]


@rule("squeeze")
def _squeeze(eqn: JaxprEqn, values: list[Value], _: Trace) -> Sequence[Value]:
    value = values[0]
    kept = [i for i in range(len(value.axes)) if i not in eqn.params["dimensions"]]
    return [value.relaid([value.axes[i] for i in kept], [value.source(i) for i in kept])]


@rule("reshape")
def _reshape(eqn: JaxprEqn, values: list[Value], trace: Trace) -> Sequence[Value]:
    """A row-major reshape consists of the smallest blocks of axes with equal products."""
    value, shape = values[0], output_shape(eqn)
    if eqn.params.get("dimensions") is not None or 0 in shape:
        return fix_all(eqn, values, trace)
    sources = [frozenset[int]()] * len(shape)
    blocks: list[tuple[list[int], list[int]]] = []
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
        blocks.append((block, targets))
        origin = frozenset().union(*(value.source(i) for i in block))
        for target in targets:
            sources[target] = origin
    return [value.relaid(joints.reshape(value.axes, blocks, shape), sources)]


@rule("concatenate")
def _concatenate(eqn: JaxprEqn, values: list[Value], _: Trace) -> Sequence[Value]:
    dimension, shape = eqn.params["dimension"], output_shape(eqn)
    across = ax.concat([value.axes[dimension] for value in values])
    others = [Value((*v.axes[:dimension], across, *v.axes[dimension + 1 :])) for v in values]
    return [Value(elementwise(shape, others))]


@rule("stack")
def _stack(eqn: JaxprEqn, values: list[Value], _: Trace) -> Sequence[Value]:
    shape, new = output_shape(eqn), eqn.params["axis"]
    rest = elementwise((*shape[:new], *shape[new + 1 :]), values)
    return [Value((*rest[:new], *ax.fixed_shape([shape[new]]), *rest[new:]))]


@rule("unstack")
def _unstack(eqn: JaxprEqn, values: list[Value], _: Trace) -> Sequence[Value]:
    value, gone = values[0], eqn.params["axis"]
    results = []
    for i in range(len(eqn.outvars)):
        axes = joints.take(value.axes, gone, i, i + 1)
        results.append(Value((*axes[:gone], *axes[gone + 1 :])))
    return results


@rule("tile")
def _tile(eqn: JaxprEqn, values: list[Value], _: Trace) -> Sequence[Value]:
    repeats = eqn.params["reps"]
    axes = [ax.product([Uniform(n), a]) for n, a in zip(repeats, values[0].axes, strict=True)]
    return [Value(tuple(axes))]


@rule("debug_callback", "debug_print")
def _look(eqn: JaxprEqn, _values: list[Value], _: Trace) -> Sequence[Value]:
    """Printing a value constrains nothing."""
    return [Value(ax.fixed_shape(output_shape(eqn, i))) for i in range(len(eqn.outvars))]


@rule("psum", "pmax", "pmin")
def _positional_reduce(eqn: JaxprEqn, values: list[Value], trace: Trace) -> Sequence[Value]:
    """Under vmap, a collective over the mapped axis is a reduction over an ordinary axis."""
    axes = eqn.params["axes"]
    if eqn.params["axis_index_groups"] is not None or not all(isinstance(a, int) for a in axes):
        return fix_all(eqn, values, trace)
    return [Value(tuple(a for i, a in enumerate(v.axes) if i not in axes)) for v in values]


@rule("pad")
def _pad(eqn: JaxprEqn, values: list[Value], _: Trace) -> Sequence[Value]:
    """The margin holds one value, so it is uniform."""
    axes: list[Axis] = []
    shape = output_shape(eqn)
    for axis, (low, high, interior), size in zip(
        values[0].axes, eqn.params["padding_config"], shape, strict=True
    ):
        if (low, high, interior) == (0, 0, 0):
            axes.append(axis)
        elif min(low, high) >= 0 and interior == 0:
            axes.append(ax.concat([Uniform(low), axis, Uniform(high)]))
        else:
            axes.append(ax.fix_as(axis, size))
    return [Value(tuple(axes))]


def every_nth(axis: Axis, start: int, stop: int, stride: int) -> Axis:
    """Positions start, start + stride, … of an axis.

    A stride that divides the axis selects one column of rows × stride, so that interleaved pairs
    (rotary embeddings) keep the symmetry of their rows.
    """
    taken = len(range(start, stop, stride))
    if axis.size % stride == 0 and start < stride and taken * stride == axis.size:
        rows, column = ax.split(axis, [axis.size // stride, stride])
        ax.fix(column)
        return rows
    return ax.fix_as(axis, taken)


@rule("slice")
def _slice(eqn: JaxprEqn, values: list[Value], _: Trace) -> Sequence[Value]:
    value = values[0]
    starts, stops = eqn.params["start_indices"], eqn.params["limit_indices"]
    strides = eqn.params["strides"] or (1,) * len(starts)
    axes = list(value.axes)
    for i, (start, stop, stride) in enumerate(zip(starts, stops, strides, strict=True)):
        if stride == 1:
            axes[:] = joints.take(axes, i, start, stop)
        else:
            axes[i] = every_nth(axes[i], start, stop, stride)
    return [value.relaid(axes, value.sources)]


@rule("split")
def _split(eqn: JaxprEqn, values: list[Value], _: Trace) -> Sequence[Value]:
    value, dimension = values[0], eqn.params["axis"]
    ends = np.cumsum([0, *eqn.params["sizes"]]).tolist()
    return [
        value.relaid(joints.take(value.axes, dimension, start, stop), value.sources)
        for start, stop in pairwise(ends)
    ]


@rule(*REDUCTIONS)
def _reduce(eqn: JaxprEqn, values: list[Value], _: Trace) -> Sequence[Value]:
    """Reductions are symmetric in the positions they reduce, which therefore stay free."""
    dropped = eqn.params["axes"]
    return [Value(tuple(a for i, a in enumerate(values[0].axes) if i not in dropped))]


@rule("argmax", "argmin")
def _argmax(eqn: JaxprEqn, values: list[Value], trace: Trace) -> Sequence[Value]:
    """The result is a position along the axis."""
    (value,), (axis,) = values, eqn.params["axes"]
    (result,) = _reduce(eqn, values, trace)
    return [pointers.point(value, axis, result)]


@rule("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp", "rev")
def _in_order(eqn: JaxprEqn, values: list[Value], _: Trace) -> Sequence[Value]:
    along = eqn.params["dimensions"] if eqn.primitive.name == "rev" else [eqn.params["axis"]]
    return [_with_fixed(values[0], along)]


@rule("sort")
def _sort(eqn: JaxprEqn, values: list[Value], _: Trace) -> Sequence[Value]:
    """Sorting one array discards its order; sorting several by one fixes the order of all."""
    dimension = eqn.params["dimension"]
    if len(values) == 1:
        axes = list(values[0].axes)
        axes[dimension] = ax.fixed_shape([axes[dimension].size])[0]
        return [Value(tuple(axes))]
    fixed = [_with_fixed(value, [dimension]) for value in values]
    tied = Value(elementwise(output_shape(eqn), fixed))
    return [tied] * len(eqn.outvars)


@rule("top_k")
def _top_k(eqn: JaxprEqn, values: list[Value], _: Trace) -> Sequence[Value]:
    """Values in descending order, and their positions along the axis."""
    value, dimension = values[0], eqn.params.get("axis", len(values[0].axes) - 1)
    kept = ax.fixed_shape([output_shape(eqn)[dimension]])
    result = Value((*value.axes[:dimension], *kept, *value.axes[dimension + 1 :]))
    return [result, pointers.point(value, dimension, result)]


def _with_fixed(value: Value, dimensions: Sequence[int]) -> Value:
    return Value(tuple(ax.fix(a) if i in dimensions else a for i, a in enumerate(value.axes)))


@rule("iota")
def _iota(eqn: JaxprEqn, _values: list[Value], _: Trace) -> Sequence[Value]:
    shape, along = output_shape(eqn), eqn.params["dimension"]
    fixed = ax.fixed_shape(shape)
    axes = tuple(fixed[i] if i == along else Uniform(n) for i, n in enumerate(shape))
    return [Value(axes, counts=along)]
