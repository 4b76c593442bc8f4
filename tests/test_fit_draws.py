"""Draws on disk while chains run: they can be extended, and none is lost or invented."""

import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from fit_process import problem
from onebasin.inference import running_fit
from onebasin.inference.checkpoint import CheckpointError
from onebasin.inference.draws import DrawStore, grow_file, read_statistics
from onebasin.inference.fitting import fit
from onebasin.inference.methods import HMC, MAP, NUTS
from onebasin.inference.signals import FitInterrupted
from onebasin.posterior import load, read_header
from onebasin.tensor_files import TensorFileError

KEY = jax.random.key(7)
HMC_OPTIONS: dict[str, Any] = {"warmup": 2, "leapfrog_steps": 3, "chains": 2, "step_size": 0.05}
METHODS = {
    "HMC": (lambda draws: HMC(draws=draws, **HMC_OPTIONS), 3),
    "NUTS": (lambda draws: NUTS(draws=draws, warmup=2, chains=2, max_doublings=2), 1),
}


def stopped(monkeypatch, after, method, **options) -> None:
    """Interrupt a fit during chunk number `after`."""
    chunk, count = running_fit.RunningFit._run_chunk, 0

    def counted(self, loop):
        nonlocal count
        count += 1
        if count == after:
            os.kill(os.getpid(), signal.SIGINT)
        return chunk(self, loop)

    with monkeypatch.context() as patch:
        patch.setattr(running_fit.RunningFit, "_run_chunk", counted)
        with pytest.raises(FitInterrupted):
            fit(problem(), method, key=KEY, progress="silent", **options)


def drawn(result):
    return [np.asarray(leaf) for leaf in jax.tree.leaves(result.posterior.draws)]


@pytest.mark.parametrize(
    ("kind", "runs", "where"),
    [
        ("HMC", None, "out"),
        ("HMC", 2, "out"),
        ("HMC", 2, "checkpoint"),
        ("NUTS", None, "checkpoint"),
    ],
)
def test_extended_draws_equal_those_of_one_fit(tmp_path, monkeypatch, kind, runs, where):
    make, chunk_steps = METHODS[kind]
    options = {where: tmp_path / "q.st", "runs": runs, "chunk_steps": chunk_steps}
    stopped(monkeypatch, 5, make(6), **options)
    found = fit(problem(), make(9), key=KEY, progress="silent", resume=True, **options)
    whole = fit(problem(), make(9), key=KEY, progress="silent", runs=runs, chunk_steps=chunk_steps)
    for one, other in zip(*([r] if runs is None else r for r in (found, whole)), strict=True):
        assert one.posterior.num_draws == 18
        for a, b in zip(drawn(one), drawn(other), strict=True):
            np.testing.assert_array_equal(a, b)
    outs = {"q.st"} if runs is None else {"q-0.st", "q-1.st"}
    assert {path.name for path in tmp_path.iterdir()} == (outs if where == "out" else set())


@pytest.mark.parametrize("kind", METHODS)
def test_statistics_of_draws_are_in_the_file(tmp_path, monkeypatch, kind):
    """Those of a fit that was interrupted, extended and read back equal those of one fit."""
    make, chunk_steps = METHODS[kind]
    whole = fit(problem(), make(9), key=KEY, progress="silent", chunk_steps=chunk_steps)
    out, history = tmp_path / "q.st", tmp_path / "h.jsonl"
    options = {"out": out, "history": history, "chunk_steps": chunk_steps}
    stopped(monkeypatch, 5, make(6), **options)
    again = {"key": KEY, "progress": "silent", "resume": True, **options}
    found = fit(problem(), make(9), **again)
    read = fit(problem(), make(9), **again)
    for result in (found, read):
        for name in ("acceptance", "divergences", "energy", "log_density", "energy_fraction"):
            np.testing.assert_array_equal(result.stats[name], whole.stats[name])
    assert found.stats["energy"].shape == (2, 9)
    untimed = [{k: v for k, v in row.items() if k != "seconds"} for row in found.history]
    assert read.history == untimed
    statistics = read_statistics(out)
    assert ("leapfrog_steps" in statistics) == (kind == "NUTS")
    np.testing.assert_array_equal(statistics["energy"], whole.stats["energy"])
    np.testing.assert_array_equal(statistics["acceptance"].mean(1), whole.stats["acceptance"])
    # Another reader of the file, and one that maps it, does not see them.
    for mapped in (False, True):
        posterior = load(out, mapped=mapped)
        assert sorted(posterior.draws) == ["hidden", "out"]
    data = bytearray(out.read_bytes())
    at = data.rindex(np.asarray(statistics["energy"][0, :2]).tobytes())
    data[at] ^= 1
    out.write_bytes(data)
    with pytest.raises(TensorFileError, match=r"q\.st is damaged: its statistics 'energy'"):
        read_statistics(out)


def test_files_without_chains_have_no_statistics(tmp_path):
    out = tmp_path / "q.st"
    fit(problem(), MAP(epochs=1), key=KEY, out=out, progress="silent")
    assert read_statistics(out) == {}


def test_runs_read_back_have_their_own_history(tmp_path):
    make, _ = METHODS["HMC"]
    options = {"out": tmp_path / "q.st", "history": tmp_path / "h.jsonl", "runs": 2}
    found = fit(problem(), make(4), key=KEY, progress="silent", **options)
    read = fit(problem(), make(4), key=KEY, progress="silent", resume=True, **options)
    for one, other in zip(found, read, strict=True):
        rows = [{k: v for k, v in row.items() if k != "seconds"} for row in one.history]
        assert other.history == rows
        assert len(rows[0]["loss"]) == 2


def test_a_header_has_room_for_what_is_known_before(tmp_path):
    """A network with a long description, and many chains."""
    network = {"kind": "custom", "note": '"' * 100_000}
    method = HMC(draws=4, warmup=0, leapfrog_steps=1, chains=100)
    described = replace(problem(), network=network)
    fit(described, method, key=KEY, out=tmp_path / "q.st", progress="silent")
    assert read_header(tmp_path / "q.st").network == network
    assert read_statistics(tmp_path / "q.st")["energy"].shape == (100, 4)


def test_fewer_draws_and_a_finished_fit_are_refused(tmp_path, monkeypatch):
    make, chunk_steps = METHODS["HMC"]
    options = {"out": tmp_path / "q.st", "chunk_steps": chunk_steps, "progress": "silent"}
    stopped(monkeypatch, 5, make(6), out=tmp_path / "q.st", chunk_steps=chunk_steps)
    with pytest.raises(CheckpointError, match=r"method.draws was 6 and is 4"):
        fit(problem(), make(4), key=KEY, resume=True, **options)
    fit(problem(), make(6), key=KEY, resume=True, **options)
    before = (tmp_path / "q.st").read_bytes()
    with pytest.raises(CheckpointError, match=r"method.draws was 6 and is 9"):
        fit(problem(), make(9), key=KEY, resume=True, **options)
    assert (tmp_path / "q.st").read_bytes() == before


def test_missing_draws_are_refused(tmp_path, monkeypatch):
    make, chunk_steps = METHODS["HMC"]
    options = {"out": tmp_path / "q.st", "chunk_steps": chunk_steps}
    stopped(monkeypatch, 5, make(6), **options)
    (tmp_path / "q.st.part").unlink()
    for draws in (6, 9):
        with pytest.raises(
            CheckpointError, match=r"q.st.part, with the draws up to .*q.st.checkpoint, is missing"
        ):
            fit(problem(), make(draws), key=KEY, resume=True, **options)


def test_a_complete_file_is_found_again(tmp_path, monkeypatch):
    """The process dies between the final renames of two runs."""
    make, chunk_steps = METHODS["HMC"]
    options = {"out": tmp_path / "q.st", "runs": 2, "chunk_steps": chunk_steps}
    options |= {"key": KEY, "progress": "silent"}
    whole = fit(problem(), make(6), key=KEY, progress="silent", runs=2, chunk_steps=chunk_steps)
    become = DrawStore.become

    def dies(self, out, *rest):
        if out.name == "q-1.st":
            raise KeyboardInterrupt
        become(self, out, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(DrawStore, "become", dies)
        with pytest.raises(KeyboardInterrupt):
            fit(problem(), make(6), checkpoint_interval=0.0, **options)
    assert {p.name for p in tmp_path.iterdir()} == {"q-0.st", "q-1.st.part", "q.st.checkpoint"}
    found = fit(problem(), make(6), resume=True, **options)
    for one, other in zip(found, whole, strict=True):
        for a, b in zip(drawn(one), drawn(other), strict=True):
            np.testing.assert_array_equal(a, b)


def test_draws_without_a_checkpoint_are_discarded(tmp_path):
    make, _ = METHODS["HMC"]
    (tmp_path / "q.st.part").write_text("of a fit that was killed before its first checkpoint")
    out = tmp_path / "q.st"
    fit(problem(), make(4), key=KEY, out=out, resume=True, progress="silent")
    assert load(out).num_draws == 8


def test_a_file_can_be_grown_twice(tmp_path):
    shapes = {
        "a": jax.ShapeDtypeStruct((2,), np.float32),
        "b": jax.ShapeDtypeStruct((), np.float32),
    }
    path = tmp_path / "q.st.part"
    kinds = {"energy": np.dtype(np.float32)}
    store = DrawStore(shapes, 2, 3, path, kinds)
    for chain in range(2):
        values = 10.0 * chain + np.arange(3.0)
        draws = {"a": np.stack([values, -values], 1), "b": values}
        store.put(chain, 0, draws, {"energy": values + 1})
    store.flush()
    for _ in range(2):
        grow_file(path, shapes, chains=2, before=3, after=5, statistics=kinds)
    grown = DrawStore(shapes, 2, 5, path, kinds)
    expected = [[1, 2, 3, 0, 0], [11, 12, 13, 0, 0]]
    np.testing.assert_array_equal(grown.statistics()["energy"], expected)
    np.testing.assert_array_equal(grown.arrays["draws/b"], [0, 1, 2, 0, 0, 10, 11, 12, 0, 0])
    np.testing.assert_array_equal(grown.arrays["draws/a"][:, 1], -grown.arrays["draws/b"])
    np.testing.assert_array_equal(grown.arrays["chain"], np.repeat([0, 1], 5))
    assert [p.name for p in Path(tmp_path).iterdir()] == ["q.st.part"]
    with pytest.raises(ValueError, match="ask for as many as last time"):
        DrawStore(shapes, 2, 4, path, kinds)
