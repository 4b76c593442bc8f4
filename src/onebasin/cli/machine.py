"""The flags of every command that say where and how JAX computes: --device, --x64, --threads.

They are read before JAX is imported, because it takes most of them from the environment.
"""

import os
import random
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import get_args

from onebasin.choices import DeviceName

MOST_THREADS = 4096
# What JAX, and the libraries of linear algebra below NumPy and SciPy, read when they are loaded.
THREAD_VARIABLES = ("NPROC", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass(frozen=True)
class Machine:
    """Where and how to compute."""

    device: str | None = None
    x64: bool = False
    threads: int | None = None

    @contextmanager
    def used(self) -> Iterator[None]:
        """Compute so: by the environment, or in a process that uses JAX already for a while."""
        if "jax" not in sys.modules:
            os.environ |= self._environment()
            self._keep_to_few_cores()
            yield
            return
        import jax

        with ExitStack() as stack:
            if self.x64:
                stack.enter_context(jax.enable_x64(True))
            if self.device is not None:
                stack.enter_context(jax.default_device(jax.devices(self.device)[0]))
            yield

    def _environment(self) -> dict[str, str]:
        found = {}
        if self.device is not None:
            found["JAX_PLATFORMS"] = self.device
        if self.x64:
            found["JAX_ENABLE_X64"] = "1"
        if self.threads is not None:
            found |= dict.fromkeys(THREAD_VARIABLES, str(self.threads))
        return found

    def _keep_to_few_cores(self) -> None:
        """Where the system allows it: our own threads, and whatever reads no variable."""
        if self.threads is None or not hasattr(os, "sched_setaffinity"):
            return
        allowed = sorted(os.sched_getaffinity(0))
        if self.threads < len(allowed):
            # At random, so that two commands on one machine rarely get the same cores.
            os.sched_setaffinity(0, random.Random(os.getpid()).sample(allowed, self.threads))


def split_arguments(arguments: Sequence[str]) -> tuple[Machine, list[str]]:
    """What the common flags say, and the other arguments.

    >>> split_arguments(["fit", "vi", "--x64", "--threads=2"])
    (Machine(device=None, x64=True, threads=2), ['fit', 'vi'])
    """
    machine, rest, left = {}, [], list(arguments)
    while left:
        flag, equals, value = left.pop(0).partition("=")
        if flag == "--x64" and not equals:
            machine["x64"] = True
        elif flag in ("--device", "--threads"):
            if not equals:
                value = left.pop(0) if left else ""
            machine[flag.removeprefix("--")] = (
                _device(value) if flag == "--device" else _threads(value)
            )
        else:
            rest.append(flag + equals + value)
    return Machine(**machine), rest


def _device(text: str) -> str:
    if text not in get_args(DeviceName):
        raise ValueError(f"there is no device '{text}'; give {', '.join(get_args(DeviceName))}")
    return text


def _threads(text: str) -> int:
    if not (text.isdecimal() and text.isascii() and 0 < int(text[:9]) <= MOST_THREADS):
        raise ValueError(f"--threads is '{text:.20}'; give a number from 1 to {MOST_THREADS}")
    return int(text)
