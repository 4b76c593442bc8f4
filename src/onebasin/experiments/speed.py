"""How fast this machine is, so that estimates of time are about it and not about ours.

Nearly all the time of an experiment goes into matrix products. Estimates assume the rates of the
two cores they were first measured on; here a few products are timed to see how much faster or
slower this machine is.
"""

import time
from functools import cache

import jax
import jax.numpy as jnp

REFERENCE = 167e9
"""Floating-point operations per second of such products, at best, on the two cores where the rates
were measured (`results/inference.json`)."""
ROWS, WIDTH = 4096, 512


@cache
def speed() -> float:
    """This machine's rate of matrix products over the reference's; about a tenth of a second.

    Other work that goes on meanwhile makes the machine look as much slower as it is just then.
    """
    a, b = jnp.ones((ROWS, WIDTH)), jnp.ones((WIDTH, WIDTH))
    product = jax.jit(jnp.matmul).lower(a, b).compile()
    product(a, b).block_until_ready()
    taken = []
    for _ in range(5):
        began = time.perf_counter()
        product(a, b).block_until_ready()
        taken.append(time.perf_counter() - began)
    return 2 * ROWS * WIDTH * WIDTH / min(taken) / REFERENCE
