"""Connectivity on MNIST: barriers before and after alignment, repair, speed, landscapes.

    python benchmarks/connectivity.py --fits FOLDER STAGE...

Two VI fits of an MLP 3×512 are made once and kept in FOLDER. Every stage adds its numbers to
results/connectivity.json, so stages can be run separately:

    fits        the two fits (30 epochs each)
    speed       the rate of `profile` against that of a matrix product, and peak memory
    unaligned   barrier between the unaligned fits
    aligned     barrier after alignment by w2, 25 points × 128 samples on 10,000 test images
    l2          the same by l2, at fewer points
    repaired    plain and repaired paths side by side
    repair_choices  what is scaled and whose statistics are restored
    unaligned_curve  more points of the unaligned path, fewer samples
    train       barriers on 10,000 training images
    mixture     the mixture path
    landscape   25 × 25 log posterior on 2,000 training images
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import jax
import numpy as np

import onebasin as ob
from machine import describe, matmul, record
from onebasin.alignment import Alignment, align
from onebasin.choices import WeightObjective
from onebasin.data.examples import Examples
from onebasin.evaluation.landscapes import landscape, plane_through
from onebasin.evaluation.profiles import Profile, profile
from onebasin.inference.fitting import fit
from onebasin.inference.methods import VI
from onebasin.networks import MLP
from onebasin.paths import Path as PosteriorPath
from onebasin.paths import geodesic, mixture_path, repair
from onebasin.problem import Problem
from onebasin.symmetry import Symmetry

WIDTHS, EPOCHS = (512, 512, 512), 30  # of the fits, unless --epochs says otherwise
KEY = jax.random.key(2023)


class Setting:
    """Data, problem, fits and alignments, each made when first needed."""

    def __init__(
        self, folder: Path, figures: Path | None, samples: int | None, epochs: int
    ) -> None:
        self.folder, self.figures, self.samples, self.epochs = folder, figures, samples, epochs
        self.data = ob.load_dataset("mnist")
        self.problem = Problem.from_network(
            MLP(widths=WIDTHS, num_classes=10), self.data, prior_variance=0.01
        )
        self.apply = self.problem.apply
        self._aligned: dict[str, Alignment] = {}

    def path(self, run: int) -> Path:
        return self.folder / f"mlp512-{self.epochs}-{run}.safetensors"

    def fits(self) -> list[Any]:
        found = []
        for run in range(2):
            path = self.path(run)
            if not path.exists():
                fit(
                    self.problem,
                    VI(epochs=self.epochs, learning_rate=3e-3, initial_std=0.01),
                    key=jax.random.key(run),
                    out=path,
                )
            found.append(ob.load(path))
        return found

    def symmetry(self) -> Symmetry:
        return ob.find_symmetry(self.apply, self.fits()[0].mean, self.data.train.x[:2])

    def aligned(self, objective: WeightObjective) -> Alignment:
        if objective not in self._aligned:
            q0, q1 = self.fits()
            self._aligned[objective] = align(
                q1, to=q0, symmetry=self.symmetry(), objective=objective
            )
        return self._aligned[objective]

    def measure(
        self, path: PosteriorPath, data: Examples | None = None, **options: Any
    ) -> tuple[Profile, float]:
        started = time.perf_counter()
        data = self.data.test if data is None else data
        if self.samples is not None:
            options["num_samples"] = self.samples
        found = profile(path, self.apply, data, key=KEY, **options)
        return found, time.perf_counter() - started


def network_flops() -> int:
    """Multiply-adds of one forward pass of one example, counted twice."""
    sizes = [784, *WIDTHS, 10]
    return 2 * sum(a * b for a, b in pairwise(sizes))


def peak_memory() -> int:
    """The peak memory of this process in bytes, including JAX and the data sets."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def barrier_numbers(found: Profile, seconds: float) -> dict[str, Any]:
    return {**found.summary(), "seconds": seconds}


def stage_fits(setting: Setting) -> dict[str, Any]:
    setting.fits()
    headers = [ob.read_header(setting.path(run)) for run in range(2)]
    return {
        "epochs": setting.epochs,
        "seconds": [h.provenance["stats"].get("seconds") for h in headers],
    }


def stage_speed(setting: Setting) -> dict[str, Any]:
    """Rate and memory, in a separate process; the rate does not depend on the number of draws."""
    command = [sys.executable, __file__, "--fits", str(setting.folder), "--speed-only"]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(found.stdout.splitlines()[-1])


def measure_speed(setting: Setting, samples: int = 2, rounds: int = 3) -> dict[str, Any]:
    """Matrix products and profiles alternate, so that other load affects both.

    Rates are per second and per second of processor time; the latter hardly depends on the other
    load of the machine.
    """
    q0, _ = setting.fits()
    path = geodesic(q0, setting.aligned("w2").posterior)
    product, product_flops = matmul(repeats=200)

    def profiled() -> None:
        setting.measure(path, points=25, num_samples=samples)

    # The draws and the mean network, at every point.
    flops = network_flops() * len(setting.data.test) * 25 * (samples + 1)
    runs = {"matmul": (product, product_flops), "profile": (profiled, flops)}
    rates = []
    for turn in range(rounds + 1):
        found = {}
        for name, (run, work) in runs.items():
            wall, cpu = time.perf_counter(), time.process_time()
            run()
            found[f"{name}_gflops"] = work / (time.perf_counter() - wall) / 1e9
            found[f"{name}_gflops_per_cpu_second"] = work / (time.process_time() - cpu) / 1e9
        if turn > 0:  # the first turn compiles
            rates.append(found)
    share = {
        unit: float(np.median([r[f"profile_{unit}"] / r[f"matmul_{unit}"] for r in rates]))
        for unit in ("gflops", "gflops_per_cpu_second")
    }
    return {
        "points": 25,
        "samples": samples,
        "examples": len(setting.data.test),
        "share_of_matmul_rate": share["gflops"],
        "share_of_matmul_rate_by_cpu_time": share["gflops_per_cpu_second"],
        "rounds": rates,
        "peak_memory_bytes": peak_memory(),
        "target_share": 0.7,
        "target_memory_bytes": 2 << 30,
    }


def stage_unaligned(setting: Setting) -> dict[str, Any]:
    # Three points and many draws: the draws at an unaligned midpoint vary more.
    found = setting.measure(geodesic(*setting.fits()), points=3, num_samples=640)
    return barrier_numbers(*found)


def stage_unaligned_curve(setting: Setting) -> dict[str, Any]:
    found = setting.measure(geodesic(*setting.fits()), points=13, num_samples=24)
    return barrier_numbers(*found)


def stage_aligned(setting: Setting) -> dict[str, Any]:
    found = setting.aligned("w2")
    path = geodesic(setting.fits()[0], found.posterior)
    numbers = barrier_numbers(*setting.measure(path, points=25, num_samples=128))
    return {
        **numbers,
        "distance_before": found.distance_before,
        "distance_after": found.distance_after,
        "transpositions": int(found.transpositions.total),
        "align_seconds": found.seconds,
        "peak_memory_bytes": peak_memory(),
    }


def stage_l2(setting: Setting) -> dict[str, Any]:
    path = geodesic(setting.fits()[0], setting.aligned("l2").posterior)
    return barrier_numbers(*setting.measure(path, points=3, num_samples=64))


def stage_repaired(setting: Setting) -> dict[str, Any]:
    path = geodesic(setting.fits()[0], setting.aligned("w2").posterior)
    batch, symmetry = setting.data.train.x[:1000], setting.symmetry()
    fixed = repair(path, setting.apply, batch, symmetry=symmetry)
    return barrier_numbers(*setting.measure(fixed, points=3, num_samples=128))


def stage_repair_choices(setting: Setting) -> dict[str, Any]:
    """What is scaled and whose statistics are restored, at the midpoint with common draws."""
    path = geodesic(setting.fits()[0], setting.aligned("w2").posterior)
    batch, symmetry = setting.data.train.x[:1000], setting.symmetry()
    plain, seconds = setting.measure(path, points=3, num_samples=32)
    numbers = {"plain": barrier_numbers(plain, seconds)}
    choices: dict[str, dict[str, Any]] = {
        "mean scaled, mean network's statistics": {},
        "all scaled, mean network's statistics": {"scale": "all"},
        "all scaled, statistics of 16 draws": {"scale": "all", "draws": 16, "key": KEY},
    }
    for name, options in choices.items():
        fixed = repair(path, setting.apply, batch, symmetry=symmetry, **options)
        found = setting.measure(fixed, points=3, num_samples=32, plain=plain)
        numbers[name] = barrier_numbers(*found)
    return numbers


def stage_train(setting: Setting) -> dict[str, Any]:
    data = setting.data.train.first(10_000)
    q0, q1 = setting.fits()
    ends = {"unaligned": q1, "aligned": setting.aligned("w2").posterior}
    return {
        name: barrier_numbers(*setting.measure(geodesic(q0, end), data, points=3, num_samples=64))
        for name, end in ends.items()
    }


def stage_mixture(setting: Setting) -> dict[str, Any]:
    return barrier_numbers(
        *setting.measure(mixture_path(*setting.fits()), points=25, num_samples=64)
    )


def stage_landscape(setting: Setting) -> dict[str, Any]:
    q0, q1 = setting.fits()
    plane = plane_through([q0, q1, setting.aligned("w2").posterior])
    started, began = time.perf_counter(), time.process_time()
    found = landscape(
        plane,
        setting.apply,
        setting.data.train.first(2000),
        points=25,
        log_prior=setting.problem.log_prior,
        num_train=setting.problem.num_examples,
    )
    seconds, busy = time.perf_counter() - started, time.process_time() - began
    if setting.figures is not None:
        from onebasin.figures.evaluation import landscape_figure
        from onebasin.figures.style import save_figure

        save_figure(landscape_figure(found), setting.figures / "landscape.png")
    return {**found.summary(), "seconds": seconds, "cpu_seconds": busy, "target_seconds": 60}


def main() -> None:
    stages = {
        name.removeprefix("stage_"): f for name, f in globals().items() if name.startswith("stage_")
    }
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("stages", nargs="*", choices=[*stages, []])
    parser.add_argument("--fits", type=Path, required=True, help="folder that keeps the fits")
    parser.add_argument("--figures", type=Path, help="folder for figures")
    parser.add_argument("--samples", type=int, help="draws instead of each stage's own number")
    parser.add_argument("--epochs", type=int, default=EPOCHS, help="of the fits")
    parser.add_argument("--speed-only", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    setting = Setting(options.fits, options.figures, options.samples, options.epochs)
    if options.speed_only:
        sys.stdout.write(json.dumps(measure_speed(setting)) + "\n")
        return
    for name in options.stages or stages:
        found = stages[name](setting)
        where = name if options.epochs == EPOCHS else f"{name}, {options.epochs} epochs"
        record("connectivity", {where: found, f"{where}_machine": describe()})
        short = {k: v for k, v in found.items() if isinstance(v, int | float | str)}
        sys.stdout.write(f"{name}: {json.dumps(short)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
