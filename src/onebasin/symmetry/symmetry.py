"""The permutation symmetries of a network: groups of axes that are permuted together."""

import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from html import escape
from pathlib import Path
from typing import Any, TypeAlias, TypeVar, overload

import jax
import numpy as np

from onebasin.networks import NetworkLike, apply_of
from onebasin.pickling import PickledByFields
from onebasin.posterior.protocol import Posterior
from onebasin.symmetry import canonical as folding
from onebasin.symmetry import written
from onebasin.symmetry.action import move_tree
from onebasin.symmetry.blocks import BlocksByGroup, check_blocks, families, random_order
from onebasin.symmetry.check import Report, check
from onebasin.symmetry.find_kinds import check_mixings, random_element
from onebasin.symmetry.groups import Group, Roles, find_groups
from onebasin.symmetry.kinds import Mixing, Mixings
from onebasin.symmetry.layout import Fixed, Layout, Layouts, Product, Units
from onebasin.symmetry.linear_action import leaf_actions, multiplied_posterior
from onebasin.symmetry.permutation import Permutation, compose, inverse, with_transpositions
from onebasin.symmetry.transform import Transform, composed, inverted
from onebasin.symmetry.trial import trials
from onebasin.tensor_files import Pathlike, check_new
from onebasin.trees import PyTree, first_difference, shapes_by_path

T = TypeVar("T")
PlaceLike: TypeAlias = tuple[str, int] | tuple[str, int, tuple[int, int]]


@dataclass(frozen=True)
class Symmetry(PickledByFields):
    """The group of permutations of hidden units that leave a network's function unchanged.

    `find_symmetry` finds it; `Symmetry.by_hand` takes one that you write down. It is the direct
    product of the symmetric groups of its `groups`, and it acts on params and on posteriors.

    >>> import jax, jax.numpy as jnp
    >>> params = {"w1": jnp.array([[1.0, 2.0, 3.0]]), "w2": jnp.ones((3, 1))}
    >>> symmetry = Symmetry.by_hand(params, {"hidden": [("w1", 1), ("w2", 0)]})
    >>> symmetry
    group    size  places
    hidden      3  w1[1], w2[0]
    >>> symmetry.act(Permutation({"hidden": np.array([2, 0, 1])}), params)["w1"].tolist()
    [[3.0, 1.0, 2.0]]
    >>> p = symmetry.random(key=jax.random.key(0))
    >>> symmetry.compose(p, symmetry.inverse(p)) == symmetry.identity()
    True
    """

    layouts: Layouts
    """How the units are arranged along every axis of every leaf of the params."""
    state_layouts: Layouts = field(default_factory=dict)
    """The same for the running statistics."""
    unused: tuple[str, ...] = ()
    """Leaves, or slices of them (`position[16:64]`), that the network's output does not depend on;
    no group has a place there. Those of the running statistics begin with `state:`."""
    roles: Roles = field(default_factory=dict)
    """The role of each axis (leaf, axis) of a parameter, as far as the trace knows it."""
    blocks: BlocksByGroup = field(default_factory=dict)
    """Groups whose units move in blocks, such as the dimensions of heads that each have their own
    order (`find_symmetry(..., own_orders=True)`), with the family whose blocks move alike."""
    mixings: Mixings = field(default_factory=dict)
    """Signs, scales and matrices of the groups that have them (`find_symmetry(kinds="all")`)."""

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((frozenset(self.layouts.items()), frozenset(self.state_layouts.items())))

    @cached_property
    def groups(self) -> tuple[Group, ...]:
        """The groups, in the order of their first places in the layouts."""
        found = find_groups(self.layouts, self.state_layouts, self.roles)
        plain = Mixing()
        return tuple(replace(g, kind=self.mixings.get(g.name, plain).kind) for g in found)

    @cached_property
    def permutations(self) -> "Symmetry":
        """The same groups with permutations only."""
        return replace(self, mixings={})

    def __getitem__(self, name: str) -> Group:
        for group in self.groups:
            if group.name == name:
                return group
        raise KeyError(f"no group '{name}'; there are {[g.name for g in self.groups]}")

    @classmethod
    def by_hand(
        cls, params: PyTree, groups: Mapping[str, Sequence[PlaceLike]], state: PyTree | None = None
    ) -> "Symmetry":
        """A symmetry written by hand; verify it with `check`.

        Args:
          params: the network's params; only their shapes matter.
          groups: the places of each group, by its name. A place is (leaf, axis), or
            (leaf, axis, (before, after)) for an axis of before × units × after positions in
            row-major order: `("Dense_0/kernel", 0, (49, 1))` for a flattened 7×7×C. A leaf of
            the running statistics is named `state:leaf`.
          state: the running statistics, if the network has any.
        """
        layouts: dict[str, dict[str, list[Layout]]] = {
            where: {leaf: [Fixed(n) for n in shape] for leaf, shape in shapes_by_path(tree).items()}
            for where, tree in (("params", params), ("state", state))
        }
        for name, places in groups.items():
            for leaf, axis, before, after in _read_places(name, places):
                where = "state" if leaf.startswith("state:") else "params"
                leaf = leaf.removeprefix("state:")
                if leaf not in layouts[where]:
                    raise ValueError(
                        f"group '{name}' names leaf '{leaf}', which does not exist; give a key path"
                    )
                axes = layouts[where][leaf]
                shape = tuple(layout.size for layout in axes)
                if not 0 <= axis < len(shape):
                    raise ValueError(
                        f"group '{name}' names axis {axis} of '{leaf}', which has shape {shape}; "
                        "count axes from 0"
                    )
                size, rest = divmod(shape[axis], before * after)
                if rest:
                    raise ValueError(
                        f"group '{name}' splits axis {axis} of '{leaf}' ({shape[axis]} long) into "
                        f"{before} × units × {after}, which does not divide it; "
                        "give factors of its length"
                    )
                if not isinstance(axes[axis], Fixed):
                    raise ValueError(
                        f"axis {axis} of '{leaf}' is named by two groups, the second being "
                        f"'{name}'; name it in one, once"
                    )
                parts = (Fixed(before), Units(name, size), Fixed(after))
                kept = tuple(p for p in parts if p.size > 1 or isinstance(p, Units))
                axes[axis] = kept[0] if len(kept) == 1 else Product(kept)
        frozen, state_layouts = (
            {leaf: tuple(axes) for leaf, axes in leaves.items()} for leaves in layouts.values()
        )
        # Leaves in the order in which the groups name them, so that the groups keep their order.
        order = [*(leaf for places in groups.values() for leaf, *_ in places), *frozen]
        symmetry = cls({leaf: frozen[leaf] for leaf in order if leaf in frozen}, state_layouts)
        symmetry.groups  # noqa: B018  # sizes that disagree are an error now, not later
        return symmetry

    def save(self, path: Pathlike, *, overwrite: bool = False) -> Path:
        """Write the symmetry to a JSON file, which is read and edited without the network
        (remove its entry `digest` then).

        Args:
          path: the file to write.
          overwrite: replace an existing file.

        >>> import tempfile
        >>> symmetry = Symmetry.by_hand({"w1": np.ones((2, 3)), "w2": np.ones((3, 1))},
        ...                             {"hidden": [("w1", 1), ("w2", 0)]})
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     Symmetry.load(symmetry.save(f"{folder}/symmetry.json")) == symmetry
        True
        """
        path = check_new(path, overwrite=overwrite)
        content = written.describe(
            self.layouts, self.state_layouts, self.unused, self.roles, self.blocks, self.mixings
        )
        written.write(path, content)
        return path

    @classmethod
    def load(cls, path: Pathlike) -> "Symmetry":
        """Read a symmetry from a JSON file, saved or written by hand; verify one with `check`.

        Args:
          path: a file that lists the axes of every leaf ([how](../own-network.md)).
        """
        try:
            symmetry = cls(*written.rebuild(written.read(Path(path))))
            symmetry.groups  # noqa: B018  # sizes that disagree are an error now, not later
        except ValueError as error:
            text = str(error)
            raise written.SymmetryFileError(
                text if text.startswith(str(path)) else f"{path}: {text}"
            ) from None
        return symmetry

    def identity(self) -> Permutation:
        """The permutation that moves nothing."""
        return self._identity

    @cached_property
    def _identity(self) -> Permutation:
        return Permutation({group.name: np.arange(group.size) for group in self.groups})

    def random(
        self, *, key: jax.Array, transpositions: int | Mapping[str, int] | None = None
    ) -> Permutation:
        """A random permutation of every group; uniform unless `transpositions` is given.

        Args:
          key: a JAX random key.
          transpositions: the exact number of transpositions of every group, as one number or by
            group name; groups that are not named stay in place.
        """
        seed = np.asarray(jax.random.key_data(key)).ravel().tolist()
        by_name = isinstance(transpositions, Mapping)
        for name in transpositions if by_name else ():
            self[name]  # an unknown group is an error
        indices = {}
        outers: dict[str, np.ndarray] = {}
        for i, group in enumerate(self.groups):
            rng = np.random.default_rng([*seed, i])
            if group.name in self.blocks:
                own = self.blocks[group.name]
                if transpositions is not None:
                    raise ValueError(
                        f"the units of group '{group.name}' move in blocks, so no number of "
                        "transpositions can be prescribed; leave transpositions out"
                    )
                if own.family not in outers:
                    outers[own.family] = rng.permutation(own.count)
                indices[group.name] = random_order(group.size, own.count, outers[own.family], rng)
                continue
            if transpositions is None:
                indices[group.name] = rng.permutation(group.size)
                continue
            count = transpositions.get(group.name, 0) if by_name else transpositions
            try:
                indices[group.name] = with_transpositions(group.size, operator.index(count), rng)
            except ValueError as error:
                raise ValueError(f"group '{group.name}': {error}") from None
        return Permutation(indices)

    def random_transform(self, *, key: jax.Array) -> Transform:
        """A random permutation with random signs, scales and matrices, where groups have them."""
        rng = np.random.default_rng(np.asarray(jax.random.key_data(key)).ravel().tolist())
        return random_element(self, self.mixings, rng, self.random(key=key))

    def as_transform(self, p: Permutation | Transform) -> Transform:
        """The permutation as a transform, with all signs and scales one."""
        if isinstance(p, Transform):
            self.check_transform(p)
            return p
        plain = {name: np.ones(self[name].size) for name in self.mixings}
        return Transform(
            self.check_permutation(p),
            {name: plain[name] for name, own in self.mixings.items() if own.signs is not None},
            {
                name: np.tile(plain[name], (len(own.scales), 1))
                for name, own in self.mixings.items()
                if own.scales
            },
            {
                name: np.tile(np.eye(len(plain[name]) // count), (count, 1, 1))
                for name, own in self.mixings.items()
                if own.matrices is not None
                for count in [self.blocks[name].count if name in self.blocks else 1]
            },
        )

    @overload
    def compose(self, p: Permutation, q: Permutation) -> Permutation: ...
    @overload
    def compose(self, p: Transform, q: Permutation | Transform) -> Transform: ...
    @overload
    def compose(self, p: Permutation, q: Transform) -> Transform: ...
    def compose(
        self, p: Permutation | Transform, q: Permutation | Transform
    ) -> Permutation | Transform:
        """The permutation (or transform) p ∘ q, which moves by q first and then by p."""
        if isinstance(p, Permutation) and isinstance(q, Permutation):
            return compose(self.check_permutation(p), self.check_permutation(q))
        return composed(self.as_transform(p), self.as_transform(q))

    @overload
    def inverse(self, p: Permutation) -> Permutation: ...
    @overload
    def inverse(self, p: Transform) -> Transform: ...
    def inverse(self, p: Permutation | Transform) -> Permutation | Transform:
        """The permutation (or transform) that undoes p."""
        if isinstance(p, Permutation):
            return inverse(self.check_permutation(p))
        return inverted(self.as_transform(p))

    def canonical(self, target: T) -> T:
        """Params or a posterior with the same function and the gains of orthogonal groups one.

        Each such gain is multiplied into the kernels that read it. Nothing changes without
        orthogonal groups that gains act on.
        """
        return folding.canonical(self, target)

    def act(self, permutation: Permutation | Transform, target: T) -> T:
        """Permute params or any posterior: new[i] = old[p[i]] along every place of every group.

        A stacked permutation moves each draw of `Samples` by its own row. Memory-mapped draws stay
        in their file: they are moved when they are read, for example by `save`, block by block.

        A `Transform` multiplies by signs, scales and matrices as well. Params and `Samples` move
        exactly, and so does a `MeanField` by signs and scales. A matrix makes independent weights
        dependent: their means are exact, σ are the marginal ones, and covariances are dropped.
        """
        if isinstance(permutation, Transform):
            transform = self.as_transform(permutation)
            mixed = {
                name for name, a in transform.matrices.items() if (a != np.eye(a.shape[1])).any()
            }
            folding.check_folded(self, target, mixed)
            moved = self.act(transform.permutation, target)
            actions = leaf_actions(transform, self.groups, self.mixings, dict(self.shapes))
            return multiplied_posterior(moved, actions)
        if not isinstance(permutation, Permutation):
            raise ValueError(f"a {type(permutation).__name__} cannot act; give a Permutation")
        indices = self.check_permutation(permutation).indices
        if not isinstance(target, Posterior):
            self.check_shapes(target)
            return move_tree(target, 0, self.layouts, indices)
        self.check_shapes(target.like)
        return target.relabel(
            lambda tree, lead: move_tree(
                tree, lead, self.layouts, indices, draws_stay_in_file=True
            ),
            lambda tree, lead: move_tree(tree, lead, self.state_layouts, indices),
        )

    def act_on_state(self, permutation: Permutation, state: PyTree) -> PyTree:
        """Permute running statistics along with the units they belong to."""
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
        """Check numerically that every group is a symmetry of the network.

        The parameters are randomised and the groups permuted, alone and together; the outputs
        must not change. As a control, a place is left out, and the outputs must change.

        Args:
          network: `apply(params, x)`, a `Network` or a `Problem`.
          params: the network's params; those tried are randomised around them.
          x: a batch of inputs.
          key: a JAX random key.
          state: the running statistics, if the network has any.
          every_place: leave out every place in turn, not just one of each group.

        Raises:
          NotASymmetry: names the first group that changes the outputs.
        """
        self.check_shapes(params)
        layouts = (self.layouts, self.state_layouts)
        apply = apply_of(network)
        groups, blocks = self.groups, self.blocks
        report = check(groups, layouts, blocks, apply, params, x, state, key, every_place)
        if not self.mixings:
            return report
        with jax.numpy_dtype_promotion("standard"):
            return replace(report, mixed=check_mixings(self, trials(apply, params, x, state, key)))

    def check_permutation(self, p: Permutation) -> Permutation:
        """The permutation itself, or an error if its groups are not those of this symmetry."""
        sizes = {group.name: group.size for group in self.groups}
        given = {name: p[name].shape[-1] for name in p.names}
        if sizes != given:
            wrong = sorted(set(sizes.items()) ^ set(given.items()))[0][0]
            raise ValueError(
                f"the permutation does not belong to this symmetry: group '{wrong}' has "
                f"{given.get(wrong, 'no')} units where {sizes.get(wrong, 'no')} are expected; take "
                "one found with this symmetry"
            )
        check_blocks(p.indices, self.blocks)
        return p

    def check_transform(self, p: Transform) -> None:
        """Raise an error if the transform is none of this symmetry."""
        self.check_permutation(p.permutation)
        for name, group in ((g.name, g) for g in self.groups):
            mixing = self.mixings.get(name, Mixing())
            fits = (name in p.signs) == (mixing.signs is not None)
            fits &= (name in p.matrices) == (mixing.matrices is not None)
            fits &= p.scales.get(name, np.ones((0, 0))).shape[0] == len(mixing.scales)
            if not fits:
                raise ValueError(
                    f"the transform does not belong to this symmetry, whose group '{name}' is "
                    f"{group.kind}; take one found with this symmetry"
                )

    @cached_property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """The shape of every leaf of the params."""
        return {leaf: tuple(axis.size for axis in axes) for leaf, axes in self.layouts.items()}

    def check_shapes(self, params: PyTree) -> None:
        """Raise an error that names the leaf if these are not the params of this symmetry."""
        difference = first_difference(self.shapes, shapes_by_path(params))
        if difference:
            raise ValueError(
                f"the params are not those of this symmetry: {difference}; find the "
                "symmetry of their network"
            )

    def table(self) -> str:
        """The groups as text: name, size and places."""
        if not self.groups:
            return "no permutation symmetry"
        rows = [self._heads(), *self._rows()]
        wide = max(len(name) for name, *_ in rows)
        kinds = max(len(kind) for *_, kind, _ in rows)
        lines = [
            f"{name:<{wide}}  {size:>5}  {f'{kind:<{kinds}}  ' * bool(self.mixings)}{places}"
            for name, size, kind, places in rows
        ]
        for family, names in families(self.blocks).items():
            count = self.blocks[names[0]].count
            lines.append(f"{', '.join(names)}: {count} blocks of '{family}', each in its own order")
        if self.unused:
            lines.append(f"unused, the output does not depend on: {', '.join(self.unused)}")
        return "\n".join(lines)

    __repr__ = __str__ = table

    def _repr_html_(self) -> str:
        def line(cells: tuple[str, ...], tag: str) -> str:
            shown = cells if self.mixings else (*cells[:2], cells[3])
            return f"<tr>{''.join(f'<{tag}>{escape(cell)}</{tag}>' for cell in shown)}</tr>"

        body = "".join(line(row, "td") for row in self._rows())
        return f"<table>{line(self._heads(), 'th')}{body}</table>"

    @staticmethod
    def _heads() -> tuple[str, str, str, str]:
        return "group", "size", "kind", "places"

    def _rows(self) -> list[tuple[str, str, str, str]]:
        return [(g.name, str(g.size), g.kind, ", ".join(map(str, g.places))) for g in self.groups]


def _read_places(name: str, places: object) -> Iterator[tuple[str, int, int, int]]:
    """Each place as (leaf, axis, before, after), or an error that quotes it."""
    if isinstance(places, str) or not isinstance(places, Sequence) or not places:
        raise ValueError(
            f"group '{name}' has the places {places!r:.40}; list them, each as (leaf, axis)"
        )
    for place in places:
        match place:
            case (str(leaf), int(axis)):
                yield leaf, axis, 1, 1
            case (str(leaf), int(axis), (int(before), int(after))) if before > 0 and after > 0:
                yield leaf, axis, before, after
            case _:
                raise ValueError(
                    f"group '{name}' has the place {place!r}; write (leaf, axis) or "
                    "(leaf, axis, (before, after)) with positive integers"
                )
