"""A run kept in a store: in memory, in a folder, and on a real S3 server on this machine."""

import os
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from cluster_stages import Count, add_up, count_up
from onebasin.experiments.cluster import connect, perform_all
from onebasin.experiments.record import versions
from onebasin.experiments.runner import Run
from onebasin.experiments.stage import RESULT, Stage
from onebasin.experiments.store import Store, store_at

pytest.importorskip("fsspec")
S3FileSystem = pytest.importorskip("s3fs").S3FileSystem


def graph() -> Stage:
    counts = [Stage(count_up, Count(n)) for n in (4, 5)]
    return Stage(add_up, Count(0), {str(i): s["total"] for i, s in enumerate(counts)})


def opened(folder: Path, url: str) -> Run:
    run = Run(folder, "toy", quiet=True, store=url)
    run.open()
    return run


def test_what_one_process_finished_another_does_not_run_again(tmp_path):
    url = f"memory://{tmp_path.name}"
    first, last = opened(tmp_path / "a", url), graph()
    first.perform(last)
    other = opened(tmp_path / "b", url)
    assert other.is_done(last)
    assert other.perform(last).result == {"total": 25}
    assert [p.name for p in (tmp_path / "b" / "stages").iterdir()] == [last.key]  # no inputs


def test_a_stage_fetches_the_inputs_that_it_needs(tmp_path):
    url, last = f"memory://{tmp_path.name}", graph()
    first = opened(tmp_path / "a", url)
    for each in last.lineage()[:-1]:
        first.perform(each)
    other = opened(tmp_path / "b", url)
    assert other.perform(last).result == {"total": 25}
    assert store_at(url).has(last.key)


def test_a_stage_without_its_result_is_not_there(tmp_path):
    """What a process that was killed while sending leaves behind is not taken for a stage."""
    url, last = f"memory://{tmp_path.name}", graph().lineage()[0]
    first = opened(tmp_path / "a", url)
    first.perform(last)
    store = store_at(url)
    store.files.rm_file(f"{store.root}/stages/{last.key}/{RESULT}")
    other = opened(tmp_path / "b", url)
    assert not other.is_done(last)
    assert other.perform(last).result == {"total": 10}


def test_a_store_given_later_gets_what_is_finished(tmp_path):
    last = graph()
    before = Run(tmp_path / "a", "toy", quiet=True)
    before.open()
    before.perform(last)
    url = f"memory://{tmp_path.name}"
    opened(tmp_path / "a", url).perform(last)
    assert all(store_at(url).has(stage.key) for stage in last.lineage())


def test_a_store_of_another_version_is_refused(tmp_path):
    url = f"memory://{tmp_path.name}"
    Store(url).begin({"preset": "toy", **versions(), "onebasin": "0.0.1"})
    with pytest.raises(ValueError, match=r"was made with onebasin 0\.0\.1"):
        opened(tmp_path / "a", url)


def test_a_damaged_store_is_refused(tmp_path):
    kept = Store(f"memory://{tmp_path.name}")
    for content in (b"{", b"[1]"):
        kept.files.pipe_file(f"{kept.root}/run.json", content)
        with pytest.raises(ValueError, match="is damaged; name another store"):
            kept.made_with()


@pytest.mark.parametrize("url", ["nowhere://bucket", "http2://x"])
def test_a_url_of_no_known_kind_is_refused(url):
    with pytest.raises(ValueError, match=f"--store {url} cannot be opened"):
        Store(url)


@pytest.fixture
def s3(tmp_path, monkeypatch):
    """The URL of a bucket on an S3 server that runs for this test."""
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"]
    log = tmp_path / "server.log"
    with log.open("w") as file:
        server = subprocess.Popen(command, stdout=file, stderr=file)
    try:
        address = _address(log, server)
        monkeypatch.setenv("AWS_ENDPOINT_URL", address)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        urllib.request.urlopen(urllib.request.Request(f"{address}/bucket", method="PUT")).close()
        yield "s3://bucket/run"
    finally:
        server.kill()
        server.wait()
        store_at.cache_clear()  # the next server has another address
        S3FileSystem.clear_instance_cache()


def _address(log: Path, server: subprocess.Popen) -> str:
    import re
    import time

    for _ in range(600):
        found = re.search(r"Running on (http://127\.0\.0\.1:\d+)", log.read_text())
        if found:
            try:
                urllib.request.urlopen(found[1]).close()
                return found[1]
            except urllib.error.URLError:
                pass
        assert server.poll() is None, log.read_text()
        time.sleep(0.1)
    raise AssertionError(log.read_text())


def test_processes_share_a_run_on_an_s3_server(s3, tmp_path):
    """Workers of a cluster write to a bucket; a client with another folder reads what they did."""
    last = graph()
    with connect("local:2") as client:
        perform_all(client, opened(tmp_path / "workers", s3), [last])
    other = opened(tmp_path / "elsewhere", s3)
    assert other.is_done(last)
    assert other.perform(last).result == {"total": 25}
    assert (other.folder(last) / RESULT).exists()


def test_two_machines_share_a_run_by_a_bucket(s3, tmp_path):
    """Two processes with folders of their own do one count each; a third one adds them up."""
    code = (
        "import sys, pathlib, test_store as t; folder, url, n = sys.argv[1:]; "
        "t.opened(pathlib.Path(folder), url).perform(t.graph().lineage()[int(n)])"
    )
    tests = str(Path(__file__).parent)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([tests, *sys.path])}
    started = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path / name), s3, str(n)], env=environment
        )
        for n, name in enumerate(("first", "second"))
    ]
    assert [process.wait(300) for process in started] == [0, 0]
    third, last = opened(tmp_path / "third", s3), graph()
    assert [third.is_done(stage) for stage in last.lineage()] == [True, True, False]
    assert third.perform(last).result == {"total": 25}
    for count in last.lineage()[:-1]:
        assert (third.outcome(count).folder / "starts").read_text() == "0\n"  # begun once
