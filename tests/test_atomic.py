"""Atomic writes and locks, and what remains of them after an error or a kill."""

import errno
import os
import stat
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from onebasin.atomic import (
    LOCK,
    TEMPORARY,
    BusyError,
    WriteError,
    lock,
    locked,
    sweep_all,
    sweep_folder,
    temporary_file,
    write_atomically,
)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def run(code: str, *arguments: object, **options) -> "subprocess.Popen[str]":
    """Run code in a process of its own, with pipes to it."""
    command = [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    return subprocess.Popen(command, text=True, **pipes, **options)


def test_the_file_replaces_the_old_one_with_usual_permissions(tmp_path):
    path = tmp_path / "q.st"
    path.write_text("old")
    reference = tmp_path / "reference"
    reference.write_text("")

    def write(part):
        descriptor = os.open(part, os.O_CREAT | os.O_WRONLY, 0o600)
        os.write(descriptor, b"new")
        os.close(descriptor)
        assert path.read_text() == "old"

    write_atomically(path, write)
    assert path.read_text() == "new"
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE(reference.stat().st_mode)
    assert names(tmp_path) == ["q.st", "reference"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, FileNotFoundError, ValueError])
def test_a_writer_that_fails_leaves_the_old_file_and_nothing_else(tmp_path, error):
    path = tmp_path / "q.st"
    path.write_text("old")

    def write(part):
        for name in (part, f"{os.path.dirname(part)}/.tmpOfAnother"):
            with open(name, "w") as file:
                file.write("half")
        raise error

    with pytest.raises(error):
        write_atomically(path, write)
    assert path.read_text() == "old"
    assert names(tmp_path) == ["q.st"]


class ForeignError(Exception):
    """What a writer in another language raises."""


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (OSError(errno.ENOSPC, "x"), r"No space left on device; it needs 1,234 bytes and [\d,]+"),
        (OSError(errno.EDQUOT, "x"), r"quota.*needs 1,234 bytes"),
        (ForeignError("I/O error: full (os error 28)"), r"No space .*needs 1,234 bytes"),
        (OSError(errno.EROFS, "x"), "Read-only file system; give another path"),
        (OSError(errno.EACCES, "x"), "Permission denied; give another path"),
    ],
)
def test_a_disk_that_takes_nothing_is_named_with_the_file(tmp_path, error, message):
    def write(part):
        Path(part).write_text("half")
        raise error

    with pytest.raises(WriteError, match=r"q\.st cannot be written: .*" + message):
        write_atomically(tmp_path / "q.st", write, size=1234)
    assert names(tmp_path) == []


def test_other_errors_stay_as_they_are(tmp_path):
    def write(part):
        raise ForeignError("not of the system")

    with pytest.raises(ForeignError, match="not of the system"):
        write_atomically(tmp_path / "q.st", write)


KILLED = """
    import os, signal, sys
    from pathlib import Path
    from onebasin.atomic import locked, write_atomically

    def write(part):
        Path(part).write_text("half")
        Path(part).with_name(".tmp4UR9Yj").write_text("a temporary file of the writer's own")
        os.kill(os.getpid(), signal.SIGKILL)

    with locked(Path(sys.argv[1])):
        write_atomically(Path(sys.argv[1]), write)
"""


@pytest.mark.parametrize("sweeper", ["write", "lock", "all", "folder"])
def test_only_the_remains_of_a_killed_writer_are_removed(tmp_path, sweeper):
    path = tmp_path / "q.st"
    path.write_text("old")
    targets = ("q.st.checkpoint", "qqst") if sweeper != "folder" else ()
    others = [TEMPORARY.format(target=target, random="abc") for target in targets]
    others += [".tmpOther", "q.st.part", "q.st.lock", "q.st.unfinished-abc.deletable"]
    for name in others:
        (tmp_path / name).write_text("theirs")
    killed = run(KILLED, path)
    killed.communicate()
    assert killed.returncode == -9
    left = set(names(tmp_path)) - {"q.st", *others}
    (folder,) = left - {LOCK.format(target="q.st")}  # both are named after the file
    assert len(left) == 2
    assert folder.startswith(".q.st.unfinished-")
    assert folder.endswith(".deletable")
    assert (tmp_path / folder / ".tmp4UR9Yj").exists()
    if sweeper == "write":
        write_atomically(path, lambda part: Path(part).write_text("old"))
        others.append(LOCK.format(target="q.st"))
    elif sweeper == "lock":
        with locked(path):
            pass
    elif sweeper == "all":
        sweep_all(path)
    else:
        sweep_folder(tmp_path)
    assert names(tmp_path) == sorted(["q.st", *others])
    assert path.read_text() == "old"


HOLDING = """
    import sys
    from pathlib import Path
    from onebasin.atomic import locked, temporary_file

    path = Path(sys.argv[1])
    with locked(path), temporary_file(path) as part:
        part.write_text("half")
        print("ready", flush=True)
        sys.stdin.read()
"""


def test_files_of_a_living_process_are_refused_and_left_alone(tmp_path):
    path = tmp_path / "q.st"
    process = run(HOLDING, path)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    before = names(tmp_path)
    assert len(before) == 2
    with pytest.raises(BusyError, match=r"another process is writing .*q\.st"), locked(path):
        pass
    sweep_all(path)
    sweep_folder(tmp_path)
    assert names(tmp_path) == before
    write_atomically(path, lambda part: Path(part).write_text("new"))
    assert names(tmp_path) == sorted([*before, "q.st"])
    process.kill()
    process.communicate()
    with locked(path):  # the lock has died with its process
        assert names(tmp_path) == [LOCK.format(target="q.st"), "q.st"]
    assert names(tmp_path) == ["q.st"]


def test_a_lock_is_waited_for_and_held_by_one_at_a_time(tmp_path):
    path, holders, waited = tmp_path / "stage", [], []

    def work():
        for _ in range(20):
            with lock(path, lambda: waited.append(1)):
                holders.append(1)
                assert len(holders) == 1
                holders.pop()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert names(tmp_path) == []
    with lock(path, lambda: None):
        waiting = threading.Thread(target=work)
        before = len(waited)
        waiting.start()
        while len(waited) == before:
            pass
    waiting.join()
    assert names(tmp_path) == []


def test_concurrent_writers_of_one_file_do_not_disturb_each_other(tmp_path):
    path, failures = tmp_path / "plan.json", []

    def work(text):
        try:
            for _ in range(20):
                write_atomically(path, lambda part: Path(part).write_text(text))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(str(i) * 100,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert len(path.read_text()) == 100
    assert names(tmp_path) == ["plan.json"]


def test_a_temporary_file_is_on_the_file_system_of_its_target(tmp_path):
    with temporary_file(tmp_path / "q.st") as part:
        assert part.name == "q.st"
        assert part.parent.parent == tmp_path
    assert names(tmp_path) == []
