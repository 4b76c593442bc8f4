"""Four HMC chains on one, two and four devices; the `onebasin` command offers four.

    python benchmarks/hmc_devices.py [--rounds 3]

JAX fixes the number of CPU devices when it starts, so every measurement runs in its own process;
the settings alternate. A measurement is a few steps of the fit of `reproduce table1 --preset cpu`.
Writes results/hmc_devices.json.
"""

import argparse
import os
import subprocess
import sys
from dataclasses import replace
from statistics import median

from inference import Chunk
from machine import describe, interleaved, record
from onebasin.experiments.compact_stages import CPU
from onebasin.experiments.setting import problem

DEVICES = (1, 2, 4)
STEPS = 100


def milliseconds(data_chunk: int) -> float:
    """The time of one leapfrog step of all four chains, in this process."""
    chunk = Chunk(problem(CPU.setting), replace(CPU.hmc, data_chunk=data_chunk), STEPS)
    return 1e3 * median(interleaved({"chunk": chunk}, 3)["chunk"]) / STEPS


def in_new_process(devices: int, data_chunk: int) -> float:
    """`milliseconds` in a process with this number of devices."""
    environment = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"}
    environment["JAX_NUM_CPU_DEVICES"] = str(devices)
    command = [sys.executable, __file__, "--here", str(data_chunk)]
    done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    return float(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--data-chunks", type=int, nargs="+", default=[1000, 3500])
    parser.add_argument("--here", type=int, metavar="DATA_CHUNK", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.here is not None:
        print(milliseconds(options.here))
        return
    settings = [(devices, size) for size in options.data_chunks for devices in DEVICES]
    taken: dict[tuple[int, int], list[float]] = {one: [] for one in settings}
    for _ in range(options.rounds):
        for one in settings:
            taken[one].append(in_new_process(*one))
            print(f"{one[0]} devices, chunks of {one[1]}: {taken[one][-1]:.1f} ms", flush=True)
    figures = {
        f"chunks of {size}": {
            "milliseconds_per_step": {d: median(taken[d, size]) for d in DEVICES},
            "one_device_over_four": median(
                a / b for a, b in zip(taken[1, size], taken[4, size], strict=True)
            ),
        }
        for size in options.data_chunks
    }
    setting = {"fit": CPU.title, "chains": CPU.hmc.chains, "rounds": options.rounds}
    print(record("hmc_devices", {**setting, **figures, **describe()}))


if __name__ == "__main__":
    main()
