"""The bias of MCLMC without a correction, where the posterior is known in closed form.

    python benchmarks/mclmc_bias.py [--steps 60000] [--errors 0.0001 0.0005 0.005 0.02 0.05]

Linear regression on 50 inputs: the data determine directions up to a thousand times better than the
prior does, as in a network. For each energy error that the tuning aims at, and each integrator: the
step size found, by how much the variances along the eigenvectors of the posterior are too large (on
average and at most), how far the mean is off (in standard deviations, root mean square), and what
the fit itself reports (`stats["equipartition"]`, one without a bias). The corrected sampler with
the same number of gradients stands beside them: what it shows is Monte Carlo error. Writes
results/mclmc_bias.json.
"""

import argparse
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from machine import describe, record
from onebasin.inference.fitting import fit
from onebasin.inference.methods import MCLMC, AdjustedMCLMC, IntegratorName
from onebasin.likelihoods import Gaussian
from onebasin.problem import Problem

SIZE, EXAMPLES, CHAINS = 50, 200, 4


def regression() -> tuple[Problem, np.ndarray, np.ndarray, np.ndarray]:
    """The problem, the mean of its posterior, and the eigenvalues and vectors of its covariance."""
    rng = np.random.default_rng(0)
    scales = np.geomspace(0.03, 1, SIZE) * np.sqrt(1000 / EXAMPLES)
    x = rng.normal(size=(EXAMPLES, SIZE)) * scales
    y = x @ rng.normal(size=SIZE) + rng.normal(size=EXAMPLES)
    problem = Problem(
        apply=lambda p, x: x @ p["w"],
        init=lambda key: {"w": jax.random.normal(key, (SIZE,), jnp.float64)},
        data=(x, y),
        likelihood=Gaussian(1.0),
    )
    covariance = np.linalg.inv(x.T @ x + np.eye(SIZE))
    values, vectors = np.linalg.eigh(covariance)
    return problem, covariance @ x.T @ y, values, vectors


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=60_000, help="gradients of every chain")
    parser.add_argument("--errors", type=float, nargs="+", default=[1e-4, 5e-4, 5e-3, 2e-2, 5e-2])
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    problem, mean, values, vectors = regression()
    rows: list[dict[str, Any]] = []

    def measure(name: str, error: float | None, method: MCLMC | AdjustedMCLMC) -> None:
        result = fit(problem, method, key=jax.random.key(1), progress="silent")
        draws = np.asarray(result.posterior.draws["w"]) @ vectors
        excess = ((draws - mean @ vectors) ** 2).mean(0) / values - 1
        off = (draws.mean(0) - mean @ vectors) / np.sqrt(values)
        reported = result.stats.get("equipartition")
        found = {
            "sampler": name,
            "aim": error,
            "energy_error": float(np.mean(result.stats.get("energy_error", 0.0))),
            "step_size": float(np.mean(result.history[-1]["step_size"])),
            "mean_excess_of_variances": float(excess.mean()),
            "largest_excess_of_variances": float(excess.max()),
            "root_mean_square_of_means": float(np.sqrt((off**2).mean())),
            "equipartition": None if reported is None else float(np.mean(reported)),
            "ess": float(result.stats["ess_predictions_min"]),
        }
        print(found, flush=True)
        rows.append(found)

    integrators: dict[IntegratorName, int] = {"two-stage": 2, "leapfrog": 1}
    for integrator, per_step in integrators.items():
        for error in options.errors:
            steps = options.steps // per_step
            method = MCLMC(
                chains=CHAINS,
                warmup=steps // 5,
                thin=10,
                draws=4 * steps // 50,
                step_size=0.01,
                energy_error=error,
                integrator=integrator,
            )
            measure(f"MCLMC, {integrator}", error, method)
    transitions = options.steps // 40
    corrected = AdjustedMCLMC(
        chains=CHAINS,
        warmup=transitions // 5,
        draws=4 * transitions // 5,
        leapfrog_steps=20,
        step_size=0.01,
    )
    measure("AdjustedMCLMC", None, corrected)
    found = {"inputs": SIZE, "examples": EXAMPLES, "rows": rows, "machine": describe()}
    print(record("mclmc_bias", {"linear regression": found}))


if __name__ == "__main__":
    main()
