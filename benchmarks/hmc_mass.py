"""The stiffness of a network's posterior at HMC draws, for several masses of the last layer.

    python benchmarks/hmc_mass.py DRAWS.safetensors --data mnist --limit 7000

DRAWS are HMC draws of an MLP (`onebasin fit hmc`, or the fit of `reproduce table1`). With masses M
the leapfrog integrator is stable for steps below 2/ω, where ω² is the largest eigenvalue of
M^-½ (F/T + 1/v) M^-½ and F is the Gauss–Newton matrix of the log likelihood. ω is computed at the
last draw of every chain, for each mass of the last layer's arrays. Writes results/hmc_mass.json.
"""

import argparse
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from scipy.sparse.linalg import LinearOperator, eigsh

from machine import describe, record
from onebasin.data import load_dataset
from onebasin.inference.hmc import inverse_masses
from onebasin.inference.methods import HMC
from onebasin.networks import from_config
from onebasin.posterior import load, read_header
from onebasin.problem import Problem
from onebasin.trees import PyTree, leaves_by_path

MASSES = (1.0, 4.0, 16.0, 64.0)


def curvature(problem: Problem, params: PyTree) -> tuple[Callable[[jax.Array], jax.Array], int]:
    """u → (F/T + 1/v) u on raveled weights at `params`, and the number of weights."""
    x = jnp.asarray(problem.x)
    outputs = lambda p: problem.apply(p, x)
    probabilities = jax.nn.softmax(outputs(params))
    flat, unravel = ravel_pytree(params)
    variances = ravel_pytree(
        jax.tree.map(lambda p, v: jnp.full(p.shape, v), params, problem.prior_variances)
    )[0]

    @jax.jit
    def times(vector: jax.Array) -> jax.Array:
        _, along = jax.jvp(outputs, (params,), (unravel(vector),))
        mean = (probabilities * along).sum(1, keepdims=True)
        (back,) = jax.vjp(outputs, params)[1](probabilities * (along - mean))
        return problem.likelihood_scale * ravel_pytree(back)[0] + vector / variances

    return times, flat.size


def largest_frequency(
    times: Callable[[jax.Array], jax.Array], size: int, inverse_mass: np.ndarray
) -> float:
    """√λ_max of the curvature, scaled by the masses."""
    root = np.sqrt(inverse_mass)

    def scaled(vector: np.ndarray) -> np.ndarray:
        return root * np.asarray(times(jnp.asarray(root * vector.ravel(), jnp.float32)))

    operator = LinearOperator((size, size), matvec=scaled, dtype=np.float64)  # pyright: ignore[reportCallIssue]
    start = np.random.default_rng(0).normal(size=size)
    values = eigsh(operator, k=1, v0=start, tol=1e-3, return_eigenvectors=False)  # pyright: ignore[reportArgumentType]
    return float(np.sqrt(values[0]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("draws", type=Path)
    parser.add_argument("--data", default="mnist")
    parser.add_argument("--limit", type=int)
    parser.add_argument("--prior-variance", type=float, default=1.0)
    options = parser.parse_args()
    data = load_dataset(options.data, limit=options.limit)
    header = read_header(options.draws)
    if header.network is None:
        parser.error(f"{options.draws} does not describe its network; give the draws of an MLP")
    net = from_config(header.network)
    problem = Problem.from_network(net, data, prior_variance=options.prior_variance)
    if header.provenance["fit"]["problem"] != problem.fingerprint():
        parser.error(f"{options.draws} was drawn with other data or another prior; give those")
    samples = load(options.draws, like=problem.shapes)
    last = list(leaves_by_path(problem.shapes))[-1].rpartition("/")[0]
    arrays = [name for name in leaves_by_path(problem.shapes) if name.startswith(f"{last}/")]
    chain = np.asarray(samples.chain)
    ends = [int(np.flatnonzero(chain == c)[-1]) for c in np.unique(chain)]
    curvatures = [curvature(problem, samples.draw(i)) for i in ends]
    found = {}
    for mass in MASSES:
        method = HMC(masses=tuple((name, mass) for name in arrays))
        inverse = inverse_masses(method, problem.shapes)
        found[f"{mass:g}"] = [largest_frequency(*one, inverse) for one in curvatures]
        print(f"mass {mass:g} of {', '.join(arrays)}: frequencies {np.round(found[f'{mass:g}'])}")
    row = {
        "network": header.network,
        "examples": problem.num_examples,
        "heavy": arrays,
        "frequency": found,
        "machine": describe(),
    }
    print(record("hmc_mass", {f"{net} on {problem.num_examples} of {options.data}": row}))


if __name__ == "__main__":
    main()
