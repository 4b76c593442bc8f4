"""How many threads work at once: one policy for all of OneBasin.

Independent pieces of work, such as the rows of an assignment or the draws of a joint alignment, are
spread over the cores that this process may use. A product of small matrices is not: threads that
wait for each other on a busy machine cost many times what they save (benchmarks/threads.py).
"""

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache, wraps
from typing import ParamSpec, TypeVar

from threadpoolctl import ThreadpoolController

SMALL = 512  # units of the largest group up to which a product stays on one core

P = ParamSpec("P")
T = TypeVar("T")


def available_cores() -> list[int]:
    """The processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


@cache
def pool() -> ThreadPoolExecutor:
    """One thread for each core, for pieces of work that need no others of their kind."""
    return ThreadPoolExecutor(len(available_cores()), thread_name_prefix="onebasin")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=pool.cache_clear)  # threads do not survive a fork


@cache
def _libraries() -> ThreadpoolController:
    return ThreadpoolController()


@contextmanager
def one_thread_for_products() -> Iterator[None]:
    """Matrix products on one core each.

    The setting is the process's, so only its main thread makes it: limits of several threads would
    not end in the order in which they began. (OpenBLAS ignores those of other threads anyway.)
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    with _libraries().limit(limits=1):
        yield


def one_thread_if_small(function: Callable[P, T]) -> Callable[P, T]:
    """Run a function of a `symmetry` without multithreaded products if its groups are small."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        groups = getattr(kwargs.get("symmetry"), "groups", ())
        if max((group.size for group in groups), default=0) > SMALL:
            return function(*args, **kwargs)
        with one_thread_for_products():
            return function(*args, **kwargs)

    return call
