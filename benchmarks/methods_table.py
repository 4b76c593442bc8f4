"""All methods of `fit` against an HMC reference: how close, how good, how long, how large.

    python benchmarks/methods_table.py [--parts digits mnist regression] [--runs 3] [--out FOLDER]

Digits (500 images) and MNIST (1,000 images, needs ONEBASIN_DATA), each with one hidden layer of 16
units, and a regression on one input (60 examples, 16 units). Every method is fitted `runs` times;
numbers are means over the runs with standard errors. The reference is HMC with four chains; a
second HMC with another key shows what perfect agreement looks like. Agreement and total variation
are to the reference, on test inputs; for the regression the distances are of the predictive means
and standard deviations, in units of the reference's standard deviation. Seconds are of all runs
together, compiling included, on a machine that may be busy: compare them within a record only.
Writes results/methods_table.json.
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from machine import describe, record
from onebasin.choices import DataName
from onebasin.data import load_dataset
from onebasin.evaluation import (
    accuracy,
    agreement,
    calibration_error,
    nll,
    predictive,
    total_variation,
)
from onebasin.evaluation.linearising import Linearised, mean_of
from onebasin.inference.fitting import fit
from onebasin.inference.methods import (
    HMC,
    IVON,
    MCLMC,
    SGHMC,
    SWAG,
    VI,
    Ensemble,
    Laplace,
    Method,
    to_config,
)
from onebasin.likelihoods import Gaussian
from onebasin.networks import MLP
from onebasin.posterior import Posterior
from onebasin.problem import Problem

DRAWS = 200  # of every posterior, for predictions
NOISE = 0.1
REFERENCE = HMC(
    draws=250, warmup=150, chains=4, leapfrog_steps=60, step_size=0.02, target_acceptance=0.75
)
METHODS: dict[str, Method] = {
    "HMC again": REFERENCE,
    "MCLMC": MCLMC(draws=250, warmup=2000, thin=20, chains=4, step_size=0.01),
    "MCLMC, 8 short chains begun at modes": MCLMC(
        draws=50, warmup=500, thin=20, chains=8, step_size=0.01, mode_epochs=100, mode_rate=0.01
    ),
    "SGHMC, cyclical": SGHMC(
        draws=50,
        warmup_epochs=80,
        cycle_epochs=100,
        thin_epochs=2,
        chains=4,
        batch_size=100,
        learning_rate=0.05,
    ),
    "ensemble of 5": Ensemble(members=5, epochs=200, batch_size=100, learning_rate=0.01),
    "VI": VI(epochs=1000, batch_size=100, learning_rate=0.01),
    "IVON": IVON(epochs=1000, batch_size=100, learning_rate=0.05),
    "SWAG": SWAG(epochs=200, batch_size=100, rank=20),
    "Laplace, low-rank": Laplace(mode_epochs=500, mode_rate=0.01, rank=200),
    "Laplace, Kronecker": Laplace(mode_epochs=500, mode_rate=0.01, structure="kronecker"),
    "Laplace, diagonal": Laplace(mode_epochs=500, mode_rate=0.01, structure="diagonal"),
}
# The loss per example of the regression has a curvature about a hundred times as large.
RATES = {"regression": {"SGHMC, cyclical": 5e-4}}
LENGTHS = ("draws", "warmup", "epochs", "mode_epochs")
Compare = Callable[[Posterior, Posterior, bool], dict[str, float]]


def classes(name: DataName, limit: int) -> tuple[Problem, Compare]:
    data = load_dataset(name, limit=limit)
    problem = Problem.from_network(MLP(widths=(16,)), data, prior_variance=1.0)
    x, y = np.asarray(data.test.x), np.asarray(data.test.y)
    predicted: dict[int, Any] = {}

    def of(q: Posterior, linearised: bool) -> Any:
        return predictive(
            *(q, problem, x),
            key=jax.random.key(9),
            num_samples=DRAWS,
            linearised=linearised,
            progress="silent",
        )

    def compare(q: Posterior, reference: Posterior, linearised: bool) -> dict[str, float]:
        known = predicted.setdefault(id(reference), of(reference, False))
        own = of(q, linearised)
        return {
            "agreement": agreement(own, known),
            "total_variation": total_variation(own, known),
            "nll": nll(own, y),
            "calibration_error": calibration_error(own, y),
            "accuracy": accuracy(own, y),
        }

    return problem, compare


def regression() -> tuple[Problem, Compare]:
    rng = np.random.default_rng(0)

    def examples(count: int) -> tuple[np.ndarray, np.ndarray]:
        x = rng.uniform(-2, 2, size=(count, 1)).astype(np.float32)
        x = np.where(np.abs(x) < 0.6, x + 1.2, x)  # a gap, in which posteriors differ
        return x, (np.sin(2 * x[:, 0]) + NOISE * rng.normal(size=count)).astype(np.float32)

    train, (x, y) = examples(60), examples(300)
    shapes = {"in": (1, 16), "bias": (16,), "out": (16, 1), "shift": (1,)}

    def init(key: jax.Array) -> dict[str, jax.Array]:
        keys = jax.random.split(key, 4)
        return {
            n: jax.random.normal(k, s) / 4 for (n, s), k in zip(shapes.items(), keys, strict=True)
        }

    def apply(p: dict[str, jax.Array], x: jax.Array) -> jax.Array:
        return (jnp.tanh(2 * (x @ p["in"] + p["bias"])) @ p["out"] + p["shift"])[:, 0]

    problem = Problem(apply, init, train, likelihood=Gaussian(NOISE), prior_variance=1.0)
    grid = np.concatenate([x, np.linspace(-2, 2, 41, dtype=np.float32)[:, None]])

    def outputs(q: Posterior, linearised: bool) -> np.ndarray:
        draws = q.sample(DRAWS, key=jax.random.key(9))
        if linearised:
            mean, network = mean_of(q), Linearised(apply)
            return np.asarray(jax.lax.map(lambda p: network((mean, p), jnp.asarray(grid)), draws))
        return np.asarray(jax.lax.map(lambda p: apply(p, jnp.asarray(grid)), draws))

    def compare(q: Posterior, reference: Posterior, linearised: bool) -> dict[str, float]:
        own, known = outputs(q, linearised), outputs(reference, False)
        spread = np.sqrt(known.var(0) + NOISE**2)
        residual = (own[:, : len(x)] - y) / NOISE
        log_p = -0.5 * residual**2 - np.log(NOISE * np.sqrt(2 * np.pi))
        inside = np.abs(own[:, : len(x)].mean(0) - y) < 1.645 * np.sqrt(
            own[:, : len(x)].var(0) + NOISE**2
        )
        return {
            "distance_of_means": float((np.abs(own.mean(0) - known.mean(0)) / spread).mean()),
            "distance_of_stds": float(
                (np.abs(np.sqrt(own.var(0) + NOISE**2) - spread) / spread).mean()
            ),
            "nll": -float((np.logaddexp.reduce(log_p, axis=0) - np.log(DRAWS)).mean()),
            "coverage_of_90_percent": float(inside.mean()),
        }

    return problem, compare


PARTS: dict[str, Callable[[], tuple[Problem, Compare]]] = {
    "digits": lambda: classes("digits", 500),
    "mnist": lambda: classes("mnist", 1000),
    "regression": regression,
}


def megabytes(q: Posterior) -> float:
    return sum(np.asarray(leaf).nbytes for leaf in jax.tree.leaves(q)) / 1e6


def summary(rows: list[dict[str, float]]) -> dict[str, list[float | None]]:
    """Mean and standard error over the runs."""
    table = {name: np.array([row[name] for row in rows]) for name in rows[0]}
    count = len(rows)
    error = lambda v: float(v.std(ddof=1) / np.sqrt(count)) if count > 1 else None
    return {name: [float(values.mean()), error(values)] for name, values in table.items()}


def scaled(method: Method, factor: float) -> Method:
    """The method with so many times the draws, epochs and directions, for trials."""
    lengths = {n: getattr(method, n) for n in LENGTHS if getattr(method, n, 0)}
    return replace(method, **{n: max(4, round(factor * v)) for n, v in lengths.items()})


def measure(
    name: str, make: Callable[[], Any], runs: int, scale: float, folder: Path | None
) -> dict[str, Any]:
    problem, compare = make()
    run: Any = fit  # whose overloads ask for the kind of method

    def fitted(label: str, method: Method, key: int, count: int | None) -> tuple[Any, float]:
        rate = RATES.get(name, {}).get(label)
        method = scaled(method if rate is None else replace(method, learning_rate=rate), scale)
        began = time.perf_counter()
        stem = "".join(c if c.isalnum() else "-" for c in f"{name}-{label}")
        out = None if folder is None else folder / f"{stem}.safetensors"
        found = run(
            *(problem, method),
            key=jax.random.key(key),
            runs=count,
            out=out,
            resume=out is not None,
            progress="silent",
        )
        return found, time.perf_counter() - began

    reference, _ = fitted("reference", REFERENCE, 0, None)
    rhat = reference.stats["rhat_predictions_max"]
    rows: dict[str, Any] = {}
    for i, (label, method) in enumerate(METHODS.items()):
        count = 1 if isinstance(method, HMC) else runs
        results, seconds = fitted(label, method, i + 1, count)
        variants = [(label, False)]
        if isinstance(method, Laplace):
            variants += [(f"{label}, linearised", True)]
        for shown, linearised in variants:
            each = [compare(r.posterior, reference.posterior, linearised) for r in results]
            rows[shown] = {
                **summary(each),
                "seconds": seconds / count,
                "megabytes": megabytes(results[0].posterior),
                "settings": to_config(scaled(method, scale)),
            }
            for key in ("log_evidence", "newton_gain", "rhat_predictions_max"):
                if key in results[0].stats:
                    rows[shown][key] = float(results[0].stats[key])
            brief = {k: v for k, v in rows[shown].items() if k != "settings"}
            print(name, shown, brief, flush=True)
    return {"rhat_of_the_reference": rhat, "runs": runs, "methods": rows, "machine": describe()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parts", nargs="+", default=list(PARTS))
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0, help="of draws and epochs, for trials")
    parser.add_argument("--out", type=Path, help="keep the fits here, and continue from them")
    options = parser.parse_args()
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
    for part in options.parts:
        found = measure(part, PARTS[part], options.runs, options.scale, options.out)
        print(record("methods_table", {part: found}))


if __name__ == "__main__":
    main()
