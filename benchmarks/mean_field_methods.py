"""VI and IVON with equal numbers of gradients: −ELBO per example, and processor seconds per step.

    python benchmarks/mean_field_methods.py digits cancer diabetes mnist --folder FOLDER

For each data set, `VI` with its defaults and `IVON` with a few learning rates (0.1 is the default),
with batches of the same size and the same numbers of epochs: all that `VI` chooses, a third and a
tenth. Each step of either takes one gradient. The ELBO is estimated with common noise on the
training data. Processor seconds per step are medians over short runs of the two methods in turns.
MNIST needs ONEBASIN_DATA. With --folder, fits are kept there, and a measurement that was
interrupted continues. Writes results/mean_field_methods.json.
"""

import argparse
import time
from pathlib import Path
from statistics import median
from typing import Any

import jax

from inference import Chunk
from machine import describe, record
from onebasin.data import load_dataset
from onebasin.inference.fitting import fit
from onebasin.inference.methods import IVON, VI, MeanFieldMethod, to_config
from onebasin.inference.vi_defaults import settled
from onebasin.networks import MLP
from onebasin.problem import Problem
from vi_convergence import negative_elbo, problem_of

SHARES = {"all": 1.0, "a third": 1 / 3, "a tenth": 0.1}
RATES = (0.1, 0.03, 0.3)
BATCH = 500
ROUNDS = 5


def problem_for(name: str, limit: int) -> Problem:
    if name == "mnist":
        data = load_dataset("mnist", limit=limit)
        return Problem.from_network(MLP((32,)), data, prior_variance=0.05)
    return problem_of(name, None)


def candidates(problem: Problem, share: float) -> dict[str, MeanFieldMethod]:
    whole = settled(problem, VI(batch_size=BATCH))
    assert whole.epochs is not None
    epochs = max(1, round(share * whole.epochs))
    ivon = {
        f"IVON, learning rate {rate:g}": IVON(epochs=epochs, batch_size=BATCH, learning_rate=rate)
        for rate in RATES
    }
    return {"VI": VI(epochs=epochs, batch_size=BATCH), **ivon}


def processor_seconds(problem: Problem) -> dict[str, float]:
    """Per step, of VI and of IVON in turns."""
    steps = 200
    chunks = {
        "VI": Chunk(problem, settled(problem, VI(epochs=100, batch_size=BATCH)), steps),
        "IVON": Chunk(problem, IVON(epochs=100, batch_size=BATCH), steps),
    }
    seconds: dict[str, list[float]] = {kind: [] for kind in chunks}
    for kind in chunks:
        chunks[kind]()
    for _ in range(ROUNDS):
        for kind, chunk in chunks.items():
            began = time.process_time()
            chunk()
            seconds[kind].append((time.process_time() - began) / steps)
    return {kind: median(values) for kind, values in seconds.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="+")
    parser.add_argument("--limit", type=int, default=6000, help="training examples of MNIST")
    parser.add_argument("--folder", type=Path, help="where fits are kept, and continued")
    options = parser.parse_args()
    if options.folder is not None:
        options.folder.mkdir(parents=True, exist_ok=True)
    for name in options.names:
        problem = problem_for(name, options.limit)
        rows: dict[str, Any] = {}
        for budget, share in SHARES.items():
            for kind, method in candidates(problem, share).items():
                keep: Any = {}
                if options.folder is not None:
                    stem = f"{name}, {budget}, {kind}".replace(".", "_")
                    keep = {"out": options.folder / f"{stem}.safetensors", "resume": True}
                result = fit(problem, method, key=jax.random.key(0), progress="plain", **keep)
                value, error = negative_elbo(problem, result.posterior)
                rows.setdefault(budget, {"steps": result.stats["steps"], "methods": {}})
                rows[budget]["methods"][kind] = {
                    "negative_elbo": value,
                    "standard_error": error,
                    "settings": to_config(result.method),
                }
                print(name, budget, kind, value, error, flush=True)
        seconds = processor_seconds(problem)
        found = {
            "examples": problem.num_examples,
            "parameters": sum(leaf.size for leaf in jax.tree.leaves(problem.shapes)),
            "processor_seconds_per_step": seconds,
            "budgets": rows,
            "machine": describe(),
        }
        print(record("mean_field_methods", {name: found}))


if __name__ == "__main__":
    main()
