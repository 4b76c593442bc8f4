"""The cost of finding a symmetry and of acting on a posterior.

    python benchmarks/symmetry.py --out results/symmetry.json

Targets: tracing ResNet20 under 2 s and a 50-layer ResNet under 10 s on a 2-core CPU; permuting
a posterior of ten million parameters in at most 3 times the time of copying it.
"""

import argparse
import json
import os
import platform
import time
from pathlib import Path
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from onebasin.networks import ResNet20
from onebasin.posterior import MeanField
from onebasin.symmetry import Symmetry, find_symmetry
from onebasin.symmetry.tracing import trace_network
from onebasin.trees import num_parameters


class ResNet50(nn.Module):
    """Bottleneck blocks [3, 4, 6, 3] with batch normalisation, as in the ImageNet network."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        norm = lambda: nn.BatchNorm(use_running_average=True)
        x = nn.relu(norm()(nn.Conv(64, (7, 7), (2, 2), use_bias=False)(x)))
        x = nn.max_pool(x, (3, 3), (2, 2), "SAME")
        for stage, blocks in enumerate((3, 4, 6, 3)):
            width = 64 * 2**stage
            for block in range(blocks):
                stride = 2 if stage and not block else 1
                y = nn.relu(norm()(nn.Conv(width, (1, 1), use_bias=False)(x)))
                y = nn.Conv(width, (3, 3), (stride, stride), use_bias=False)(y)
                y = norm()(nn.Conv(4 * width, (1, 1), use_bias=False)(nn.relu(norm()(y))))
                if block == 0:
                    x = nn.Conv(4 * width, (1, 1), (stride, stride), use_bias=False)(x)
                    x = norm()(x)
                x = nn.relu(x + y)
        return nn.Dense(1000)(x.mean((1, 2)))


def variables_of(module: nn.Module, x: np.ndarray) -> Any:
    rng = np.random.default_rng(0)

    def draw(path: Any, leaf: Any) -> jax.Array:
        values = rng.standard_normal(leaf.shape) / max(1, np.prod(leaf.shape[:-1])) ** 0.5
        return jnp.asarray(abs(values) if path[0].key == "batch_stats" else values, leaf.dtype)

    shapes = jax.eval_shape(module.init, jax.random.key(0), x)
    return jax.tree_util.tree_map_with_path(draw, shapes)


def finding(module: nn.Module, shape: tuple[int, ...]) -> dict[str, Any]:
    """Seconds for the first trace, and for `find_symmetry` with its check."""
    x = np.zeros(shape, np.float32)
    variables = variables_of(module, x)
    params = variables["params"]
    state = {k: v for k, v in variables.items() if k != "params"} or None

    def apply(params: Any, x: Any, state: Any = None) -> jax.Array:
        return cast(jax.Array, module.apply({"params": params, **(state or {})}, x))

    start = time.perf_counter()
    traced = trace_network(apply, params, x, state).symmetry()
    traced_in = time.perf_counter() - start
    start = time.perf_counter()
    symmetry = find_symmetry(apply, params, x, state=state)
    found_in = time.perf_counter() - start
    assert [g.size for g in symmetry.groups] == [g.size for g in traced.groups]
    return {
        "parameters": num_parameters(params),
        "batch": list(shape),
        "groups": len(symmetry.groups),
        "places": sum(len(group.places) for group in symmetry.groups),
        "trace_seconds": traced_in,
        "find_seconds_with_check": found_in,
    }


def acting(width: int = 2048, repeats: int = 15) -> dict[str, Any]:
    """Median time to permute a mean-field posterior relative to copying it, measured in turns."""
    rng = np.random.default_rng(0)
    shapes = {"w1": (784, width), "b1": (width,), "w2": (width, width), "b2": (width,)}
    shapes |= {"w3": (width, width), "b3": (width,), "w4": (width, 10), "b4": (10,)}
    params = {k: jnp.asarray(rng.standard_normal(s), jnp.float32) for k, s in shapes.items()}
    symmetry = Symmetry.by_hand(
        params,
        {f"h{i}": [(f"w{i}", 1), (f"b{i}", 0), (f"w{i + 1}", 0)] for i in (1, 2, 3)},
    )
    q = MeanField(params, jax.tree.map(lambda a: a + 1, params))
    permutation = symmetry.random(key=jax.random.key(0))
    timed: dict[str, list[float]] = {"act": [], "copy (JAX)": [], "copy (NumPy)": []}
    actions = {
        "act": lambda: symmetry.act(permutation, q),
        "copy (JAX)": lambda: jax.tree.map(jnp.copy, q),
        "copy (NumPy)": lambda: jax.tree.map(np.copy, q),
    }
    for _ in range(repeats):
        for name, action in actions.items():
            start = time.perf_counter()
            jax.block_until_ready(action())
            timed[name].append(time.perf_counter() - start)
    median = {name: float(np.median(times)) for name, times in timed.items()}
    return {
        "parameters": num_parameters(params),
        "seconds": median,
        "ratio_to_jax_copy": median["act"] / median["copy (JAX)"],
        "ratio_to_numpy_copy": median["act"] / median["copy (NumPy)"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=None)
    out = parser.parse_args().out
    record = {
        "machine": {"cores": os.cpu_count(), "python": platform.python_version()},
        "jax": jax.__version__,
        "resnet20": finding(ResNet20(), (2, 32, 32, 3)),
        "resnet50": finding(ResNet50(), (2, 64, 64, 3)),
        "act": acting(),
        "targets": {
            "resnet20 trace_seconds": 2.0,
            "resnet50 trace_seconds": 10.0,
            "act ratio to copy": 3.0,
        },
    }
    text = json.dumps(record, indent=2)
    print(text)
    if out:
        out.write_text(text + "\n")


if __name__ == "__main__":
    main()
