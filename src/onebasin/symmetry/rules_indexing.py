"""Rules of primitives that read from, or write to, positions given by data."""

from collections.abc import Sequence
from typing import Any

from onebasin.symmetry.axes import Axis, fix, join
from onebasin.symmetry.rules import Trace, Value, fixed_shape, output_shape, rule, without_rule


@rule("gather")
def _gather(eqn: Any, values: list[Value], trace: Trace) -> Sequence[Value]:
    """Whole slices are left alone (an embedding's features); indexed axes must stay."""
    operand, indices = values
    numbers, sizes = eqn.params["dimension_numbers"], eqn.params["slice_sizes"]
    operand_batch = tuple(numbers.operand_batching_dims)
    indices_batch = tuple(numbers.start_indices_batching_dims)
    batch = list(indices.axes[:-1])
    for mine, theirs in zip(operand_batch, indices_batch, strict=True):
        batch[theirs] = join(operand.axes[mine], indices.axes[theirs])
    fix(indices.axes[-1])
    hidden = (*numbers.collapsed_slice_dims, *operand_batch)
    windows = [i for i in range(len(operand.axes)) if i not in hidden]
    for i, axis in enumerate(operand.axes):
        if i in windows and sizes[i] == axis.size:
            trace.note(operand, i, "incoming")  # an embedding computes what it looks up
        elif i not in operand_batch:
            fix(axis)
    remaining = iter(batch)
    window = iter(windows)
    axes: list[Axis] = []
    for i, size in enumerate(output_shape(eqn)):
        if i in numbers.offset_dims:
            source = next(window)
            whole = sizes[source] == operand.axes[source].size
            axes.append(operand.axes[source] if whole else fixed_shape([size])[0])
        else:
            axes.append(next(remaining))
    return [Value(tuple(axes))]


@rule("dynamic_slice")
def _dynamic_slice(eqn: Any, values: list[Value], trace: Trace) -> Sequence[Value]:
    """Where it starts is data, so an axis it cuts must stay."""
    del trace
    shape = output_shape(eqn)
    return [Value(tuple(_whole_or_fixed(values[0].axes[i], n) for i, n in enumerate(shape)))]


@rule("dynamic_update_slice")
def _dynamic_update_slice(eqn: Any, values: list[Value], trace: Trace) -> Sequence[Value]:
    del trace
    operand, update = values[:2]
    axes: list[Axis] = []
    for mine, theirs in zip(operand.axes, update.axes, strict=True):
        if mine.size == theirs.size:
            axes.append(join(mine, theirs))
        else:
            fix(theirs)
            fix(mine)
            axes.append(fixed_shape([mine.size])[0])
    del eqn
    return [Value(tuple(axes))]


def _whole_or_fixed(axis: Axis, size: int) -> Axis:
    if axis.size == size:
        return axis
    fix(axis)
    return fixed_shape([size])[0]


@rule("scatter", "scatter-add", "scatter-mul", "scatter-min", "scatter-max")
def _scatter(eqn: Any, values: list[Value], trace: Trace) -> Sequence[Value]:
    """Whole slices of the operand and of the updates move together; indexed axes must stay.

    Updates may come in any order, as long as each goes where its own index says; but where one
    overwrites another (a plain scatter to repeated indices) the order matters.
    """
    numbers = eqn.params["dimension_numbers"]
    if len(values) != 3:
        return without_rule(eqn, values, trace)
    operand, indices, updates = values
    batching = dict(
        zip(numbers.operand_batching_dims, numbers.scatter_indices_batching_dims, strict=True)
    )
    fix(indices.axes[-1])
    loose = [i for i in range(len(updates.axes)) if i not in numbers.update_window_dims]
    overwrites = eqn.primitive.name == "scatter" and not eqn.params["unique_indices"]
    for index, update in enumerate(loose):
        joined = join(indices.axes[index], updates.axes[update])
        if overwrites and index not in batching.values():
            fix(joined)
    axes: list[Axis] = []
    window = iter(numbers.update_window_dims)
    for i, axis in enumerate(operand.axes):
        if i in batching:
            other = join(indices.axes[batching[i]], updates.axes[loose[batching[i]]])
            axes.append(join(axis, other))
        elif i in numbers.inserted_window_dims:
            axes.append(fix(axis))
        else:
            update_axis = updates.axes[next(window)]
            if update_axis.size == axis.size:
                axes.append(join(axis, update_axis))
            else:
                fix(update_axis)
                axes.append(fix(axis))
    return [Value(tuple(axes))]
