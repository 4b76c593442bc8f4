"""Initial weights of PyTorch modules by keys of JAX: the same key, the same weights."""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from onebasin.pytorch_tensors import to_array
from onebasin.trees import PyTree


@contextmanager
def seeded(words: Any) -> Iterator[None]:
    """Seed the random numbers of PyTorch, if it is imported; restore them afterwards.

    Args:
      words: the numbers of a key.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        yield
        return
    sequence = np.random.SeedSequence(np.asarray(words).ravel().tolist())
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(sequence.generate_state(1)[0]))
        yield


def params_of(module: Any, like: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The parameters of a module by the names of a network that was made from one like it."""
    own = dict(module.named_parameters(remove_duplicate=False))
    return {name: to_array(own[name]) for name in like}


def outside_jax(function: Callable[[jax.Array], PyTree], like: PyTree) -> Callable[..., PyTree]:
    """A function of a key that JAX cannot trace, so that compiled and mapped programs can call it.

    Args:
      function: gives NumPy arrays for a key.
      like: arrays of the same shapes.
    """
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), like)

    def init(key: jax.Array) -> PyTree:
        kind = jax.random.key_impl(key)
        run = lambda words: function(jax.random.wrap_key_data(jnp.asarray(words), impl=kind))
        return jax.pure_callback(run, shapes, jax.random.key_data(key), vmap_method="sequential")

    return init
