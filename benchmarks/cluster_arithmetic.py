"""What a sweep on 1,000 GPUs, and one chain over many, would take: arithmetic, not a measurement.

    python benchmarks/cluster_arithmetic.py

The network is the published MLP of 3 × 512 on MNIST. Every assumption is a constant below and in
the record, results/cluster_arithmetic.json, from which the tables of docs/cluster.md are made.
"""

import math
from typing import Any

import jax
import numpy as np

from machine import record
from onebasin.networks import MLP
from onebasin.trees import num_parameters

GPUS = 1000
SECONDS = (1, 10, 60, 600)  # of one fit on one GPU
EXAMPLES = 60_000
DATA_BYTES = 55e6  # of MNIST, which every machine reads once
SCHEDULER_SECONDS = 1e-3  # of the scheduler for one stage
STAGES_PER_FIT = 2.5  # a pair of fits, its alignment and two barriers
FLOPS = 1e13  # useful flop/s of one GPU in a full-batch gradient
LINKS = {"10 Gbit/s": 1.25e9, "100 Gbit/s": 1.25e10, "within one machine, 100 GB/s": 1e11}
SHARDS = (2, 8, 64)


def parameters() -> int:
    net = MLP(widths=(512, 512, 512), num_classes=10)
    x = np.zeros((1, 28, 28, 1), np.float32)
    return num_parameters(jax.eval_shape(net.init, jax.random.key(0), x)["params"])


def sweep(size: int) -> dict[str, dict[str, float]]:
    """For every time of a fit: fits per hour, what is written, and the load of the scheduler."""
    most = 1 / (STAGES_PER_FIT * SCHEDULER_SECONDS)  # fits per second that a scheduler manages
    found = {}
    for seconds in SECONDS:
        rate = min(GPUS / seconds, most)
        found[str(seconds)] = {
            "fits_per_hour": 3600 * rate,
            "written_bytes_per_second": 8 * size * rate,  # mean and std
            "scheduler_load": rate / most,
            "busy_gpus": rate * seconds / GPUS,
        }
    return found


def chain(size: int) -> dict[str, dict[str, float]]:
    """How many times faster one chain is on s GPUs: each gradient is summed between them.

    A sum of `size` floats by a ring moves 2 (s − 1)/s of them over every link.
    """
    alone = 6 * size * EXAMPLES / FLOPS
    return {
        name: {str(s): alone / (alone / s + 2 * (s - 1) / s * 4 * size / speed) for s in SHARDS}
        for name, speed in LINKS.items()
    }


def main() -> None:
    size = parameters()
    assumed: dict[str, Any] = {
        "gpus": GPUS,
        "parameters": size,
        "data_bytes": DATA_BYTES,
        "scheduler_seconds": SCHEDULER_SECONDS,
        "stages_per_fit": STAGES_PER_FIT,
        "flops": FLOPS,
        "examples": EXAMPLES,
    }
    saturates = math.ceil(1e3 * STAGES_PER_FIT * GPUS * SCHEDULER_SECONDS) / 1e3
    found = {"sweep": sweep(size), "chain": chain(size), "scheduler_is_full_at_seconds": saturates}
    print(record("cluster_arithmetic", {"assumed": assumed, **found}))


if __name__ == "__main__":
    main()
