"""The hidden channels of a network before their nonlinearity, and the leaves that control them."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from onebasin.symmetry import axes as ax
from onebasin.symmetry.joints import undivided
from onebasin.symmetry.recording import Recorder
from onebasin.symmetry.rules import Value
from onebasin.symmetry.symmetry import Symmetry
from onebasin.symmetry.tracing import STATE
from onebasin.trees import PyTree


@dataclass(frozen=True)
class Layer:
    """Channels computed in one place.

    `name` is the kernel's leaf, or the bias's if the trace does not say which kernel the bias
    belongs to. `scales` are the (leaf, axis) pairs that may scale the channels, likeliest first.
    """

    name: str
    scales: tuple[tuple[str, int], ...]
    shift: str | None


class Channels:
    """Finds the layers of a network that compute hidden units, and records their channels.

    A layer is a kernel with the gain and the bias that the trace assigns to it. A bias added to
    hidden units elsewhere (after a convolution made of slices and sums) is a layer too, scaled by
    one of the gains or kernels of the same units.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        traced, symmetry = recorder.traced, recorder.symmetry
        found: list[tuple[Layer, Value, ax.Axis]] = []
        for layer, result in recorder.layers_with_results:
            kernel = (layer.kernel, layer.axis)
            scales = [*_at_units(symmetry, *kernel, "multiply"), kernel]
            if layer.gain and not layer.gain.startswith(STATE):  # not a running statistic
                scales = [(layer.gain, -1)]
            channels = traced.axes[layer.kernel][layer.axis]
            shift = None if (layer.shift or "").startswith(STATE) else layer.shift
            found.append((Layer(layer.kernel, tuple(scales), shift), result, channels))
        named = {layer.shift for layer, _, _ in found}
        for event in traced.trace.shifts:
            channels = traced.axes[event.leaf][-1]
            known = event.leaf in named or event.leaf.startswith(STATE)
            new = event.kind == "add" and not known and event.result.site is not None
            alone = not isinstance(undivided(channels), ax.Digit)
            if new and alone and ax.atoms_in(channels):
                scales = _scales(symmetry, event.leaf, len(traced.axes[event.leaf]) - 1)
                found.append((Layer(event.leaf, scales, event.leaf), event.result, channels))
                named.add(event.leaf)
        recorded = [
            (result.site, entry) for entry in found if (result := entry[1]).site is not None
        ]
        ordered = [entry for _, entry in sorted(recorded, key=lambda pair: pair[0])]  # as they run
        self.layers = tuple(layer for layer, _, _ in ordered)
        self.results = tuple((result, channels) for _, result, channels in ordered)
        """The traced array of each layer's channels, and their axis."""
        self._found = [
            (result.site, [undivided(a) for a in result.axes].index(undivided(channels)))
            for result, channels in self.results
        ]

    def record(self, params: PyTree, state: PyTree | None) -> list[jax.Array]:
        """The channels of every layer, [channels, observations]."""
        sites = [site for site, _ in self._found if site is not None]
        arrays = self._recorder.collect(sites, params, self._recorder.x, state)
        moved = (jnp.moveaxis(arrays[site], axis, 0) for site, axis in self._found)
        return [array.reshape(array.shape[0], -1) for array in moved]


def _scales(symmetry: Symmetry, shift: str, axis: int) -> tuple[tuple[str, int], ...]:
    """Gains, then kernels, of the units that a bias shifts; those of its own module first."""
    module = shift.rpartition("/")[0]
    return tuple(
        place
        for role in ("multiply", "incoming")
        for place in sorted(
            _at_units(symmetry, shift, axis, role),
            key=lambda place: place[0].rpartition("/")[0] != module,
        )
    )


def _at_units(symmetry: Symmetry, leaf: str, axis: int, role: str) -> list[tuple[str, int]]:
    """The (leaf, axis) pairs with a given role for the units along one axis of a leaf."""
    return [
        (place.leaf, place.axis)
        for group in symmetry.groups
        if any((place.leaf, place.axis) == (leaf, axis) for place in group.places)
        for place in group.places
        if place.role == role and place.where == "params"
    ]
