"""The flags of every command that say where and how JAX computes: --device, --x64, --threads.

`fit` can run as one of several processes: --distributed, or --coordinator, --processes, --process.

They are read before JAX is imported, because it takes most of them from the environment.
"""

import os
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, get_args

from onebasin.choices import DeviceName

MOST_THREADS = 4096
# What JAX, and the libraries of linear algebra below NumPy and SciPy, read when they are loaded.
THREAD_VARIABLES = ("NPROC", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


# What says how several processes find each other, where Slurm, Open MPI or Kubernetes do not.
PROCESS_VARIABLES = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")


@dataclass(frozen=True)
class Machine:
    """Where and how to compute."""

    device: str | None = None
    x64: bool = False
    threads: int | None = None
    distributed: bool = False
    coordinator: str | None = None
    processes: int | None = None
    process: int | None = None

    @property
    def is_shared(self) -> bool:
        """Whether this process is one of several that share the work."""
        return self.distributed or self.coordinator is not None

    @contextmanager
    def used(self) -> Iterator[None]:
        """Compute so: by the environment, or in a process that uses JAX already for a while."""
        if "jax" not in sys.modules:
            os.environ |= self._environment()
            self._keep_to_few_cores()
            if self.is_shared:
                self._join()
            yield
            return
        if self.is_shared:
            raise ValueError("JAX is in use already; call jax.distributed.initialize before")
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

    def _join(self) -> None:
        """Find the other processes: by the flags, the environment, or what JAX knows of the job."""
        import jax

        named = [os.environ.get(name) for name in PROCESS_VARIABLES]
        address = self.coordinator or named[0]
        count, number = (
            given if given is not None else _number(PROCESS_VARIABLES[i], named[i])
            for i, given in ((1, self.processes), (2, self.process))
        )
        try:
            jax.distributed.initialize(address, count, number)
        except ValueError as error:
            raise ValueError(
                f"the processes of this job are not known ({error}); start them by Slurm, Open MPI "
                "or Kubernetes, or give --coordinator HOST:PORT --processes N --process I"
            ) from None

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

    >>> machine, rest = split_arguments(["fit", "vi", "--x64", "--threads=2"])
    >>> machine.x64, machine.threads, rest
    (True, 2, ['fit', 'vi'])
    """
    machine: dict[str, Any] = {}
    rest, left = [], list(arguments)
    while left:
        flag, equals, value = left.pop(0).partition("=")
        if flag == "--x64" and not equals:
            machine["x64"] = True
        elif flag == "--distributed" and not equals:
            machine["distributed"] = True
        elif flag in VALUES:
            if not equals:
                value = left.pop(0) if left else ""
            machine[flag.removeprefix("--")] = VALUES[flag](value)
        else:
            rest.append(flag + equals + value)
    return Machine(**machine), rest


def _device(text: str) -> str:
    if text not in get_args(DeviceName):
        raise ValueError(f"there is no device '{text}'; give {', '.join(get_args(DeviceName))}")
    return text


def _count(flag: str, text: str, least: int = 1, most: int = MOST_THREADS) -> int:
    if not (text.isdecimal() and text.isascii() and least <= int(text[:9]) <= most):
        raise ValueError(f"{flag} is '{text:.20}'; give a number from {least} to {most}")
    return int(text)


def _number(name: str, text: str | None) -> int | None:
    return None if text is None else _count(name, text, 0)


def _address(text: str) -> str:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal():
        raise ValueError(f"--coordinator is '{text:.80}'; give the first process as HOST:PORT")
    return text


VALUES: dict[str, Callable[[str], str | int]] = {
    "--device": _device,
    "--threads": partial(_count, "--threads"),
    "--coordinator": _address,
    "--processes": partial(_count, "--processes"),
    "--process": partial(_count, "--process", least=0),
}
