"""Speed and memory of fits, relative to the matrix-multiply rate of the machine.

    python benchmarks/inference.py [--parts map vi hmc numpyro] [--rounds 10]

MNIST (the real files), MLP 3×512, batch size 500. The computations alternate within one process,
and the ratios are medians over the rounds. Writes results/inference.json.
"""

import argparse
import itertools
from collections.abc import Callable
from statistics import median
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from machine import describe, interleaved, matmul, record
from onebasin.data import load_dataset
from onebasin.inference.fitting import BUILDERS
from onebasin.inference.loop import compile_loop
from onebasin.inference.methods import HMC, MAP, VI, Method
from onebasin.inference.replicas import Replicas
from onebasin.networks import MLP
from onebasin.problem import Problem
from onebasin.trees import num_parameters

BATCH = 500
WIDTHS = (512, 512, 512)


def gradient_flops(inputs: int, widths: tuple[int, ...], outputs: int) -> float:
    """Matrix-product flops of a gradient per example; the input needs no gradient."""
    sizes = (inputs, *widths, outputs)
    products = [2.0 * a * b for a, b in itertools.pairwise(sizes)]
    return 3 * sum(products) - products[0]


class Chunk:
    """A compiled chunk of a fit; each call continues where the last one ended."""

    def __init__(self, problem: Problem, method: Method, steps: int, runs: int = 1) -> None:
        program = BUILDERS[type(method)](problem, method)
        replicas = Replicas(runs * program.replicas, sequential=True)
        self.keys = replicas.place(jax.random.split(jax.random.key(0), replicas.count))
        self.data = replicas.place_data(program.data)
        self.states = replicas.initial_states(program, self.keys, self.data)
        self.steps, self.place = steps, 0
        self.loop = compile_loop(program, replicas, self.states, self.keys, self.data, steps)

    def __call__(self) -> None:
        start, stop = np.int32(self.place), np.int32(self.place + self.steps)
        self.states, report = self.loop.run(self.states, self.keys, self.data, start, stop)
        jax.block_until_ready(report)
        self.place += self.steps


def numpyro_svi(problem: Problem, steps: int) -> Callable[[], None]:
    """NumPyro's SVI with AutoNormal on the same network, data and batch, scanned like ours."""
    import numpyro  # pyright: ignore[reportMissingImports]
    import numpyro.distributions as dist  # pyright: ignore[reportMissingImports]
    from numpyro.infer import SVI, Trace_ELBO  # pyright: ignore[reportMissingImports]
    from numpyro.infer.autoguide import AutoNormal  # pyright: ignore[reportMissingImports]

    x, y = jnp.asarray(problem.x), jnp.asarray(problem.y)
    shapes = problem.shapes
    leaves, treedef = jax.tree.flatten(shapes)

    def model(x, y):
        params = treedef.unflatten(
            [
                numpyro.sample(f"w{i}", dist.Normal(0, 0.1).expand(leaf.shape).to_event())
                for i, leaf in enumerate(leaves)
            ]
        )
        with numpyro.plate("data", problem.num_examples, subsample_size=len(x)):
            labels: Any = dist.Categorical(logits=problem.apply(params, x))
            numpyro.sample("y", labels, obs=y)

    guide = AutoNormal(model, init_scale=0.01)
    svi = SVI(model, guide, numpyro.optim.Adam(1e-3), Trace_ELBO())
    state = svi.init(jax.random.key(0), x[:BATCH], y[:BATCH])
    order = jax.random.permutation(jax.random.key(1), problem.num_examples)

    @jax.jit
    def chunk(state):
        def step(state, i):
            picks = jax.lax.dynamic_slice(order, (i * BATCH,), (BATCH,))
            return svi.update(state, x[picks], y[picks])

        return jax.lax.scan(step, state, jnp.arange(steps))

    def run() -> None:
        nonlocal state
        state, losses = chunk(state)
        losses.block_until_ready()

    return run


def memory(chunk: Chunk, params: int, activations: int) -> dict[str, float]:
    """XLA's account relative to 2× the activations of a batch plus 10× the parameters."""
    account = chunk.loop.memory
    state = sum(leaf.nbytes for leaf in jax.tree.leaves(chunk.states))
    allowed = 4 * (2 * activations + 10 * params)
    used = account["temporaries"] + state
    return {
        "state_bytes": state,
        "temporary_bytes": account["temporaries"],
        "allowed_bytes": allowed,
        "share_of_allowed": used / allowed,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parts", nargs="+", default=["map", "vi", "hmc", "numpyro", "runs"])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args()
    data = load_dataset("mnist")
    problem = Problem.from_network(MLP(WIDTHS), data, prior_variance=0.01)
    per_example = gradient_flops(784, WIDTHS, 10)
    params = num_parameters(problem.shapes)
    activations = BATCH * (784 + sum(WIDTHS) + 10)
    step_flops, steps = BATCH * per_example, options.steps
    product, product_flops = matmul()
    figures: dict[str, Any] = {}
    chunks: dict[str, Chunk] = {}
    if "map" in options.parts:
        chunks["map"] = Chunk(problem, MAP(batch_size=BATCH), steps)
    if "vi" in options.parts:
        chunks["vi"] = Chunk(problem, VI(batch_size=BATCH, initial_std=0.01), steps)
        chunks["vi_unpaired"] = Chunk(
            problem, VI(batch_size=BATCH, antithetic=False, initial_std=0.01), steps
        )
    runs: dict[str, Any] = {"matmul": product, **chunks}
    if "runs" in options.parts:
        runs["map_two_runs"] = Chunk(problem, MAP(batch_size=BATCH), steps, runs=2)
    if "numpyro" in options.parts:
        runs["numpyro"] = numpyro_svi(problem, steps)
    if len(runs) > 1:
        seconds = interleaved(runs, options.rounds)
        rates = [product_flops / s for s in seconds["matmul"]]
        figures["matmul_gflops"] = {"median": median(rates) / 1e9, "best": max(rates) / 1e9}
        for name in runs:
            if name != "matmul":
                figures[f"{name}_ms_per_step"] = 1e3 * median(seconds[name]) / steps
        figures |= compare(seconds, rates, step_flops * steps)
        for name, chunk in chunks.items():
            figures[f"{name}_memory"] = memory(chunk, params, activations)
    if "hmc" in options.parts:
        figures |= leapfrog(problem, product, product_flops, per_example, options.rounds)
    figures["machine"] = describe()
    print(record("inference", figures).read_text())


def compare(seconds: dict[str, list[float]], rates: list[float], flops: float) -> dict[str, float]:
    """The medians of the ratios within each round."""
    pairs = lambda a, b: median(x / y for x, y in zip(seconds[a], seconds[b], strict=True))
    figures = {}
    if "map" in seconds:
        shares = [flops / s / r for s, r in zip(seconds["map"], rates, strict=True)]
        figures["map_share_of_matmul"] = median(shares)
        for name in ("vi", "vi_unpaired", "map_two_runs"):
            if name in seconds:
                figures[f"{name}_over_map"] = pairs(name, "map")
    if "numpyro" in seconds and "vi" in seconds:
        figures["numpyro_over_vi"] = pairs("numpyro", "vi")
    return figures


def leapfrog(
    problem: Problem,
    product: Callable[[], None],
    product_flops: float,
    per_example: float,
    rounds: int,
) -> dict[str, Any]:
    """A leapfrog step on all the data, relative to matrix products."""
    method = HMC(chains=1, leapfrog_steps=4, adapt_step_size=False, step_size=1e-5)
    chunk = Chunk(problem, method, 1)
    # A leapfrog step takes seconds, so the matrix product is repeated to last as long.
    many = lambda: [product() for _ in range(20)]
    seconds = interleaved({"matmul": many, "leapfrog": chunk}, max(3, rounds // 2))
    flops = problem.num_examples * per_example
    shares = [
        (flops / s) / (20 * product_flops / m)
        for s, m in zip(seconds["leapfrog"], seconds["matmul"], strict=True)
    ]
    return {
        "leapfrog_seconds": median(seconds["leapfrog"]),
        "leapfrog_share_of_matmul": median(shares),
        "leapfrog_temporary_bytes": chunk.loop.memory["temporaries"],
    }


if __name__ == "__main__":
    main()
