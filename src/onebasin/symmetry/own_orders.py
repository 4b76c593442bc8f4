"""Own orders inside heads and groups, refined from a traced symmetry.

A trace finds heads × dimensions with one order of dimensions for all heads. Often each head may
have its own. Where two groups fill one axis as adjacent factors (heads × dimensions, the groups of
a grouped convolution × the channels inside), the inner one is a candidate: its places become those
of a group of H·d units in H blocks. Whether the network allows it is decided numerically, by the
same check that every symmetry passes. A candidate that fails keeps its one order, and so does one
that could not be checked, because the outputs did not depend on it at what was tried.
"""

import re
import warnings
from collections.abc import Callable
from dataclasses import replace

from onebasin.symmetry.blocks import Blocks
from onebasin.symmetry.check import NotASymmetry, UncheckedWarning
from onebasin.symmetry.layout import Concat, Fixed, Layout, Product, Units
from onebasin.symmetry.symmetry import Symmetry


def with_own_orders(symmetry: Symmetry, holds: Callable[[Symmetry], None]) -> Symmetry:
    """The symmetry with every own order for which `holds` raises no `NotASymmetry`."""
    accepted: dict[str, str] = {}
    for outer, inners in candidates(symmetry).items():
        whole = dict.fromkeys(inners, outer)
        for trial in (whole, *({inner: outer} for inner in inners)):
            proposed = accepted | trial
            if set(proposed) == set(accepted):
                continue
            try:
                with warnings.catch_warnings():
                    # A traced group stands without the check; a candidate has nothing else.
                    for inner in trial:
                        told = rf"group '{re.escape(inner)}' could not be checked"
                        warnings.filterwarnings("error", told, UncheckedWarning)
                    holds(refined(symmetry, proposed))
            except (NotASymmetry, UncheckedWarning):
                continue
            accepted = proposed
    return refined(symmetry, accepted) if accepted else symmetry


def candidates(symmetry: Symmetry) -> dict[str, list[str]]:
    """For each outer group, the groups that occur only as the factor behind it."""
    behind: dict[str, set[str | None]] = {}

    def visit(layout: Layout, before: str | None) -> None:
        match layout:
            case Units(group, _):
                behind.setdefault(group, set()).add(before)
            case Product(parts):
                previous: str | None = None
                for part in parts:
                    visit(part, previous)
                    previous = part.group if isinstance(part, Units) else None
            case Concat(parts):
                for part in parts:
                    visit(part, None)
            case Fixed():
                pass

    for layouts in (symmetry.layouts, symmetry.state_layouts):
        for axes in layouts.values():
            for layout in axes:
                visit(layout, None)
    found: dict[str, list[str]] = {}
    for inner, outers in behind.items():
        (outer, *others) = outers
        if outer is not None and not others:
            found.setdefault(outer, []).append(inner)
    # A group that is inner and outer at once (three factors) keeps its place as an outer one.
    inner_ones = {inner for inners in found.values() for inner in inners}
    return {outer: inners for outer, inners in found.items() if outer not in inner_ones}


def refined(symmetry: Symmetry, accepted: dict[str, str]) -> Symmetry:
    """The symmetry with the accepted inner groups (inner → outer) in blocks of their own."""
    sizes = {group.name: group.size for group in symmetry.groups}

    def rebuild(layout: Layout) -> Layout:
        match layout:
            case Product(parts):
                new: list[Layout] = []
                for part in map(rebuild, parts):
                    last = new[-1] if new else None
                    inner = part.group if isinstance(part, Units) else None
                    if isinstance(last, Units) and accepted.get(inner or "") == last.group:
                        assert isinstance(part, Units)
                        new[-1] = Units(part.group, last.size * part.size)
                    else:
                        new.append(part)
                return new[0] if len(new) == 1 else Product(tuple(new))
            case Concat(parts):
                return Concat(tuple(map(rebuild, parts)))
            case _:
                return layout

    params, state = (
        {leaf: tuple(map(rebuild, axes)) for leaf, axes in layouts.items()}
        for layouts in (symmetry.layouts, symmetry.state_layouts)
    )
    plain = replace(symmetry, layouts=params, state_layouts=state)
    left = {group.name for group in plain.groups}
    blocks = {}
    for outer in dict.fromkeys(accepted.values()):
        members = [outer, *(inner for inner, its in accepted.items() if its == outer)]
        blocks |= {name: Blocks(outer, sizes[outer]) for name in members if name in left}
    return replace(plain, blocks=blocks)
