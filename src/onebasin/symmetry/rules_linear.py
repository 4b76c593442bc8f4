"""Rules for contractions, convolutions and windows."""

from collections.abc import Sequence

from jax.extend.core import JaxprEqn

from onebasin.symmetry.axes import Axis, Uniform, fix, fix_as, fixed_shape, join, product, split
from onebasin.symmetry.joints import contract, join_arrays
from onebasin.symmetry.rules import Contraction, Trace, Value, fix_all, output_shape, rule


@rule("dot_general")
def _dot_general(eqn: JaxprEqn, values: list[Value], trace: Trace) -> Sequence[Value]:
    """Contracted and batched pairs are unified; the sum is symmetric in what it contracts."""
    left, right = values
    (contract_left, contract_right), (batch_left, batch_right) = eqn.params["dimension_numbers"]
    contract([left.axes[i] for i in contract_left], [right.axes[j] for j in contract_right])
    batch = join_arrays([left.axes[i] for i in batch_left], [right.axes[j] for j in batch_right])
    free_left = _rest(left, contract_left, batch_left)
    free_right = _rest(right, contract_right, batch_right)
    axes = [*batch, *(left.axes[i] for i in free_left), *(right.axes[j] for j in free_right)]
    result = Value(tuple(axes), site=trace.here(), layer=len(trace.contractions))
    _note_kernel(left, right, contract_left, free_left, result, trace)
    _note_kernel(right, left, contract_right, free_right, result, trace)
    if left.leaf is None and right.leaf is None:
        trace.products += [left, right]
    return [result]


def _rest(value: Value, *taken: Sequence[int]) -> list[int]:
    return [i for i in range(len(value.axes)) if not any(i in t for t in taken)]


def _note_kernel(
    kernel: Value,
    data: Value,
    contracted: Sequence[int],
    free: Sequence[int],
    result: Value,
    trace: Trace,
) -> None:
    """A parameter times data is a layer: it reads its contracted axes, computes its free ones."""
    if kernel.leaf is None or data.leaf is not None:
        return
    for axis in contracted:
        trace.note(kernel, axis, "outgoing")
    for axis in free:
        trace.note(kernel, axis, "incoming")
    outputs = frozenset().union(*(kernel.source(axis) for axis in free))
    trace.contractions.append(Contraction(data, kernel.leaf, outputs, result))


@rule("conv_general_dilated")
def _convolution(eqn: JaxprEqn, values: list[Value], trace: Trace) -> Sequence[Value]:
    """Channels are contracted as in a matrix product; positions under a wider window must stay."""
    data, kernel = values
    numbers, groups = eqn.params["dimension_numbers"], eqn.params["feature_group_count"]
    if eqn.params["batch_group_count"] != 1:
        return fix_all(eqn, values, trace)
    batch, channels, *spatial = numbers.lhs_spec
    outputs, inputs, *window = numbers.rhs_spec
    shape = output_shape(eqn)
    axes: list[Axis] = [Uniform(1)] * len(shape)
    axes[numbers.out_spec[0]] = data.axes[batch]
    axes[numbers.out_spec[1]] = _channels(
        data.axes[channels], kernel.axes[inputs], kernel.axes[outputs], groups
    )
    steps = zip(
        spatial,
        window,
        numbers.out_spec[2:],
        eqn.params["window_strides"],
        eqn.params["padding"],
        eqn.params["lhs_dilation"],
        strict=True,
    )
    for here, under, out, stride, padding, dilation in steps:
        fix(kernel.axes[under])
        plain = (stride, tuple(padding), dilation) == (1, (0, 0), 1)
        if kernel.axes[under].size == 1 and plain:
            axes[out] = data.axes[here]
        else:
            axes[out] = fix_as(data.axes[here], shape[out])
    result = Value(tuple(axes), site=trace.here(), layer=len(trace.contractions))
    _note_kernel(kernel, data, [inputs], [outputs], result, trace)
    return [result]


def _channels(data: Axis, inputs: Axis, outputs: Axis, groups: int) -> Axis:
    """Grouped channels are groups × channels within a group, for inputs and outputs alike."""
    if groups == 1:
        join(data, inputs)
        return outputs
    data_groups, data_within = split(data, [groups, data.size // groups])
    out_groups, out_within = split(outputs, [groups, outputs.size // groups])
    join(data_within, inputs)
    return product([join(data_groups, out_groups), out_within])


@rule(
    "reduce_window_max",
    "reduce_window_min",
    "reduce_window_sum",
    "reduce_window",
    "cumred_reduce_window_impl",
)
def _window(eqn: JaxprEqn, values: list[Value], trace: Trace) -> Sequence[Value]:
    """Pooling: an axis under a window of one stays free, any other must stay."""
    if len(values) > 2 or len(eqn.outvars) != 1:
        return fix_all(eqn, values, trace)
    names = ("window_dimensions", "window_strides", "base_dilation", "padding")
    windows = zip(*(eqn.params[name] for name in names), strict=True)
    axes = [
        axis if (*steps, tuple(padding)) == (1, 1, 1, (0, 0)) else fix_as(axis, size)
        for axis, size, (*steps, padding) in zip(
            values[0].axes, output_shape(eqn), windows, strict=True
        )
    ]
    return [Value(tuple(axes))]


@rule("fft")
def _fft(eqn: JaxprEqn, values: list[Value], _: Trace) -> Sequence[Value]:
    value, shape = values[0], output_shape(eqn)
    transformed = len(eqn.params["fft_lengths"])
    kept = value.axes[: len(shape) - transformed]
    for axis in value.axes[len(kept) :]:
        fix(axis)
    return [Value(kept + fixed_shape(shape[len(kept) :]))]
