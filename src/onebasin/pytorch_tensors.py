"""The optional package torch, and its tensors to arrays and back, bfloat16 included.

Arrays are copies: neither side sees what the other changes later.
"""

from importlib import import_module
from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np
from numpy.typing import ArrayLike

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)  # NumPy's own types do not include it


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
    return BFLOAT16 if name == "bfloat16" else np.dtype(name)


def to_array(tensor: Any) -> np.ndarray:
    """A copy of a tensor as an array."""
    torch = import_torch()
    tensor = tensor.detach().cpu().contiguous()
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(BFLOAT16).copy()
    return np.array(tensor.numpy())


def to_tensor(array: ArrayLike, torch_dtype: Any) -> Any:
    """A copy of an array as a tensor of a data type."""
    torch = import_torch()
    own = np.asarray(array)
    if torch_dtype == torch.bfloat16:
        bits = np.array(own.astype(BFLOAT16), order="C").reshape(own.shape).view(np.int16)
        return torch.from_numpy(bits).view(torch.bfloat16)
    return torch.from_numpy(np.array(own, dtype_of(torch_dtype), order="C").reshape(own.shape))


def to_jax(tensor: Any) -> jnp.ndarray:
    """A copy of a tensor as a JAX array."""
    return jnp.array(to_array(tensor))
