"""Time and memory of compacting many draws of the 784-512-10 network (407,050 weights).

    python benchmarks/compact.py --folder FOLDER --draws 1000 --rank 50

Each draw is one of a few networks trained on MNIST plus noise along a few common directions and
independent noise, under its own random permutation. The draws are written to a file in FOLDER and
compacted from there (memory-mapped) in a separate process, which may take 4 GiB of private memory.
Its peak resident memory, including mapped pages, is recorded in results/compact_speed.json.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from machine import describe, record
from onebasin import MAP, Problem, fit, load_dataset
from onebasin.compaction import compact
from onebasin.inference.draws import DrawStore
from onebasin.mapped import release
from onebasin.networks import MLP, to_config
from onebasin.posterior import load
from onebasin.symmetry import find_scales, find_symmetry
from onebasin.trees import add_axis, stack_trees

NETWORKS = 4
WIDTH = 512
LIMIT_GIB = 4
DIRECTIONS = 20  # common to all draws of a network


def network(width):
    net = MLP(widths=(width,), num_classes=10)

    def apply(params, x) -> jax.Array:
        outputs = net.apply({"params": params}, x)
        assert isinstance(outputs, jax.Array)
        return outputs

    return net, apply


def symmetry_of(params, width):
    _, apply = network(width)
    return find_symmetry(apply, params, np.zeros((2, 28, 28, 1), np.float32))


def make(folder, count, width):
    """A file of `count` draws, written unless it exists."""
    path = folder / f"draws{count}-{width}.safetensors"
    if path.exists():
        return path
    net, _ = network(width)
    problem = Problem.from_network(net, load_dataset("mnist", limit=10000), prior_variance=1.0)
    trained = fit(problem, MAP(epochs=3), key=jax.random.key(0), runs=NETWORKS, progress="silent")
    points = [result.posterior.draw(0) for result in trained]
    symmetry = symmetry_of(points[0], width)
    rng = np.random.default_rng(0)

    def noise(leaf, scale):
        return scale * np.std(leaf) * rng.standard_normal(leaf.shape, np.float32)

    directions = stack_trees(
        [jax.tree.map(lambda a: noise(a, 0.1), points[0]) for _ in range(DIRECTIONS)]
    )
    store = DrawStore(points[0], NETWORKS, count // NETWORKS, path.with_suffix(".part"))
    for number in range(count // NETWORKS * NETWORKS):
        chain, nth = divmod(number, count // NETWORKS)
        z = rng.standard_normal(DIRECTIONS).astype(np.float32)
        draw = jax.tree.map(
            lambda a, d, z=z: np.asarray(a) + np.tensordot(z, d, 1) + noise(a, 0.5),
            points[chain],
            directions,
        )
        moved = symmetry.act(symmetry.random(key=jax.random.key(number)), draw)
        store.put(chain, nth, add_axis(jax.tree.map(jnp.asarray, moved)))
        if number % 100 == 99:
            jax.tree.map(release, list(store.arrays.values()))
    store.become(path, to_config(net, input_shape=(28, 28, 1)), {"benchmark": "compact"})
    return path


def peak_gib():
    """Largest resident memory of this program, mapped pages included.

    That of `getrusage` would count the process that started it, which has mapped the whole file.
    """
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 2**20


def measure(path, rank, rebase, balance, width):
    """Compact one file; print time and memory as JSON."""
    resource.setrlimit(resource.RLIMIT_DATA, (LIMIT_GIB << 30, LIMIT_GIB << 30))
    samples = load(path, mapped=True)
    _, apply = network(width)
    first = jax.tree.map(lambda leaf: np.array(leaf[0]), samples.draws)
    x = np.random.default_rng(0).standard_normal((4, 28, 28, 1)).astype(np.float32)
    symmetry = symmetry_of(first, width)
    scales = find_scales(apply, first, x, symmetry=symmetry) if balance else False
    last = [time.perf_counter()]
    stages = {}

    def report(what, done, of):
        now = time.perf_counter()
        stages[what] = stages.get(what, 0.0) + now - last[0]
        last[0] = now
        if done == of:
            print(f"{what}: {stages[what]:.0f} s", file=sys.stderr, flush=True)

    began, cpu = time.perf_counter(), time.process_time()
    found = compact(
        samples, symmetry=symmetry, rank=rank, rebase=rebase, balance=scales, progress=report
    )
    jax.block_until_ready(found.posterior)
    figures = {
        "draws": len(found.members),
        "rank": rank,
        "rebase": rebase,
        "balance": balance,
        "seconds": time.perf_counter() - began,
        "cpu_seconds": time.process_time() - cpu,
        "cpu_seconds_per_draw": (time.process_time() - cpu) / len(found.members),
        "limit_gib": LIMIT_GIB,
        "peak_gib": peak_gib(),
        "rounds": found.rounds,
        "moves": list(found.moves),
        "converged": found.converged,
        "trace": list(found.trace),
        "stages": stages,
    }
    print(json.dumps(figures))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--width", type=int, default=WIDTH)
    parser.add_argument("--rank", type=int, default=50)
    parser.add_argument("--rebase", default="likelihood")
    parser.add_argument("--balance", action="store_true")
    parser.add_argument("--measure", type=Path, help="the file that the inner process compacts")
    arguments = parser.parse_args()
    if arguments.measure:
        given = arguments.rank, arguments.rebase, arguments.balance, arguments.width
        measure(arguments.measure, *given)
        return
    path = make(arguments.folder, arguments.draws, arguments.width)
    again = [sys.executable, *sys.argv, "--measure", str(path)]
    done = subprocess.run(again, check=True, stdout=subprocess.PIPE, text=True)
    figures = {**json.loads(done.stdout), "machine": describe()}
    balanced = ", balanced" if arguments.balance else ""
    width = "" if arguments.width == WIDTH else f", width {arguments.width}"
    name = f"{arguments.draws} draws, rank {arguments.rank}, {arguments.rebase}{balanced}{width}"
    print({k: v for k, v in figures.items() if k not in ("trace", "stages")})
    print("recorded in", record("compact_speed", {name: figures}))


if __name__ == "__main__":
    main()
