"""Lanes over several devices: the same numbers as on one."""

import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

from onebasin.inference.lanes import Lanes

SCRIPT = Path(__file__).with_name("fit_process.py")
# The arithmetic of a lane is the same, but several lanes on a device are batched, which may order
# sums differently: single precision, grown over forty steps.
TOLERANCE = 2e-4


def fit_on(devices, out, options):
    environment = {**os.environ, "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}"}
    command = [sys.executable, str(SCRIPT), json.dumps({**options, "out": str(out)})]
    return subprocess.Popen(command, env=environment)


@pytest.mark.parametrize(
    ("options", "files"),
    [
        # Five runs on four devices: two on each of three, one lane added.
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


@pytest.mark.parametrize("in_turn", [False, True])
def test_lanes_in_turn_or_side_by_side(in_turn):
    lanes = Lanes(3, in_turn=in_turn)
    each = lanes.each(lambda a, b, c: {"sum": a + b * c}, (0, None, 0))
    out = each(jnp.arange(3.0), 10.0, jnp.array([1.0, 2.0, 3.0]))
    np.testing.assert_array_equal(out["sum"], [10.0, 21.0, 32.0])


def test_keys_of_added_lanes_repeat_the_last():
    lanes = Lanes(3)
    keys = lanes.place_keys(jax.random.split(jax.random.key(0), 3))
    assert len(keys) == lanes.padded
