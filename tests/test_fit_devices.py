"""Replicas on several devices give the same numbers as on one."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

from onebasin.inference.replicas import Replicas

SCRIPT = Path(__file__).with_name("fit_process.py")
# The arithmetic of a replica is the same, but several replicas on a device are batched, which may
# change the order of sums: rounding errors of single precision, grown over forty steps.
TOLERANCE = 2e-4


def fit_on(devices: int, out: Path, options: dict[str, Any]) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}"}
    command = [sys.executable, str(SCRIPT), json.dumps({**options, "out": str(out)})]
    return subprocess.Popen(command, env=environment)


@pytest.mark.parametrize(
    ("options", "files"),
    [
        # Five runs on four devices: two on each of three, with one replica of padding.
        (
            {"method": "VI", "settings": {"epochs": 4, "batch_size": 50}, "runs": 5},
            [f"q-{run}.st" for run in range(5)],
        ),
        (
            {
                "method": "HMC",
                "settings": {"draws": 4, "warmup": 3, "leapfrog_steps": 5, "chains": 3},
            },
            ["q.st"],
        ),
    ],
    ids=["VI", "HMC"],
)
def test_several_devices_give_the_numbers_of_one(tmp_path, options, files):
    folders = {1: tmp_path / "one", 4: tmp_path / "four"}
    processes = []
    for devices, folder in folders.items():
        folder.mkdir()
        processes.append(fit_on(devices, folder / "q.st", options))
    assert [process.wait(200) for process in processes] == [0, 0]
    for name in files:
        one, four = load_file(folders[1] / name), load_file(folders[4] / name)
        for leaf in one:
            np.testing.assert_allclose(four[leaf], one[leaf], atol=TOLERANCE, rtol=TOLERANCE)


@pytest.mark.parametrize("sequential", [False, True])
def test_replicas_of_one_device_sequential_or_batched(sequential):
    replicas = Replicas(3, sequential=sequential)
    each = replicas.on_one_device(lambda a, b, c: {"sum": a + b * c}, (0, None, 0))
    out = each(jnp.arange(3.0), 10.0, jnp.array([1.0, 2.0, 3.0]))
    np.testing.assert_array_equal(out["sum"], [10.0, 21.0, 32.0])


def test_padding_repeats_the_last_replica():
    replicas = Replicas(3)
    object.__setattr__(replicas, "per_device", 4)
    keys = jax.random.key_data(jax.random.split(jax.random.key(0), 3))
    placed = replicas.place(keys)
    np.testing.assert_array_equal(placed, keys[np.array([0, 1, 2, 2])])
    np.testing.assert_array_equal(replicas.to_host(placed), keys)
