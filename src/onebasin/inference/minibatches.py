"""Minibatches in random order, without storing or sorting a permutation.

The order of an epoch is a bijection of the integers below 2^b, where b bits just hold the number of
examples. It is a composition of keyed invertible steps. An integer that is not the index of an
example is mapped again until it is one, which gives a bijection of the examples (cycle walking).
A step thus computes its few indices from (key, t) alone, and resuming needs nothing else.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import jax
import jax.numpy as jnp

from onebasin.inference.methods import BatchMethod, MinibatchMethod, ScheduleName
from onebasin.inference.optimisers import schedule
from onebasin.inference.program import Program
from onebasin.inference.shards import WHOLE, Shards
from onebasin.keys import subkey
from onebasin.problem import Batch, Problem

ROUNDS = 6


@dataclass(frozen=True)
class Minibatches:
    """A new permutation of the examples in every epoch, cut into batches of equal size.

    The remainder of a permutation is not used in its epoch; every example is equally likely to be
    in it.
    """

    examples: int
    size: int

    @classmethod
    def of(cls, problem: Problem, batch_size: int) -> "Minibatches":
        return cls(problem.num_examples, min(batch_size, problem.num_examples))

    @property
    def per_epoch(self) -> int:
        return self.examples // self.size

    def take(
        self, data: Batch, key: jax.Array, t: jax.Array, parts: int = 1, shards: Shards = WHOLE
    ) -> list[Batch]:
        """The batch of step t, cut into `parts`, of which each device takes its share."""
        bounds = [self.size * i // parts for i in range(parts + 1)]
        if shards.count > 1:
            return [self._share(data, key, t, a, b, shards) for a, b in pairwise(bounds)]
        if self.size == self.examples:
            return [Batch(data.x[a:b], data.y[a:b]) for a, b in pairwise(bounds)]
        epoch_key = jax.random.fold_in(subkey(key, "order"), t // self.per_epoch)
        places = (t % self.per_epoch) * self.size + jnp.arange(self.size)
        picks = shuffled(places, self.examples, key=epoch_key)
        pick = lambda array, a, b: array.at[picks[a:b]].get(mode="promise_in_bounds")
        return [Batch(pick(data.x, a, b), pick(data.y, a, b)) for a, b in pairwise(bounds)]

    def _share(
        self, data: Batch, key: jax.Array, t: jax.Array, a: int, b: int, shards: Shards
    ) -> Batch:
        """This device's share of the examples a … b of the batch of step t."""
        length = (b - a) // shards.count
        picks = a + shards.index() * length + jnp.arange(length)
        if self.size < self.examples:
            epoch_key = jax.random.fold_in(subkey(key, "order"), t // self.per_epoch)
            places = (t % self.per_epoch) * self.size + picks
            picks = shuffled(places, self.examples, key=epoch_key)
        take = lambda array: array.at[picks].get(mode="promise_in_bounds")
        return Batch(take(data.x), take(data.y))

    def check_shares(self, shards: Shards, parts: int = 1) -> None:
        """Refuse batches that the devices cannot share evenly."""
        if shards.count > 1 and self.size % (parts * shards.count):
            raise ValueError(
                f"batches of {self.size} examples cannot be shared evenly by {shards.count} "
                f"devices; give a batch_size that is a multiple of {parts * shards.count}"
            )

    def learning_rate(
        self, method: BatchMethod, rate: float, name: ScheduleName
    ) -> Callable[[jax.Array], jax.Array]:
        """t → the learning rate at step t, for the loss per example."""
        steps, warmup = method.epochs * self.per_epoch, method.warmup_epochs * self.per_epoch
        factor = schedule(name, steps, warmup)
        on_sum = isinstance(method, MinibatchMethod) and method.learning_rate_on == "sum"
        peak = rate * (self.examples if on_sum else 1)
        return lambda t: jnp.asarray(peak * factor(t))

    def program(self, problem: Problem, method: BatchMethod) -> partial[Program]:
        """The fields of a `Program` that all minibatch methods share."""
        return partial(
            Program,
            steps=method.epochs * self.per_epoch,
            steps_per_epoch=self.per_epoch,
            data=Batch(jnp.asarray(problem.x), jnp.asarray(problem.y)),
        )


def shuffled(places: jax.Array, count: int, *, key: jax.Array) -> jax.Array:
    """The entries of a random permutation of 0 … count−1 at these places."""
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
