"""Batches in a random order, without storing or sorting an order.

The order of an epoch is a bijection of the numbers below 2^b (b bits just hold the number of
examples) made of keyed steps that are each invertible; a number that lands outside the examples
is sent through again until it lands inside, which makes a bijection of the examples. So a step
computes the few indices it needs from (key, t), and a resumed fit needs no more than that.
"""

from dataclasses import dataclass
from itertools import pairwise

import jax
import jax.numpy as jnp

from onebasin.keys import subkey
from onebasin.problem import Batch, Problem

ROUNDS = 6


@dataclass(frozen=True)
class Minibatches:
    """A fresh permutation of the examples every epoch, cut into batches of equal size.

    What is left over at the end of a permutation is not seen in that epoch; every example is as
    likely to be left out as any other.
    """

    examples: int
    size: int

    @classmethod
    def of(cls, problem: Problem, batch_size: int) -> "Minibatches":
        return cls(problem.num_examples, min(batch_size, problem.num_examples))

    @property
    def per_epoch(self) -> int:
        return self.examples // self.size

    def take(self, data: Batch, key: jax.Array, t: jax.Array, parts: int = 1) -> list[Batch]:
        """The batch of step t, in so many parts."""
        bounds = [self.size * i // parts for i in range(parts + 1)]
        if self.size == self.examples:
            return [Batch(data.x[a:b], data.y[a:b]) for a, b in pairwise(bounds)]
        epoch_key = jax.random.fold_in(subkey(key, "order"), t // self.per_epoch)
        places = (t % self.per_epoch) * self.size + jnp.arange(self.size)
        picks = shuffled(places, self.examples, key=epoch_key)
        pick = lambda array, a, b: array.at[picks[a:b]].get(mode="promise_in_bounds")
        return [Batch(pick(data.x, a, b), pick(data.y, a, b)) for a, b in pairwise(bounds)]


def shuffled(places: jax.Array, count: int, *, key: jax.Array) -> jax.Array:
    """Which of `count` things stand at these places of a random order."""
    bits = max((count - 1).bit_length(), 2)
    mask = jnp.uint32((1 << bits) - 1)
    words = jax.random.bits(key, (ROUNDS, 2), jnp.uint32)
    multipliers = words[:, 1] | 1

    def bijection(x: jax.Array) -> jax.Array:
        for i in range(ROUNDS):
            x = (x + words[i, 0]) & mask
            x ^= x >> (bits // 2)
            x = (x * multipliers[i]) & mask
            x ^= x >> ((bits + 1) // 3)
        return x

    def again(x: jax.Array) -> jax.Array:
        return jnp.where(x >= count, bijection(x), x)

    start = bijection(places.astype(jnp.uint32))
    return jax.lax.while_loop(lambda x: jnp.any(x >= count), again, start).astype(jnp.int32)
