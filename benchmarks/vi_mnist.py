"""Variational inference on MNIST: MLP 3×512, batch size 500, prior variance 0.01, initial std 0.01.

    python benchmarks/vi_mnist.py --epochs 30 --seeds 0 1 2 [--keep FOLDER]
    python benchmarks/vi_mnist.py --validation 4800 --learning-rate 2e-3

Fits with `onebasin.fit`, then measures the negative ELBO per training example (32 draws) and the
test accuracy of the predictive (128 draws) and of the mean. Adds to results/vi_mnist.json.
--validation holds out this many of the last training images and uses them in place of the test
images; the default learning rates were chosen in this way.
"""

import argparse
from dataclasses import asdict, replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from machine import describe, record
from onebasin.data import Dataset, load_dataset
from onebasin.data.dataset import Split
from onebasin.inference.fitting import fit
from onebasin.inference.methods import VI
from onebasin.inference.vi import Variational, analytic_kl
from onebasin.networks import MLP
from onebasin.posterior import MeanField
from onebasin.problem import Batch, Problem
from onebasin.trees import PyTree


def evaluate(
    problem: Problem, posterior: MeanField, test: Split, key: jax.Array
) -> dict[str, float]:
    """The ELBO on the training data, and accuracy and NLL on the test data."""
    x = jnp.asarray(problem.x).reshape(12, -1, *problem.x.shape[1:])
    y = jnp.asarray(problem.y).reshape(12, -1)
    x_test = jnp.asarray(test.x)

    @jax.jit
    def of_draw(params: PyTree) -> tuple[jax.Array, jax.Array]:
        nll = jax.lax.map(
            lambda xy: problem.summed_log_likelihood(params, Batch(*xy))[1]["nll"], (x, y)
        )
        return nll.mean(), jax.nn.softmax(problem.apply(params, x_test))

    test_only = jax.jit(lambda params: jax.nn.softmax(problem.apply(params, x_test)))
    nll, probabilities = [], np.zeros((), np.float32)
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


def held_out(data: Dataset, count: int) -> Dataset:
    """The last `count` training images in place of the test images."""
    train = data.train
    return replace(
        data,
        train=Split(train.x[:-count], train.y[:-count]),
        test=Split(train.x[-count:], train.y[-count:]),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    parser.add_argument("--std-learning-rate", type=float, default=None)
    parser.add_argument("--validation", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="folder for the fits; they resume there")
    options = parser.parse_args()
    data = load_dataset("mnist")
    if options.validation:
        data = held_out(data, options.validation)
    problem = Problem.from_network(MLP((512, 512, 512)), data, prior_variance=0.01)
    method = VI(
        epochs=options.epochs,
        learning_rate=options.learning_rate,
        initial_std=0.01,
        std_learning_rate=options.std_learning_rate,
    )
    what = f"epochs {options.epochs}"
    if options.validation:
        rates = f"{method.learning_rate:g} and {method.std_learning_rate or 'default'}"
        what = f"validation on {options.validation}, {what}, learning rates {rates}"
    for seed in options.seeds:
        out = options.keep and options.keep / f"mlp512-{options.epochs}-{seed}.safetensors"
        key = jax.random.key(seed)
        result = fit(problem, method, key=key, out=out, resume=out is not None, progress="plain")
        figures = evaluate(problem, result.posterior, data.test, jax.random.key(1))
        figures |= {"seconds": result.stats["seconds"], "seed": seed}
        figures |= {"method": asdict(method), "machine": describe()}
        print(record("vi_mnist", {f"{what}, seed {seed}": figures}).read_text(), flush=True)


if __name__ == "__main__":
    main()
