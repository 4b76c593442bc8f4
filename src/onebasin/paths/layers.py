"""The hidden channels of a network before their nonlinearity, and the leaves that move them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax

from onebasin.symmetry import Group, Symmetry
from onebasin.symmetry import axes as ax
from onebasin.symmetry.recording import Recorder
from onebasin.trees import PyTree


@dataclass(frozen=True)
class Layer:
    """Channels computed in one place.

    `name` is the kernel's leaf, or the bias's where the trace does not tell which kernel it
    belongs to. `scales` are the (leaf, axis) that may scale the channels, the likeliest first.
    """

    name: str
    scales: tuple[tuple[str, int], ...]
    shift: str | None


class Channels:
    """Finds and records the layers of a network that compute hidden units, as they run.

    A layer is a kernel with the gain and bias the trace follows from it. A bias that is added
    to hidden units elsewhere (behind a convolution made of slices and sums) is a layer too:
    what scales it is then one of the gains or kernels of the same units.
    """

    def __init__(
        self, apply: Callable[..., Any], params: PyTree, x: Any, symmetry: Symmetry, state: PyTree
    ) -> None:
        self._recorder = recorder = Recorder(apply, params, x, symmetry, state)
        traced = recorder.traced
        found: list[tuple[Any, Layer, Any]] = []
        for layer, result in recorder.layers_with_results:
            kernel = (layer.kernel, layer.axis)
            scales = [(layer.gain, -1)] if layer.gain else [*_gains(symmetry, *kernel), kernel]
            channels = traced.axes[layer.kernel][layer.axis]
            found.append((result, Layer(layer.kernel, tuple(scales), layer.shift), channels))
        named = {layer.shift for _, layer, _ in found}
        for event in traced.trace.shifts:
            channels = traced.axes[event.leaf][-1]
            known = event.kind != "add" or event.leaf in named or event.result.site is None
            if known or not ax.atoms_in(channels):
                continue
            named.add(event.leaf)
            scales = _scales(symmetry, event.leaf, len(traced.axes[event.leaf]) - 1)
            found.append((event.result, Layer(event.leaf, scales, event.leaf), channels))
        self._found = sorted(found, key=lambda entry: entry[0].site)  # in the order of the run
        self.layers = tuple(layer for _, layer, _ in self._found)

    def record(self, params: PyTree, state: PyTree) -> list[jax.Array]:
        """The channels of every layer, [channels, observations]."""
        sites = [result.site for result, _, _ in self._found]
        arrays = self._recorder.collect(sites, params, self._recorder.x, state)
        rows = []
        for result, _, channels in self._found:
            axis = [ax.resolve(a) for a in result.axes].index(ax.resolve(channels))
            array = jax.numpy.moveaxis(arrays[result.site], axis, 0)
            rows.append(array.reshape(array.shape[0], -1))
        return rows


def _gains(symmetry: Symmetry, leaf: str, axis: int) -> list[tuple[str, int]]:
    """The leaves that multiply the units which sit on an axis of a leaf."""
    return [
        (place.leaf, place.axis)
        for group in _groups_at(symmetry, leaf, axis)
        for place in group.places
        if place.role == "multiply" and place.where == "params"
    ]


def _scales(symmetry: Symmetry, shift: str, axis: int) -> tuple[tuple[str, int], ...]:
    """Gains, then kernels of the units that a bias shifts; those of its own module first."""
    module = shift.rpartition("/")[0]
    found = _gains(symmetry, shift, axis)
    found.sort(key=lambda place: place[0].rpartition("/")[0] != module)
    kernels = [
        (place.leaf, place.axis)
        for group in _groups_at(symmetry, shift, axis)
        for place in group.places
        if place.role == "incoming" and place.where == "params"
    ]
    kernels.sort(key=lambda place: place[0].rpartition("/")[0] != module)
    return (*found, *kernels)


def _groups_at(symmetry: Symmetry, leaf: str, axis: int) -> list[Group]:
    return [
        group
        for group in symmetry.groups
        if any((place.leaf, place.axis) == (leaf, axis) for place in group.places)
    ]
