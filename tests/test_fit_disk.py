"""Fits on full and read-only disks, and two fits with one file."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from fit_process import problem
from mounts import mounted
from onebasin.atomic import BusyError, WriteError, locked
from onebasin.cli.main import main
from onebasin.inference import running_fit
from onebasin.inference.checkpoint import read_checkpoint
from onebasin.inference.draws import DrawStore
from onebasin.inference.fit_result import FitResult
from onebasin.inference.fitting import fit
from onebasin.inference.methods import HMC, MAP, VI
from onebasin.posterior import MeanField, load

KEY = jax.random.key(3)
METHOD = VI(epochs=4, batch_size=50)
CHAINS = HMC(draws=20, warmup=2, leapfrog_steps=2, chains=2)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def fill(folder: Path, leave: int) -> Path:
    """Fill a disk up to `leave` bytes."""
    ballast = folder / "ballast"
    with open(ballast, "wb") as file:
        left = leave + 1
        while left > leave:
            status = os.statvfs(folder)
            left = status.f_bavail * status.f_frsize
            file.write(bytes(min(max(left - leave, 0), 2**20)))
            file.flush()
    return ballast


def check_equal(one: FitResult, other: FitResult) -> None:
    for a, b in zip(*(jax.tree.leaves(q.posterior) for q in (one, other)), strict=True):
        np.testing.assert_array_equal(a, b)


def never(*_):
    raise AssertionError("nothing may be computed")


@pytest.mark.parametrize("method", [METHOD, CHAINS, MAP(epochs=2)])
def test_a_full_disk_is_noticed_before_the_fit(tmp_path, monkeypatch, method):
    monkeypatch.setattr(running_fit.RunningFit, "_run_chunk", never)
    with mounted(tmp_path / "disk", "size=2m") as disk:
        fill(disk, leave=4096)
        with pytest.raises(WriteError, match=r"q\.st.* need [\d,]+ bytes and [\d,]+ are free"):
            fit(problem(), method, key=KEY, out=disk / "q.st", progress="silent")
        assert names(disk) == ["ballast"]


def test_a_read_only_disk_is_noticed_before_the_fit(tmp_path, monkeypatch):
    monkeypatch.setattr(running_fit.RunningFit, "_run_chunk", never)
    with mounted(tmp_path / "disk", "size=2m,ro") as disk:
        for target in ("out", "checkpoint", "history"):
            where: dict[str, Any] = {target: disk / "q.st"}
            with pytest.raises(WriteError, match=r"q\.st cannot be written: Read-only file system"):
                fit(problem(), METHOD, key=KEY, progress="silent", **where)


def test_the_command_names_a_read_only_disk_and_exits_with_two(tmp_path, capsys):
    with mounted(tmp_path / "disk", "size=2m,ro") as disk:
        with pytest.raises(SystemExit) as stopped:
            main(["fit", "vi", "--limit", "50", "--width", "4", "--out", str(disk / "q.st")])
        assert stopped.value.code == 2
        said = capsys.readouterr().err
        assert said == f"onebasin: {disk / 'q.st'} cannot be written: " + (
            "Read-only file system; give another path\n"
        )


@pytest.mark.parametrize("method", [METHOD, CHAINS])
def test_a_disk_that_fills_up_keeps_the_checkpoint(tmp_path, monkeypatch, method):
    """Another process takes the space after the second checkpoint."""
    whole = fit(problem(), method, key=KEY, progress="silent", chunk_steps=10)
    with mounted(tmp_path / "disk", "size=2m") as disk:
        options = {"key": KEY, "out": disk / "q.st", "progress": "silent", "chunk_steps": 10}
        save, saved = running_fit.RunningFit._save, []

        def fills_up(self):
            if len(saved) == 2:
                fill(disk, leave=4096)
            save(self)
            saved.append(self.step)

        with monkeypatch.context() as patch:
            patch.setattr(running_fit.RunningFit, "_save", fills_up)
            with pytest.raises(
                WriteError,
                match=r"q\.st\.checkpoint cannot be written: No space left on device; .* are free; "
                r"the last good checkpoint is .*\(step 20\); .*needs [1-9][\d,]+ bytes, resume",
            ):
                fit(problem(), method, checkpoint_interval=0.0, **options)
        assert read_checkpoint(disk / "q.st.checkpoint").step == 20
        (disk / "ballast").unlink()
        found = fit(problem(), method, resume=True, **options)
        assert found.stats["resumed_from"] == 20
        check_equal(found, whole)
        assert names(disk) == ["q.st"]


@pytest.mark.parametrize("method", [METHOD, CHAINS])
def test_a_posterior_that_cannot_be_written_is_not_computed_again(tmp_path, monkeypatch, method):
    """The disk is full when the fit has ended: resuming only writes."""
    whole = fit(problem(), method, key=KEY, progress="silent", chunk_steps=10)
    with mounted(tmp_path / "disk", "size=2m") as disk:
        options = {"key": KEY, "out": disk / "q.st", "progress": "silent", "chunk_steps": 10}
        with monkeypatch.context() as patch:

            def full(*_, **__):
                raise WriteError(f"{disk / 'q.st'} cannot be written: No space left on device")

            if method is METHOD:
                finish = running_fit.RunningFit._finish

                def fills_up(self, *arguments):
                    fill(disk, leave=0)
                    return finish(self, *arguments)

                patch.setattr(running_fit.RunningFit, "_finish", fills_up)
            else:  # the file of draws has its space from the start
                patch.setattr(DrawStore, "become", full)
            with pytest.raises(
                WriteError, match=r"q\.st cannot be .*No space left .*\(step 4[04]\)"
            ):
                fit(problem(), method, **options)
        (disk / "ballast").unlink(missing_ok=True)
        monkeypatch.setattr(running_fit.RunningFit, "_run_chunk", never)
        found = fit(problem(), method, resume=True, **options)
        check_equal(found, whole)
        assert names(disk) == ["q.st"]


def test_without_room_for_a_last_checkpoint_the_posterior_is_still_written(tmp_path, monkeypatch):
    def full(*_):
        raise WriteError("no room")

    monkeypatch.setattr(running_fit, "write_checkpoint", full)
    fit(problem(), METHOD, key=KEY, out=tmp_path / "q.st", progress="silent")
    assert names(tmp_path) == ["q.st"]
    assert isinstance(load(tmp_path / "q.st"), MeanField)


def test_a_history_that_cannot_be_written_is_named(tmp_path):
    with mounted(tmp_path / "disk", "size=2m") as disk:
        fill(disk, leave=0)
        with pytest.raises(WriteError, match=r"h\.jsonl cannot be written: No space left"):
            fit(problem(), METHOD, key=KEY, history=disk / "h.jsonl", progress="silent")


@pytest.mark.parametrize("shared", ["out", "checkpoint", "history"])
def test_a_second_fit_with_the_same_file_is_refused_at_once(tmp_path, monkeypatch, shared):
    where: dict[str, Any] = {shared: tmp_path / "shared"}
    refused = []

    def second(what, done, total):
        for overwrite in (False, True) if not refused else ():
            with pytest.raises(BusyError, match=r"is writing .*shared") as error:
                fit(problem(), METHOD, key=KEY, progress=never, overwrite=overwrite, **where)
            refused.append(error.value)

    fit(problem(), METHOD, key=KEY, progress=second, **where)
    assert len(refused) == 2
    expected = {"out": ["shared"], "checkpoint": [], "history": ["shared"]}[shared]
    assert names(tmp_path) == expected


COMMANDS = {
    "align": "align q.st --to q.st --out x.st",
    "compact": "compact q.st r.st --out x.st",
    "prune": "prune q.st --out x.st",
}


@pytest.mark.parametrize("command", COMMANDS)
def test_other_commands_refuse_a_file_that_is_being_written(tmp_path, monkeypatch, capsys, command):
    monkeypatch.chdir(tmp_path)
    for seed, name in enumerate(("q.st", "r.st")):
        words = f"fit vi --limit 50 --width 4 --depth 1 --epochs 1 --seed {seed} --out {name}"
        main([*words.split(), "--progress", "silent"])
    capsys.readouterr()
    with locked(tmp_path / "x.st"), pytest.raises(SystemExit) as stopped:
        main(COMMANDS[command].split())
    assert stopped.value.code == 2
    said = capsys.readouterr().err
    assert said == "onebasin: another process is writing x.st; wait for it, or give another path\n"
    assert names(tmp_path) == ["q.st", "r.st"]
    main(COMMANDS[command].split())
    assert names(tmp_path) == ["q.st", "r.st", "x.st"]


def test_a_system_without_locks_is_refused_in_one_sentence():
    code = "import sys; sys.modules['fcntl'] = None; import onebasin.atomic"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "OneBasin needs the file locks of POSIX systems, which Windows lacks" in done.stderr


@pytest.mark.parametrize("other", ["checkpoint", "history"])
def test_one_path_cannot_be_two_files_of_a_fit(tmp_path, other):
    where: dict[str, Any] = {"out": tmp_path / "q.st", other: tmp_path / "." / "q.st"}
    with pytest.raises(ValueError, match=r"q\.st cannot be two files of one fit"):
        fit(problem(), METHOD, key=KEY, progress="silent", **where)
    assert names(tmp_path) == []
