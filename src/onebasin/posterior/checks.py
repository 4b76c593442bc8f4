"""What the numbers of a posterior must be, checked when it is made."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from onebasin.trees import PyTree, leaves_by_path


def check_numbers(what: str, tree: PyTree, *, positive: bool = False) -> None:
    """Refuse leaves that are not floating-point, not finite or, if asked for, not positive.

    Values are checked only if they are in memory: not while JAX traces a function, and not in
    memory maps, which are read only where they are used.
    """
    for name, leaf in leaves_by_path(tree).items():
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            raise ValueError(
                f"{what} has {leaf.dtype} numbers in leaf '{name}'; give floating-point numbers"
            )
        if isinstance(leaf, Tracer | jax.ShapeDtypeStruct | np.memmap) or not np.size(leaf):
            continue
        array = np.asarray(leaf)
        low, high = array.min(), array.max()  # either is NaN if the array holds one
        if not (np.isfinite(low) and np.isfinite(high)):
            raise ValueError(f"{what} has NaN or infinity in leaf '{name}'; give finite numbers")
        if positive and not low > 0:
            raise ValueError(
                f"{what} must be positive, but leaf '{name}' holds {float(low):g}; give standard "
                "deviations above zero"
            )
