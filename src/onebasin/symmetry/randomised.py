"""A network at random parameters near its own, on which symmetries are checked numerically."""

from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

from onebasin.networks import Apply
from onebasin.symmetry.choices import deciding, has_hidden_choices
from onebasin.trees import PyTree, path_name

# Rounding in double precision, amplified by a deep network, stays many orders below the first
# bound; a wrong place changes the outputs by about their own range. The second bound is for
# networks that compute in single precision regardless of the precision of their operands.
TOLERANCE = {"float64": 1e-8, "float32": 2e-3}


class CannotRun(ValueError):
    """The network has no informative outputs at randomised parameters."""


@dataclass(frozen=True)
class Outputs:
    """The leaves of a network's outputs, as real numbers in double precision."""

    leaves: tuple[np.ndarray, ...]
    deciding: tuple[np.ndarray, ...] = ()
    """What decides choices, where it is compared too."""

    @property
    def informative(self) -> bool:
        """Whether they are finite and not all equal, so that a change could show."""
        values = np.concatenate(self.leaves) if self.leaves else np.zeros(0)
        if not values.size or not np.isfinite(values).all():
            return False
        return bool(values.any()) if values.size == 1 else bool(np.ptp(values) > 0)

    def distance(self, reference: "Outputs") -> float:
        """The largest change of any leaf, relative to the range of its values.

        Relative to the range, a large common offset cannot hide a change. The magnitude takes the
        place of the range for a leaf that is constant or a single number.
        """
        furthest = 0.0
        pairs = zip(self.leaves + self.deciding, reference.leaves + reference.deciding, strict=True)
        for mine, theirs in pairs:
            width = np.ptp(theirs)
            size = np.abs(theirs).max()
            # Changes this small relative to the offset are the last digits of a double.
            floor = 1e-13 * size
            scale = width if width > floor else size
            change = np.abs(mine - theirs).max()
            if scale > 0:
                furthest = max(furthest, float(max(change - floor, 0.0) / scale))
            elif change > 0:
                return float("inf")
        return furthest


class Randomised:
    """A network on a few rows of a batch, in double precision or in its own."""

    def __init__(
        self,
        apply: Apply,
        params: PyTree,
        x: Any,
        state: PyTree,
        *,
        double: bool,
        rows: int | None,
        choices: bool = False,
    ) -> None:
        self.apply, self.double, self.choices = apply, double, choices
        self.params, self.state = map(_arrays, (params, state))
        self.x = self._rows_of(_arrays(x), rows)
        self._jitted = jax.jit(self.evaluated)

    def settle(
        self, seed: list[int], *, afresh: bool = False
    ) -> tuple[PyTree, PyTree, Outputs, float]:
        """Random params and state with informative outputs, those outputs, and a tolerance.

        With `afresh`, params have the sizes of the network's own but random signs, if its outputs
        are informative there: near its own, the same units may always be active.

        The tolerance is the change of the outputs that rounding can explain, with a margin.
        Rounding is about as large as the effect of changing every parameter in its last digit.
        """
        near = ((1.0, False), (0.1, False), (1.0, True))
        for strength, signs_kept in ((np.inf, False), *near) if afresh else near:
            params = self._moved(self.params, seed, strength, signs_kept)
            state = self._moved(self.state, seed, strength, signs_kept=True)
            outputs = self.run(params, state)
            if outputs.informative:
                rounding = self.run(self._nudged(params, seed), state).distance(outputs)
                tolerance = max(TOLERANCE[self._precision()], 100 * rounding)
                return params, state, outputs, tolerance
        raise CannotRun(
            "the check cannot run: at randomised parameters the network's outputs are not finite "
            "or all equal; call find_symmetry(..., check=False) and check it another way"
        )

    def run(self, params: PyTree, state: PyTree) -> Outputs:
        both = self._jitted(*self.operands(params, state))
        return Outputs(
            *(tuple(_as_real(np.asarray(a)) for a in leaves if np.size(a)) for leaves in both)
        )

    def evaluated(self, *operands: Any) -> tuple[list[jax.Array], list[jax.Array]]:
        """The leaves of the outputs, and what decides choices."""
        outputs = jax.tree.leaves(self.apply(*operands))
        return outputs, deciding(self.apply, *operands) if self.choices else []

    def has_hidden_choices(self) -> bool:
        return has_hidden_choices(self.apply, *self.operands(*self._templates()))

    def _nudged(self, params: PyTree, seed: list[int]) -> PyTree:
        """Every parameter changed by about one unit in its last place."""
        rng = np.random.default_rng([*seed, 1])

        def nudge(leaf: Any) -> Any:
            if not jnp.issubdtype(leaf.dtype, jnp.inexact):
                return leaf
            digits = float(jnp.finfo(leaf.dtype).eps) * rng.choice([-1.0, 1.0], leaf.shape)
            return (leaf * (1 + digits)).astype(leaf.dtype)

        return jax.tree.map(nudge, params)

    def accepts_operands(self) -> bool:
        """Whether the network accepts operands of this precision and number of rows."""
        try:
            jax.eval_shape(self.apply, *self.operands(*self._templates()))
        except (TypeError, ValueError):
            return False
        return True

    def _precision(self) -> Literal["float32", "float64"]:
        """The coarsest precision in which it computes."""
        if not self.double:
            return "float32"
        jaxpr = jax.make_jaxpr(self.apply)(*self.operands(*self._templates())).jaxpr
        return "float32" if _rounds_to_single(jaxpr) else "float64"

    def _templates(self) -> tuple[PyTree, PyTree]:
        def template(leaf: np.ndarray) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct(leaf.shape, self._dtype(leaf.dtype))

        return jax.tree.map(template, self.params), jax.tree.map(template, self.state)

    def operands(self, params: PyTree, state: PyTree) -> tuple[Any, ...]:
        return (params, self.x) if self.state is None else (params, self.x, state)

    def _dtype(self, dtype: Any) -> Any:
        if not self.double or not jnp.issubdtype(dtype, jnp.inexact):
            return dtype
        return np.complex128 if jnp.issubdtype(dtype, jnp.complexfloating) else np.float64

    def _moved(self, tree: PyTree, seed: list[int], strength: float, signs_kept: bool) -> PyTree:
        """Every leaf with noise of about half its own size, or of 0.3 if it is all zeros.

        An infinite strength leaves nothing but noise, of the leaf's own size.

        Running statistics include variances, which must keep their signs. So must parameters under
        a square root; this is tried last.
        """

        def move(path: Any, leaf: np.ndarray) -> np.ndarray:
            if not jnp.issubdtype(leaf.dtype, jnp.inexact):
                return leaf
            rng = np.random.default_rng([*seed, *path_name(path).encode()])
            alone = np.isinf(strength)
            amount = 2.0 if alone else strength
            noise = amount * rng.standard_normal(leaf.shape)
            if jnp.issubdtype(leaf.dtype, jnp.complexfloating):
                noise = noise + 1j * amount * rng.standard_normal(leaf.shape)
            if signs_kept:
                zero = leaf == 0
                moved = leaf * np.exp(0.3 * np.real(noise)) + zero * 0.1 * np.abs(noise)
            else:
                size = np.sqrt(np.mean(np.abs(leaf.astype(self._wide(leaf))) ** 2))
                moved = leaf * (not alone) + noise * (0.5 * size if size > 0 else 0.3)
            return moved.astype(self._dtype(leaf.dtype))

        return jax.tree_util.tree_map_with_path(move, tree)

    def _wide(self, leaf: np.ndarray) -> Any:
        return np.complex128 if np.iscomplexobj(leaf) else np.float64

    def _rows_of(self, x: Any, rows: int | None) -> Any:
        """The first rows, with noise: a batch of zeros or of equal rows would hide errors.

        Rows are dropped only if every leaf has the same number; otherwise one leaf may index
        the rows of another.
        """
        counts = {np.shape(leaf)[:1] for leaf in jax.tree.leaves(x)}
        if (0,) in counts:
            raise ValueError("the batch x has no rows; pass at least one")
        take = rows if len(counts) == 1 and counts != {()} else None

        def leaf(value: np.ndarray) -> np.ndarray:
            value = value[:take] if value.ndim else value
            if not jnp.issubdtype(value.dtype, jnp.inexact):
                return value
            rng = np.random.default_rng(value.shape)
            scale = 1 + np.abs(value.astype(self._wide(value))).std()
            noise = 0.1 * scale * rng.standard_normal(value.shape)
            return (value + noise).astype(self._dtype(value.dtype))

        return jax.tree.map(leaf, x)


def _arrays(tree: PyTree) -> PyTree:
    """Leaves as NumPy arrays; shapes without values are filled with values of a sensible size."""

    def leaf(path: Any, value: Any) -> np.ndarray:
        if isinstance(value, jax.ShapeDtypeStruct):
            rng = np.random.default_rng([*path_name(path).encode()])
            if not jnp.issubdtype(value.dtype, jnp.inexact):
                return np.zeros(value.shape, value.dtype)
            fan_in = max(1, int(np.prod(value.shape[:-1])))
            return (rng.standard_normal(value.shape) / np.sqrt(fan_in)).astype(value.dtype)
        return np.asarray(value)

    return jax.tree_util.tree_map_with_path(leaf, tree)


def _as_real(array: np.ndarray) -> np.ndarray:
    if np.iscomplexobj(array):
        return np.concatenate([np.real(array).ravel(), np.imag(array).ravel()])
    return array.astype(np.float64).ravel()


def _rounds_to_single(jaxpr: Any) -> bool:
    for eqn in jaxpr.eqns:
        for variable in eqn.outvars:
            dtype = getattr(variable.aval, "dtype", None)
            inexact = dtype is not None and jnp.issubdtype(dtype, jnp.inexact)
            if inexact and variable.aval.shape and jnp.finfo(dtype).bits < 64:
                return True
        for inner in core.jaxprs_in_params(eqn.params):
            if _rounds_to_single(getattr(inner, "jaxpr", inner)):
                return True
    return False
