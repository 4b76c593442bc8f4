"""What is known of one axis of one array while a network is traced, and how two axes are tied.

An axis is a tree of these nodes:

- `Atom`: positions that may be permuted freely, as far as is known. Tying two atoms makes
  one of them stand for the other; splitting one defines it as a product or a
  concatenation of smaller atoms, and so everywhere it already stood.
- `Fixed`: positions that must stay.
- `Uniform`: the array does not vary along the axis, so any permutation leaves it as it is.
  It constrains nothing.
- `Product` (row-major) and `Concat` of nodes.

Meaning: permute the parameters along their atoms in any way, then every array in the
computation is permuted along its own axes in the same way. Each primitive's rule ties or
fixes what it must to keep that true. Unifying only ever adds constraints, so a rule that
is too cautious loses symmetry and never correctness.
"""

from dataclasses import dataclass
from math import gcd, prod


@dataclass(frozen=True)
class Fixed:
    size: int


@dataclass(frozen=True)
class Uniform:
    size: int


@dataclass(eq=False)
class Atom:
    size: int
    definition: "Axis | None" = None  # what it has been tied or split to


@dataclass(frozen=True)
class Product:
    parts: "tuple[Axis, ...]"

    @property
    def size(self) -> int:
        return prod(part.size for part in self.parts)


@dataclass(frozen=True)
class Concat:
    parts: "tuple[Axis, ...]"

    @property
    def size(self) -> int:
        return sum(part.size for part in self.parts)


Axis = Atom | Fixed | Uniform | Product | Concat


class CannotTie(Exception):
    """Two layouts have no common refinement, e.g. 2×3 against 3×2."""


def atom(size: int) -> Axis:
    """A fresh axis of a parameter; one position cannot be permuted."""
    return Atom(size) if size > 1 else Uniform(size)


def resolve(axis: Axis) -> Axis:
    """The axis in normal form, with every definition looked up.

    Definitions can form chains as long as an axis has been cut, so they are brought into normal
    form innermost first, without recursion.
    """
    pending: list[tuple[Axis, bool]] = [(axis, False)]
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


def _normal(axis: Axis) -> Axis:
    """Normal form, given that the definitions of all atoms inside are in normal form."""
    match axis:
        case Atom():
            return axis if axis.definition is None else axis.definition
        case Product(parts):
            return product(parts)
        case Concat(parts):
            return concat(parts)
        case _:
            return axis


def product(parts: "tuple[Axis, ...] | list[Axis]") -> Axis:
    """Row-major product in normal form: flat, without factors of one, equal kinds merged."""
    factors: list[Axis] = []
    for part in map(resolve, parts):
        for factor in part.parts if isinstance(part, Product) else (part,):
            if factor.size == 1:
                continue
            if (
                isinstance(factor, Fixed | Uniform)
                and factors
                and type(factors[-1]) is type(factor)
            ):
                factors[-1] = type(factor)(factors[-1].size * factor.size)
            else:
                factors.append(factor)
    if not factors:
        return Uniform(1)
    if len(factors) == 1:
        return factors[0]
    if isinstance(factors[0], Concat):  # (a+b)×c = a×c + b×c, so that cuts lie on the outside
        return concat([product([part, *factors[1:]]) for part in factors[0].parts])
    return Product(tuple(factors))


def concat(parts: "tuple[Axis, ...] | list[Axis]") -> Axis:
    """Concatenation in normal form: flat, without empty parts, neighbouring fixed parts merged.

    A single position cannot move on its own, so it counts as fixed here.
    """
    pieces: list[Axis] = []
    for part in map(resolve, parts):
        for piece in part.parts if isinstance(part, Concat) else (part,):
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
        # A lone position is an axis of length one, along which nothing varies.
        return pieces[0] if pieces[0].size > 1 else Uniform(1)
    return Concat(tuple(pieces))


def atoms_in(axis: Axis) -> list[Atom]:
    """The free atoms of an axis, in order; an atom that stands twice is named twice."""
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


def join(a: Axis, b: Axis) -> Axis:
    """Tie two axes position by position; what results varies where either does."""
    if a.size != b.size:
        raise ValueError(f"axes of {a.size} and {b.size} positions cannot be tied")
    try:
        return resolve(_join(a, b))
    except CannotTie:
        fix(a)
        return fix(b)


def join_all(axes: "list[Axis]") -> Axis:
    joined = axes[0]
    for axis in axes[1:]:
        joined = join(joined, axis)
    return joined


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
        # Uniform parts of b ask nothing of a: those positions of a stay free.
        a.definition = _with_fresh_atoms(b)
        return a
    if isinstance(a, Product) and isinstance(b, Product):
        return product(_zip(list(a.parts), list(b.parts), _split_off))
    return concat(_zip(*_same_pieces(a, b), _cut_off))


def _zip(left: "list[Axis]", right: "list[Axis]", divide) -> "list[Axis]":
    """Join two sequences part by part, dividing the longer head where they do not meet."""
    joined = []
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


def _same_pieces(a: Axis, b: Axis) -> "tuple[list[Axis], list[Axis]]":
    """The pieces of two concatenations, cut alike first where they share atoms.

    An array against its own rotation ties an atom to parts of itself: dividing it piece by piece
    as they meet would go round and round, one position at a time. The greatest common divisor of
    all lengths is what it comes to in the end.
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


def _in_steps(axis: Axis, step: int) -> "list[Axis]":
    pieces: list[Axis] = []
    while axis.size > step:
        first, axis = _cut_off(axis, step)
        pieces.append(first)
    return [*pieces, axis]


def _with_fresh_atoms(axis: Axis) -> Axis:
    match axis:
        case Uniform(size):
            return atom(size)
        case Product(parts):
            return product([_with_fresh_atoms(part) for part in parts])
        case Concat(parts):
            return concat([_with_fresh_atoms(part) for part in parts])
        case _:
            return axis


def _split_off(axis: Axis, outer: int) -> "tuple[Axis, Axis]":
    """Write one axis as outer × inner, as a row-major reshape does."""
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
        case Concat():
            # Equal pieces laid one after another are a product if all move as one.
            pieces: list[Axis] = []
            remaining: Axis = axis
            for _ in range(outer - 1):
                piece, remaining = _cut_off(remaining, inner)
                pieces.append(piece)
            common: Axis = remaining
            for piece in pieces:
                common = _join(common, piece)
            return Fixed(outer), resolve(common)


def _cut_off(axis: Axis, length: int) -> "tuple[Axis, Axis]":
    """Cut one axis into its first `length` positions and the rest."""
    axis = resolve(axis)
    match axis:
        case Atom():
            parts = (Atom(length), Atom(axis.size - length))
            axis.definition = concat(parts)
            first, second = parts
            return (
                first if first.size > 1 else Uniform(1),
                second if second.size > 1 else Uniform(1),
            )
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


def split(axis: Axis, sizes: "list[int]") -> "list[Axis]":
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


def cut(axis: Axis, lengths: "list[int]") -> "list[Axis]":
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
        return [Fixed(length) if length != 1 else Uniform(1) for length in lengths]
    return [resolve(part) for part in parts]
