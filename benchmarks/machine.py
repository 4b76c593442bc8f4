"""The float32 matrix-multiply rate of the machine, and interleaved timing."""

import json
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

RESULTS = Path(__file__).resolve().parent.parent / "results"


def matmul(size: int = 1024, repeats: int = 4) -> tuple[Callable[[], None], float]:
    """A function that multiplies square float32 matrices, and the flops of one call."""
    a = jnp.ones((size, size), jnp.float32)
    product = jax.jit(lambda a, b: a @ b)

    def run() -> None:
        out = a
        for _ in range(repeats):
            out = product(a, a)
        out.block_until_ready()

    return run, 2.0 * size**3 * repeats


def matmul_rate(rounds: int = 20) -> float:
    """The best float32 matrix-multiply rate of all rounds, in flop/s."""
    run, flops = matmul()
    return flops / min(interleaved({"matmul": run}, rounds)["matmul"])


def interleaved(
    runs: dict[str, Callable[[], Any]],
    rounds: int,
    warmup: int = 1,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Seconds of each function in each round; within a round they run one after the other.

    A temporary slowdown then affects all functions alike, so ratios within a round are reliable.
    """
    for _ in range(warmup):
        for run in runs.values():
            run()
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            began = clock()
            run()
            seconds[name].append(clock() - began)
    return seconds


def describe() -> dict[str, Any]:
    """The machine, for a record."""
    return {
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "jax": jax.__version__,
        "backend": jax.default_backend(),
        "load": os.getloadavg()[0],
    }


def record(name: str, figures: dict[str, Any]) -> Path:
    """Merge figures into results/<name>.json and return its path."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    known = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**known, **figures}, indent=2) + "\n")
    return path


if __name__ == "__main__":
    print(f"{matmul_rate() / 1e9:.1f} GFLOP/s (float32 matrix multiply)")
