"""A PyTorch module as a `Network`."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from onebasin.networks.network import Network
from onebasin.networks.pytorch.exporting import CannotConvert, Example, export, fixed_rows
from onebasin.networks.pytorch.gradients import compare_gradients
from onebasin.networks.pytorch.interpreting import (
    NOTHING,
    Origin,
    Program,
    read_program,
    width_of,
)
from onebasin.networks.pytorch.statistics import Call, running_statistics
from onebasin.networks.pytorch.storage import Entries, read_entries
from onebasin.pytorch_tensors import dtype_of, import_torch, to_jax, to_tensor
from onebasin.trees import PyTree, first_difference

# How far the outputs may be from PyTorch's, relative to their largest magnitude: rounding of a deep
# network with a margin. A wrong operator is off by per cents at least.
TOLERANCE = {64: 1e-9, 32: 1e-4, 16: 5e-2}


def from_torch(
    module: Any,
    example: Any,
    *,
    output: str | int | None = None,
    state: Sequence[str] | None = None,
) -> Network:
    """A `Network` from a PyTorch module in evaluation mode.

    The module is exported by `torch.export`, and its graph is computed by JAX. The outputs on the
    example are compared with PyTorch's before the network is returned. Params are a dictionary of
    arrays with the names of the module's own `state_dict`; a parameter with several names (tied
    weights) has the first. The inputs of the network may have any number of rows.

    `network.with_params(params)` is a state_dict, and `network.load_into(module, posterior)` fills
    a module.

    Args:
      module: a `torch.nn.Module`; call `module.eval()` first.
      example: a batch for the module: a tensor, a tuple of tensors, or a dictionary of tensors by
        argument name. The network takes `x` in the same form, of arrays.
      output: which output to take, if the module returns several: a name or a position.
      state: names of the buffers that move with units; by default those that a call of a copy in
        training mode changes, such as running statistics. All other buffers are constants.

    >>> import onebasin as ob, torch                                    # doctest: +SKIP
    >>> module = torch.nn.Linear(3, 2)                                  # doctest: +SKIP
    >>> ob.networks.from_torch(module.eval(), torch.ones(2, 3))         # doctest: +SKIP
    Network(8 parameters)
    """
    torch = import_torch()
    _check_module(torch, module)
    batch = Example.of(example)
    entries = read_entries(module, batch, state)
    _check_precision(entries)
    with torch.no_grad():
        returned = batch.call(module)
    taken, position = _taken(returned, output, type(module).__name__)
    program = export(module, batch)
    origins, rows = _origins(program, entries, batch)
    params = {name: to_jax(tensor) for name, tensor in entries.params.items()}
    running = {name: to_jax(tensor) for name, tensor in entries.state.items()} or None
    run = read_program(program, origins, [position], width_of(params))
    call = _call(run, rows)
    apply: Any = lambda params, x: call(params, x, None)[0]
    statistics = None
    if running:
        apply = lambda params, x, state=None: call(params, x, _given(state))[0]
        statistics = running_statistics(run, running, call, type(module).__name__)
    arrays = {k: np.asarray(to_jax(t)) for k, t in batch.kwargs.items()}
    x = arrays or _alone([np.asarray(to_jax(t)) for t in batch.args])
    first = x if rows is not None else jax.tree.map(lambda array: array[:2], x)
    network = Network(apply, params, running, _restore(entries), _fill, statistics, first)
    _check_outputs(network, x, taken, type(module).__name__, run.narrowest)
    take = lambda returned: import_torch().utils._pytree.tree_leaves(returned)[position]
    outputs = lambda params: call(params, x, running)[0]
    compare_gradients(module, batch, take, outputs, params)
    return network


def _alone(arrays: Sequence[np.ndarray]) -> Any:
    """The inputs of a call as the network takes them: a single one is not in a tuple."""
    return arrays[0] if len(arrays) == 1 else tuple(arrays)


def _check_module(torch: Any, module: Any) -> None:
    if not isinstance(module, torch.nn.Module):
        raise ValueError(f"from_torch takes a torch.nn.Module, got {type(module).__name__}")
    for name, tensor in module.named_parameters():
        if isinstance(tensor, torch.nn.parameter.UninitializedParameter):
            raise ValueError(f"parameter '{name}' has no shape yet; call the module once first")
        if tensor.is_meta:
            raise ValueError(f"parameter '{name}' has no numbers (device meta); load weights first")
        if tensor.is_complex():
            raise ValueError(
                f"parameter '{name}' is complex; hold its real and imaginary parts as two, and "
                "join them by torch.complex"
            )
    for name, held in module.state_dict().items():
        if not isinstance(held, torch.Tensor):
            raise ValueError(
                f"'{name}' in the state_dict is a {type(held).__name__}, not a tensor; give the "
                "module as it was before quantisation"
            )
    for name, part in module.named_modules():
        if part.training:
            what = f"its part '{name}'" if name else "it"
            raise ValueError(
                f"{type(module).__name__} cannot be converted while {what} is in training mode; "
                "call module.eval() first"
            )


def _check_precision(entries: Entries) -> None:
    for name, tensor in entries.params.items():
        dtype = dtype_of(tensor.dtype)
        if jax.dtypes.canonicalize_dtype(dtype) != dtype:
            raise ValueError(
                f"parameter '{name}' is {dtype}, which JAX would round; call module.float(), or "
                'jax.config.update("jax_enable_x64", True)'
            )


def _taken(returned: Any, output: str | int | None, name: str) -> tuple[Any, int]:
    """The output that is asked for, and its position among all of them."""
    torch = import_torch()
    leaves = torch.utils._pytree.tree_leaves(returned)
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    if output is None and len(tensors) == 1:
        taken = tensors[0]
    elif output is None:
        raise ValueError(
            f"{name} returns {len(tensors)} tensors{_names(returned)}; choose one with output="
        )
    else:
        try:
            taken = returned[output]
        except (KeyError, IndexError, TypeError):
            raise ValueError(f"{name} has no output {output!r}{_names(returned)}") from None
    for position, leaf in enumerate(leaves):
        if leaf is taken:
            return taken, position
    raise ValueError(f"output {output!r} of {name} is not a tensor; choose another")


def _names(returned: Any) -> str:
    if isinstance(returned, Mapping):
        return f" ({', '.join(map(str, returned))})"
    if isinstance(returned, tuple | list):
        return f" (at positions 0 to {len(returned) - 1})"
    return ""


def _origins(
    program: Any, entries: Entries, batch: Example
) -> tuple[dict[str, tuple[Origin, Any]], int | None]:
    """Where each placeholder comes from, and the number of rows if the graph fixes it."""
    signature = program.graph_signature
    nodes = [node for node in program.graph.nodes if node.op == "placeholder"]
    inputs = iter([*range(len(batch.args)), *batch.kwargs])
    origins: dict[str, tuple[Origin, Any]] = {}
    rows = None
    for node, spec in zip(nodes, signature.input_specs, strict=True):
        kind, target = spec.kind.name, spec.target
        if kind == "USER_INPUT":
            origins[node.name] = "input", next(inputs)
            fixed = fixed_rows(node.meta["val"].shape[0])
            rows = rows if fixed is None else fixed
        elif kind == "PARAMETER":
            origins[node.name] = "params", entries.tied.get(target, target)
        elif kind == "BUFFER" and entries.tied.get(target, target) in entries.state:
            origins[node.name] = "state", entries.tied.get(target, target)
        elif kind not in ("BUFFER", "CONSTANT_TENSOR"):
            raise CannotConvert(f"the module holds {target}, a {kind}, which is not supported")
    for spec in signature.output_specs:
        if spec.kind.name == "BUFFER_MUTATION":
            raise CannotConvert(
                f"the module changes its buffer '{spec.target}' when it is called in evaluation "
                "mode; switch that off"
            )
    return origins, rows


def _call(run: Program, rows: int | None) -> Call:
    """The outputs for params, inputs and state, with other functions for some steps."""

    def call(
        params: PyTree, x: Any, state: PyTree | None, instead: Any = NOTHING
    ) -> tuple[jax.Array, ...]:
        if isinstance(x, Mapping):
            inputs = dict(x)
        else:
            inputs = dict(enumerate(x if isinstance(x, tuple | list) else (x,)))
        for name, source in run.sources.items():
            if source.origin == "input" and source.key not in inputs:
                raise ValueError(f"the network needs the input {source.key!r} ({name}) in x")
        lengths = {np.shape(value)[0] for value in inputs.values()}
        if rows is not None and lengths != {rows}:
            raise ValueError(
                f"this module computes with a batch of {rows} only, as in its example; give as "
                "many rows, or write the module for any number"
            )
        return run({"params": params, "state": state or {}, "input": inputs}, instead)

    return call


def _given(state: PyTree | None) -> PyTree:
    if state is None:
        raise ValueError(
            "the module has running statistics, and these weights come without; give a posterior "
            "that holds them, such as MeanField(mean, std, state=network.state)"
        )
    return state


def _restore(entries: Entries) -> Any:
    """`restore(params, state)` gives a state_dict."""
    dtypes = {name: t.dtype for name, t in {**entries.params, **entries.state}.items()}
    tied, others = entries.tied, entries.others

    def restore(params: PyTree, state: PyTree | None) -> dict[str, Any]:
        filled = {
            name: to_tensor(array, dtypes[name])
            for name, array in {**params, **(state or {})}.items()
        }
        filled |= {name: filled[source] for name, source in tied.items()}
        return filled | {name: tensor.clone() for name, tensor in others.items()}

    return restore


def _fill(module: Any, restored: Mapping[str, Any]) -> Any:
    """Copy a state_dict into a module; nothing is written if the names or shapes differ."""
    if not isinstance(module, import_torch().nn.Module):
        raise ValueError(f"load_into fills a torch.nn.Module, got {type(module).__name__}")
    own = {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}
    difference = first_difference({n: tuple(t.shape) for n, t in restored.items()}, own)
    if difference:
        raise ValueError(f"{type(module).__name__} is not the module of this network: {difference}")
    module.load_state_dict(restored)
    return module


def _check_outputs(network: Network, x: Any, expected: Any, name: str, narrowest: int) -> None:
    """Refuse a network whose outputs on the example are not PyTorch's."""
    rest = () if network.state is None else (network.state,)
    try:
        found = np.asarray(jax.jit(network.apply)(network.params, x, *rest))
    except (TypeError, ValueError, IndexError) as error:
        told = str(error).partition("\n")[0]
        raise CannotConvert(
            f"{name} cannot be converted: one of its steps fails in JAX, or depends on the numbers "
            f"of its inputs; write it otherwise: {told}"
        ) from error
    wanted = np.asarray(to_jax(expected))
    if found.shape != wanted.shape:
        raise CannotConvert(f"{name} was converted wrongly: its outputs have shape {found.shape}")
    bits = min(narrowest, width_of({"out": wanted}))
    found, wanted = found.astype(np.float64), wanted.astype(np.float64)
    largest = np.abs(wanted).max(initial=0)
    if not np.isfinite(wanted).all():
        raise CannotConvert(f"{name} gives NaN or infinity on the example; give another")
    off = np.abs(found - wanted).max(initial=0) / (largest or 1)
    if not off <= TOLERANCE[bits]:
        raise CannotConvert(
            f"{name} was converted wrongly: its outputs on the example differ from PyTorch's by "
            f"{off:.1e} of their largest; please report the module"
        )
