"""Variational inference on MNIST, MLP 3×512, batch 500, prior variance 0.01, initial std 0.01.

    python benchmarks/vi_mnist.py --epochs 30 [--resume]

Fits with `onebasin.fit`, then measures the negative ELBO per training example (32 draws) and the
test accuracy of the predictive (128 draws) and of the mean; appends to results/vi_mnist.json.
"""

import argparse
from dataclasses import asdict
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from machine import describe, record
from onebasin.data import load_dataset
from onebasin.inference.fit import fit
from onebasin.inference.methods import VI
from onebasin.inference.vi import Variational, analytic_kl
from onebasin.networks import MLP
from onebasin.problem import Batch, Problem


def evaluate(problem: Problem, posterior, test, key: jax.Array) -> dict[str, float]:
    x = jnp.asarray(problem.x).reshape(12, -1, *problem.x.shape[1:])
    y = jnp.asarray(problem.y).reshape(12, -1)
    x_test = jnp.asarray(test.x)

    @jax.jit
    def of_draw(params):
        nll = jax.lax.map(
            lambda xy: problem.summed_log_likelihood(params, Batch(*xy))[1]["nll"], (x, y)
        )
        return nll.mean(), jax.nn.softmax(problem.apply(params, x_test))

    test_only = jax.jit(lambda params: jax.nn.softmax(problem.apply(params, x_test)))
    nll, probabilities = [], 0.0
    for i, draw_key in enumerate(jax.random.split(key, 128)):
        params = posterior.sample(key=draw_key)
        if i < 32:
            value, p = of_draw(params)
            nll.append(float(value))
        else:
            p = test_only(params)
        probabilities = probabilities + np.asarray(p) / 128
    log_std = jax.tree.map(jnp.log, posterior.std)
    kl = float(analytic_kl(problem, Variational(posterior.mean, log_std))) / problem.num_examples
    right = probabilities[np.arange(len(test.y)), test.y]
    mean = np.asarray(test_only(posterior.mean)).argmax(1)
    return {
        "negative_elbo_per_example": float(np.mean(nll)) + kl,
        "negative_elbo_stderr": float(np.std(nll) / np.sqrt(len(nll))),
        "kl_per_example": kl,
        "train_nll_of_draws": float(np.mean(nll)),
        "test_accuracy": float((probabilities.argmax(1) == test.y).mean()),
        "test_accuracy_of_mean": float((mean == test.y).mean()),
        "test_nll": float(-np.log(right).mean()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--checkpoint", type=Path, default=None)
    parser.add_argument("--resume", action="store_true")
    options = parser.parse_args()
    data = load_dataset("mnist")
    problem = Problem.from_network(MLP((512, 512, 512)), data, prior_variance=0.01)
    method = VI(epochs=options.epochs)
    key = jax.random.key(options.seed)
    result = fit(
        problem,
        method,
        key=key,
        checkpoint=options.checkpoint,
        checkpoint_interval=30.0,
        resume=options.resume,
        progress="plain",
    )
    figures = evaluate(problem, result.posterior, data.test, jax.random.key(1))
    figures |= {
        "seconds": sum(row["seconds"] for row in result.history),
        "seed": options.seed,
        "method": asdict(method),
        "machine": describe(),
    }
    print(record("vi_mnist", {f"epochs_{options.epochs}": figures}).read_text())


if __name__ == "__main__":
    main()
