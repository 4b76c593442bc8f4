"""State_dicts in `.pt` files, which are pickles: only tensors are ever loaded from one.

A pickle can run any code when it is loaded. `torch.load(weights_only=True)` refuses everything but
tensors and plain containers.
"""

import pickle
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from onebasin.atomic import write_atomically
from onebasin.checkpoints.layout import DTYPES
from onebasin.pytorch_tensors import as_array, dtype_of, import_torch, to_tensor
from onebasin.regular_files import check_regular
from onebasin.tensor_files import REPLACE, TensorFileError

NESTED = ("state_dict", "model_state_dict", "model")  # where training scripts keep it


def read_pickled(path: Path) -> dict[str, np.ndarray]:
    """The tensors of a state_dict, by name, as arrays of the memory that PyTorch loaded."""
    torch = import_torch()
    _check_sums(check_regular(path, TensorFileError))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the protocol of the pickle
            held = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        raise TensorFileError(
            f"{path} holds more than tensors, which could run code when it is loaded, so it was "
            "not; save module.state_dict() alone, best as safetensors"
        ) from None
    except Exception as error:  # of PyTorch, in many kinds
        raise _not_whole(path, error) from None
    found = [held[name] for name in NESTED if isinstance(held, Mapping) and name in held]
    inner = found[0] if found and isinstance(found[0], Mapping) else held
    if not isinstance(inner, Mapping) or not inner:
        raise TensorFileError(f"{path} holds no state_dict; save module.state_dict()")
    for name, value in inner.items():
        if not isinstance(name, str) or not isinstance(value, torch.Tensor):
            raise TensorFileError(
                f"{path} holds no plain state_dict: its entry {name!r} is a {type(value).__name__}"
            )
        fault = _fault(value)
        if fault:
            raise TensorFileError(f"{path}: '{name}' {fault}")
    return {name: as_array(value) for name, value in inner.items()}


def _fault(tensor: Any) -> str | None:
    """Why a tensor is no plain array of numbers; None if it is one."""
    kind = str(tensor.dtype).removeprefix("torch.")
    if str(tensor.layout) != "torch.strided":
        return "is sparse; save it with .to_dense()"
    if tensor.device.type != "cpu":
        return f"has no numbers (its device is {tensor.device}); save the weights themselves"
    try:
        known = dtype_of(tensor.dtype) in DTYPES.values()
    except TypeError:
        known = False
    if not known or tensor.is_quantized:
        return f"holds {kind} numbers, which are not supported; save it as float32"
    # A few numbers can be declared to be a tensor of any size.
    if tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
        return "repeats its numbers (it was made with expand); save it with .contiguous()"
    return None


def _check_sums(path: Path) -> None:
    """Compare the tensors with the checksums of the zip archive, which PyTorch does not look at."""
    try:
        if not zipfile.is_zipfile(path):
            return
        with zipfile.ZipFile(path) as archive:
            # PyTorch never compresses: a small file could fill the memory.
            packed = any(m.compress_type != zipfile.ZIP_STORED for m in archive.infolist())
            damaged = None if packed else archive.testzip()
    except Exception as error:  # of zipfile, in many kinds
        raise _not_whole(path, error) from None
    if packed:
        raise _not_whole(path, "its archive is compressed")
    if damaged is not None:
        raise _not_whole(path, f"the checksum of {damaged} is another")


def _not_whole(path: Path, error: object) -> TensorFileError:
    told = " ".join(str(error).split())[:200]
    return TensorFileError(f"{path} is not a whole PyTorch file: {told}; {REPLACE}")


def write_pickled(path: Path, tensors: Mapping[str, np.ndarray], dtypes: Mapping[str, Any]) -> None:
    """Write a state_dict as a `.pt` file."""
    torch = import_torch()
    content = {name: to_tensor(array, dtypes[name]) for name, array in tensors.items()}
    write_atomically(path, lambda part: torch.save(content, part))
