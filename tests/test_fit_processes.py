"""Fits of several processes, as on several machines, give the numbers of one process."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest
from safetensors.numpy import load_file

SCRIPT = Path(__file__).with_name("fit_process.py")
HMC = {"draws": 4, "warmup": 3, "leapfrog_steps": 5, "data_chunk": 60}
FITS: dict[str, dict[str, Any]] = {
    # Three runs on four devices: one stays idle, or repeats the last run.
    "vi": {"method": "VI", "settings": {"epochs": 3, "batch_size": 50}, "runs": 3},
    # Five members on four devices: two on each.
    "ensemble": {"method": "Ensemble", "settings": {"epochs": 3, "members": 5}},
    "hmc": {"method": "HMC", "settings": {**HMC, "chains": 4}},
    # One chain over all devices of both processes, and two over two devices each.
    "shards4": {"method": "HMC", "settings": {**HMC, "chains": 1}, "data_shards": 4},
    "shards2": {
        "method": "HMC",
        "settings": {**HMC, "chains": 2, "mode_epochs": 2},
        "data_shards": 2,
    },
    # Without tuning, which follows energy errors that are hardly more than rounding.
    "mclmc": {
        "method": "MCLMC",
        "settings": {"draws": 5, "warmup": 0, "chains": 1},
        "data_shards": 4,
    },
    "vi4": {"method": "VI", "settings": {"epochs": 3, "batch_size": 40}, "data_shards": 4},
    "map4": {"method": "MAP", "settings": {"epochs": 3, "batch_size": 40}, "data_shards": 4},
}
# Shards add their sums over the data in an order that depends on how many there are and on what
# carries them: rounding errors of single precision, grown over at most forty steps.
TOLERANCE = 2e-4

Process: TypeAlias = subprocess.Popen[bytes]


def environment(devices: int) -> dict[str, str]:
    return {
        **os.environ,
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
        "JAX_NUM_CPU_DEVICES": str(devices),  # commands that ran in this process may have set it
    }


def free_address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def start(fits: list[dict[str, Any]], processes: int, devices: int) -> list[Process]:
    command, address = [sys.executable, str(SCRIPT), json.dumps(fits)], free_address()
    rest = [[address, str(processes), str(i)] for i in range(processes)] if processes > 1 else [[]]
    env = environment(devices)
    return [subprocess.Popen([*command, *one], env=env, stderr=subprocess.PIPE) for one in rest]


def finish(processes: list[Process]) -> None:
    """Wait for all; if one fails, the others are stopped."""
    try:
        said = [process.communicate(timeout=600)[1].decode() for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0] * len(said), "\n".join(said)[-3000:]


def with_files(folder: Path) -> list[dict[str, Any]]:
    folder.mkdir()
    return [{**fit, "out": str(folder / f"{name}.st")} for name, fit in FITS.items()]


def files(folder: Path, name: str) -> dict[str, dict[str, np.ndarray]]:
    """The posterior files of a fit."""
    kept = re.compile(rf"{name}(-\d+)?\.st")
    return {p.name: load_file(p) for p in sorted(folder.iterdir()) if kept.fullmatch(p.name)}


@pytest.fixture(scope="module")
def fitted(tmp_path_factory) -> Path:
    """Two folders with the same fits: by two processes of two devices, and by one of four.

    The one process shares no data.
    """
    folder = tmp_path_factory.mktemp("processes")
    two, one = with_files(folder / "two"), with_files(folder / "one")
    for fit in one:
        fit.pop("data_shards", None)
    finish([*start(two, 2, 2), *start(one, 1, 4)])
    return folder


@pytest.mark.parametrize("name", ["vi", "ensemble", "hmc"])
def test_replicas_on_two_processes_are_those_of_one_bit_for_bit(fitted, name):
    one, two = files(fitted / "one", name), files(fitted / "two", name)
    assert one.keys() == two.keys()
    assert len(one) == (3 if name == "vi" else 1)
    for file, leaves in one.items():
        for leaf, value in leaves.items():
            np.testing.assert_array_equal(two[file][leaf], value, err_msg=f"{file} {leaf}")


@pytest.mark.parametrize("name", [name for name, fit in FITS.items() if "data_shards" in fit])
def test_shared_data_give_what_whole_data_give(fitted, name):
    one, two = files(fitted / "one", name), files(fitted / "two", name)
    assert two.keys() == one.keys() == {f"{name}.st"}
    for leaf, value in one[f"{name}.st"].items():
        found = two[f"{name}.st"][leaf]
        np.testing.assert_allclose(found, value, atol=TOLERANCE, rtol=TOLERANCE, err_msg=leaf)


def test_nothing_but_results_is_left(fitted):
    expected = {f"{name}.st" for name in FITS if name != "vi"} | {f"vi-{i}.st" for i in range(3)}
    assert {path.name for path in (fitted / "two").iterdir()} == expected


@pytest.mark.parametrize("processes", [1, 2])
def test_killed_processes_are_resumed_by_as_many_or_by_one(fitted, tmp_path, processes):
    fit = {
        **FITS["hmc"],
        "out": str(tmp_path / "hmc.st"),
        "checkpoint_interval": 0,
        "chunk_steps": 2,
    }
    killed, index = start([fit], 2, 2), tmp_path / "hmc.st.checkpoint"
    while not index.exists():
        if any(process.poll() is not None for process in killed):
            finish(killed)
        time.sleep(0.01)
    for process in killed:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    assert index.exists()  # so it had not finished
    finish(start([{**fit, "resume": True}], processes, 4 // processes))
    whole, found = files(fitted / "one", "hmc"), files(tmp_path, "hmc")
    for leaf, value in whole["hmc.st"].items():
        np.testing.assert_array_equal(found["hmc.st"][leaf], value, err_msg=leaf)
    assert [path.name for path in tmp_path.iterdir()] == ["hmc.st"]


def test_the_command_joins_processes_by_flags_or_by_the_environment(tmp_path):
    out = tmp_path / "q.safetensors"
    words = ["fit", "map", "--limit", "40", "--width", "4", "--depth", "1", "--epochs", "2"]
    words += ["--batch-size", "20", "--data-shards", "2", "--out", str(out), "--json"]
    address = free_address()
    names = dict.fromkeys(("JAX_NUM_CPU_DEVICES", "JAX_NUM_PROCESSES"))
    names |= {"JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": "1", "JAX_COORDINATOR_ADDRESS": address}
    flags = ["--coordinator", address, "--processes", "2", "--process", "0"]
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "onebasin", *words, *own],
            env={**environment(1), **{k: v for k, v in more.items() if v is not None}},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for own, more in ((flags, {}), (["--distributed"], names))
    ]
    said = [process.communicate(timeout=600) for process in started]
    assert [process.returncode for process in started] == [0, 0], said
    ours, theirs = (  # without what JAX's collectives print
        [line for line in out.splitlines() if b"[Gloo]" not in line] for out, _ in said
    )
    assert json.loads(ours[-1])["data_shards"] == 2
    assert not theirs  # the first process speaks for all
    assert [path.name for path in tmp_path.iterdir()] == [out.name]
