"""Showing on numbers that a symmetry is one, and that the check could have failed.

The parameters are randomised first (zero biases and unit gains hide errors) and the
network is run in double precision. Then every group is moved alone and all of them
together: the outputs must not change. And places of a group are left out, one at a time:
the outputs must change, or the place is inert, i.e. the function does not depend on how it
is laid out (as with the bias of attention keys, which softmax cancels). `Symmetry.check`
leaves out every place; `find_symmetry` takes one for each group, as a control that shows
the check could have failed.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

from onebasin.symmetry.action import move_tree
from onebasin.symmetry.layout import without
from onebasin.symmetry.permutation import Permutation
from onebasin.symmetry.symmetry import Layouts, Place, Symmetry
from onebasin.trees import Tree, path_name

# Rounding in double precision, amplified by a deep network, stays many orders below this;
# a wrong place changes the outputs by about their own size. Networks that compute in single
# precision whatever they are given get the second bound.
TOLERANCE = {"float64": 1e-8, "float32": 2e-3}
ROWS = 4  # of the batch; enough for statistics over a batch to be defined


class NotASymmetry(ValueError):
    """A permutation of a group changes the network's function."""


@dataclass(frozen=True)
class Report:
    """How far the outputs moved, relative to their size."""

    alone: dict[str, float]
    together: float
    left_out: dict[Place, float]
    tolerance: float

    @property
    def inert(self) -> tuple[Place, ...]:
        """Places that could be left out without changing the function."""
        return tuple(place for place, change in self.left_out.items() if change <= self.tolerance)


def check(
    symmetry: Symmetry,
    apply: Callable[..., Any],
    params: Tree,
    x: Any,
    *,
    key: jax.Array,
    state: Tree = None,
    every_place: bool = True,
) -> Report:
    """Raise `NotASymmetry` naming the group if any permutation changes the outputs."""
    symmetry.check_shapes(params)
    seed = np.asarray(jax.random.key_data(key)).ravel().tolist()
    with jax.numpy_dtype_promotion("standard"):
        with jax.enable_x64(True):
            # A few rows make it quick, but the function may be written for its batch alone.
            for rows in (ROWS, None):
                network = Randomised(apply, params, x, state, seed, np.float64, rows)
                if network.can_run():
                    single = network.computes_single()
                    precision = "float32" if single else "float64"
                    return _check(symmetry, network, seed, precision, every_place)
        # Some networks insist on single precision, e.g. for the carry of a scan.
        network = Randomised(apply, params, x, state, seed, None, None)
        return _check(symmetry, network, seed, "float32", every_place)


def _check(
    symmetry: Symmetry, network: "Randomised", seed: list[int], precision: str, every_place: bool
) -> Report:
    tolerance = TOLERANCE[precision]
    params, state, reference = network.settle()
    scale = np.abs(reference).max()

    def change(indices: Mapping[str, np.ndarray], leaving_out: Place | None = None) -> float:
        layouts = _leaving_out(symmetry.layouts, leaving_out, "params")
        state_layouts = _leaving_out(symmetry.state_layouts, leaving_out, "state")
        moved = move_tree(params, 0, layouts, indices)
        moved_state = move_tree(state, 0, state_layouts, indices)
        return float(np.abs(network.run(moved, moved_state) - reference).max() / scale)

    identity = symmetry.identity().indices
    permutation = _derangement(symmetry, seed).indices
    alone, left_out = {}, {}
    for group in symmetry.groups:
        moved = {**identity, group.name: permutation[group.name]}
        alone[group.name] = change(moved)
        if not alone[group.name] <= tolerance:
            raise NotASymmetry(
                f"group '{group.name}' is no symmetry of this network: permuting it changes the "
                f"outputs by {alone[group.name]:.1e} of their size; it was thought to sit at "
                f"{', '.join(map(str, group.places))}"
            )
        # Leaving out the only place would be moving nothing at all.
        for place in group.places if len(group.places) > 1 else ():
            left_out[place] = change(moved, leaving_out=place)
            if not every_place and left_out[place] > tolerance:
                break
    together = change(permutation)
    if not together <= tolerance:
        raise NotASymmetry(
            f"the groups are symmetries alone but not together: the outputs change by "
            f"{together:.1e} of their size"
        )
    return Report(alone, together, left_out, tolerance)


def _leaving_out(layouts: Layouts, place: Place | None, where: str) -> Layouts:
    if place is None or place.where != where:
        return layouts
    axes = list(layouts[place.leaf])
    axes[place.axis] = without(axes[place.axis], place.occurrence)
    return {**layouts, place.leaf: tuple(axes)}


class Randomised:
    """A network at random parameters near its own, on a few rows of a batch, as numpy arrays."""

    def __init__(
        self,
        apply: Callable[..., Any],
        params: Tree,
        x: Any,
        state: Tree,
        seed: list[int],
        dtype: type | None,
        rows: int | None,
    ) -> None:
        self.apply, self.params, self.state = apply, params, state
        self.seed, self.dtype = seed, dtype
        self.x = self._rows_of(x, rows)
        self._jitted = jax.jit(apply)

    def settle(self) -> tuple[Tree, Tree, np.ndarray]:
        """Parameters at which the outputs are finite and not all alike, and those outputs."""
        for strength in (1.0, 0.1):
            params, state = self._randomised(strength)
            reference = self.run(params, state)
            if np.isfinite(reference).all() and np.ptp(reference) > 0:
                return params, state, reference
        raise NotASymmetry(
            "the check cannot run: the network gives outputs that are not finite or all alike at "
            "randomised parameters; call find_symmetry(..., check=False) and check it another way"
        )

    def run(self, params: Tree, state: Tree) -> np.ndarray:
        outputs = self._jitted(*self._operands(params, state))
        flat = [np.asarray(o, np.float64).ravel() for o in jax.tree.leaves(outputs)]
        return np.concatenate(flat)

    def can_run(self) -> bool:
        """Whether the network accepts operands of this precision at all."""
        try:
            jax.eval_shape(self.apply, *self._operands(*self._randomised(1.0)))
        except (TypeError, ValueError):
            return False
        return True

    def computes_single(self) -> bool:
        """Whether it rounds to single precision on the way, whatever it is given."""
        operands = self._operands(*self._randomised(1.0))
        return _rounds_to_single(jax.make_jaxpr(self.apply)(*operands).jaxpr)

    def _operands(self, params: Tree, state: Tree) -> tuple[Any, ...]:
        return (params, self.x) if self.state is None else (params, self.x, state)

    def _randomised(self, strength: float) -> tuple[Tree, Tree]:
        return (
            jax.tree_util.tree_map_with_path(
                lambda path, leaf: self._moved(path, leaf, strength, positive=False), self.params
            ),
            jax.tree_util.tree_map_with_path(
                lambda path, leaf: self._moved(path, leaf, strength, positive=True), self.state
            ),
        )

    def _moved(self, path: Any, leaf: Any, strength: float, positive: bool) -> np.ndarray:
        """A leaf moved by about half its own size, or by 0.3 where it is all zeros.

        Running statistics include variances, which must stay positive.
        """
        if not jnp.issubdtype(leaf.dtype, jnp.inexact):
            return leaf
        array = np.asarray(leaf, np.float64)
        noise = strength * self._rng(path_name(path)).standard_normal(array.shape)
        if positive:
            array = array * np.exp(0.3 * noise) + 0.1 * np.abs(noise)
        else:
            size = np.sqrt(np.mean(array**2)) if array.size else 0.0
            array = array + noise * (0.5 * size if size > 0 else 0.3)
        return array.astype(self.dtype or leaf.dtype)

    def _rows_of(self, x: Any, rows: int | None) -> Any:
        """The first rows, with noise: a batch of zeros or of equal rows would hide errors."""

        def leaf(value: Any) -> Any:
            if isinstance(value, jax.ShapeDtypeStruct):
                value = np.zeros(value.shape, value.dtype)
            if not jnp.issubdtype(value.dtype, jnp.inexact):
                return value[:rows] if np.ndim(value) else value
            array = np.asarray(value, np.float64)
            array = array[:rows] if array.ndim else array
            noise = self._rng("x").standard_normal(array.shape)
            return (array + 0.1 * (1 + array.std()) * noise).astype(self.dtype or value.dtype)

        return jax.tree.map(leaf, x)

    def _rng(self, name: str) -> np.random.Generator:
        return np.random.default_rng([*self.seed, *name.encode()])


def _rounds_to_single(jaxpr: Any) -> bool:
    for eqn in jaxpr.eqns:
        for variable in eqn.outvars:
            dtype = getattr(variable.aval, "dtype", None)
            floating = dtype is not None and jnp.issubdtype(dtype, jnp.floating)
            if floating and variable.aval.shape and jnp.finfo(dtype).bits < 64:
                return True
        for inner in core.jaxprs_in_params(eqn.params):
            if _rounds_to_single(getattr(inner, "jaxpr", inner)):
                return True
    return False


def _derangement(symmetry: Symmetry, seed: list[int]) -> Permutation:
    """A random permutation that moves every unit, so that each place left out must show.

    A random cycle through all units of a group has no fixed point.
    """
    rng = np.random.default_rng(seed)
    indices = {}
    for group in symmetry.groups:
        order = rng.permutation(group.size)
        indices[group.name] = np.empty(group.size, np.int64)
        indices[group.name][order] = np.roll(order, 1)
    return Permutation(indices)
