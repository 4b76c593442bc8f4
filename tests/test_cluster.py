"""Stages on a Dask cluster of real processes, some of them killed."""

import json
import os
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cluster_stages import Count, add_up, count_up, refuse
from onebasin.experiments.cluster import connect, perform, perform_all, submit
from onebasin.experiments.record import versions
from onebasin.experiments.runner import Run
from onebasin.experiments.stage import Stage

pytest.importorskip("distributed")


@pytest.fixture(scope="module")
def client():
    with connect("local:2") as client:
        yield client


@pytest.fixture
def run(tmp_path):
    run = Run(tmp_path / "run", "toy", quiet=True)
    run.open()
    return run


def graph(to: int = 4, pause: float = 0.0) -> Stage:
    """Two counts, each the input of a sum."""
    counts = [Stage(count_up, Count(n, pause)) for n in (to, to + 1)]
    return Stage(add_up, Count(0), {str(i): s["total"] for i, s in enumerate(counts)})


def test_stages_on_a_cluster_give_what_a_sequential_run_gives(client, run, tmp_path):
    last = graph()
    perform_all(client, run, [last])
    assert run.is_done(last)
    assert run.outcome(last).result == {"total": 10 + 15}
    alone = Run(tmp_path / "alone", "toy", quiet=True)
    alone.open()
    alone.perform(last)
    names = lambda folder: {
        p.relative_to(folder): p.read_bytes()
        for p in folder.rglob("*")
        if p.is_file() and p.name not in ("facts.json", "facts.json.lock")
    }
    assert names(alone.out) == names(run.out)


def test_finished_stages_are_not_submitted_again(client, run):
    last = graph()
    run.perform(last)
    assert submit(client, run, [last]) == {}


def test_two_folders_on_one_cluster_are_two_runs(client, run, tmp_path):
    other = Run(tmp_path / "other", "toy", quiet=True)
    other.open()
    for each in (run, other):
        perform_all(client, each, [graph()])
        assert each.is_done(graph())


def test_a_killed_worker_costs_only_the_time_since_its_checkpoint(client, run):
    """Both workers die in turn in the middle of a count; each count goes on where it was."""
    counts = [Stage(count_up, Count(n, 0.05)) for n in (60, 61)]
    futures = submit(client, run, counts)
    for stage in counts:
        progress = run.folder(stage).with_name(stage.key + ".part") / "checkpoint.json"
        while not (progress.exists() and json.loads(progress.read_text())[0] >= 10):
            time.sleep(0.05)
        address = next(
            worker for worker, keys in client.processing().items() if futures[stage.key].key in keys
        )
        os.kill(client.run(os.getpid, workers=[address])[address], signal.SIGKILL)
    client.gather(list(futures.values()))
    for stage in counts:
        to = stage.config.to
        assert run.outcome(stage).result == {"total": to * (to + 1) // 2}
        starts = [int(n) for n in (run.folder(stage) / "starts").read_text().split()]
        assert starts[0] == 0
        assert len(starts) >= 2  # it was killed
        assert all(start >= 10 for start in starts[1:])  # and did not begin again


def test_workers_that_dask_gives_up_are_replaced(run):
    """It closes the nanny of a worker that cannot register, as when its dead self still is."""
    with connect("local:1") as client:
        cluster: Any = client.cluster
        (future,) = submit(client, run, [Stage(count_up, Count(200, 0.05))]).values()
        (nanny,) = cluster.workers.values()
        cluster.sync(nanny.close)
        assert nanny.status.name == "closed"
        assert future.result(timeout=120)


def test_the_error_of_a_stage_names_it(client, run):
    with pytest.raises(ValueError, match="stage 'refuse: to 3': 3 is too many"):
        perform_all(client, run, [Stage(refuse, Count(3))])


def test_an_error_cancels_the_other_stages(client, run):
    slow = [Stage(count_up, Count(n, 0.2)) for n in range(1000, 1010)]
    with pytest.raises(ValueError, match="too many"):
        perform_all(client, run, [Stage(refuse, Count(5)), *slow])
    assert not any(run.is_done(stage) for stage in slow)


@dataclass(frozen=True)
class Renamed(Count):
    """What a worker with other code would encode otherwise."""


def test_a_worker_with_other_data_or_settings_refuses(run):
    ours = Stage(count_up, Count(3))
    theirs = Stage(count_up, Renamed(3))
    with pytest.raises(ValueError, match="other data or settings"):
        perform(theirs, ours.key, run, versions())


def test_a_worker_with_another_version_refuses(run):
    stage = Stage(count_up, Count(3))
    with pytest.raises(ValueError, match=r"was made with onebasin 0\.0\.1"):
        perform(stage, stage.key, run, {**versions(), "onebasin": "0.0.1"})


def test_a_worker_that_does_not_see_the_folder_says_so(run, tmp_path):
    stage = Stage(count_up, Count(3))
    away = Run(tmp_path / "elsewhere", "toy", quiet=True)
    with pytest.raises(FileNotFoundError, match="an --out that all workers share"):
        perform(stage, stage.key, away, versions())


def test_workers_have_the_devices_of_this_process(client):
    import jax

    def devices() -> int:
        import jax

        return len(jax.devices())

    assert set(client.run(devices).values()) == {len(jax.devices())}


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="the system has no affinity")
def test_workers_keep_to_their_share_of_the_cores(client):
    def cores() -> list[set[int]]:
        found = []
        for thread in os.listdir("/proc/self/task"):
            with suppress(ProcessLookupError):  # it has just ended
                found.append(os.sched_getaffinity(int(thread)))
        return found

    found: Any = client.run(cores)
    by_worker = list(found.values())
    assert all(one == threads[0] for threads in by_worker for one in threads)
    first, second = (threads[0] for threads in by_worker)
    ours = os.sched_getaffinity(0)
    assert len(first) == len(second) == max(1, len(ours) // 2)
    assert len(first | second) == min(2 * len(first), len(ours))


def test_workers_have_the_devices_that_they_are_given(monkeypatch):
    """And not those of this process, whose variables are as before afterwards."""

    def devices() -> int:
        import jax

        return len(jax.devices())

    monkeypatch.setenv("JAX_NUM_CPU_DEVICES", "2")
    monkeypatch.delenv("NPROC", raising=False)
    with connect("local:1", devices=3) as client:
        found: Any = client.run(devices)
        assert set(found.values()) == {3}
    assert os.environ["JAX_NUM_CPU_DEVICES"] == "2"
    assert "NPROC" not in os.environ


@pytest.mark.parametrize(
    ("cluster", "words"),
    [
        ("local:", "must give a number of workers"),
        ("local:0", "must give a number of workers"),
        ("local:two", "must give a number of workers"),
        ("nowhere.yaml", "there is no file nowhere.yaml"),
    ],
)
def test_a_cluster_that_cannot_be_is_refused(cluster, words):
    with pytest.raises((ValueError, OSError), match=words), connect(cluster):
        pass


@pytest.mark.parametrize(
    "text", ["[1, 2]", "workers: 2", "class: no_such_module.Cluster", "class: [", "class: os.nope"]
)
def test_a_file_that_describes_no_cluster_is_refused(tmp_path, text):
    path = tmp_path / "cluster.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match="must name a class of clusters"), connect(str(path)):
        pass


def test_a_file_describes_a_cluster(tmp_path):
    path = tmp_path / "cluster.yaml"
    options = "{processes: false, dashboard_address: null, threads_per_worker: 1}"
    path.write_text(f"class: distributed.LocalCluster\nworkers: 1\noptions: {options}\n")
    with connect(str(path)) as client:
        assert client.submit(Path("a/b").with_name, "c").result() == Path("a/c")
