"""A fit in its own process, or several, for tests that kill it.

    python fit_process.py JSON [ADDRESS COUNT NUMBER]

Prints nothing; when a signal stops it, exits with the code of that signal. With an address it is
process NUMBER of COUNT that share the fits.
"""

import json
import sys
from typing import Any

import jax

if __name__ == "__main__" and len(sys.argv) > 2:  # before anything computes
    address, count, number = sys.argv[2:]
    jax.distributed.initialize(address, int(count), int(number), heartbeat_timeout_seconds=60)

import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from onebasin.inference.fitting import fit
from onebasin.inference.methods import (
    HMC,
    IVON,
    MAP,
    MCLMC,
    SGHMC,
    SGLD,
    SWAG,
    VI,
    AdjustedMCLMC,
    Ensemble,
    Laplace,
)
from onebasin.inference.signals import FitInterrupted
from onebasin.problem import Problem

KINDS = (VI, IVON, HMC, MAP, Ensemble, MCLMC, AdjustedMCLMC, SGLD, SGHMC, SWAG, Laplace)
METHODS = {kind.__name__: kind for kind in KINDS}


class Normalised(nn.Module):
    """A network with running statistics."""

    @nn.compact
    def __call__(self, x: jax.Array, train: bool = False) -> jax.Array:
        x = nn.BatchNorm(use_running_average=not train)(nn.Dense(16)(x))
        return nn.Dense(2)(nn.relu(x))


def problem(normalised: bool = False) -> Problem:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(500, 8)).astype(np.float32)
    y = (x[:, 0] * x[:, 1] > 0).astype(np.int32)

    if normalised:
        return Problem.from_network(Normalised(), (x, y))

    def init(key: jax.Array) -> dict[str, jax.Array]:
        a, b = jax.random.split(key)
        return {
            "hidden": 0.5 * jax.random.normal(a, (8, 32)),
            "out": 0.3 * jax.random.normal(b, (32, 2)),
        }

    return Problem(apply=lambda p, x: jnp.tanh(x @ p["hidden"]) @ p["out"], init=init, data=(x, y))


def main(options: dict[str, Any]) -> int:
    method = METHODS[options.pop("method")](**options.pop("settings"))
    key = jax.random.key(options.pop("seed", 0))
    try:
        options.setdefault("progress", "silent")
        fit(problem(options.pop("normalised", False)), method, key=key, **options)
    except FitInterrupted as stopped:
        print(stopped, file=sys.stderr)
        return stopped.exit_code
    return 0


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    for one in given if isinstance(given, list) else [given]:
        if code := main(one):
            sys.exit(code)
