"""The processes of one computation that spans several machines, after `jax.distributed.initialize`.

All of them run the same program. What only one may do, such as creating a file, the first one does;
what may fail in one of them alone is done `together`, so that none waits for another that has given
up. With a single process everything here costs nothing.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import jax
import numpy as np

T = TypeVar("T")


class OtherProcessError(ConnectionError):
    """Another process of the computation has failed or ended."""


def several() -> bool:
    """Whether this process is one of several."""
    return jax.process_count() > 1


def is_first() -> bool:
    """Whether this process is the one that creates and removes what all share."""
    return jax.process_index() == 0


def values(value: int | float) -> np.ndarray:
    """The value of every process, in their order; every process has to call this."""
    if not several():
        return np.array([value])
    from jax.experimental.multihost_utils import process_allgather

    return np.asarray(process_allgather(np.asarray(value)))


def gathered(tree: Any) -> Any:
    """Arrays that are distributed over the processes, whole, as NumPy arrays on each."""
    if not several():
        return jax.tree.map(np.asarray, tree)
    from jax.experimental.multihost_utils import process_allgather

    return process_allgather(tree, tiled=True)


def together(what: str, work: Callable[[], T]) -> T:
    """Do something that may fail in every process; if it fails in one, all of them raise.

    >>> together("count", lambda: 3)
    3
    """
    if not several():
        return work()
    error: BaseException | None = None
    found: Any = None
    try:
        found = work()
    except Exception as raised:  # of any kind: the others must learn of it
        error = raised
    failed = np.flatnonzero(values(int(error is not None)))
    if error is not None:
        raise error
    if len(failed):
        raise OtherProcessError(f"process {failed[0]} could not {what}; its own message says why")
    return found
