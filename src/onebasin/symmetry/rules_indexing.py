"""Rules for primitives that read from, or write to, positions given by data."""

from collections.abc import Sequence

from jax.extend.core import JaxprEqn

from onebasin.symmetry import pointers
from onebasin.symmetry.axes import Axis, fix, fix_as, fixed_shape, join
from onebasin.symmetry.rules import Trace, Value, fix_all, output_shape, rule


@rule("gather")
def _gather(eqn: JaxprEqn, values: list[Value], trace: Trace) -> Sequence[Value]:
    """Axes sliced whole stay free (an embedding's features); indexed axes must stay."""
    operand, indices = values
    numbers, sizes = eqn.params["dimension_numbers"], eqn.params["slice_sizes"]
    operand_batch = tuple(numbers.operand_batching_dims)
    indices_batch = tuple(numbers.start_indices_batching_dims)
    batch = list(indices.axes[:-1])
    for mine, theirs in zip(operand_batch, indices_batch, strict=True):
        batch[theirs] = join(operand.axes[mine], indices.axes[theirs])
    fix(indices.axes[-1])
    hidden = (*numbers.collapsed_slice_dims, *operand_batch)
    looked_up = pointers.looked_up(eqn, values)
    windows = [i for i in range(len(operand.axes)) if i not in hidden]
    for i, axis in enumerate(operand.axes):
        if i in windows and sizes[i] == axis.size:
            trace.note(operand, i, "incoming")  # an embedding computes the units it looks up
        elif i not in operand_batch and i != looked_up:
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
def _dynamic_slice(eqn: JaxprEqn, values: list[Value], _: Trace) -> Sequence[Value]:
    """The start is data, so an axis that is cut must stay."""
    pairs = zip(values[0].axes, output_shape(eqn), strict=True)
    return [Value(tuple(axis if axis.size == n else fix_as(axis, n) for axis, n in pairs))]


@rule("dynamic_update_slice")
def _dynamic_update_slice(_eqn: JaxprEqn, values: list[Value], _: Trace) -> Sequence[Value]:
    operand, update = values[:2]
    axes: list[Axis] = []
    for mine, theirs in zip(operand.axes, update.axes, strict=True):
        if mine.size == theirs.size:
            axes.append(join(mine, theirs))
        else:
            fix(theirs)
            axes.append(fix_as(mine, mine.size))
    return [Value(tuple(axes))]


@rule("scatter", "scatter-add", "scatter-mul", "scatter-min", "scatter-max")
def _scatter(eqn: JaxprEqn, values: list[Value], trace: Trace) -> Sequence[Value]:
    """Axes that the updates cover whole move with them; indexed axes must stay.

    Updates may be permuted together with their indices. Where one overwrites another (a plain
    scatter to repeated indices), their order matters.
    """
    numbers = eqn.params["dimension_numbers"]
    if len(values) != 3:
        return fix_all(eqn, values, trace)
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
