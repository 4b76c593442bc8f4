"""The optional package torch, and its tensors to arrays and back, bfloat16 and float8 included.

Arrays are copies: neither side sees what the other changes later.
"""

from importlib import import_module
from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np
from numpy.typing import ArrayLike

BITS = {1: "uint8", 2: "int16"}  # whole numbers as wide as bfloat16 and float8


def import_torch() -> Any:
    """The module torch, or an error that says how to get it."""
    try:
        return import_module("torch")
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ImportError(
            "PyTorch is not installed; install it with pip install 'onebasin[torch]'"
        ) from None


def dtype_of(torch_dtype: Any) -> np.dtype:
    """The NumPy data type of a PyTorch one."""
    name = str(torch_dtype).removeprefix("torch.")
    return np.dtype(getattr(ml_dtypes, name, name))


def as_array(tensor: Any) -> np.ndarray:
    """A tensor as an array, of the same memory where it is contiguous and in that of the CPU."""
    torch = import_torch()
    tensor = tensor.detach().cpu().contiguous()
    own = dtype_of(tensor.dtype)
    if own.kind == "V":  # a type of ml_dtypes: PyTorch and NumPy share its bits
        return tensor.view(getattr(torch, BITS[own.itemsize])).numpy().view(own)
    return tensor.numpy()


def to_array(tensor: Any) -> np.ndarray:
    """A copy of a tensor as an array."""
    return np.array(as_array(tensor))


def to_tensor(array: ArrayLike, torch_dtype: Any) -> Any:
    """A copy of an array as a tensor of a data type."""
    torch = import_torch()
    given, own = np.asarray(array), dtype_of(torch_dtype)
    copy = np.array(given.astype(own), order="C").reshape(given.shape)
    if own.kind == "V":
        return torch.from_numpy(copy.view(BITS[own.itemsize])).view(torch_dtype)
    return torch.from_numpy(copy)


def to_jax(tensor: Any) -> jnp.ndarray:
    """A copy of a tensor as a JAX array."""
    return jnp.array(to_array(tensor))
