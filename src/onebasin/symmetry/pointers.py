"""Arrays of positions: what argmax or top_k chose, and what a one-hot or a lookup reads.

Which expert or which code is chosen is a position along an axis. If that axis is permuted, the
entries of such an array (a *pointer*) change with it. A comparison with 0, 1, 2, … (a one-hot) or
a lookup along the same axis turns it back into an array that is permuted as a whole, so experts
and codebooks keep their symmetry. Any other use of a pointer depends on the order of the positions
and fixes it.

Where two units compete with equal values, the first is chosen, and which one is first depends on
the order. So an axis is only followed through arrays that are *distinct* along it: computed from a
contraction or a parameter by functions that are one-to-one almost everywhere. A ReLU is not: it
makes many entries zero.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from jax.extend.core import JaxprEqn

from onebasin.symmetry.axes import Axis, Digit, Fixed, Uniform, atoms_in, fix, join, settle
from onebasin.symmetry.values import Pointer, Value

# Primitives that rearrange entries or keep each as it is.
REARRANGE = {
    *("broadcast_in_dim", "convert_element_type", "copy", "reshape", "squeeze", "stop_gradient"),
    *("transpose", "slice"),
}
ONE_TO_ONE = {
    *("exp", "integer_pow", "log", "logistic", "neg", "reduce_sum", "sqrt", "square"),
    *(REARRANGE - {"slice"}),
}
COMBINE = {"add", "sub", "div"}


def point(value: Value, axis: int, result: Value) -> Value:
    """The positions that argmax or top_k took from an axis; fixes it where values may be equal."""
    chosen = settle(value.axes[axis])
    if isinstance(chosen, Digit) or not atoms_in(chosen) or not is_distinct(value):
        fix(chosen)
        return result
    return replace(result, pointer=Pointer(chosen))


def is_distinct(value: Value) -> bool:
    """Whether the entries differ almost surely along every axis that may be permuted."""
    return value.distinct or value.leaf is not None


def read(eqn: JaxprEqn, operands: list[Value], shape: Sequence[int]) -> Value | None:
    """The result of an equation that reads a pointer as such, or None if it is another use."""
    match eqn.primitive.name, operands:
        case "lt", [Value(pointer=Pointer()), Value(number=float(number))] if number <= 0:
            return Value(tuple(Uniform(n) for n in shape), number=0.0)  # no position is negative
        case "add", [Value(pointer=Pointer(offset=False) as pointer) as first, Value() as second]:
            if second.number is not None and len(first.axes) == len(shape):
                return Value(first.axes, pointer=replace(pointer, offset=True))
        case "select_n", [Value(number=0.0), Value(pointer=Pointer(offset=False)) as chosen, *_]:
            return chosen
        case "eq", [Value() as a, Value() as b]:
            pointing, counting = (a, b) if b.pointer is None else (b, a)
            along = counting.counts
            if along is None or pointing.pointer is None or len(pointing.axes) != len(shape):
                return None
            positions = pointing.pointer.axis
            even = all(axis.size == 1 for i, axis in enumerate(counting.axes) if i != along)
            if even and pointing.axes[along].size == 1 and positions.size == shape[along]:
                axes = list(pointing.axes)
                axes[along] = positions
                return Value(tuple(axes)) if _fits(axes, shape) else None
            if positions.size == shape[along] and _is_even(pointing.axes[along]):
                axes = list(pointing.axes)
                axes[along] = positions
                return Value(tuple(axes)) if _fits(axes, shape) else None
    return None


def use(eqn: JaxprEqn, operands: list[Value]) -> list[Value]:
    """The operands of any other equation, where a pointer that is not passed on fixes its axis."""
    name = eqn.primitive.name
    looked_up = name == "gather" and len(operands) == 2 and operands[1].pointer is not None
    for i, value in enumerate(operands):
        if value.pointer is None or (name in REARRANGE and not value.pointer.offset):
            continue
        if looked_up and i == 1 and _tied_to_lookup(eqn, operands):
            continue
        fix(value.pointer.axis)
    return operands


def _tied_to_lookup(eqn: JaxprEqn, operands: list[Value]) -> bool:
    """Unify the positions with the axis that a gather looks up, if it looks up only that."""
    operand, indices = operands
    numbers, sizes = eqn.params["dimension_numbers"], eqn.params["slice_sizes"]
    assert indices.pointer is not None
    if len(numbers.start_index_map) != 1 or indices.pointer.offset:
        return False
    (along,) = numbers.start_index_map
    axis, positions = operand.axes[along], indices.pointer.axis
    if along not in numbers.collapsed_slice_dims or sizes[along] != 1:
        return False
    if axis.size != positions.size:
        return False
    join(axis, positions)
    return True


def looked_up(eqn: JaxprEqn, operands: Sequence[Value]) -> int | None:
    """The axis of a gather's operand that a pointer looks up, if that axis may be permuted."""
    pointer = operands[1].pointer
    if pointer is None or not atoms_in(settle(pointer.axis)):
        return None
    (along,) = eqn.params["dimension_numbers"].start_index_map
    return along


def known(eqn: JaxprEqn, operands: list[Value], result: Value, shape: Sequence[int]) -> Value:
    """The result with what is known of its entries as numbers."""
    name = eqn.primitive.name
    first = operands[0] if operands else None
    if name in REARRANGE and first is not None:
        counts = _moved(eqn, first.counts, shape)
        return replace(
            result,
            pointer=first.pointer,
            number=first.number if first.number in (0.0, 1.0) else None,
            counts=counts,
            distinct=name in ONE_TO_ONE and is_distinct(first),
        )
    if name == "dot_general" and _contracts_apart(eqn, operands):
        return replace(result, distinct=True)
    if name == "conv_general_dilated" and is_distinct(operands[1]):
        return replace(result, distinct=True)
    if name in ONE_TO_ONE and first is not None and is_distinct(first):
        return replace(result, distinct=True)
    if name in COMBINE or name == "mul":
        apart = [is_distinct(v) and _varies_like(v, result) for v in operands]
        plain = [is_distinct(v) or v.number not in (None, 0.0) for v in operands]
        enough = {"mul": any(apart) and all(plain), "div": apart[0]}.get(name, any(apart))
        return replace(result, distinct=True) if enough else result
    return result


def _contracts_apart(eqn: JaxprEqn, operands: Sequence[Value]) -> bool:
    """Whether all axes of a product that may be permuted come from operands distinct there."""
    contracted, _ = eqn.params["dimension_numbers"]
    for value, summed in zip(operands, contracted, strict=True):
        kept = [axis for i, axis in enumerate(value.axes) if i not in summed]
        if not is_distinct(value) and Value(tuple(kept)).free_atoms():
            return False
    return any(map(is_distinct, operands))


def _varies_like(value: Value, result: Value) -> bool:
    """Whether the value varies along all axes of the result that may be permuted."""
    return len(value.axes) == len(result.axes) and all(
        isinstance(settle(b), Fixed | Uniform) or (a.size == b.size and not _is_even(a))
        for a, b in zip(value.axes, result.axes, strict=True)
    )


def _is_even(axis: Axis) -> bool:
    return isinstance(settle(axis), Uniform)


def _fits(axes: Sequence[Axis], shape: Sequence[int]) -> bool:
    return [axis.size for axis in axes] == list(shape)


def _moved(eqn: JaxprEqn, counts: int | None, shape: Sequence[int]) -> int | None:
    """Where the axis along which an array counts goes in a broadcast or a reshape."""
    if counts is None:
        return None
    name = eqn.primitive.name
    if name == "broadcast_in_dim":
        return eqn.params["broadcast_dimensions"][counts]
    if name in ("convert_element_type", "copy", "stop_gradient"):
        return counts
    length = [n for n in shape if n > 1]
    if name in ("reshape", "squeeze") and len(length) == 1 and prod(shape) == length[0]:
        return list(shape).index(length[0])
    return None
