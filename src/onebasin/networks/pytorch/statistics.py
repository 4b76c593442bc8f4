"""Running statistics of a module: updated as in training, and measured on data.

The graph is that of evaluation mode, in which the layers of batch normalisation read their running
statistics. Other functions in place of these layers give the module in training mode, without
dropout, and what every layer receives.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax

from onebasin.networks.pytorch.interpreting import Program, Ref, Step
from onebasin.networks.pytorch.layouts import channels_of, computed
from onebasin.networks.pytorch.operators_norms import batch_norm
from onebasin.networks.running import RunningStatistics, batch_moments
from onebasin.trees import PyTree

Call: TypeAlias = Callable[..., tuple[jax.Array, ...]]
"""`call(params, x, state, instead)`, where `instead` has other functions for some steps."""


@dataclass(frozen=True)
class Layer:
    """A step of batch normalisation, and the leaves of its mean and variance."""

    step: str
    mean: str
    var: str
    momentum: float


def running_statistics(
    program: Program, state: Mapping[str, jax.Array], call: Call, name: str
) -> RunningStatistics:
    """How the running statistics of a module change; `name` is what errors call the module."""
    layers = [layer for step in program.steps if (layer := _layer(step, program))]
    problem = _problem(layers, state, name)

    def update(params: PyTree, x: Any, state: PyTree) -> tuple[jax.Array, PyTree]:
        for message in (problem, *(_average(layer, name) for layer in layers)):
            if message:
                raise ValueError(message)
        after = dict(state)

        def train(layer: Layer) -> Callable[..., Any]:
            def run(x: Any, weight: Any, bias: Any, mean: Any, var: Any, *rest: Any) -> Any:
                x = computed(x)
                array, axis = channels_of(x)
                now = batch_moments(array, axis)
                count = array.size // array.shape[axis]
                seen = now[0], now[1] * (count / max(count - 1, 1))  # kept without bias
                for leaf, old, new in zip((layer.mean, layer.var), (mean, var), seen, strict=True):
                    moved = (1 - layer.momentum) * old + layer.momentum * new
                    after[leaf] = moved.astype(old.dtype)
                mean, var = (m.astype(old.dtype) for m, old in zip(now, (mean, var), strict=True))
                return batch_norm(x, weight, bias, mean, var, *rest)

            return run

        (outputs,) = call(params, x, state, {layer.step: train(layer) for layer in layers})
        return outputs, after

    def observe(params: PyTree, x: Any, state: PyTree) -> PyTree:
        if problem:
            raise ValueError(problem)
        seen = dict(state)

        def measure(layer: Layer) -> Callable[..., Any]:
            def run(x: Any, *rest: Any) -> Any:
                x = computed(x)
                seen[layer.mean], seen[layer.var] = batch_moments(*channels_of(x))
                return batch_norm(x, *rest)

            return run

        call(params, x, state, {layer.step: measure(layer) for layer in layers})
        return seen

    return RunningStatistics(update, observe, tuple((la.mean, la.var) for la in layers))


def _layer(step: Step, program: Program) -> Layer | None:
    """The layer that a step is, if it normalises by running statistics as they are."""
    if step.function is not batch_norm:
        return None
    mean, var, momentum = step.args[3:6]
    places = [
        program.sources.get(ref.name) if isinstance(ref, Ref) else None for ref in (mean, var)
    ]
    if any(place is None or place.origin != "state" for place in places):
        return None
    first, second = (place.key for place in places if place)
    return Layer(step.name, first, second, momentum)


def _problem(layers: list[Layer], state: Mapping[str, Any], name: str) -> str:
    """Why the statistics cannot be measured, or nothing."""
    used = Counter(leaf for layer in layers for leaf in (layer.mean, layer.var))
    for leaf in state:
        if used[leaf] > 1:
            return (
                f"{name} calls the normalisation layer of '{leaf}' more than once, so its "
                "statistics cannot be measured; give every call a layer of its own"
            )
        if not used[leaf]:
            return (
                f"'{leaf}' of {name} is no running statistic of batch normalisation, so it cannot "
                "be updated or measured here; fit the module with PyTorch, or without that layer"
            )
    return ""


def _average(layer: Layer, name: str) -> str:
    if layer.momentum:
        return ""
    return (
        f"the statistics '{layer.mean}' of {name} are an average of all batches (momentum=None), "
        "which a fit does not keep; give the layer a momentum, such as 0.1"
    )
