"""Random keys: sub-keys by name, the same in every process, and a check."""

import zlib

import jax
import jax.numpy as jnp


def subkey(key: jax.Array, name: str) -> jax.Array:
    """The sub-key for one purpose, e.g. `subkey(key, "init")`."""
    return jax.random.fold_in(key, zlib.crc32(name.encode()))


def check_key(key: jax.Array) -> jax.Array:
    """A single key, typed or raw uint32 data, as a typed key."""
    if not isinstance(key, jax.Array):
        raise ValueError(f"key must be a JAX random key such as jax.random.key(0), got {key!r}")
    if not jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        key = jax.random.wrap_key_data(key)
    if key.shape != ():
        raise ValueError(f"key must be one key, got an array of keys with shape {key.shape}")
    return key
