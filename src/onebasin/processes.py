"""The processes of one computation that spans several machines, after `jax.distributed.initialize`.

All of them run the same program. What only one may do, such as creating a file, the first one does;
what may fail in one of them alone is done `together`, so that none waits for another that has given
up. With a single process everything here costs nothing.
"""

from collections.abc import Callable
from functools import partial
from importlib import import_module
from itertools import count
from typing import Any, TypeVar

import jax
import numpy as np

T = TypeVar("T")
WAIT = 7 * 24 * 3600 * 1000  # milliseconds; a process that has died is noticed by its heartbeat
_rounds = count()


class OtherProcessError(ConnectionError):
    """Another process of the computation has failed or ended."""


def several() -> bool:
    """Whether this process is one of several."""
    return jax.process_count() > 1


def is_first() -> bool:
    """Whether this process is the one that creates and removes what all share."""
    return jax.process_index() == 0


def values(value: int) -> list[int]:
    """The value of every process, in their order; every process has to call this.

    The values go through JAX's coordination service, which waits as long as it takes. Collective
    operations on a CPU give up after half a minute, which may be less than another process needs to
    compile, or to write a large file.
    """
    if not several():
        return [value]
    # The service has no public name in JAX; Orbax reaches it in the same way.
    client: Any = import_module("jax._src.distributed").global_state.client
    place = f"onebasin/{next(_rounds)}"
    client.key_value_set(f"{place}/{jax.process_index():08d}", str(value))
    client.wait_at_barrier(f"{place}/set", WAIT)
    found = [int(text) for _, text in sorted(client.key_value_dir_get(place))]
    client.wait_at_barrier(f"{place}/read", WAIT)
    if is_first():
        client.key_value_delete(place)
    return found


meet = partial(values, 0)  # wait for all, before a collective operation


def gathered(tree: Any) -> Any:
    """Arrays that are distributed over the processes, whole, as NumPy arrays on each."""
    if not several():
        return jax.tree.map(np.asarray, tree)
    from jax.experimental.multihost_utils import process_allgather

    jax.block_until_ready(tree)
    meet()
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
    failed = [i for i, value in enumerate(values(int(error is not None))) if value]
    if error is not None:
        raise error
    if failed:
        raise OtherProcessError(f"process {failed[0]} could not {what}; its own message says why")
    return found


def check_shards(data_shards: int, devices: int) -> None:
    """Refuse a number of shards that does not divide the devices."""
    if data_shards < 1 or devices % data_shards:
        possible = [str(n) for n in range(1, devices + 1) if devices % n == 0]
        raise ValueError(
            f"data_shards is {data_shards}, and there are {devices} devices; "
            f"give one of {', '.join(possible)}, or set JAX_NUM_CPU_DEVICES"
        )
