"""Find the permutation symmetries of a network by following its axes through its jaxpr."""

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core
from jax.interpreters import partial_eval

from onebasin.networks import Apply, Network, NetworkLike, apply_of
from onebasin.problem import Problem
from onebasin.symmetry import axes as ax
from onebasin.symmetry import layout as lay
from onebasin.symmetry import rules_indexing, rules_linear, rules_shape  # noqa: F401
from onebasin.symmetry.axes import Atom, Axis
from onebasin.symmetry.find_kinds import find_mixings
from onebasin.symmetry.groups import Kind, Role
from onebasin.symmetry.kinds import KINDS
from onebasin.symmetry.own_orders import with_own_orders
from onebasin.symmetry.rules import CALLS, LOOPS, Trace, Value, fix_whole
from onebasin.symmetry.rules_control import run
from onebasin.symmetry.symmetry import Symmetry
from onebasin.symmetry.trial import trials
from onebasin.trees import PyTree, leaves_by_path

KindsLike: TypeAlias = Literal["all"] | Kind | Sequence[Kind]
OWN_ORDER_CHECKS = 4  # each at two settings of the parameters
STATE = "\0state:"  # prefix of the key paths of running statistics while tracing


SELECT = ("slice", "split", "unstack", "debug_callback", "debug_print")  # read nothing they drop


class NoRuleWarning(UserWarning):
    """A primitive without a tracing rule kept some axes from being permuted."""


class NoiseWarning(UserWarning):
    """Random numbers drawn in the forward pass kept some axes from being permuted."""


def find_symmetry(
    network: NetworkLike,
    params: PyTree | None = None,
    x: Any = None,
    *,
    state: PyTree | None = None,
    check: bool = True,
    own_orders: bool | None = None,
    kinds: KindsLike = "permutation",
) -> Symmetry:
    """The permutations of hidden units that leave a network's function unchanged.

    The network is traced to a jaxpr, and every axis of every array is followed through it. Groups
    are named after the first layer that computes their units. The result is checked numerically
    before it is returned.

    Args:
      network: `apply(params, x)`, or `apply(params, x, state)` with running statistics; a
        `Network`, which has its params and state; or a `Problem`, which has its inputs too. So has
        a `Network` of `networks.from_torch`.
      params: the network's params; their shapes (`jax.ShapeDtypeStruct`) are enough.
      x: a batch of inputs, or its shape.
      state: the running statistics, if the network has any.
      check: check the result numerically (see `Symmetry.check`).
      own_orders: give each attention head its own order of dimensions, and each group of a grouped
        convolution or GroupNorm its own order of channels, where these share an axis and the
        numerical check confirms it; otherwise all heads share one. `align` with an objective on
        weights and `align_many` support it. By default only with `kinds`.
      kinds: what to look for besides permutations: "all", or some of "signed", "scaled",
        "monomial", "orthogonal" and "invertible" (see `Group.kind`). Each is confirmed on numbers.
        `align` with "w2" or "l2" uses them.

    Raises:
      NotASymmetry: the check fails or is inconclusive.

    >>> import jax.numpy as jnp
    >>> def apply(params, x):
    ...     return jnp.tanh(x @ params["w1"] + params["b1"]) @ params["w2"]
    >>> params = {"w1": jnp.ones((2, 3)), "b1": jnp.ones(3), "w2": jnp.ones((3, 1))}
    >>> find_symmetry(apply, params, jnp.ones((4, 2)))
    group   size  places
    w1         3  w1[1], b1[0], w2[0]
    """
    apply = apply_of(network)
    if params is None and isinstance(network, Network):
        params, state = network.params, network.state
        x = network.example if x is None else x
    if isinstance(network, Problem):
        params = network.shapes if params is None else params
        x = network.x[:2] if x is None else x
        state = network.state if state is None else state
    if params is None or x is None:
        raise ValueError(
            "the params or the inputs of the network are missing; give find_symmetry both, as "
            "find_symmetry(network, params, x)"
        )
    traced = trace_network(apply, params, x, state)
    if traced.trace.unknown:
        names = ", ".join(sorted(traced.trace.unknown))
        warnings.warn(
            f"no tracing rule for {names}: the axes of its operands stay fixed, which can miss "
            "symmetries but gives no wrong ones",
            NoRuleWarning,
            stacklevel=2,
        )
    if traced.trace.pinned_by_noise:
        warnings.warn(
            "random numbers drawn in the forward pass hold some units in place, because unit i "
            "always gets number i; trace the network without them, e.g. with dropout switched off",
            NoiseWarning,
            stacklevel=2,
        )
    symmetry = traced.symmetry()
    wanted = _checked_kinds(kinds)
    own_orders = bool(wanted) if own_orders is None else own_orders
    if wanted and not check:
        raise ValueError("kinds are confirmed by the check; leave out check=False")
    if own_orders and not check:
        raise ValueError("own orders are confirmed by the check; leave out check=False")
    key = jax.random.key(0)  # the result does not depend on it, only the values tried

    def confirm(found: Symmetry) -> None:
        found.check(apply, params, x, state=state, key=key, every_place=False)

    if check and symmetry.groups:
        confirm(symmetry)

    def confirm_often(found: Symmetry) -> None:
        # What the trace does not prove may fail only where a maximum or a gate falls otherwise.
        for one in jax.random.split(key, OWN_ORDER_CHECKS):
            found.check(apply, params, x, state=state, key=one, every_place=False)

    if own_orders:
        symmetry = with_own_orders(symmetry, confirm_often)
    if not wanted or not symmetry.groups:
        return symmetry
    with jax.numpy_dtype_promotion("standard"):
        tried = trials(apply, params, x, state)
        return replace(symmetry, mixings=find_mixings(symmetry, tried, wanted))


def _checked_kinds(kinds: "KindsLike") -> tuple[Kind, ...]:
    if kinds == "all":
        return KINDS[1:]
    given = (kinds,) if isinstance(kinds, str) else tuple(kinds)
    for kind in given:
        if kind not in KINDS:
            raise ValueError(f"there is no kind '{kind}'; use all, or some of {', '.join(KINDS)}")
    return tuple(kind for kind in given if kind != "permutation")


@dataclass(frozen=True)
class Traced:
    """A network's jaxpr, and what is known of every axis of its parameters."""

    jaxpr: core.ClosedJaxpr
    trace: Trace
    axes: dict[str, tuple[Axis, ...]]
    unused: tuple[str, ...]

    @cached_property
    def read(self) -> set[Atom]:
        """The free atoms that are read: summed over, contracted or sorted, not cut away unused.

        All axes of the outputs are fixed. So an atom that is read disappears in some equation, and
        the units of one that disappears in slices alone do not enter the outputs. They would for
        other inputs, e.g. longer ones, and then their order may matter.
        """
        found: set[Atom] = set()
        for name, operands, results in self.trace.steps:
            if name not in SELECT and name not in CALLS and name not in LOOPS:
                left = {atom for value in results for atom in value.free_atoms()}
                found |= {atom for value in operands for atom in value.free_atoms()} - left
        return found

    def unread(self) -> Iterator[str]:
        """The parts of leaves that are cut away unused, written as slices."""
        for leaf, axes in self.axes.items():
            if leaf in self.unused:
                continue
            for axis, node in enumerate(axes):
                names = {a: "" for a in ax.atoms_in(node) if a not in self.read}
                cut_away = [p.reshape(-1) for _, p in lay.occurrences(to_layout(node, names))]
                for run_ in _runs(np.unique(np.concatenate(cut_away))) if cut_away else ():
                    before = ":, " * axis
                    yield f"{_shown(leaf)}[{before}{run_.start}:{run_.stop}]"

    def names(self) -> dict[Atom, str]:
        """A name for every free atom: the first layer that does more than read its units."""
        order = dict.fromkeys([*self.trace.first_use, *self.axes])
        places: dict[Atom, list[tuple[str, int]]] = {}
        for leaf in order:
            if leaf in self.unused or leaf.startswith(STATE):
                continue
            for axis, node in enumerate(self.axes[leaf]):
                for atom in filter(self.read.__contains__, ax.atoms_in(node)):
                    places.setdefault(atom, []).append((leaf, axis))
        names: dict[Atom, str] = {}
        for atom, found in places.items():
            not_read = [p for p in found if "outgoing" not in self.trace.roles.get(p, ())]
            leaf = (not_read or found)[0][0]
            layer = _layer_of(leaf)
            candidates = [layer, *(f"{layer}.{i}" for i in range(2, len(places) + 2))]
            names[atom] = next(name for name in candidates if name not in names.values())
        return names

    def symmetry(self) -> Symmetry:
        """The groups of free atoms, with the layout of every leaf."""
        names = self.names()
        layouts: dict[str, tuple[lay.Layout, ...]] = {
            leaf: tuple(
                lay.Fixed(axis.size) if leaf in self.unused else to_layout(axis, names)
                for axis in self.axes[leaf]
            )
            for leaf in dict.fromkeys([*self.trace.first_use, *self.axes])
        }
        state = [leaf for leaf in layouts if leaf.startswith(STATE)]
        state_layouts = {leaf.removeprefix(STATE): layouts.pop(leaf) for leaf in state}
        roles: dict[tuple[str, int], Role] = {
            place: next(iter(found)) if len(found) == 1 else "other"
            for place, found in self.trace.roles.items()
        }
        unused = (*map(_shown, self.unused), *self.unread())
        return Symmetry(layouts, state_layouts, unused, roles)


def _shown(leaf: str) -> str:
    return f"state:{leaf.removeprefix(STATE)}" if leaf.startswith(STATE) else leaf


def _layer_of(leaf: str) -> str:
    """The key path of a leaf without its last key, or the last part of a dotted key."""
    above, slash, key = leaf.rpartition("/")
    layer, dot, _ = key.rpartition(".")
    return f"{above}{slash}{layer}" if dot and layer else above or leaf


def _runs(positions: np.ndarray) -> Iterator[range]:
    """Sorted positions as ranges of consecutive ones."""
    for run_ in np.split(positions, np.flatnonzero(np.diff(positions) != 1) + 1):
        yield range(int(run_[0]), int(run_[-1]) + 1)


def to_layout(axis: Axis, names: dict[Atom, str]) -> lay.Layout:
    """The layout of a traced axis; atoms without a name are fixed."""
    match ax.resolve(axis):
        case Atom(size=size) as found:
            return lay.Units(names[found], size) if found in names else lay.Fixed(size)
        case ax.Product(parts):
            return lay.Product(tuple(to_layout(part, names) for part in parts))
        case ax.Concat(parts):
            return lay.Concat(tuple(to_layout(part, names) for part in parts))
        case other:
            return lay.Fixed(other.size)


def trace_network(apply: Apply, params: PyTree, x: Any, state: PyTree | None = None) -> Traced:
    """Follow every axis of the parameters from the inputs to the outputs."""
    named = leaves_by_path(params)
    if not named:
        raise ValueError("the params tree has no leaves; pass the network's parameters")
    for name, leaf in named.items():
        if not hasattr(leaf, "dtype") and not isinstance(leaf, int | float | complex):
            raise ValueError(
                f"params leaf '{name}' is a {type(leaf).__name__}, not an array; pass arrays only "
                "(networks.from_equinox extracts those of an Equinox module)"
            )
    state_named = {STATE + name: leaf for name, leaf in leaves_by_path(state).items()}
    operands = (params, x) if state is None else (params, x, state)
    closed = jax.make_jaxpr(apply)(*operands)
    # Values that the outputs do not depend on constrain nothing.
    outputs = [True] * len(closed.jaxpr.outvars)
    used = partial_eval.dce_jaxpr(closed.jaxpr, outputs)[1]
    live = partial_eval.dce_jaxpr(closed.jaxpr, outputs, instantiate=True)[0]
    closed = core.ClosedJaxpr(live, closed.consts)

    axes: dict[str, tuple[Axis, ...]] = {}
    values: list[Value] = []
    leaves = [*named.items(), *((None, leaf) for leaf in jax.tree.leaves(x)), *state_named.items()]
    for name, leaf in leaves:
        shape = jnp.shape(leaf)
        if name is not None and jnp.issubdtype(jnp.result_type(leaf), jnp.inexact):
            sources = tuple(frozenset([i]) for i in range(len(shape)))
            values.append(Value(tuple(ax.atom(n) for n in shape), name, sources))
        else:
            values.append(Value(ax.fixed_shape(shape)))
        if name is not None:
            axes[name] = values[-1].axes
    trace = Trace()
    for value in run(closed, values, trace):
        fix_whole(value)
    unused = tuple(name for (name, _), live in zip(leaves, used, strict=True) if name and not live)
    return Traced(closed, trace, axes, unused)
