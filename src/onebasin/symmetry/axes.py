"""What is known of one axis of an array while a network is traced, and how axes are unified.

An axis is a tree of these nodes:

- `Atom`: positions that may be permuted freely, as far as is known. Unifying two atoms defines one
  as the other. Splitting an atom defines it as a product or a concatenation of smaller atoms. A
  definition holds wherever the atom occurs.
- `Fixed`: positions that must stay.
- `Uniform`: the array does not vary along these positions, so every permutation leaves it
  unchanged. It constrains nothing.
- `Product` (row-major) and `Concat` of nodes.
- `Digit`: one of several axes of an array that together are one axis in row-major order, as after
  a reshape. Nothing is divided as long as nothing treats them apart; see `symmetry/joints.py`.

The invariant: if the parameters are permuted along their atoms in any way, every array in the
computation is permuted along its own axes in the same way. Each primitive's rule unifies or fixes
what it must to keep this true. Unification only adds constraints, so a rule that is too cautious
can lose symmetry but never correctness.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from math import gcd, prod
from typing import TypeAlias, Union

from onebasin.symmetry.layout import Concat as Concat
from onebasin.symmetry.layout import Fixed as Fixed
from onebasin.symmetry.layout import Product as Product


@dataclass(eq=False)
class Atom:
    size: int
    definition: "Node | None" = None  # the axis it has been unified with or split into


@dataclass(frozen=True)
class Uniform:
    size: int


@dataclass(eq=False)
class Joint:
    """Several axes of one array that are one axis in row-major order, until they are divided.

    An array with one of its digits has all of them, each once; `joints.complete` sees to it.
    """

    sizes: tuple[int, ...]
    node: "Node | None" = None  # the one axis; None as long as nothing has set an order
    parts: "tuple[Axis, ...] | None" = None  # what the digits have become, once divided

    def flat(self) -> "Node":
        """The one axis."""
        if self.node is None:
            self.node = atom(prod(self.sizes))
        return self.node


@dataclass(frozen=True)
class Digit:
    """One axis of a joint."""

    joint: Joint
    index: int

    @property
    def size(self) -> int:
        return self.joint.sizes[self.index]


Node: TypeAlias = Union[Atom, Fixed, Uniform, "Product[Node]", "Concat[Node]"]
Axis: TypeAlias = Node | Digit
Divide: TypeAlias = Callable[[Axis, int], tuple[Node, Node]]


class CannotTie(Exception):
    """Two axes have no common refinement, e.g. 2×3 against 3×2."""


def atom(size: int) -> Atom | Uniform:
    """A fresh axis; a single position cannot be permuted."""
    return Atom(size) if size > 1 else Uniform(size)


def fixed_shape(shape: Sequence[int]) -> tuple[Axis, ...]:
    """The axes of an array, all fixed."""
    return tuple(Fixed(n) if n != 1 else Uniform(1) for n in shape)


def resolve(axis: Axis) -> Node:
    """The axis in normal form, with all definitions substituted; a digit becomes independent.

    Chains of definitions can be as long as the axis. They are therefore normalised innermost
    first, without recursion.
    """
    axis = settle(axis)
    while isinstance(axis, Digit):
        part(axis.joint, {axis.index})
        axis = settle(axis)
    pending: list[tuple[Node, bool]] = [(axis, False)]
    seen: set[int] = set()
    while pending:
        node, visited = pending.pop()
        if isinstance(node, Atom) and node.definition is not None:
            if visited:
                node.definition = _normal(node.definition)
            elif id(node) not in seen:
                seen.add(id(node))
                pending += [(node, True), (node.definition, False)]
        elif isinstance(node, Product | Concat):
            pending += [(part, False) for part in node.parts]
    return _normal(axis)


def _normal(axis: Node) -> Node:
    """The normal form, if the definitions of all atoms inside are in normal form already."""
    match axis:
        case Atom():
            return axis if axis.definition is None else axis.definition
        case Product(parts):
            return product(parts)
        case Concat(parts):
            return concat(parts)
        case _:
            return axis


def settle(axis: Axis) -> Axis:
    """What the axis has become so far; unlike `resolve`, this divides nothing."""
    while isinstance(axis, Digit) and axis.joint.parts is not None:
        axis = axis.joint.parts[axis.index]
    return axis


def digits(sizes: Sequence[int], node: Axis | None) -> tuple[Axis, ...]:
    """One axis seen as axes of the given sizes, all above one, in row-major order."""
    node = None if node is None else resolve(node)
    if len(sizes) == 1:
        return (atom(sizes[0]) if node is None else node,)
    if isinstance(node, Fixed | Uniform):
        return tuple(type(node)(size) for size in sizes)
    joint = Joint(tuple(sizes), node)
    return tuple(Digit(joint, i) for i in range(len(sizes)))


def part(joint: Joint, chosen: Collection[int]) -> None:
    """Make some digits of a joint independent of the others."""
    count = len(joint.sizes)
    if joint.parts is not None or len(chosen) in (0, count):
        return
    low, high = min(chosen), max(chosen) + 1
    if joint.node is None:
        runs = [sorted(chosen), [i for i in range(count) if i not in chosen]]
    elif high - low == len(chosen):
        runs = [list(range(low)), list(range(low, high)), list(range(high, count))]
    else:
        runs = [[i] for i in range(count)]
    runs = [run for run in runs if run]
    sizes = [[joint.sizes[i] for i in run] for run in runs]
    nodes: list[Axis | None] = [None] * len(runs)
    if joint.node is not None:
        nodes[:] = split(joint.node, [prod(own) for own in sizes])
    parts: dict[int, Axis] = {}
    for run, own, node in zip(runs, sizes, nodes, strict=True):
        parts.update(zip(run, digits(own, node), strict=True))
    joint.parts = tuple(parts[i] for i in range(count))


def product(parts: Sequence[Axis]) -> Node:
    """Row-major product in normal form: flat, no factors of one, adjacent equal kinds merged."""
    factors: list[Node] = []
    for whole in map(resolve, parts):
        for factor in whole.parts if isinstance(whole, Product) else (whole,):
            if factor.size == 1:
                continue
            last = factors[-1] if factors else None
            if isinstance(last, Fixed | Uniform) and type(last) is type(factor):
                factors[-1] = type(last)(last.size * factor.size)
            else:
                factors.append(factor)
    if not factors:
        return Uniform(1)
    if len(factors) == 1:
        return factors[0]
    if isinstance(factors[0], Concat):  # (a+b)×c = a×c + b×c, so that cuts are outermost
        return concat([product([piece, *factors[1:]]) for piece in factors[0].parts])
    return Product(tuple(factors))


def concat(parts: Sequence[Axis]) -> Node:
    """Concatenation in normal form: flat, no empty parts, adjacent fixed parts merged.

    A single position cannot move alone, so it counts as fixed here.
    """
    pieces: list[Node] = []
    for whole in map(resolve, parts):
        for piece in whole.parts if isinstance(whole, Concat) else (whole,):
            if piece.size == 0:
                continue
            piece = Fixed(1) if piece.size == 1 else piece
            if isinstance(piece, Fixed) and pieces and isinstance(pieces[-1], Fixed):
                pieces[-1] = Fixed(pieces[-1].size + piece.size)
            else:
                pieces.append(piece)
    if not pieces:
        return Fixed(0)
    if len(pieces) == 1:
        # A single position is an axis of length one, along which nothing varies.
        return pieces[0] if pieces[0].size > 1 else Uniform(1)
    return Concat(tuple(pieces))


def atoms_in(axis: Axis) -> list[Atom]:
    """The free atoms of an axis, in order; an atom that occurs twice is listed twice."""
    axis = resolve(axis)
    match axis:
        case Atom():
            return [axis]
        case Product(parts) | Concat(parts):
            return [found for part in parts for found in atoms_in(part)]
        case _:
            return []


def fix(axis: Axis) -> Axis:
    """Forbid every permutation along the axis."""
    for found in atoms_in(axis):
        found.definition = Fixed(found.size)
    return Fixed(axis.size) if axis.size != 1 else Uniform(1)


def fix_as(axis: Axis, size: int) -> Axis:
    """Fix an axis and return a fixed axis of `size` positions, for the result of an equation."""
    fix(axis)
    return fixed_shape([size])[0]


def join(a: Axis, b: Axis) -> Axis:
    """Unify two axes position by position; the result varies wherever either does."""
    if a.size != b.size:
        raise ValueError(
            f"axes of {a.size} and {b.size} positions cannot be one; correct the tracing rule"
        )
    a, b = settle(a), settle(b)
    if a == b or isinstance(b, Uniform):
        return a
    if isinstance(a, Uniform):
        return b
    try:
        return resolve(_join(a, b))
    except CannotTie:
        fix(a)
        return fix(b)


def _join(a: Axis, b: Axis) -> Axis:
    a, b = resolve(a), resolve(b)
    if a is b or a == b or isinstance(b, Uniform):
        return a
    if isinstance(a, Uniform):
        return b
    if isinstance(a, Fixed) or isinstance(b, Fixed):
        fix(a)
        return fix(b)
    if isinstance(b, Atom):
        a, b = b, a
    if isinstance(a, Atom):
        # Uniform parts of b do not constrain a: those positions of a stay free.
        a.definition = _with_fresh_atoms(b)
        return a
    if isinstance(a, Product) and isinstance(b, Product):
        return product(_zip(list(a.parts), list(b.parts), _split_off))
    return concat(_zip(*_same_pieces(a, b), _cut_off))


def _zip(left: list[Axis], right: list[Axis], divide: Divide) -> list[Axis]:
    """Join two sequences part by part, dividing the larger head where sizes differ."""
    joined: list[Axis] = []
    while left and right:
        a, b = resolve(left.pop(0)), resolve(right.pop(0))
        if a.size > b.size:
            a, rest = divide(a, b.size)
            left.insert(0, rest)
        elif b.size > a.size:
            b, rest = divide(b, a.size)
            right.insert(0, rest)
        joined.append(_join(a, b))
    return joined


def _same_pieces(a: Axis, b: Axis) -> tuple[list[Axis], list[Axis]]:
    """The pieces of two concatenations, both cut into equal lengths if they share atoms.

    An array against its own rotation unifies an atom with parts of itself. Dividing it piece by
    piece as the parts meet would take as many rounds as there are positions. It would end at
    pieces whose length is the greatest common divisor of all lengths; they are cut at once here.
    """
    left: list[Axis] = list(a.parts) if isinstance(a, Concat) else [a]
    right: list[Axis] = list(b.parts) if isinstance(b, Concat) else [b]
    sizes = [[piece.size for piece in pieces] for pieces in (left, right)]
    if sizes[0] == sizes[1] or set(atoms_in(a)).isdisjoint(atoms_in(b)):
        return left, right
    step = gcd(*sizes[0], *sizes[1])
    if step == 1:
        raise CannotTie
    return _in_steps(a, step), _in_steps(b, step)


def _in_steps(axis: Axis, step: int) -> list[Axis]:
    pieces: list[Axis] = []
    while axis.size > step:
        first, axis = _cut_off(axis, step)
        pieces.append(first)
    return [*pieces, axis]


def _with_fresh_atoms(axis: Node) -> Node:
    match axis:
        case Uniform(size):
            return atom(size)
        case Product(parts):
            return product([_with_fresh_atoms(part) for part in parts])
        case Concat(parts):
            return concat([_with_fresh_atoms(part) for part in parts])
        case _:
            return axis


def _split_off(axis: Axis, outer: int) -> tuple[Node, Node]:
    """One axis as outer × inner, as in a row-major reshape."""
    axis = resolve(axis)
    inner, rest = divmod(axis.size, outer)
    if rest:
        raise CannotTie
    if inner == 1:
        return axis, Uniform(1)
    match axis:
        case Atom():
            parts = (atom(outer), atom(inner))
            axis.definition = Product(parts)
            return parts
        case Fixed() | Uniform():
            return type(axis)(outer), type(axis)(inner)
        case Product(parts):
            taken = 1
            head: list[Axis] = []
            rest_parts = list(parts)
            while taken < outer:
                part = resolve(rest_parts.pop(0))
                if outer % (taken * part.size) == 0:
                    head.append(part)
                    taken *= part.size
                else:
                    first, second = _split_off(part, outer // taken)
                    head.append(first)
                    rest_parts.insert(0, second)
                    taken = outer
            return product(head), product(rest_parts)
        case Concat(parts) if all(part.size % inner == 0 for part in parts):
            # (a·n + b·n) = (a + b)·n if the inner positions of both move together.
            outers: list[Axis] = []
            common: Axis = Uniform(inner)
            for part in parts:
                first, own = _split_off(part, part.size // inner)
                outers.append(first)
                common = _join(common, own)
            return concat(outers), resolve(common)
        case Concat():
            # A concatenation of equal pieces is a product if all pieces move together.
            pieces: list[Axis] = []
            remaining: Axis = axis
            for _ in range(outer - 1):
                piece, remaining = _cut_off(remaining, inner)
                pieces.append(piece)
            common = remaining
            for piece in pieces:
                common = _join(common, piece)
            return Fixed(outer), resolve(common)


def _cut_off(axis: Axis, length: int) -> tuple[Node, Node]:
    """The first `length` positions of an axis and the rest."""
    axis = resolve(axis)
    match axis:
        case Atom():
            parts = (atom(length), atom(axis.size - length))
            axis.definition = concat(parts)
            return parts
        case Fixed() | Uniform():
            return type(axis)(length), type(axis)(axis.size - length)
        case Product(parts):
            inner = prod(part.size for part in parts[1:])
            if length % inner:
                raise CannotTie
            first, second = _cut_off(parts[0], length // inner)
            return product([first, *parts[1:]]), product([second, *parts[1:]])
        case Concat(parts):
            head: list[Axis] = []
            rest = list(parts)
            taken = 0
            while taken < length:
                part = resolve(rest.pop(0))
                if taken + part.size > length:
                    part, left_over = _cut_off(part, length - taken)
                    rest.insert(0, left_over)
                head.append(part)
                taken += part.size
            return concat(head), concat(rest)


def split(axis: Axis, sizes: list[int]) -> list[Axis]:
    """One axis as a row-major product of axes of the given sizes (a reshape)."""
    parts: list[Axis] = []
    rest = axis
    try:
        for size in sizes:
            first, rest = _split_off(rest, size) if size > 1 else (Uniform(1), rest)
            parts.append(first)
    except CannotTie:
        fix(axis)
        return [Fixed(size) if size > 1 else Uniform(1) for size in sizes]
    return [resolve(part) for part in parts]


def cut(axis: Axis, lengths: list[int]) -> list[Axis]:
    """One axis as a concatenation of axes of the given lengths (slices)."""
    parts: list[Axis] = []
    rest = axis
    try:
        for length in lengths:
            if length == 0:
                first = Fixed(0)
            elif length == rest.size:
                first, rest = rest, Fixed(0)
            else:
                first, rest = _cut_off(rest, length)
            parts.append(first)
    except CannotTie:
        fix(axis)
        return list(fixed_shape(lengths))
    return [resolve(part) for part in parts]
