"""Evaluate on one device and on several of one process; print both as JSON."""

import json
import sys

import jax
import jax.numpy as jnp
import numpy as np

import onebasin as ob

rng = np.random.default_rng(0)
x, y = rng.normal(size=(53, 3)).astype(np.float32), rng.integers(0, 4, 53)
shapes = {"w1": (3, 5), "w2": (5, 4)}


def network(params, x):
    return jnp.tanh(x @ params["w1"]) @ params["w2"]


def posterior():
    mean = {
        name: jnp.asarray(rng.normal(size=shape), jnp.float32) for name, shape in shapes.items()
    }
    return ob.MeanField(mean, jax.tree.map(lambda a: jnp.full(a.shape, 0.3), mean))


def main(several):
    q0, q1 = posterior(), posterior()
    options = {"key": jax.random.key(0), "num_samples": 6, "batch_size": 8, "progress": "silent"}
    found = {}
    for shards in (1, several):
        of = ob.profile(
            ob.geodesic(q0, q1), network, (x, y), points=3, data_shards=shards, **options
        )
        classes = ob.predictive(q0, network, x, data_shards=shards, **options)
        assert isinstance(classes, ob.Predictive)
        numbers = ob.predict(q0, network, x, likelihood="gaussian", data_shards=shards, **options)
        found[shards] = {
            "nll": of.nll.tolist(),
            "log_probs": classes.log_probs.tolist(),
            "entropy": classes.expected_entropy.tolist(),
            "numbers": numbers.tolist(),
        }
    print(json.dumps(found))


if __name__ == "__main__":
    main(int(sys.argv[1]))
