"""Runs on a cluster that are stopped or lose their scheduler go on where they were."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cluster_process import STAGES
from mounts import mounted
from onebasin.experiments.runner import Run

pytest.importorskip("distributed")

SCRIPT = Path(__file__).with_name("cluster_process.py")
BEGUN = 10  # numbers that a count has added when it is stopped


def progress(run: Run) -> list[int]:
    """How far every count is."""
    parts = [run.folder(stage).with_name(stage.key + ".part") for stage in STAGES]
    files = [part / "checkpoint.json" for part in parts]
    return [json.loads(file.read_text())[0] if file.exists() else 0 for file in files]


def wait_until_begun(run: Run, *processes: subprocess.Popen) -> None:
    while min(progress(run)) < BEGUN:
        for process in processes:
            assert process.poll() is None, process.stderr and process.stderr.read().decode()
        time.sleep(0.05)


def wait_until_listening(port: int, scheduler: subprocess.Popen) -> None:
    """A client gives up after twenty seconds, which a busy machine may need to start it."""
    while True:
        assert scheduler.poll() is None
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            time.sleep(0.1)


def check_going_on(run: Run) -> None:
    """The rest is done without a cluster, from the checkpoints on."""
    for stage in STAGES:
        to = stage.config.to
        assert not run.is_done(stage)
        assert run.perform(stage).result == {"total": to * (to + 1) // 2}
        starts = [int(n) for n in (run.folder(stage) / "starts").read_text().split()]
        assert starts[0] == 0
        assert len(starts) == 2
        assert starts[1] >= BEGUN


def started(run: Run, cluster: str) -> subprocess.Popen:
    command = [sys.executable, str(SCRIPT), str(run.out), cluster]
    return subprocess.Popen(command, stderr=subprocess.PIPE)


@pytest.fixture
def run(tmp_path):
    return Run(tmp_path / "run", "toy", quiet=True)


def test_ctrl_c_cancels_and_the_work_is_resumed(run):
    process = started(run, "local:2")
    wait_until_begun(run, process)
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=120)[1].decode()
    assert process.returncode != 0
    assert "KeyboardInterrupt" in said
    before = progress(run)
    time.sleep(0.3)
    assert progress(run) == before  # the workers have ended, too
    check_going_on(run)


def test_a_lost_scheduler_ends_the_run_and_the_work_is_resumed(run):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    address = f"tcp://127.0.0.1:{port}"
    # Both read stages, which are functions of a module beside this one.
    kept = [os.environ["PYTHONPATH"]] if os.environ.get("PYTHONPATH") else []
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(SCRIPT.parent), *kept])}
    part = [sys.executable, "-m", "distributed.cli.dask_scheduler"]
    scheduler = subprocess.Popen(
        [*part, "--host", "127.0.0.1", "--port", port, "--no-dashboard"],
        stderr=subprocess.DEVNULL,
        env=environment,
    )
    wait_until_listening(int(port), scheduler)
    part = [sys.executable, "-m", "distributed.cli.dask_worker", address, "--no-dashboard"]
    worker = subprocess.Popen(
        [*part, "--nthreads", "2", "--no-nanny", "--death-timeout", "60"],
        stderr=subprocess.DEVNULL,
        env={**environment, "DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT": "5s"},
    )
    try:
        process = started(run, address)
        wait_until_begun(run, process, scheduler)
        scheduler.send_signal(signal.SIGKILL)
        said = process.communicate(timeout=120)[1].decode()
        assert process.returncode != 0
        assert "run the command again" in said
    finally:
        for each in (scheduler, worker):
            each.kill()
            each.wait()
    check_going_on(run)


def test_a_full_disk_ends_the_run_and_the_work_is_resumed(tmp_path):
    with mounted(tmp_path / "disk", "size=2m") as disk:
        run = Run(disk / "run", "toy", quiet=True)
        process = started(run, "local:2")
        wait_until_begun(run, process)
        with pytest.raises(OSError, match="No space left"):
            (disk / "ballast").write_bytes(bytes(4 << 20))
        said = process.communicate(timeout=120)[1].decode()
        assert process.returncode != 0
        assert "No space left on device" in said
        (disk / "ballast").unlink()
        check_going_on(run)
