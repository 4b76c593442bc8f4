"""Evaluation with the data spread over several devices gives the same numbers."""

import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import onebasin as ob

SCRIPT = Path(__file__).with_name("evaluation_process.py")
# Batches of another shape change the order of sums inside a product, in single precision.
TOLERANCE = 1e-5


def test_evaluation_on_four_devices_equals_that_on_one():
    environment = {**os.environ, "JAX_NUM_CPU_DEVICES": "4"}
    command = [sys.executable, str(SCRIPT), "4"]
    done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    one, four = json.loads(done.stdout).values()
    assert len(one["log_probs"]) == 53  # which four does not divide
    for name, values in one.items():
        np.testing.assert_allclose(four[name], values, atol=TOLERANCE)


def test_more_shards_than_devices_are_refused():
    posterior = ob.MeanField({"w": jnp.zeros((2, 3))}, {"w": jnp.ones((2, 3))})
    with pytest.raises(ValueError, match="data_shards is 64, and there"):
        ob.predict(
            posterior, lambda p, x: x @ p["w"], jnp.eye(2), key=jax.random.key(0), data_shards=64
        )
