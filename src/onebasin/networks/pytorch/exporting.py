"""A module as a graph of operators that have a counterpart in JAX, by `torch.export`."""

import io
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from typing import Any

from onebasin.networks.pytorch import operators  # noqa: F401  # fills the registry
from onebasin.networks.pytorch.registry import KEPT, counterpart
from onebasin.pytorch_tensors import import_torch

ROUNDS = 3  # of decompositions; each may give operators that have one of their own


class CannotConvert(ValueError):
    """A module that cannot be turned into a function of its params and inputs."""


@dataclass(frozen=True)
class Example:
    """The inputs of one call: positional ones, or by name; their first axis is the batch."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @classmethod
    def of(cls, example: Any) -> "Example":
        """From a tensor, a tuple of tensors, or a dictionary of tensors by argument name."""
        torch = import_torch()
        if isinstance(example, dict):
            read = cls((), dict(example))
        else:
            read = cls(tuple(example) if isinstance(example, tuple | list) else (example,), {})
        for tensor in read.tensors:
            if not isinstance(tensor, torch.Tensor) or not tensor.ndim or not len(tensor):
                raise ValueError(
                    "the example must be a batch as a tensor, a tuple of tensors, or a dictionary "
                    f"of tensors by argument name; got {type(tensor).__name__}"
                )
        if not read.tensors or len({len(t) for t in read.tensors}) > 1:
            raise ValueError("the inputs of the example need one and the same number of rows")
        return read if len(read.tensors[0]) > 1 else read._twice()

    @property
    def tensors(self) -> list[Any]:
        return [*self.args, *self.kwargs.values()]

    def call(self, module: Any) -> Any:
        """What a module returns, on copies: it may change its inputs."""
        args = [tensor.clone() for tensor in self.args]
        return module(*args, **{name: tensor.clone() for name, tensor in self.kwargs.items()})

    def _twice(self) -> "Example":
        """Two rows: torch.export takes a batch of one for a constant."""
        cat = import_torch().cat
        return Example(
            tuple(cat([t, t]) for t in self.args), {k: cat([t, t]) for k, t in self.kwargs.items()}
        )


def export(module: Any, example: Example) -> Any:
    """The exported program of a module, with a counterpart for every operator."""
    torch = import_torch()
    shapes = torch.export.ShapesCollection()
    for tensor in example.tensors:
        shapes[tensor] = {0: torch.export.Dim.AUTO}
    with _quiet(), torch.no_grad():
        try:
            program = torch.export.export(
                module,
                example.args,
                example.kwargs,
                dynamic_shapes=shapes,
                strict=False,
            )
            program = program.run_decompositions(_table())
            for _ in range(ROUNDS):
                known = torch._decomp.get_decompositions(unknown_operators(program.graph))
                if not known:
                    break
                program = program.run_decompositions(known)
        except Exception as error:  # torch.export raises errors of many kinds
            raise CannotConvert(_reason(module, error)) from error
    unknown = unknown_operators(program.graph)
    random = [op for op in unknown if torch.Tag.nondeterministic_seeded in getattr(op, "tags", ())]
    if random:
        raise CannotConvert(
            f"{type(module).__name__} draws random numbers in evaluation mode too ({random[0]}); "
            "call functions such as dropout with training=self.training"
        )
    if unknown:
        raise CannotConvert(
            f"{type(module).__name__} cannot be converted: the operators "
            f"{', '.join(map(str, unknown))} have no counterpart in JAX yet; write these parts "
            "with others"
        )
    return program


def _reason(module: Any, error: Exception) -> str:
    """One sentence for an error of torch.export."""
    name, text = type(module).__name__, " ".join(str(error).split())
    if "data-dependent" in text.lower() or "GuardOnDataDependent" in type(error).__name__:
        return (
            f"{name} cannot be converted: what it computes depends on the numbers of its inputs "
            "(an if or a shape made from them); write it with torch.where"
        )
    if "ScriptModule" in name:
        return f"{name} cannot be converted; give the module before torch.jit.script or trace"
    return f"{name} cannot be exported by torch.export, write that part otherwise: {text[:300]}"


def fixed_rows(length: Any) -> int | None:
    """The length of an axis of the graph if it is fixed, else None."""
    return length if isinstance(length, int) else length.node.maybe_as_int()


def unknown_operators(graph: Any) -> list[Any]:
    """The operators of a graph that have no counterpart."""
    ops = import_torch()._ops
    found = {
        node.target
        for node in graph.nodes
        if node.op == "call_function"
        and isinstance(node.target, ops.OpOverload | ops.HigherOrderOperator)
        and counterpart(str(node.target)) is None
    }
    return sorted(found, key=str)


def _table() -> Any:
    """PyTorch's decompositions into core operators, without those that are kept whole."""
    torch = import_torch()
    table = torch.export.exported_program.default_decompositions()
    for name in KEPT:
        packet = getattr(torch.ops.aten, name.partition(".")[0])
        for overload in packet.overloads():
            target = getattr(packet, overload)
            if name in (str(target).removeprefix("aten."), packet.__name__):
                table.pop(target, None)
    return table


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the warnings and the printed graphs of torch.export.

    Products of three and more arrays are taken in their order: the search for a better one fixes
    the number of rows.
    """
    opt_einsum, told = import_torch().backends.opt_einsum, logging.root.manager.disable
    searches = opt_einsum.enabled
    logging.disable(logging.CRITICAL)
    try:
        opt_einsum.enabled = False
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            with redirect_stderr(io.StringIO()):
                yield
    finally:
        opt_einsum.enabled = searches
        logging.disable(told)
