"""An exported graph as a function of arrays: each node by the counterpart of its operator.

The graph is read once; the function itself needs no PyTorch. Results have the data types that
PyTorch gives them. The exception is a function called with wider params than it was exported with
(double precision for a numerical check): then every floating-point number is as wide, also where
the module says `.float()`, or rounding would hide what the check looks for.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from onebasin.networks.pytorch import layouts
from onebasin.networks.pytorch.exporting import CannotConvert
from onebasin.networks.pytorch.registry import counterpart
from onebasin.pytorch_tensors import dtype_of, import_torch, to_array

NOTHING: Mapping[str, Callable[..., Any]] = MappingProxyType({})
ABOUT_MEMORY = {"device", "layout", "pin_memory", "memory_format", "non_blocking", "generator"}
Origin = Literal["params", "state", "input"]


@dataclass(frozen=True)
class Ref:
    """An argument that is the result of another node."""

    name: str


@dataclass(frozen=True)
class Step:
    """One node of the graph; `dtype` is that of its result, if this is one array."""

    name: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    dtype: np.dtype | None
    text: str
    last_uses: list[str] = field(default_factory=list)
    """Results that no later step reads."""


@dataclass(frozen=True)
class Source:
    """Where a placeholder of the graph comes from."""

    origin: Origin
    key: Any
    dtype: np.dtype


@dataclass(frozen=True)
class Program:
    """The steps of a graph, where its placeholders come from, and its results."""

    sources: Mapping[str, Source]
    constants: Mapping[str, np.ndarray]
    steps: Sequence[Step]
    outputs: tuple[Ref, ...]
    width: int
    """Bits of the widest floating-point param."""

    @property
    def narrowest(self) -> int:
        """Bits of the narrowest floating-point result of a step: what the outputs are good to."""
        kinds = [step.dtype for step in self.steps if step.dtype is not None]
        return min((_bits(kind) for kind in kinds if _is_float(kind)), default=self.width)

    def __call__(
        self,
        given: Mapping[Origin, Mapping[Any, Any]],
        instead: Mapping[str, Callable[..., Any]] = NOTHING,
    ) -> tuple[jax.Array, ...]:
        """The outputs for params, state and inputs, each by the keys of the sources.

        `instead` has other functions for some steps, by their names; they are given images in
        either layout (`layouts`).
        """
        # The arithmetic is PyTorch's own, which promotes data types and ranks.
        with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
            return self._run(given, instead)

    def _run(
        self, given: Mapping[Origin, Mapping[Any, Any]], instead: Mapping[str, Callable[..., Any]]
    ) -> tuple[jax.Array, ...]:
        floats = [leaf.dtype for leaf in given["params"].values() if _is_float(leaf.dtype)]
        widest = max(floats, key=_bits, default=None)
        wide = widest if widest is not None and _bits(widest) > self.width else None

        def actual(dtype: np.dtype) -> Any:
            if wide is not None and _is_float(dtype):
                return wide
            return jax.dtypes.canonicalize_dtype(dtype)

        def cast(value: Any, dtype: np.dtype) -> jax.Array | layouts.ChannelsLast:
            held = value if isinstance(value, layouts.ChannelsLast) else jnp.asarray(value)
            return held.astype(actual(dtype))

        known: dict[str, Any] = {
            name: jnp.asarray(array, actual(array.dtype)) for name, array in self.constants.items()
        }
        for name, source in self.sources.items():
            value = given[source.origin][source.key]
            known[name] = cast(value, source.dtype) if source.origin == "input" else value

        def filled(value: Any) -> Any:
            if isinstance(value, Ref):
                return known[value.name]
            if isinstance(value, np.dtype):
                return actual(value)
            return [filled(v) for v in value] if isinstance(value, list) else value

        for step in self.steps:
            args = [filled(value) for value in step.args]
            kwargs = {name: filled(value) for name, value in step.kwargs.items()}
            try:
                if step.name in instead:
                    result = instead[step.name](*args, **kwargs)
                else:
                    result = layouts.apply(step.function, args, kwargs)
            except (TypeError, ValueError, IndexError) as error:
                told = str(error).partition("\n")[0]
                raise ValueError(f"{told} (at {step.text})") from error
            known[step.name] = result if step.dtype is None else cast(result, step.dtype)
            for name in step.last_uses:
                del known[name]
        return tuple(layouts.plain(known[ref.name]) for ref in self.outputs)


def read_program(
    program: Any, origins: Mapping[str, tuple[Origin, Any]], results: Sequence[int], width: int
) -> Program:
    """The steps of an exported program.

    Args:
      program: the program that torch.export gave.
      origins: for every placeholder that is not a constant, where it comes from.
      results: which of the outputs are asked for.
      width: bits of the widest floating-point param.
    """
    graph, signature = program.graph, program.graph_signature
    returned = next(node for node in graph.nodes if node.op == "output").args[0]
    wanted = [
        node
        for node, spec in zip(returned, signature.output_specs, strict=True)
        if spec.kind.name == "USER_OUTPUT"
    ]
    outputs = tuple(Ref(wanted[i].name) for i in results)
    needed = _needed(graph, {ref.name for ref in outputs})
    sources: dict[str, Source] = {}
    constants: dict[str, np.ndarray] = {}
    steps: list[Step] = []
    placeholders = [node.name for node in graph.nodes if node.op == "placeholder"]
    specs = dict(zip(placeholders, signature.input_specs, strict=True))
    for node in graph.nodes:
        if node.name not in needed:
            continue
        if node.op == "placeholder" and node.name in origins:
            sources[node.name] = Source(*origins[node.name], dtype_of(node.meta["val"].dtype))
        elif node.op == "placeholder":
            constants[node.name] = to_array(_constant(program, specs[node.name].target))
        elif node.op == "call_function":
            steps.append(_step(node))
        else:
            raise CannotConvert(f"the exported graph holds a {node.op} ({node.name})")
    _note_last_uses(steps, {ref.name for ref in outputs})
    return Program(sources, constants, steps, outputs, width)


def _constant(program: Any, target: str) -> Any:
    held = program.state_dict if target in program.state_dict else program.constants
    return held[target]


def _needed(graph: Any, names: set[str]) -> set[str]:
    """The nodes that some results depend on."""
    needed = set(names)
    for node in reversed(graph.nodes):
        if node.name in needed and node.op != "output":
            needed |= {parent.name for parent in node.all_input_nodes}
    return needed


def _step(node: Any) -> Step:
    torch = import_torch()
    target, value = node.target, node.meta.get("val")
    if isinstance(target, torch._ops.OpOverload):
        function = counterpart(str(target))
        assert function is not None, target  # export has looked for unknown operators
    else:
        function = target  # Python's own arithmetic, on sizes
    kwargs = {k: _argument(v) for k, v in node.kwargs.items() if k not in ABOUT_MEMORY}
    dtype = dtype_of(value.dtype) if isinstance(value, torch.Tensor) else None
    text = node.format_node() or node.name
    return Step(node.name, function, tuple(map(_argument, node.args)), kwargs, dtype, text)


def _argument(value: Any) -> Any:
    """An argument without anything of PyTorch in it."""
    torch = import_torch()
    if isinstance(value, torch.fx.Node):
        return Ref(value.name)
    if isinstance(value, torch.dtype):
        return dtype_of(value)
    if isinstance(value, list | tuple):
        return [_argument(v) for v in value]
    if isinstance(value, torch.device | torch.layout | torch.memory_format):
        return None
    return value


def _refs(value: Any) -> set[str]:
    if isinstance(value, Ref):
        return {value.name}
    return set().union(*map(_refs, value)) if isinstance(value, list | tuple) else set()


def _note_last_uses(steps: Sequence[Step], kept: set[str]) -> None:
    """So that a call outside jit does not hold every intermediate result."""
    seen = set(kept)
    for step in reversed(steps):
        used = _refs(step.args) | _refs(tuple(step.kwargs.values())) | {step.name}
        step.last_uses.extend(used - seen)
        seen |= used


def _is_float(dtype: Any) -> bool:
    return bool(jnp.issubdtype(dtype, jnp.floating))


def _bits(dtype: Any) -> int:
    return jnp.finfo(dtype).bits


def width_of(arrays: Mapping[str, Any]) -> int:
    """Bits of the widest floating-point array; single precision if there is none."""
    return max((_bits(a.dtype) for a in arrays.values() if _is_float(a.dtype)), default=32)
