"""The entries of a state_dict: what is a parameter, what is tied, what moves with units.

A tensor that a module reads under several names (an embedding that is also the output layer) is
one parameter. It is recognised by its storage: the parameter objects may differ.

Which buffers move with the units? Those that a call in training mode changes: running statistics,
the vectors of spectral normalisation. All others (positions, masks, frequencies) are constants of
the function. A "symmetry" that permutes one of these changes the module's outputs.
"""

import copy
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from onebasin.networks.pytorch.exporting import CannotConvert, Example
from onebasin.pytorch_tensors import import_torch


@dataclass(frozen=True)
class Entries:
    """The entries of a module: tensors by name, each tensor under its first name."""

    params: Mapping[str, Any]
    state: Mapping[str, Any]
    tied: Mapping[str, str]
    """The name kept of every parameter or moving buffer that has several, by each further name."""
    others: Mapping[str, Any]
    """Copies of the other entries of the state_dict."""


def read_entries(module: Any, example: Example, state: Sequence[str] | None) -> Entries:
    """Sort the entries of a module; `state` names the buffers that move with units, if known."""
    first: dict[tuple[Any, ...], str] = {}
    params: dict[str, Any] = {}
    tied: dict[str, str] = {}
    for name, tensor in module.named_parameters(remove_duplicate=False):
        known = first.setdefault(storage_of(tensor), name) if tensor.numel() else name
        if known == name:
            params[name] = tensor
        else:
            tied[name] = known
    _check_overlaps(params)
    buffers = dict(module.named_buffers(remove_duplicate=False))
    moving = changed_by_training(module, example) if state is None else list(state)
    for name in moving:
        if name not in buffers:
            raise ValueError(f"state names '{name}', which is no buffer of {type(module).__name__}")
    found = {name: buffers[name] for name in moving}
    homes: dict[tuple[Any, ...], str] = {
        storage_of(buffer): name for name, buffer in found.items() if buffer.numel()
    }
    for name, buffer in buffers.items():
        home = homes.get(storage_of(buffer))
        if home is not None and name not in found:  # a layer that is used under several names
            tied[name] = home
    saved = module.state_dict()
    others = {n: t.clone() for n, t in saved.items() if n not in {*params, *tied, *found}}
    return Entries(params, found, tied, others)


def storage_of(tensor: Any) -> tuple[Any, ...]:
    """What two tensors share that are the same array in the same layout."""
    where = tensor.untyped_storage().data_ptr(), tensor.storage_offset()
    return (*where, tensor.dtype, tuple(tensor.shape), tensor.stride())


def _check_overlaps(params: Mapping[str, Any]) -> None:
    """Refuse parameters that share numbers without being the same array (a transposed view)."""
    spans: dict[int, list[tuple[int, int, str]]] = {}
    for name, tensor in params.items():
        if tensor.numel():
            begin = tensor.data_ptr()
            reach = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
            end = begin + (reach + 1) * tensor.element_size()
            storage = tensor.untyped_storage().data_ptr()
            spans.setdefault(storage, []).append((begin, end, name))
    for found in spans.values():
        found.sort()
        for (_, end, name), (begin, _, other) in pairwise(found):
            if begin < end:
                raise CannotConvert(
                    f"the parameters '{name}' and '{other}' share numbers in different layouts; "
                    "tie them as one parameter and transpose it where it is used"
                )


def changed_by_training(module: Any, example: Example) -> list[str]:
    """The floating-point buffers that a call in training mode changes, on a copy of the module."""
    torch = import_torch()
    if not any(b.is_floating_point() for b in module.buffers()):
        return []
    copied = copy.deepcopy(module).train()
    before = {name: buffer.clone() for name, buffer in copied.named_buffers()}
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            example.call(copied)
    except Exception as error:  # of any kind: it is the module's own code
        raise CannotConvert(
            f"a call of {type(module).__name__} in training mode, which shows the buffers that "
            f"move with units, failed ({' '.join(str(error).split())[:200]}); name these buffers "
            "with state=[...] ([] for none)"
        ) from error
    after = dict(copied.named_buffers())
    return [
        name
        for name, old in before.items()
        if old.is_floating_point() and not torch.equal(after[name], old)
    ]
