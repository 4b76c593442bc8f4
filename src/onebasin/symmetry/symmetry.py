"""The permutation symmetries of a network: groups of axes that move together."""

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

import jax
import numpy as np

from onebasin.networks import NetworkLike, apply_of
from onebasin.posterior.protocol import Posterior
from onebasin.symmetry import permutation as perm
from onebasin.symmetry.action import move_tree
from onebasin.symmetry.check import Report, check
from onebasin.symmetry.groups import Group, Layouts, find_groups
from onebasin.symmetry.layout import Fixed, Layout, Product, Units
from onebasin.symmetry.permutation import Permutation
from onebasin.trees import PyTree, first_difference, shapes_by_path

T = TypeVar("T")


@dataclass(frozen=True)
class Symmetry:
    """The groups of a network and the layouts of every leaf, with the group's action.

    Made by `find_symmetry`, or by hand with `Symmetry.by_hand`.
    """

    layouts: Layouts
    state_layouts: Layouts = field(default_factory=dict)
    unused: tuple[str, ...] = ()
    """Leaves the network's output does not depend on; they are left out of every group."""
    roles: Mapping[tuple[str, int], str] = field(default_factory=dict)
    """What each axis (leaf, axis) of a parameter does, as far as the trace knows."""

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((frozenset(self.layouts.items()), frozenset(self.state_layouts.items())))

    @cached_property
    def groups(self) -> tuple[Group, ...]:
        """The groups in the order in which their first place appears in the layouts."""
        return find_groups(self.layouts, self.state_layouts, self.roles)

    def __getitem__(self, name: str) -> Group:
        for group in self.groups:
            if group.name == name:
                return group
        raise KeyError(f"no group '{name}'; there are {[g.name for g in self.groups]}")

    @classmethod
    def by_hand(
        cls, params: PyTree, groups: Mapping[str, Sequence[tuple[Any, ...]]], state: PyTree = None
    ) -> "Symmetry":
        """A symmetry written by hand: for each group its places (leaf, axis).

        A third entry (before, after) says that the axis is before × units × after in
        row-major order, e.g. `("Dense_0/kernel", 0, (49, 1))` for a flattened 7×7×C.
        A leaf of the running statistics is named `state:leaf`.

        >>> import jax.numpy as jnp
        >>> params = {"w1": jnp.ones((2, 3)), "w2": jnp.ones((3, 1))}
        >>> Symmetry.by_hand(params, {"hidden": [("w1", 1), ("w2", 0)]}).groups[0].size
        3
        """
        shapes = {"": shapes_by_path(params), "state:": shapes_by_path(state)}
        layouts: dict[str, dict[str, list[Layout]]] = {
            where: {leaf: [Fixed(n) for n in shape] for leaf, shape in leaves.items()}
            for where, leaves in shapes.items()
        }
        for name, places in groups.items():
            for leaf, axis, before, after in map(_read_place, _listed(name, places)):
                where = "state:" if leaf.startswith("state:") else ""
                leaf = leaf.removeprefix("state:")
                if leaf not in shapes[where]:
                    raise ValueError(f"group '{name}' names leaf '{leaf}', which is not there")
                shape = shapes[where][leaf]
                if not 0 <= axis < len(shape):
                    raise ValueError(
                        f"group '{name}' names axis {axis} of '{leaf}', which has shape {shape}"
                    )
                size, rest = divmod(shape[axis], before * after)
                if rest:
                    raise ValueError(
                        f"group '{name}' splits axis {axis} of '{leaf}' ({shape[axis]} long) into "
                        f"{before} × units × {after}, which does not divide it"
                    )
                if isinstance(layouts[where][leaf][axis], Units | Product):
                    raise ValueError(f"axis {axis} of '{leaf}' is named by two groups")
                parts = (Fixed(before), Units(name, size), Fixed(after))
                kept = tuple(p for p in parts if p.size > 1 or isinstance(p, Units))
                layouts[where][leaf][axis] = kept[0] if len(kept) == 1 else Product(kept)
        frozen = {
            where: {leaf: tuple(axes) for leaf, axes in leaves.items()}
            for where, leaves in layouts.items()
        }
        symmetry = cls(_used_first(frozen[""], groups), frozen["state:"])
        symmetry.groups  # noqa: B018  # sizes that disagree are an error now, not later
        return symmetry

    # The group itself.

    def identity(self) -> Permutation:
        return self._identity

    @cached_property
    def _identity(self) -> Permutation:
        return Permutation({group.name: np.arange(group.size) for group in self.groups})

    def random(
        self, *, key: jax.Array, transpositions: int | Mapping[str, int] | None = None
    ) -> Permutation:
        """A random permutation of every group; uniform unless `transpositions` is given.

        `transpositions` is the exact NoT of every group (one number, or one by name).
        """
        seed = np.asarray(jax.random.key_data(key)).ravel().tolist()
        indices = {}
        counts: Mapping[str, Any] = (
            transpositions
            if isinstance(transpositions, Mapping)
            else {group.name: transpositions for group in self.groups}
        )
        for name in counts:
            self[name]  # an unknown group is an error
        for i, group in enumerate(self.groups):
            rng = np.random.default_rng([*seed, i])
            if transpositions is None:
                indices[group.name] = rng.permutation(group.size)
                continue
            try:
                count = operator.index(counts.get(group.name, 0))
                indices[group.name] = perm.with_transpositions(group.size, count, rng)
            except ValueError as error:
                raise ValueError(f"group '{group.name}': {error}") from None
        return Permutation(indices)

    def compose(self, p: Permutation, q: Permutation) -> Permutation:
        """The permutation that moves by q first and by p after."""
        return perm.compose(self.check_permutation(p), self.check_permutation(q))

    def inverse(self, p: Permutation) -> Permutation:
        return perm.inverse(self.check_permutation(p))

    def act(self, permutation: Permutation, target: T) -> T:
        """Move params or any posterior: new[i] = old[p[i]] along every place of every group.

        A stacked permutation moves each draw of `Samples` by its own.
        """
        if not isinstance(permutation, Permutation):
            raise ValueError(f"act needs a Permutation, got a {type(permutation).__name__}")
        indices = self.check_permutation(permutation).indices
        if not isinstance(target, Posterior):
            self.check_shapes(target)
            return move_tree(target, 0, self.layouts, indices)
        self.check_shapes(target.like)
        return target.relabel(
            lambda tree, lead: move_tree(tree, lead, self.layouts, indices),
            lambda tree, lead: move_tree(tree, lead, self.state_layouts, indices),
        )

    def act_on_state(self, permutation: Permutation, state: PyTree) -> PyTree:
        """Move running statistics along with the units they belong to."""
        return move_tree(state, 0, self.state_layouts, self.check_permutation(permutation).indices)

    def check(
        self,
        network: NetworkLike,
        params: PyTree,
        x: Any,
        *,
        key: jax.Array,
        state: PyTree | None = None,
        every_place: bool = True,
    ) -> Report:
        """Show on numbers that every group is a symmetry of the network; an error if one is not.

        With `every_place` each place of a group is left out once, to see the outputs change;
        without it one place of each group is enough.
        """
        self.check_shapes(params)
        layouts = (self.layouts, self.state_layouts)
        apply = apply_of(network)
        return check(
            self.groups, layouts, apply, params, x, key=key, state=state, every_place=every_place
        )

    def check_permutation(self, p: Permutation) -> Permutation:
        """The permutation, or an error if it is not one of this symmetry's groups."""
        sizes = {group.name: group.size for group in self.groups}
        given = {name: p[name].shape[-1] for name in p.names}
        if sizes != given:
            wrong = sorted(set(sizes.items()) ^ set(given.items()))[0][0]
            raise ValueError(
                f"the permutation does not belong to this symmetry: group '{wrong}' has "
                f"{given.get(wrong, 'no')} units where {sizes.get(wrong, 'no')} are expected"
            )
        return p

    @cached_property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """The shape of every leaf of the params."""
        return {leaf: tuple(axis.size for axis in axes) for leaf, axes in self.layouts.items()}

    def check_shapes(self, params: PyTree) -> None:
        """An error that names the leaf if these are not the params of this symmetry."""
        difference = first_difference(self.shapes, shapes_by_path(params))
        if difference:
            raise ValueError(f"the params are not those of this symmetry: {difference}")

    # Reading it.

    def table(self) -> str:
        """The groups as text: name, size and where each sits."""
        if not self.groups:
            return "no permutation symmetry"
        rows = [
            (group.name, str(group.size), ", ".join(map(str, group.places)))
            for group in self.groups
        ]
        wide = max(len("group"), *(len(name) for name, _, _ in rows))
        lines = [f"{'group':<{wide}}  {'size':>5}  where it sits"]
        lines += [f"{name:<{wide}}  {size:>5}  {places}" for name, size, places in rows]
        if self.unused:
            lines.append(f"left out, the output does not depend on: {', '.join(self.unused)}")
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.table()

    def __repr__(self) -> str:
        sizes = ", ".join(f"{group.name}: {group.size}" for group in self.groups)
        return f"Symmetry({len(self.groups)} groups; {sizes})"


def _listed(name: str, places: Any) -> Sequence[Any]:
    if isinstance(places, str) or not isinstance(places, Sequence) or not places:
        raise ValueError(f"group '{name}' needs a list of places, each (leaf, axis)")
    return [(name, place) for place in places]


def _read_place(named: tuple[str, Any]) -> tuple[str, int, int, int]:
    """(leaf, axis) or (leaf, axis, (before, after)), or an error that says so."""
    name, place = named
    match place:
        case (str(leaf), int(axis)):
            return leaf, axis, 1, 1
        case (str(leaf), int(axis), (int(before), int(after))) if before > 0 and after > 0:
            return leaf, axis, before, after
    raise ValueError(
        f"group '{name}' has the place {place!r}, which is neither (leaf, axis) nor "
        "(leaf, axis, (before, after)) with whole numbers above zero"
    )


def _used_first(layouts: Layouts, groups: Mapping[str, Any]) -> Layouts:
    """Leaves in the order in which the groups name them, so that groups keep their order."""
    named = [leaf for places in groups.values() for leaf, *_ in places if leaf in layouts]
    order = dict.fromkeys([*named, *layouts])
    return {leaf: layouts[leaf] for leaf in order}
