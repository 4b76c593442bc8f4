"""Random networks, and a check of their symmetries that shares no code with the library's own.

A network is a random chain of layers on vectors, images or sequences: dense layers, gates,
concatenations, residual sums, normalisations, convolutions, pooling, attention, recurrence. Tied
weights, fixed permutations of units, slices and cumulative sums are among them, because they are
what a wrong rule would overlook. `false_groups` permutes the parameters of every group that the
trace found with plain NumPy indexing and compares the outputs in double precision.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from onebasin.symmetry import (
    Group,
    NoRuleWarning,
    NotASymmetry,
    Symmetry,
    find_symmetry,
)
from onebasin.symmetry.own_orders import candidates

Params = dict[str, Any]
Layer = Callable[[Params, Any], Any]


@dataclass
class Builder:
    """Collects layers and their parameters."""

    rng: np.random.Generator
    params: Params = field(default_factory=dict)
    layers: list[Layer] = field(default_factory=list)

    def param(self, *shape: int) -> str:
        name = f"p{len(self.params)}"
        scale = 1 / np.sqrt(max(1, int(np.prod(shape[:-1])))) if len(shape) > 1 else 1.0
        self.params[name] = self.rng.normal(size=shape) * scale
        return name

    def width(self) -> int:
        return int(self.rng.integers(2, 7))

    def choose(self, *options: Any) -> Any:
        return options[int(self.rng.integers(len(options)))]


ACTIVATIONS = (jnp.tanh, jax.nn.relu, jax.nn.gelu, jnp.sin, lambda z: z)


def dense(
    b: Builder, units: int, out: int | None = None, *, linear: bool = False
) -> tuple[Layer, int]:
    out = out or b.width()
    kernel, bias, phi = b.param(units, out), b.param(out), b.choose(*ACTIVATIONS)
    phi = ACTIVATIONS[-1] if linear else phi
    use_bias = bool(b.rng.integers(2))
    return lambda p, z: phi(z @ p[kernel] + (p[bias] if use_bias else 0.0)), out


def residual(b: Builder, units: int) -> tuple[Layer, int]:
    inner, middle = dense(b, units)
    outer, _ = dense(b, middle, units)
    return lambda p, z: z + outer(p, inner(p, z)), units


def gate(b: Builder, units: int) -> tuple[Layer, int]:
    """A fused gate: one kernel for values and gates, split in two."""
    out = b.width()
    kernel = b.param(units, 2 * out)

    def apply(p: Params, z: Any) -> Any:
        value, gates = jnp.split(z @ p[kernel], 2, axis=-1)
        return value * jax.nn.sigmoid(gates)

    return apply, out


def concatenate(b: Builder, units: int) -> tuple[Layer, int]:
    left, a = dense(b, units)
    right, c = dense(b, units)
    return lambda p, z: jnp.concatenate([left(p, z), right(p, z)], axis=-1), a + c


def layer_norm(b: Builder, units: int) -> tuple[Layer, int]:
    gain, shift = b.param(units), b.param(units)

    def apply(p: Params, z: Any) -> Any:
        z = z - z.mean(-1, keepdims=True)
        return z / jnp.sqrt((z**2).mean(-1, keepdims=True) + 1e-3) * p[gain] + p[shift]

    return apply, units


def tied(b: Builder, units: int) -> tuple[Layer, int]:
    """The same kernel forwards and, transposed, backwards."""
    kernel = b.param(units, b.width())
    return lambda p, z: jnp.tanh(z @ p[kernel]) @ p[kernel].T, units


def recurrent(b: Builder, units: int) -> tuple[Layer, int]:
    """Some steps of a cell whose kernel has the same units on both axes."""
    out, steps = b.width(), int(b.rng.integers(1, 4))
    into, across = b.param(units, out), b.param(out, out)

    def apply(p: Params, z: Any) -> Any:
        drive = z @ p[into]

        def step(h: Any, _: None) -> tuple[Any, None]:
            return jnp.tanh(drive + h @ p[across]), None

        return jax.lax.scan(step, jnp.zeros_like(drive), None, length=steps)[0]

    return apply, out


def scramble(b: Builder, units: int) -> tuple[Layer, int]:
    """A fixed permutation of the units: which unit is which matters from here on."""
    order = b.rng.permutation(units)
    return lambda p, z: z[..., order], units


def slices(b: Builder, units: int) -> tuple[Layer, int]:
    """Only some of the units go on."""
    kept = int(b.rng.integers(1, units)) if units > 1 else 1
    return lambda p, z: z[..., :kept], kept


def cumulative(b: Builder, units: int) -> tuple[Layer, int]:
    return lambda p, z: jnp.cumsum(z, axis=-1), units


def weighted_by_position(b: Builder, units: int) -> tuple[Layer, int]:
    weights = b.rng.normal(size=units)
    return lambda p, z: z * weights, units


def heads(b: Builder, units: int) -> tuple[Layer, int]:
    """Products of queries and keys inside heads, as in attention over the batch's own vectors."""
    count, size = int(b.rng.integers(1, 4)), int(b.rng.integers(2, 4))
    query, key, value = (b.param(units, count * size) for _ in range(3))
    output = b.param(count * size, units)

    def apply(p: Params, z: Any) -> Any:
        def split(kernel: str) -> Any:
            return (z @ p[kernel]).reshape(*z.shape[:-1], count, size)

        scores = jnp.einsum("...hd,...gd->...hg", split(query), split(key))
        mixed = jnp.einsum("...hg,...gd->...hd", jax.nn.softmax(scores), split(value))
        return mixed.reshape(*z.shape[:-1], count * size) @ p[output]

    return apply, units


def fused_heads(b: Builder, units: int) -> tuple[Layer, int]:
    """Queries, keys and values from one kernel, reshaped in some order and indexed."""
    sizes = {"c": 3, "h": int(b.rng.integers(1, 4)), "d": int(b.rng.integers(2, 4))}
    order = [str(name) for name in b.rng.permutation(list("chd"))]
    total, at = 3 * sizes["h"] * sizes["d"], order.index("c")
    kernel, bias, output = b.param(units, total), b.param(total), b.param(total // 3, units)
    first, swapped, skipped = bool(b.rng.integers(2)), bool(b.rng.integers(2)), b.choose(0, 0, 1)
    rest = [name for name in order if name != "c"]

    def apply(p: Params, z: Any) -> Any:
        fused = (z @ p[kernel] + p[bias]).reshape(len(z), *(sizes[name] for name in order))
        if first:
            q, k, v = jnp.moveaxis(fused, 1 + at, 0)
        else:
            q, k, v = (jnp.take(fused, i, axis=1 + at) for i in (0, 1 - skipped, 2))
        if rest != ["h", "d"]:
            q, k, v = (a.swapaxes(1, 2) for a in (q, k, v))
        scores = jnp.einsum("nhd,ngd->nhg" if swapped else "nhd,mhd->hnm", q, k)
        to = "nhg,ngd->nhd" if swapped else "hnm,mhd->nhd"
        mixed = jnp.einsum(to, jax.nn.softmax(scores), v)
        return mixed.reshape(len(z), -1) @ p[output]

    return apply, units


def reshaped(b: Builder, units: int) -> tuple[Layer, int]:
    """Units as a matrix, used in one of many ways, and flat again."""
    rows, columns = int(b.rng.integers(2, 4)), int(b.rng.integers(2, 4))
    into, gain, shift = b.param(units, rows * columns), b.param(columns), b.param(rows, columns)
    mixer = b.param(rows, rows)
    how = int(b.rng.integers(8))

    def apply(p: Params, z: Any) -> Any:
        y = (z @ p[into]).reshape(len(z), rows, columns)
        y = jnp.tanh(y + p[shift])
        y = [
            lambda y: y,
            lambda y: y * p[gain],
            lambda y: y / (1 + (y**2).sum(-1, keepdims=True)),
            lambda y: y / (1 + (y**2).sum(-2, keepdims=True)),
            lambda y: jnp.einsum("nrc,rs->nsc", y, p[mixer]),
            lambda y: y[:, :1] * y,
            lambda y: y[:, ::-1],
            lambda y: jnp.concatenate([y[:, 1:], y[:, :1]], axis=1),
        ][how](y)
        return y.reshape(len(z), -1)

    return apply, rows * columns


def extremes(b: Builder, units: int) -> tuple[Layer, int]:
    """Symmetric and other reductions beside the units themselves."""
    reduce = b.choose(jnp.max, jnp.sum, jnp.mean)
    return lambda p, z: z * reduce(jnp.tanh(z), axis=-1, keepdims=True), units


def experts(b: Builder, units: int) -> tuple[Layer, int]:
    """Experts chosen by top-k or argmax, with one-hots or by looking their kernels up."""
    count, out, how = int(b.rng.integers(2, 5)), b.width(), int(b.rng.integers(6))
    router, bias = b.param(units, count), b.param(count)
    kernel = b.param(count, units, out)
    phi = b.choose(jax.nn.softmax, jax.nn.relu, jnp.tanh, lambda z: z)

    def apply(p: Params, z: Any) -> Any:
        gates = phi(z @ p[router] + p[bias])
        values, chosen = jax.lax.top_k(gates, 2)
        one_hot = jax.nn.one_hot(chosen, count)
        both = jnp.einsum("ni,eio->neo", z, p[kernel])
        return [
            lambda: jnp.einsum("nke,nk,neo->no", one_hot, values, both),
            lambda: jnp.einsum("ni,nio->no", z, p[kernel][jnp.argmax(gates, -1)]),
            lambda: jnp.take_along_axis(both, chosen[:, :, None], axis=1).sum(1),
            lambda: both.sum(1) * chosen[:, :1],
            lambda: both.sum(1) * gates[:, ::-1][jnp.arange(len(z)), chosen[:, 0]][:, None],
            lambda: jnp.where(gates[..., None] >= values[:, 1:, None], both, 0.0).sum(1),
        ][how]()

    return apply, out


def codebook(b: Builder, units: int) -> tuple[Layer, int]:
    """The nearest code, by distances, passed on alone or beside the units."""
    codes, how = b.param(int(b.rng.integers(2, 6)), units), int(b.rng.integers(3))

    def apply(p: Params, z: Any) -> Any:
        distances = ((z[:, None] - p[codes]) ** 2).sum(-1)
        nearest = jnp.argmin(distances, -1)
        return [
            lambda: p[codes][nearest],
            lambda: z + p[codes][nearest],
            lambda: z + nearest[:, None] * p[codes][0],
        ][how]()

    return apply, units


def positions(b: Builder, units: int) -> tuple[Layer, int]:
    """A table of which only the first columns are read."""
    table, total = b.param(units + int(b.rng.integers(0, 4))), b.param(units)
    return lambda p, z: jnp.tanh(z + p[table][:units]) * p[total], units


def groups_of_concatenated(b: Builder, units: int) -> tuple[Layer, int]:
    """Two layers side by side, normalised in groups that may lie across both."""
    size = int(b.rng.integers(2, 4))
    left, a = dense(b, units, size * int(b.rng.integers(1, 4)))
    right, c = dense(b, units, size * int(b.rng.integers(1, 4)))

    def apply(p: Params, z: Any) -> Any:
        both = jnp.concatenate([left(p, z), right(p, z)], axis=-1)
        grouped = both.reshape(len(both), -1, size)
        return (grouped / (1 + (grouped**2).sum(-1, keepdims=True))).reshape(both.shape)

    return apply, a + c


VECTOR_LAYERS = (
    experts,
    codebook,
    positions,
    groups_of_concatenated,
    *(dense,) * 4,
    *(residual, gate, concatenate, layer_norm) * 2,
    *(tied, recurrent, scramble, slices, cumulative, weighted_by_position, heads, extremes),
    *(fused_heads, reshaped) * 2,
)


def convolution(b: Builder, channels: int) -> tuple[Layer, int]:
    out, side = b.width(), int(b.choose(1, 3))
    kernel, bias, phi = b.param(side, side, channels, out), b.param(out), b.choose(*ACTIVATIONS)

    def apply(p: Params, z: Any) -> Any:
        y = jax.lax.conv_general_dilated(
            z, p[kernel], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        return phi(y + p[bias])

    return apply, out


def pooled(b: Builder, channels: int) -> tuple[Layer, int]:
    def apply(p: Params, z: Any) -> Any:
        n, h, w, c = z.shape
        return z.reshape(n, h // 2, 2, w // 2, 2, c).max((2, 4)) if h % 2 == w % 2 == 0 else z

    return apply, channels


def group_norm(b: Builder, channels: int) -> tuple[Layer, int]:
    groups = int(b.choose(*[g for g in (1, 2, 3) if channels % g == 0]))
    gain = b.param(channels)

    def apply(p: Params, z: Any) -> Any:
        grouped = z.reshape(*z.shape[:-1], groups, channels // groups)
        square = (grouped**2).mean((1, 2, 4), keepdims=True)
        return (grouped / jnp.sqrt(square + 1e-3)).reshape(z.shape) * p[gain]

    return apply, channels


IMAGE_LAYERS = (*(convolution,) * 3, pooled, group_norm)


@dataclass(frozen=True)
class RandomNetwork:
    """A function, its parameters and a batch of inputs."""

    apply: Callable[[Params, Any], Any]
    params: Params
    x: np.ndarray


def random_network(seed: int) -> RandomNetwork:
    """The network of a seed."""
    rng = np.random.default_rng([7, seed])
    b = Builder(rng)
    units = b.width()
    if rng.integers(3) == 0:
        x = rng.normal(size=(3, 4, 4, units))
        for _ in range(int(rng.integers(1, 4))):
            layer, units = b.choose(*IMAGE_LAYERS)(b, units)
            b.layers.append(layer)
        spatial = b.choose("flatten", "mean")
        if spatial == "flatten":
            shape = jax.eval_shape(_chained(b.layers), b.params, x).shape
            units = int(np.prod(shape[1:]))
            b.layers.append(lambda p, z: z.reshape(len(z), -1))
        else:
            b.layers.append(lambda p, z: z.mean((1, 2)))
    else:
        x = rng.normal(size=(3, units))
    for _ in range(int(rng.integers(1, 5))):
        layer, units = b.choose(*VECTOR_LAYERS)(b, units)
        b.layers.append(layer)
    # Linear: where a nonlinearity saturates, outputs are as small as the rounding inside.
    last, _ = dense(b, units, 2, linear=True)
    b.layers.append(last)
    return RandomNetwork(_chained(b.layers), b.params, x)


def _chained(layers: list[Layer]) -> Callable[[Params, Any], Any]:
    fixed = tuple(layers)

    def apply(params: Params, x: Any) -> Any:
        for layer in fixed:
            x = layer(params, x)
        return x

    return apply


def permuted(params: Params, group: Group, order: np.ndarray) -> Params:
    """Every place of a group moved by plain indexing: unit i takes the positions of order[i]."""
    moved = {name: np.array(leaf) for name, leaf in params.items()}
    sources: dict[tuple[str, int], np.ndarray] = {}
    for place in group.places:
        index = sources.setdefault(
            (place.leaf, place.axis), np.arange(params[place.leaf].shape[place.axis])
        )
        index[place.positions] = np.asarray(place.positions)[order]
    for (leaf, axis), index in sources.items():
        moved[leaf] = np.take(moved[leaf], index, axis=axis)
    return moved


def false_groups(network: RandomNetwork, symmetry: Symmetry, seed: int) -> list[str]:
    """The names of groups whose permutation changes the outputs; none, if the trace is right.

    Call it in double precision: what rounding does stays far below the tolerance.
    """
    rng = np.random.default_rng([11, seed])
    params = {k: rng.normal(size=np.shape(v)) * 0.7 for k, v in network.params.items()}
    x = rng.normal(size=(5, *network.x.shape[1:]))
    reference = np.asarray(network.apply(params, x))
    scale = np.abs(reference).max() + np.ptp(reference) + 1e-12
    wrong = []
    for group in symmetry.groups:
        order = np.roll(rng.permutation(group.size), 1)
        moved = np.asarray(network.apply(permuted(params, group, order), x))
        if not np.abs(moved - reference).max() <= 1e-8 * scale:
            wrong.append(group.name)
    return wrong


def false_orders(network: RandomNetwork, symmetry: Symmetry, seed: int) -> bool:
    """Whether a random permutation of all groups, with own orders inside blocks, is a false one."""
    rng = np.random.default_rng([13, seed])
    params = {k: rng.normal(size=np.shape(v)) * 0.7 for k, v in network.params.items()}
    x = rng.normal(size=(5, *network.x.shape[1:]))
    reference = np.asarray(network.apply(params, x))
    permutation = symmetry.random(key=jax.random.key(seed))
    for group in symmetry.groups:
        params = permuted(params, group, np.asarray(permutation[group.name]))
    scale = np.abs(reference).max() + np.ptp(reference) + 1e-12
    return not np.abs(np.asarray(network.apply(params, x)) - reference).max() <= 1e-8 * scale


def attack(folder: Path, count: int, seed: int) -> dict[str, Any]:
    """Trace `count` random networks; how many groups were found, and which are false."""
    del folder
    groups, in_blocks, defects = 0, 0, []
    with jax.enable_x64(True):
        for number in range(count):
            network = random_network(1_000_000 * seed + number)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", NoRuleWarning)
                found = find_symmetry(network.apply, network.params, network.x, check=False)
            groups += len(found.groups)
            wrong = false_groups(network, found, number)
            defects += [f"network {number}: group {name} is false" for name in wrong]
            if not wrong and candidates(found):
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    try:
                        found = find_symmetry(
                            network.apply, network.params, network.x, own_orders=True
                        )
                    except NotASymmetry as error:  # outputs too flat to check anything
                        if "cannot run" not in str(error) and "inconclusive" not in str(error):
                            defects.append(f"network {number}: {error}")
                        continue
                in_blocks += len(found.blocks)
                if false_orders(network, found, number):
                    defects.append(f"network {number}: an own order is false")
    return {"tried": count, "groups": groups, "in_blocks": in_blocks, "defects": defects}
