"""How fast this machine is, so that estimated times apply to it and not to ours.

Nearly all the time of an experiment is spent in matrix products. Estimates assume the rates of the
reference machine, two CPU cores; timing a few products shows how much faster or slower this
machine is.
"""

import time
from functools import cache

import jax
import jax.numpy as jnp

REFERENCE = 167e9
"""The best rate of such products on the reference machine, in floating-point operations per second
(`results/inference.json`)."""
ROWS, WIDTH = 4096, 512


@cache
def speed() -> float:
    """The rate of matrix products of this machine relative to the reference; takes about 0.1 s.

    Other programs that run meanwhile lower it.
    """
    a, b = jnp.ones((ROWS, WIDTH)), jnp.ones((WIDTH, WIDTH))
    product = jax.jit(jnp.matmul).lower(a, b).compile()
    product(a, b).block_until_ready()
    times = []
    for _ in range(5):
        began = time.perf_counter()
        product(a, b).block_until_ready()
        times.append(time.perf_counter() - began)
    return 2 * ROWS * WIDTH * WIDTH / min(times) / REFERENCE
