"""Draws on disk while chains run: they can be extended, and none is lost or invented."""

import os
import signal
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from fit_process import problem
from onebasin.inference import fitting
from onebasin.inference.checkpoint import CheckpointError
from onebasin.inference.draws import DrawStore, grow_file
from onebasin.inference.fitting import fit
from onebasin.inference.methods import HMC, NUTS
from onebasin.inference.signals import FitInterrupted
from onebasin.posterior import load

KEY = jax.random.key(7)
HMC_OPTIONS: dict[str, Any] = {"warmup": 2, "leapfrog_steps": 3, "chains": 2, "step_size": 0.05}
METHODS = {
    "HMC": (lambda draws: HMC(draws=draws, **HMC_OPTIONS), 3),
    "NUTS": (lambda draws: NUTS(draws=draws, warmup=2, chains=2, max_doublings=2), 1),
}


def stopped(monkeypatch, after, method, **options) -> None:
    """Interrupt a fit during chunk number `after`."""
    chunk, count = fitting._Fit._run_chunk, 0

    def counted(self, loop):
        nonlocal count
        count += 1
        if count == after:
            os.kill(os.getpid(), signal.SIGINT)
        return chunk(self, loop)

    with monkeypatch.context() as patch:
        patch.setattr(fitting._Fit, "_run_chunk", counted)
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
    store = DrawStore(shapes, 2, 3, path)
    for chain in range(2):
        values = 10.0 * chain + np.arange(3.0)
        store.put(chain, 0, {"a": np.stack([values, -values], 1), "b": values})
    store.flush()
    for _ in range(2):
        grow_file(path, shapes, chains=2, before=3, after=5)
    grown = DrawStore(shapes, 2, 5, path)
    np.testing.assert_array_equal(grown.arrays["draws/b"], [0, 1, 2, 0, 0, 10, 11, 12, 0, 0])
    np.testing.assert_array_equal(grown.arrays["draws/a"][:, 1], -grown.arrays["draws/b"])
    np.testing.assert_array_equal(grown.arrays["chain"], np.repeat([0, 1], 5))
    assert [p.name for p in Path(tmp_path).iterdir()] == ["q.st.part"]
    with pytest.raises(ValueError, match="ask for as many as last time"):
        DrawStore(shapes, 2, 4, path)
