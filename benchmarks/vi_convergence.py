"""How near its ELBO a default VI fit ends: −ELBO/N of `VI()` and of a fit ten times as long.

For each data set: the default fit, one with ten times its epochs (every other setting follows by
itself), and one with the fixed settings that were the default before. The ELBO is estimated with
common noise on the training data. Images need ONEBASIN_DATA, and a network of 32 hidden units, so
that two cores manage the long fit. With --folder, fits are kept there and a measurement that was
interrupted continues.

    python benchmarks/vi_convergence.py digits cancer diabetes
    python benchmarks/vi_convergence.py mnist cifar10 --folder fits
"""

import argparse
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.datasets import load_breast_cancer, load_diabetes

from machine import describe, record
from onebasin.data import load_dataset
from onebasin.inference.fit_result import FitResult
from onebasin.inference.fitting import fit
from onebasin.inference.full_batch import chunked, log_likelihood
from onebasin.inference.methods import VI
from onebasin.inference.vi import Variational, analytic_kl
from onebasin.likelihoods import Gaussian
from onebasin.networks import MLP
from onebasin.posterior import MeanField
from onebasin.problem import Problem

BEFORE = VI(epochs=100, learning_rate=3e-3, initial_std=0.01)
DRAWS = 64


def standardised(values: np.ndarray) -> np.ndarray:
    return ((values - values.mean(0)) / values.std(0)).astype(np.float32)


def problem_of(name: str, limit: int | None) -> Problem:
    if name == "cancer":
        found: Any = load_breast_cancer()
        data = (standardised(found.data), found.target.astype(np.int32))
        return Problem.from_network(MLP((50,), num_classes=2), data, prior_variance=0.1)
    if name == "diabetes":
        found = load_diabetes()
        data = (standardised(found.data), standardised(found.target)[:, None])
        network = MLP((50,), num_classes=1)
        likelihood = Gaussian(noise_std=0.7)
        return Problem.from_network(network, data, likelihood=likelihood, prior_variance=0.1)
    if name == "digits":
        return Problem.from_network(MLP((32,)), load_dataset("digits"), prior_variance=0.05)
    # A weight of CIFAR-10 is one of 3,072 of its unit: under a wide prior VI learns nothing there.
    data = load_dataset("mnist" if name == "mnist" else "cifar10", limit=limit)
    prior = 0.05 if name == "mnist" else 0.01
    return Problem.from_network(MLP((32,)), data, prior_variance=prior)


def sizes(problem: Problem) -> str:
    """The layers of an MLP, as 64-32-10."""
    kernels = [leaf.shape for leaf in jax.tree.leaves(problem.shapes) if leaf.ndim == 2]
    return "-".join(str(size) for size in (kernels[0][0], *(shape[1] for shape in kernels)))


def negative_elbo(problem: Problem, q: MeanField) -> tuple[float, float]:
    """−ELBO/N and its standard error over draws."""
    density = jax.jit(log_likelihood(problem, chunked(problem, 2000)))
    keys = jax.random.split(jax.random.key(7), DRAWS)
    values = np.array([density(q.sample(key=key)) for key in keys])
    kl = float(analytic_kl(problem, Variational(q.mean, jax.tree.map(jnp.log, q.std))))
    count = problem.num_examples
    return float(kl - values.mean()) / count, float(values.std()) / math.sqrt(DRAWS) / count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="+")
    parser.add_argument("--limit", type=int, help="training examples of MNIST and CIFAR-10")
    parser.add_argument("--epochs", type=int, help="of the shorter fit, in place of the default")
    parser.add_argument("--folder", type=Path, help="where fits are kept, and continued")
    options = parser.parse_args()
    if options.folder is not None:
        options.folder.mkdir(parents=True, exist_ok=True)

    def fitted(label: str, what: str, problem: Problem, method: VI) -> FitResult[MeanField]:
        out = None if options.folder is None else options.folder / f"{label}, {what}.safetensors"
        keep: Any = {} if out is None else {"out": out, "resume": True, "checkpoint_interval": 20}
        return fit(problem, method, key=jax.random.key(0), progress="plain", **keep)

    for name in options.names:
        problem = problem_of(name, options.limit)
        short = VI(epochs=options.epochs)
        label = name if options.epochs is None else f"{name}, {options.epochs} epochs"
        first = fitted(label, "default", problem, short)
        assert isinstance(first.method, VI)
        assert first.method.epochs is not None
        methods = {"ten times": VI(epochs=10 * first.method.epochs), "before": BEFORE}
        if options.epochs:
            methods["before"] = replace(BEFORE, epochs=options.epochs)
        fits = {"default": first} | {
            what: fitted(label, what, problem, method) for what, method in methods.items()
        }
        figures: dict[str, Any] = {}
        for what, result in fits.items():
            value, error = negative_elbo(problem, result.posterior)
            figures[what] = {
                "negative_elbo": value,
                "standard_error": error,
                "std_speed": result.stats["std_speed"],
                "steps": result.stats["steps"],
            }
        ratio = figures["default"]["negative_elbo"] / figures["ten times"]["negative_elbo"]
        figures |= {"ratio": ratio, "examples": problem.num_examples, "network": sizes(problem)}
        figures |= {"machine": describe()}
        record("vi_convergence", {label: figures})
        print(f"{label}: {ratio:.4f} of a fit ten times as long", figures, flush=True)


if __name__ == "__main__":
    main()
