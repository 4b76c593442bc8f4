"""Axes of an array that are seen together: reshapes, slices and sums over several axes at once.

A reshape of 24 positions to (3, 2, 4) is not yet a product of three independent axes. If the 3 is
indexed, as in fused queries, keys and values, its parts are independent of each other: each is a
piece of the 24 with an order of its own. So the new axes stay digits of one joint, and only what
treats one of them apart divides them.
"""

from collections.abc import Sequence
from math import prod

from onebasin.symmetry.axes import (
    Axis,
    Digit,
    Joint,
    Uniform,
    cut,
    digits,
    join,
    part,
    product,
    resolve,
    settle,
)

MOST_PIECES = 256  # of a joint that is indexed along its first digit; above, its rows move alike


def joints_of(axes: Sequence[Axis]) -> dict[Joint, list[tuple[int, int]]]:
    """The joints of settled axes: (digit, axis) for each digit that occurs."""
    found: dict[Joint, list[tuple[int, int]]] = {}
    for i, axis in enumerate(axes):
        if isinstance(axis, Digit):
            found.setdefault(axis.joint, []).append((axis.index, i))
    return found


def undivided(axis: Axis) -> Axis:
    """The axis in normal form; one that is seen together with others stays as it is."""
    axis = settle(axis)
    return axis if isinstance(axis, Digit) else resolve(axis)


def views(axes: Sequence[Axis]) -> list[tuple[tuple[int, ...], Axis]]:
    """An array's axes, with those of one joint together as one axis; nothing is divided."""
    settled = [settle(axis) for axis in axes]
    joints = joints_of(settled)
    found: list[tuple[tuple[int, ...], Axis]] = []
    for i, axis in enumerate(settled):
        if not isinstance(axis, Digit):
            found.append(((i,), resolve(axis)))
        elif axis.joint in joints:
            at = tuple(axis for _, axis in sorted(joints.pop(axis.joint)))
            found.append((at, resolve(axis.joint.flat())))
    return found


def complete(axes: Sequence[Axis]) -> tuple[Axis, ...]:
    """The axes of an array, with every joint divided of which it does not have each digit once."""
    settled = [settle(axis) for axis in axes]
    while True:
        broken = False
        for joint, found in joints_of(settled).items():
            present = [digit for digit, _ in found]
            if len(set(present)) < len(present):
                for i in range(len(joint.sizes)):
                    resolve(Digit(joint, i))
            else:
                part(joint, present)
            broken |= joint.parts is not None
        if not broken:
            return tuple(settled)
        settled = [settle(axis) for axis in settled]


def join_arrays(left: Sequence[Axis], right: Sequence[Axis]) -> list[Axis]:
    """Unify two arrays position by position; joints that match are unified as one axis each."""
    left, right = [settle(a) for a in left], [settle(a) for a in right]
    theirs = joints_of(right)
    for mine, found in joints_of(left).items():
        partner = right[found[0][1]]
        if not isinstance(partner, Digit) or partner.joint is mine:
            continue
        if len(found) < len(mine.sizes):
            continue
        other = partner.joint
        if other.sizes == mine.sizes and sorted(theirs[other]) == sorted(found):
            together = digits(mine.sizes, join(mine.flat(), other.flat()))
            mine.parts = other.parts = together
    return [join(a, b) for a, b in zip(left, right, strict=True)]


def contract(left: Sequence[Axis], right: Sequence[Axis]) -> None:
    """Unify the contracted axes of two arrays."""
    for axes in (left, right):
        for joint, found in joints_of([settle(axis) for axis in axes]).items():
            part(joint, [digit for digit, _ in found])
    join_arrays(left, right)


def take(axes: Sequence[Axis], at: int, start: int, stop: int) -> tuple[Axis, ...]:
    """The axes of array[…, start:stop, …], sliced along the axis `at`."""
    settled = [settle(axis) for axis in axes]
    digit = settled[at]
    if (start, stop) == (0, digit.size):
        return tuple(settled)
    if not isinstance(digit, Digit) or digit.size > MOST_PIECES:
        lengths = [start, stop - start, digit.size - stop]
        return (*settled[:at], cut(resolve(digit), lengths)[1], *settled[at + 1 :])
    joint = digit.joint
    if digit.index > 0:
        part(joint, range(digit.index))  # what comes before it is the same for all of its pieces
        return take(settled, at, start, stop)
    inner = prod(joint.sizes[1:])
    lengths = [start * inner, (stop - start) * inner, (digit.size - stop) * inner]
    piece = cut(joint.flat(), lengths)[1]
    kept = stop - start
    sizes = (kept, *joint.sizes[1:]) if kept > 1 else joint.sizes[1:]
    new = digits(sizes, piece) if kept > 0 else digits(sizes, None)
    if kept < 2:
        settled[at] = Uniform(kept)
    for index, axis in joints_of(settled).get(joint, ()):
        settled[axis] = new[index if kept > 1 else index - 1]
    return tuple(settled)


def reshape(
    axes: Sequence[Axis],
    blocks: Sequence[tuple[Sequence[int], Sequence[int]]],
    shape: Sequence[int],
) -> list[Axis]:
    """The axes after a reshape, given the blocks of old and new axes that correspond."""
    settled = [settle(axis) for axis in axes]
    result: list[Axis] = [Uniform(1)] * len(shape)
    segments: dict[Joint, list[tuple[int, Sequence[int]]]] = {}
    for old, new in blocks:
        nodes = [settled[i] for i in old]
        first = nodes[0]
        if not isinstance(first, Digit) or nodes != [
            Digit(first.joint, first.index + i) for i in range(len(nodes))
        ]:
            merged = nodes[0] if len(nodes) == 1 else product(nodes)
            views = (merged,) if len(new) == 1 else digits([shape[i] for i in new], merged)
            for i, axis in zip(new, views, strict=True):
                result[i] = axis
        else:
            segments.setdefault(first.joint, []).append((first.index, new))
    for joint, found in segments.items():
        if joint.parts is not None:  # an axis of another block divided it
            return reshape(settled, blocks, shape)
        targets = [i for _, new in sorted(found) for i in new]
        sizes = [shape[i] for i in targets]
        same = tuple(sizes) == joint.sizes
        views = (
            [Digit(joint, i) for i in range(len(sizes))] if same else digits(sizes, joint.flat())
        )
        for i, axis in zip(targets, views, strict=True):
            result[i] = axis
    return result
