"""A symmetry as JSON, to keep in a file or to write by hand.

    {"format": "onebasin-symmetry", "version": 1,
     "groups": {"hidden": 3},
     "params": {"w1": [2, "hidden"], "b1": ["hidden"], "w2": ["hidden", 1]}}

Every leaf lists its axes: a number is an axis of that length, which no permutation moves; a name is
an axis of the units of that group. `{"product": [49, "conv"]}` is a flattened axis of 49 × units,
the last part varying fastest, and `{"concat": ["a", "b"]}` one part after another; they nest. The
entry `state` lists the running statistics in the same way. `unused` and `roles` are what a trace
knows besides, and may be left out. `"blocks": {"dims": ["heads", 4]}` says that the units of the
group move in 4 blocks, alike in all groups of the family. `kinds` says what else may be done to the
units of a group (`symmetry/kinds.py`): `{"hidden": {"signs": [["w1", 1, 0, 1], ["w2", 0, 0, -1]]}}`
lists places as leaf, axis, number along the axis, and exponent. A saved symmetry ends in a
`digest` of the rest (`digests.py`); whoever edits the file removes it.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

from onebasin.atomic import write_atomically
from onebasin.digests import DIGEST, Damaged, sealed, unsealed
from onebasin.regular_files import check_regular
from onebasin.symmetry.blocks import Blocks, BlocksByGroup
from onebasin.symmetry.groups import Role, Roles
from onebasin.symmetry.kinds import Key, Mixing, Mixings, Pattern
from onebasin.symmetry.layout import (
    Concat,
    Fixed,
    Layout,
    Layouts,
    Product,
    Units,
    occurrences,
)

FORMAT, VERSION = "onebasin-symmetry", 1
LARGEST_AXIS = 10**8  # positions; a longer axis is a slip
MOST_MOVED = 3 * 10**7  # positions of all units, which are held in memory
DEEPEST = 50  # parts within parts
LARGEST_EXPONENT = 8
KNOWN = {"format", "version", "groups", "params", "state", "unused", "roles", "blocks", "kinds"}
KNOWN |= {DIGEST}


class SymmetryFileError(ValueError):
    """A file that does not describe a symmetry; the message names the entry."""


def describe(
    layouts: Layouts,
    state: Layouts,
    unused: tuple[str, ...],
    roles: Roles,
    blocks: BlocksByGroup,
    mixings: Mixings,
) -> dict[str, Any]:
    """The JSON form of a symmetry."""
    sizes: dict[str, int] = {}
    content: dict[str, Any] = {"format": FORMAT, "version": VERSION, "groups": sizes}
    content["params"] = {
        leaf: [_describe(a, sizes) for a in axes] for leaf, axes in layouts.items()
    }
    if state:
        content["state"] = {
            leaf: [_describe(a, sizes) for a in axes] for leaf, axes in state.items()
        }
    if unused:
        content["unused"] = list(unused)
    if blocks:
        content["blocks"] = {name: [own.family, own.count] for name, own in blocks.items()}
    if mixings:
        content["kinds"] = {name: _describe_mixing(own) for name, own in mixings.items()}
    if roles:
        content["roles"] = {
            leaf: [roles.get((leaf, i)) for i in range(len(axes))]
            for leaf, axes in layouts.items()
            if any((leaf, i) in roles for i in range(len(axes)))
        }
    return content


def _describe(layout: Layout, sizes: dict[str, int]) -> Any:
    match layout:
        case Fixed(size):
            return size
        case Units(group, size):
            sizes[group] = size
            return group
        case Product(parts):
            return {"product": [_describe(part, sizes) for part in parts]}
        case Concat(parts):
            return {"concat": [_describe(part, sizes) for part in parts]}


def rebuild(
    content: Any,
) -> tuple[Layouts, Layouts, tuple[str, ...], Roles, BlocksByGroup, Mixings]:
    """Layouts of params and state, unused leaves, roles, blocks and mixings, from the JSON form."""
    if not isinstance(content, Mapping) or content.get("format") != FORMAT:
        raise SymmetryFileError(f'it is not a symmetry; "format" must be "{FORMAT}"')
    if content.get("version") != VERSION:
        raise SymmetryFileError(
            f"it has version {content.get('version')!r:.20}, and this OneBasin reads {VERSION}; "
            "save it again with the OneBasin that wrote it"
        )
    for name in content:
        if name not in KNOWN:
            raise SymmetryFileError(f"there is no entry '{name:.40}'; known are {sorted(KNOWN)}")
    sizes = content.get("groups")
    if not isinstance(sizes, Mapping) or not all(map(_is_length, sizes.values())):
        raise SymmetryFileError(
            '"groups" is missing or wrong; give every group its number of units'
        )
    params = _layouts("params", content.get("params"), sizes)
    if not params:
        raise SymmetryFileError('"params" is empty; list the axes of every leaf')
    state = _layouts("state", content.get("state", {}), sizes)
    different = {axis for tree in (params, state) for axes in tree.values() for axis in axes}
    moved = sum(axis.size for axis in different if _has_units(axis))
    if moved > MOST_MOVED:
        raise SymmetryFileError(
            f"its groups have {moved:.3g} positions, more than {MOST_MOVED:.0e}; give units only "
            "to axes that a permutation moves"
        )
    unused = content.get("unused", [])
    known = {*params, *(f"state:{leaf}" for leaf in state)}
    if not isinstance(unused, list) or not all(
        isinstance(part, str) and (part in known or part.rpartition("[")[0] in known)
        for part in unused
    ):
        raise SymmetryFileError(
            '"unused" names what is not a leaf; list leaves of "params", or slices of them'
        )
    roles = _roles(content.get("roles", {}), params)
    blocks = _blocks(content.get("blocks", {}), sizes)
    mixings = _mixings(content.get("kinds", {}), params, sizes)
    try:
        unsealed(content)  # last: what is wrong with an edited file is better said by its entry
    except Damaged as error:
        raise SymmetryFileError(
            f'it {error}; if you edited the file, remove its entry "{DIGEST}", else save it again'
        ) from None
    return params, state, tuple(unused), roles, blocks, mixings


def _describe_mixing(mixing: Mixing) -> dict[str, Any]:
    content: dict[str, Any] = {}
    if mixing.signs is not None:
        content["signs"] = _describe_pattern(mixing.signs)
    if mixing.scales:
        content["scales"] = [_describe_pattern(own) for own in mixing.scales]
    if mixing.matrices is not None:
        content["matrices"] = _describe_pattern(mixing.matrices)
        if mixing.orthogonal:
            content["orthogonal"] = "centred" if mixing.centred else True
    if mixing.folded:
        content["folded"] = [[list(key), _describe_pattern(own)] for key, own in mixing.folded]
    return content


def _describe_pattern(pattern: Pattern) -> list[list[Any]]:
    return [[*key, exponent] for key, exponent in pattern.entries]


def _mixings(entries: Any, params: Layouts, sizes: Mapping[str, int]) -> Mixings:
    if not isinstance(entries, Mapping) or not set(entries) <= set(sizes):
        raise SymmetryFileError('"kinds" is wrong; give groups their signs, scales or matrices')
    return {name: _mixing(name, entry, params) for name, entry in entries.items()}


def _mixing(name: str, entry: Any, params: Layouts) -> Mixing:
    known = {"signs", "scales", "matrices", "orthogonal", "folded"}

    def wrong() -> SymmetryFileError:
        return SymmetryFileError(
            f'"kinds" of "{name:.40}" are wrong; list places as leaf, axis, number and exponent'
        )

    def key(found: Any) -> Key:
        match found:
            case [str(leaf), int(axis), int(number)] if 0 <= axis < len(params.get(leaf, ())):
                places = {nth for nth, _ in enumerate(occurrences(params[leaf][axis]))}
                if number in places:
                    return leaf, axis, number
        raise wrong()

    def pattern(found: Any) -> Pattern:
        if not isinstance(found, list) or not found:
            raise wrong()
        exponents = {}
        for place in found:
            match place:
                case [*at, int(exponent)] if abs(exponent) <= LARGEST_EXPONENT:
                    exponents[key(at)] = exponent
                case _:
                    raise wrong()
        return Pattern.of(exponents)

    if not isinstance(entry, Mapping) or set(entry) - known:
        raise wrong()
    scales, folded = entry.get("scales", []), entry.get("folded", [])
    orthogonal = entry.get("orthogonal", False)
    pairs = isinstance(folded, list) and all(isinstance(f, list) and len(f) == 2 for f in folded)
    if not isinstance(scales, list) or not pairs or orthogonal not in (False, True, "centred"):
        raise wrong()
    return Mixing(
        signs=pattern(entry["signs"]) if "signs" in entry else None,
        scales=tuple(map(pattern, scales)),
        matrices=pattern(entry["matrices"]) if "matrices" in entry else None,
        orthogonal=bool(orthogonal),
        centred=orthogonal == "centred",
        folded=tuple((key(at), pattern(own)) for at, own in folded),
    )


def _blocks(entries: Any, sizes: Mapping[str, int]) -> BlocksByGroup:
    if not isinstance(entries, Mapping):
        raise SymmetryFileError('"blocks" is wrong; give groups a family and a number of blocks')
    found = {}
    counts: dict[str, int] = {}
    for name, entry in entries.items():
        match entry:
            case [str(family), int(count)] if (
                name in sizes and _is_length(count) and count > 0 and sizes[name] % count == 0
            ):
                if counts.setdefault(family, count) != count:
                    raise SymmetryFileError(
                        f"\"blocks\" gives the family '{family:.40}' two numbers of blocks; "
                        "give it one"
                    )
                found[name] = Blocks(family, count)
            case _:
                raise SymmetryFileError(
                    f'"blocks" of "{name:.40}" are wrong; give a family and a number of '
                    "blocks that divides its units"
                )
    return found


def _layouts(entry: str, leaves: Any, sizes: Mapping[str, int]) -> Layouts:
    if not isinstance(leaves, Mapping) or not all(isinstance(a, list) for a in leaves.values()):
        raise SymmetryFileError(f'"{entry}" is missing or wrong; list the axes of every leaf')
    return {
        leaf: tuple(_layout(axis, sizes, f'axis {i} of "{leaf}"') for i, axis in enumerate(axes))
        for leaf, axes in leaves.items()
    }


def _layout(axis: Any, sizes: Mapping[str, int], where: str, depth: int = 0) -> Layout:
    if depth > DEEPEST:
        raise SymmetryFileError(f"{where} has parts within parts without end; write fewer levels")
    layout: Layout
    match axis:
        case str(group):
            if group not in sizes:
                raise SymmetryFileError(
                    f"{where} names '{group:.40}', which is not in \"groups\"; add it there"
                )
            layout = Units(group, sizes[group])
        case {"product": [_, *_] as parts} if len(axis) == 1:
            layout = Product(tuple(_layout(p, sizes, where, depth + 1) for p in parts))
        case {"concat": [_, *_] as parts} if len(axis) == 1:
            layout = Concat(tuple(_layout(p, sizes, where, depth + 1) for p in parts))
        case length if _is_length(length):
            layout = Fixed(length)
        case _:
            raise SymmetryFileError(
                f"{where} is {axis!r:.40}; write a length, the name of a group, "
                '{"product": [...]} or {"concat": [...]}'
            )
    if layout.size > LARGEST_AXIS:
        raise SymmetryFileError(
            f"{where} has {layout.size:.3g} positions, more than {LARGEST_AXIS}; "
            "write a shorter axis"
        )
    return layout


def _has_units(layout: Layout) -> bool:
    match layout:
        case Product(parts) | Concat(parts):
            return any(map(_has_units, parts))
        case _:
            return isinstance(layout, Units)


def _is_length(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= LARGEST_AXIS


def _roles(entries: Any, params: Layouts) -> Roles:
    known = (None, *get_args(Role))
    if not isinstance(entries, Mapping):
        raise SymmetryFileError('"roles" is wrong; list the role of every axis of a leaf')
    roles: dict[tuple[str, int], Role] = {}
    for leaf, found in entries.items():
        fits = isinstance(found, list) and len(found) == len(params.get(leaf, ()))
        if not fits or not all(isinstance(r, str | None) and r in known for r in found):
            raise SymmetryFileError(
                f'"roles" of "{leaf:.40}" are wrong; give one for each of its axes'
            )
        roles |= {(leaf, i): role for i, role in enumerate(found) if role is not None}
    return roles


def write(path: Path, content: Mapping[str, Any]) -> None:
    """Write the JSON form with its digest, one leaf on a line, atomically."""
    entries = []
    for name, value in sealed(content).items():
        if isinstance(value, Mapping) and value:
            lines = ",\n".join(f"    {json.dumps(k)}: {json.dumps(v)}" for k, v in value.items())
            entries.append(f"  {json.dumps(name)}: {{\n{lines}\n  }}")
        else:
            entries.append(f"  {json.dumps(name)}: {json.dumps(value)}")
    text = "{\n" + ",\n".join(entries) + "\n}\n"
    write_atomically(path, lambda part: Path(part).write_text(text, encoding="utf-8"), len(text))


def read(path: Path) -> Any:
    """The JSON value of a file."""
    if not check_regular(path, SymmetryFileError).exists():
        raise FileNotFoundError(f"there is no file {path}; check the name")
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise SymmetryFileError(f"{path} is not JSON: {error}; save it again") from None
