"""Atomic writes, and what remains of them after an error or a kill."""

import os
import stat
import subprocess
import sys
import textwrap

import pytest

from onebasin.atomic import sweep_parts, write_atomically


def names(folder):
    return sorted(path.name for path in folder.iterdir())


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


def test_a_writer_that_fails_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "q.st"
    path.write_text("old")

    def write(part):
        for name in (part, f"{os.path.dirname(part)}/.tmpOfAnother"):
            with open(name, "w") as file:
                file.write("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_atomically(path, write)
    assert path.read_text() == "old"
    assert names(tmp_path) == ["q.st"]


KILLED = """
    import os, signal, sys
    from pathlib import Path
    from onebasin.atomic import write_atomically

    def write(part):
        Path(part).write_text("half")
        Path(part).with_name(".tmp4UR9Yj").write_text("a temporary file of the writer's own")
        os.kill(os.getpid(), signal.SIGKILL)

    write_atomically(Path(sys.argv[1]), write)
"""


def test_only_the_remains_of_a_killed_writer_are_swept(tmp_path):
    path = tmp_path / "q.st"
    path.write_text("old")
    others = [".q.st.checkpoint.abc.part", ".tmpOther", "q.st.part", ".qqst.abc.part"]
    for name in others:
        (tmp_path / name).write_text("theirs")
    command = [sys.executable, "-c", textwrap.dedent(KILLED), str(path)]
    assert subprocess.run(command, check=False).returncode == -9
    (left,) = set(names(tmp_path)) - {"q.st", *others}  # only what has the name of the file
    assert (tmp_path / left / ".tmp4UR9Yj").exists()
    (tmp_path / ".q.st.grown.part").write_text("a plain file of such a name")
    sweep_parts(path)
    assert names(tmp_path) == sorted(["q.st", *others])
    assert path.read_text() == "old"
