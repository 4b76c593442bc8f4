"""Record a network's hidden units on a batch, without hooks.

The jaxpr is evaluated again, and the arrays that carry a group's units are kept. After the
nonlinearity (`units`) these are the inputs of the layers that read the group; before it
(`pre_activations`) they are the outputs of a layer, with its gain and its shift. Arrays inside
loops cannot be recorded.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import jax
import numpy as np

from onebasin.networks import Apply
from onebasin.symmetry import axes as ax
from onebasin.symmetry.axes import Atom, Axis
from onebasin.symmetry.evaluating import Site, evaluate
from onebasin.symmetry.joints import undivided, views
from onebasin.symmetry.layout import Layout, occurrences
from onebasin.symmetry.rules import Value
from onebasin.symmetry.symmetry import Symmetry
from onebasin.symmetry.tracing import Traced, to_layout, trace_network
from onebasin.trees import PyTree


@dataclass(frozen=True)
class Layer:
    """A kernel that computes hidden units, with the gain and shift applied to them.

    `axis` is the kernel's axis of output channels. Gain and shift, if any, are leaves whose last
    axis has the same channels.
    """

    kernel: str
    axis: int
    gain: str | None
    shift: str | None


class Recorder:
    """Records the hidden units of one network on one batch, compiled once.

    >>> import jax.numpy as jnp
    >>> from onebasin.symmetry import find_symmetry
    >>> def apply(params, x):
    ...     return jnp.tanh(x @ params["w1"] + params["b1"]) @ params["w2"]
    >>> params = {"w1": jnp.ones((2, 3)), "b1": jnp.ones(3), "w2": jnp.ones((3, 1))}
    >>> x = jnp.ones((4, 2))
    >>> Recorder(apply, params, x, find_symmetry(apply, params, x)).units(params)["w1"].shape
    (3, 4)
    """

    def __init__(
        self,
        apply: Apply,
        params: PyTree,
        x: Any,
        symmetry: Symmetry,
        state: PyTree | None = None,
        *,
        complete: bool = True,
    ) -> None:
        """`complete` refuses groups that tracing does not find; without it they are `unseen`."""
        if any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in jax.tree.leaves(x)):
            raise ValueError("recording needs a batch of inputs, not only its shape; pass arrays")
        self.x, self.symmetry, self.has_state = x, symmetry, state is not None
        self.traced = trace_network(apply, params, x, state)
        self._names = atoms_of_groups(self.traced, symmetry, complete=complete)

    def units(self, params: PyTree, state: PyTree | None = None) -> dict[str, jax.Array]:
        """The units after the nonlinearity, [units, observations], of every group not `unseen`."""
        return self._units(params, self.x, self._checked(state))

    def pre_activations(self, params: PyTree, state: PyTree | None = None) -> list[jax.Array]:
        """The channels before the nonlinearity, [channels, observations], of each of `layers`."""
        return self._pre_activations(params, self.x, self._checked(state))

    def contributions(
        self, params: PyTree, x: Any, state: PyTree | None = None
    ) -> dict[str, jax.Array]:
        """The contribution of each unit to every output on a batch, to first order.

        It is z·∂f/∂z, summed over all entries of the array that belong to the unit,
        [units, outputs], for every group that is not `unseen`. In the last hidden layer it is
        exactly the unit's term in the output's sum. It is invariant under the scaling of
        homogeneous units (c on what computes the unit, 1/c on what reads it).
        """
        sources = self.sources()
        sites = [site for values in sources.values() for site in values]
        arrays = self.collect(sites, params, x, self._checked(state))
        operands = (params, x, state) if self.has_state else (params, x)

        def outputs(added: dict[Site, jax.Array]) -> jax.Array:
            leaves = jax.tree.leaves(operands)
            found = evaluate(self.traced.jaxpr, leaves, added=added)
            return jax.numpy.concatenate([out.reshape(-1) for out in found])

        zeros = {site: jax.numpy.zeros_like(arrays[site]) for site in sites}
        values, pullback = jax.vjp(outputs, zeros)
        (slopes,) = jax.vmap(pullback)(jax.numpy.eye(len(values), dtype=values.dtype))
        recorded = {}
        for name, own in sources.items():
            terms = []
            for site, value in own.items():
                rows_of = partial(self.rows, value=value, name=name)
                rows = jax.vmap(rows_of)(slopes[site] * arrays[site])
                terms.append(rows.sum(axis=2).T)
            recorded[name] = jax.numpy.concatenate(terms, axis=1)
        return recorded

    def _checked(self, state: PyTree | None) -> PyTree | None:
        if (state is not None) != self.has_state:
            needed = "needs" if self.has_state else "has no"
            raise ValueError(f"this network {needed} running statistics; pass state accordingly")
        return state

    @cached_property
    def layers(self) -> tuple[Layer, ...]:
        """The layers that compute hidden units, in the order in which they run."""
        return tuple(layer for layer, _ in self.layers_with_results)

    @cached_property
    def layers_with_results(self) -> list[tuple[Layer, Value]]:
        """Each of `layers` with the traced array of its channels after gain and shift."""
        found = []
        trace = self.traced.trace
        for number, contraction in enumerate(trace.contractions):
            if len(contraction.outputs) != 1 or contraction.result.site is None:
                continue
            (axis,) = contraction.outputs
            channels = self.traced.axes[contraction.kernel][axis]
            if isinstance(ax.settle(channels), ax.Digit) or not ax.atoms_in(channels):
                continue  # its outputs are not hidden units
            gain = shift = None
            result = contraction.result
            for event in trace.shifts:
                own = [undivided(a) for a in self.traced.axes[event.leaf][-1:]]
                recorded = event.layer == number and event.result.site is not None
                if not recorded or own != [ax.resolve(channels)]:
                    continue
                gain = event.leaf if event.kind == "multiply" else gain
                shift = event.leaf if event.kind == "add" else shift
                result = event.result
            found.append((Layer(contraction.kernel, axis, gain, shift), result))
        return found

    @cached_property
    def _units(self) -> Callable[..., dict[str, jax.Array]]:
        sources = self.sources()

        def run(params: PyTree, x: Any, state: PyTree) -> dict[str, jax.Array]:
            sites = [site for values in sources.values() for site in values]
            arrays = self.collect(sites, params, x, state)
            recorded = {}
            for name, values in sources.items():
                rows = [self.rows(arrays[site], v, name) for site, v in values.items()]
                recorded[name] = jax.numpy.concatenate(rows, axis=1)
            return recorded

        return jax.jit(run)

    def sources(self) -> dict[str, dict[Site, Value]]:
        """For each group, the arrays that carry its units into the layers that read them."""
        sources: dict[str, dict[Site, Value]] = {g.name: {} for g in self.symmetry.groups}
        for contraction in self.traced.trace.contractions:
            data = contraction.data
            if data.site is None:
                continue
            for atom in (atom for _, axis in views(data.axes) for atom in ax.atoms_in(axis)):
                if atom in self._names and self._reads(contraction.kernel, atom):
                    sources[self._names[atom]].setdefault(data.site, data)
        return {name: values for name, values in sources.items() if values}

    def factors(self) -> dict[str, dict[Site, Value]]:
        """For each group that no layer reads, the arrays of its units that are multiplied.

        They are those of queries and keys, whose products are all that depends on them.
        """
        found: dict[str, dict[Site, Value]] = {name: {} for name in self.unseen}
        for data in self.traced.trace.products:
            for atom in data.free_atoms():
                name = self._names.get(atom)
                if name in found and data.site is not None:
                    found[name].setdefault(data.site, data)
        return {name: values for name, values in found.items() if values}

    @cached_property
    def unseen(self) -> tuple[str, ...]:
        """Groups that cannot be recorded, because no layer outside a loop reads them.

        Examples are the dimensions inside attention queries and keys, and the state of a recurrent
        cell that only the cell itself reads.
        """
        seen = self.sources()
        return tuple(group.name for group in self.symmetry.groups if group.name not in seen)

    def _reads(self, kernel: str, atom: Atom) -> bool:
        roles = self.traced.trace.roles
        return any(
            atom in ax.atoms_in(axis) and "outgoing" in roles.get((kernel, i), ())
            for together, axis in views(self.traced.axes[kernel])
            for i in together
        )

    def groups_along(self, axis: Axis) -> tuple[str, ...]:
        """The groups whose units lie along a traced axis."""
        layout = to_layout(axis, self._names)
        return tuple(dict.fromkeys(name for name, _ in occurrences(layout)))

    def rows(self, array: jax.Array, value: Value, name: str) -> jax.Array:
        """One row for each unit of a group, from an array that carries them along some axis."""
        for together, node in views(value.axes):
            for group, positions in occurrences(to_layout(node, self._names)):
                if group == name:
                    moved = jax.numpy.moveaxis(array, together, range(len(together)))
                    moved = moved.reshape(node.size, -1)[positions.reshape(-1)]
                    return moved.reshape(len(positions), -1)
        raise AssertionError(f"the array chosen for group '{name}' does not carry its units")

    @cached_property
    def _pre_activations(self) -> Callable[..., list[jax.Array]]:
        found = self.layers_with_results

        def run(params: PyTree, x: Any, state: PyTree) -> list[jax.Array]:
            sites = [result.site for _, result in found if result.site is not None]
            arrays = self.collect(sites, params, x, state)
            rows = []
            for layer, result in found:
                channels = ax.resolve(self.traced.axes[layer.kernel][layer.axis])
                axis = [undivided(a) for a in result.axes].index(channels)
                array = jax.numpy.moveaxis(arrays[result.site], axis, 0)
                rows.append(array.reshape(array.shape[0], -1))
            return rows

        return jax.jit(run)

    def collect(
        self, sites: Sequence[Site], params: PyTree, x: Any, state: PyTree
    ) -> dict[Site | None, Any]:
        """The arrays at these sites of the trace, from one evaluation of the network."""
        operands = (params, x, state) if self.has_state else (params, x)
        found: dict[Site | None, Any] = {}
        evaluate(self.traced.jaxpr, jax.tree.leaves(operands), (), set(sites), found)
        return found


def record(
    apply: Apply, params: PyTree, x: Any, symmetry: Symmetry, *, state: PyTree | None = None
) -> dict[str, jax.Array]:
    """The units of every group after the nonlinearity, [units, observations], on a batch."""
    recorder = Recorder(apply, params, x, symmetry, state)
    if recorder.unseen:
        raise ValueError(
            f"the units of group '{recorder.unseen[0]}' cannot be recorded: no layer outside a "
            "loop reads them; align this network by its weights"
        )
    return recorder.units(params, state)


def atoms_of_groups(
    traced: Traced, symmetry: Symmetry, *, complete: bool = True
) -> dict[Atom, str]:
    """The group of each traced atom, for a symmetry that may have been written by hand.

    A group without an atom is refused if they are to be complete.
    """
    names: dict[Atom, str] = {}
    own = {atom: str(i) for i, atom in enumerate(traced.names())}
    by_name = {name: atom for atom, name in own.items()}
    for group in symmetry.groups:
        place = next(p for p in group.places if p.where == "params")
        node: Axis = traced.axes[place.leaf][place.axis]
        layout: Layout = to_layout(node, own)
        for name, positions in occurrences(layout):
            if np.array_equal(positions, place.positions):
                names[by_name[name]] = group.name
    missing = {g.name for g in symmetry.groups} - set(names.values())
    if missing and complete:
        raise ValueError(
            f"group '{min(missing)}' is not one that tracing this network finds; "
            "use the symmetry of find_symmetry"
        )
    return names
