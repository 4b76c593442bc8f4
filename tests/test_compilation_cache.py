"""The folder of compiled programs: where it is, what is removed from it, and that it is used."""

import os
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from onebasin import compilation_cache
from onebasin.compilation_cache import CHECKED, ENVIRONMENT, clean, is_whole, settings

FOLDER, SECONDS = "JAX_COMPILATION_CACHE_DIR", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"


@pytest.mark.fast
def test_the_folder_is_that_of_the_user_of_this_machine(tmp_path, monkeypatch):
    monkeypatch.setattr(compilation_cache.platform, "system", lambda: "Linux")
    found = settings({"XDG_CACHE_HOME": str(tmp_path)})
    folder = Path(found[FOLDER])
    assert folder.parent == tmp_path / "onebasin" / "compiled"
    assert folder.stat().st_mode & 0o077 == 0
    assert settings({"XDG_CACHE_HOME": str(tmp_path)}) == found
    monkeypatch.setattr(compilation_cache.platform, "machine", lambda: "another")
    assert settings({"XDG_CACHE_HOME": str(tmp_path)}) != found


@pytest.mark.fast
def test_the_user_moves_or_refuses_it(tmp_path):
    assert Path(settings({ENVIRONMENT: str(tmp_path / "own")})[FOLDER]).parent == tmp_path / "own"
    for word in ("off", "OFF", "none", ""):
        assert settings({ENVIRONMENT: word}) == {}
    assert settings({FOLDER: "chosen", ENVIRONMENT: str(tmp_path)}) == {}


@pytest.mark.fast
def test_it_is_not_used_where_it_is_not_safe(tmp_path, monkeypatch):
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    assert settings({ENVIRONMENT: str(shared)}) == {}
    (tmp_path / "file").write_text("")
    assert settings({ENVIRONMENT: str(tmp_path / "file" / "inside")}) == {}
    full = type("Usage", (), {"free": compilation_cache.LARGEST})
    monkeypatch.setattr(compilation_cache.shutil, "disk_usage", lambda _: full)
    assert settings({ENVIRONMENT: str(tmp_path / "full")}) == {}


@pytest.mark.fast
def test_broken_and_old_entries_are_removed(tmp_path, monkeypatch):
    whole = zlib.compress(np.random.default_rng(0).bytes(10_000))
    entries = {"a": whole, "b": whole[:-1], "c": b"", "d": whole[: len(whole) // 2], "e": whole}
    for age, (name, entry) in enumerate(entries.items()):
        path = tmp_path / f"{name}-cache"
        path.write_bytes(entry)
        assert is_whole(entry) == (entry == whole)
        os.utime(path, (1e9 - age, 1e9 - age))
    (tmp_path / "notes.txt").write_text("mine")
    clean(tmp_path)
    left = {"a-cache", "e-cache", "notes.txt", CHECKED}
    assert {path.name for path in tmp_path.iterdir()} == left
    monkeypatch.setattr(compilation_cache, "LARGEST", len(whole) + 1)
    clean(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == left - {"e-cache"}


def test_a_second_process_compiles_nothing_again(tmp_path):
    words = "-m onebasin fit vi --limit 40 --width 4 --depth 1 --epochs 1 --progress silent --out"
    kept = {name: text for name, text in os.environ.items() if not name.startswith("JAX_")}
    environment = {**kept, ENVIRONMENT: str(tmp_path / "compiled")}

    def entries():
        return {p.name: p.stat().st_mtime_ns for p in (tmp_path / "compiled").rglob("*-cache")}

    seen = []
    for name in ("first", "second"):
        command = [sys.executable, *words.split(), f"{name}.safetensors"]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
        )
        told = [line for line in done.stderr.splitlines() if not line.startswith("note:")]
        assert told == []  # nothing of the cache; the note is about so short a fit
        seen.append(entries())
    # How many take long enough to be kept depends on the machine; the training steps always do.
    assert any(name.startswith("jit_chunk-") for name in seen[0])
    assert seen[0].items() <= seen[1].items()
    first, second = (load_file(tmp_path / f"{name}.safetensors") for name in ("first", "second"))
    assert first.keys() == second.keys()
    assert all(np.array_equal(first[name], second[name]) for name in first)
