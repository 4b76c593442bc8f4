"""Fits that are killed, stopped or fail: what is on disk, and that resuming is exact."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

from fit_process import problem
from onebasin.atomic import LOCK, TEMPORARY
from onebasin.inference.checkpoint import CheckpointError, read_checkpoint
from onebasin.inference.fitting import fit
from onebasin.inference.history import figures_of, read_history
from onebasin.inference.methods import HMC, IVON, MAP, MCLMC, SWAG, VI, Ensemble
from onebasin.inference.running_fit import NonFiniteLossError
from onebasin.inference.signals import FitInterrupted
from onebasin.posterior import load, read_header
from onebasin.problem import Problem

SCRIPT = Path(__file__).with_name("fit_process.py")
LONG_VI = {"epochs": 400, "batch_size": 50, "learning_rate": 0.01}
NORMALISED_HMC = {"draws": 60, "warmup": 60, "leapfrog_steps": 10, "chains": 2, "mode_epochs": 20}
LONG_HMC = {
    "draws": 120,
    "warmup": 60,
    "leapfrog_steps": 10,
    "chains": 2,
    "data_chunk": 500,
    "masses": {"out": 4.0},
}


def start(options):
    command = [sys.executable, str(SCRIPT), json.dumps(options)]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


def finish(process):
    _, said = process.communicate(timeout=200)
    assert process.returncode == 0, said


def wait_for_rows(process, history, rows, timeout=120):
    """Wait until the fit has written `rows` rows of its history, or has ended."""
    deadline = time.monotonic() + timeout
    while process.poll() is None and time.monotonic() < deadline:
        if history.exists() and len(history.read_bytes().splitlines()) >= rows:
            return
        time.sleep(0.002)
    assert process.poll() is not None, "the fit did not write these rows in time"


@pytest.mark.parametrize(
    ("method", "settings", "chunk_steps"), [("VI", LONG_VI, 40), ("HMC", LONG_HMC, 17)]
)
def test_killed_at_random_moments_and_resumed_bit_for_bit(tmp_path, method, settings, chunk_steps):
    killed_and_resumed(tmp_path, method, settings, chunk_steps)


@pytest.mark.parametrize(
    ("method", "settings", "chunk_steps"),
    [("MAP", {"epochs": 600, "batch_size": 50}, 40), ("HMC", NORMALISED_HMC, 17)],
)
def test_running_statistics_are_resumed_bit_for_bit(tmp_path, method, settings, chunk_steps):
    files = killed_and_resumed(tmp_path, method, settings, chunk_steps, normalised=True)
    assert any(name.startswith("state/") for name in files)


def killed_and_resumed(tmp_path, method, settings, chunk_steps, **more):
    """The tensors of a fit that was killed thrice, equal to those of one that was not."""
    chance = random.Random(20)
    base = {
        "method": method,
        "settings": settings,
        "chunk_steps": chunk_steps,
        "checkpoint_interval": 0.0,
        **more,
    }
    whole = {**base, "out": str(tmp_path / "whole.st"), "history": str(tmp_path / "whole.jsonl")}
    finish(start(whole))
    rows = len((tmp_path / "whole.jsonl").read_text().splitlines())
    history, out = tmp_path / "cut.jsonl", tmp_path / "cut.st"
    cut = {**base, "out": str(out), "history": str(history), "resume": True}
    # Unfinished chains may be asked for more draws.
    begun = {**settings, "draws": settings["draws"] - 10} if "draws" in settings else settings
    kills = checkpoints = 0
    for share in (0.2, 0.55, 0.8):
        process = start({**cut, "settings": begun} if share < 0.8 else cut)
        wait_for_rows(process, history, int(rows * share))
        time.sleep(chance.random() * 0.03)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        kills += process.returncode == -signal.SIGKILL
        if out.with_name("cut.st.checkpoint").exists():
            checkpoints += read_checkpoint(out.with_name("cut.st.checkpoint")).step > 0
    assert kills >= 2
    assert checkpoints >= 2  # each complete
    finish(start(cut))
    one, other = load_file(tmp_path / "whole.st"), load_file(out)
    assert one.keys() == other.keys()
    for name in one:
        np.testing.assert_array_equal(one[name], other[name])
    for a, b in zip(_rows(tmp_path / "whole.jsonl"), _rows(history), strict=True):
        assert a == b
    made = [read_header(path).provenance for path in (tmp_path / "whole.st", out)]
    assert made[0] == made[1]
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"whole.st", "whole.jsonl", "cut.st", "cut.jsonl"}
    return one


ONCE_KILLED = (
    {
        "MCLMC": {"draws": 60, "warmup": 60, "thin": 4, "chains": 2, "mode_epochs": 40},
        "SGHMC": {
            "draws": 100,
            "warmup_epochs": 20,
            "cycle_epochs": 40,
            "chains": 2,
            "batch_size": 50,
        },
        "SWAG": {"epochs": 60, "batch_size": 50, "rank": 3},
        "Laplace": {"mode_epochs": 100, "rank": 100, "tune_prior": True},
    },
    {
        "Laplace": {"mode_epochs": 100, "structure": "kronecker", "data_chunk": 5},
        "IVON": {"epochs": 30, "batch_size": 50},
        "AdjustedMCLMC": {"draws": 40, "warmup": 20, "leapfrog_steps": 5, "chains": 2},
        "SGLD": {"draws": 20, "warmup_epochs": 10, "chains": 2, "batch_size": 50},
    },
)


@pytest.mark.parametrize("methods", ONCE_KILLED, ids=["first", "second"])
def test_every_kind_of_method_is_the_same_after_a_kill(tmp_path, methods):
    """All whole fits in one process, all resumed ones in another; killed one by one between."""

    def options(method, folder):
        return {
            "method": method,
            "settings": methods[method],
            "chunk_steps": 9,
            "checkpoint_interval": 0.0,
            "out": str(tmp_path / folder / f"{method}.st"),
            "history": str(tmp_path / folder / f"{method}.jsonl"),
        }

    for folder in ("whole", "cut"):
        (tmp_path / folder).mkdir()
    finish(start([options(method, "whole") for method in methods]))
    for method in methods:
        rows = len((tmp_path / "whole" / f"{method}.jsonl").read_text().splitlines())
        process = start(options(method, "cut"))
        wait_for_rows(process, tmp_path / "cut" / f"{method}.jsonl", rows // 2)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert process.returncode == -signal.SIGKILL
        saved = read_checkpoint(tmp_path / "cut" / f"{method}.st.checkpoint")
        assert saved.step > 0
    finish(start([options(method, "cut") | {"resume": True} for method in methods]))
    for method in methods:
        paths = [tmp_path / folder / f"{method}.st" for folder in ("whole", "cut")]
        one, other = map(load_file, paths)
        assert one.keys() == other.keys()
        for name in one:
            np.testing.assert_array_equal(one[name], other[name])
        made = [read_header(path).provenance for path in paths]
        assert made[0] == made[1]


def _rows(path):
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [{k: v for k, v in row.items() if k != "seconds"} for row in rows]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_ctrl_c_leaves_a_checkpoint_and_says_how_to_resume(tmp_path, number, code):
    out, history = tmp_path / "q.st", tmp_path / "h.jsonl"
    options = {
        "method": "VI",
        "settings": {**LONG_VI, "epochs": 20_000},
        "chunk_steps": 100,
        "out": str(out),
        "history": str(history),
    }
    process = start(options)
    wait_for_rows(process, history, 3)
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    assert process.returncode == code, said
    assert "resume=True" in said
    saved = read_checkpoint(tmp_path / "q.st.checkpoint")
    assert saved.step == saved.history[-1]["step"] > 0
    assert not out.exists()


def interrupted(tmp_path, method, key, **options):
    """Stop a fit after its third chunk by Ctrl-C, in this process."""
    chunks = []

    def stop_after_three(what, done, total):
        del what, total
        if done:  # there is also a report before the first chunk
            chunks.append(done)
        if len(chunks) == 3:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(FitInterrupted, match="resume=True") as stopped:
        fit(problem(), method, key=key, progress=stop_after_three, **options)
    assert stopped.value.exit_code == 130


def test_runs_and_members_resume_exactly(tmp_path):
    key, method = jax.random.key(2), Ensemble(members=2, epochs=12, batch_size=50)
    whole = fit(problem(), method, key=key, runs=2, progress="silent")
    options = {"runs": 2, "out": tmp_path / "e.st", "chunk_steps": 15}
    interrupted(tmp_path, method, key, **options)
    resumed = fit(problem(), method, key=key, resume=True, progress="silent", **options)
    for a, b in zip(whole, resumed, strict=True):
        for x, y in zip(jax.tree.leaves(a.posterior), jax.tree.leaves(b.posterior), strict=True):
            np.testing.assert_array_equal(x, y)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["e-0.st", "e-1.st"]
    # A finished fit is read from its file.
    again = fit(problem(), method, key=key, resume=True, progress="silent", **options)
    np.testing.assert_array_equal(
        again[1].posterior.draws["out"], resumed[1].posterior.draws["out"]
    )


@pytest.mark.parametrize(
    "method",
    [
        SWAG(epochs=10, batch_size=50, rank=3, start=0.3),
        IVON(epochs=6, batch_size=50),
        MCLMC(draws=20, warmup=10, thin=2, chains=2, mode_epochs=20),
    ],
    ids=lambda method: type(method).__name__,
)
def test_an_interrupted_fit_resumes_exactly(tmp_path, method):
    """Other methods than those that are killed above, stopped and resumed within this process."""
    key, out = jax.random.key(2), tmp_path / "q.st"
    whole = fit(problem(), method, key=key, progress="silent", chunk_steps=15)
    interrupted(tmp_path, method, key, out=out, chunk_steps=15)
    resumed = fit(
        problem(), method, key=key, out=out, resume=True, progress="silent", chunk_steps=15
    )
    for posterior in (resumed.posterior, load(out)):
        leaves = zip(jax.tree.leaves(whole.posterior), jax.tree.leaves(posterior), strict=True)
        for x, y in leaves:
            np.testing.assert_array_equal(x, y)


def test_incomplete_files_of_a_killed_fit_are_removed(tmp_path):
    for target in ("q.st", "q.st.checkpoint"):
        left = tmp_path / TEMPORARY.format(target=target, random="abc")
        left.mkdir()
        (left / ".tmp4UR9Yj").write_text("half")
        (tmp_path / LOCK.format(target=target)).write_text("")
    method = VI(epochs=1, batch_size=50)
    fit(problem(), method, key=jax.random.key(0), out=tmp_path / "q.st", progress="silent")
    assert [path.name for path in tmp_path.iterdir()] == ["q.st"]


def test_another_fit_is_not_continued(tmp_path):
    key, method = jax.random.key(2), VI(epochs=12, batch_size=50)
    options = {"checkpoint": tmp_path / "c", "chunk_steps": 15}
    interrupted(tmp_path, method, key, **options)
    with pytest.raises(CheckpointError, match=r"method\.epochs was 12 and is 13"):
        fit(problem(), VI(epochs=13, batch_size=50), key=key, resume=True, **options)
    with pytest.raises(CheckpointError, match="key was"):
        fit(problem(), method, key=jax.random.key(3), resume=True, **options)
    with pytest.raises(FileExistsError, match="resume=True to continue"):
        fit(problem(), method, key=key, **options)
    (tmp_path / "c").write_bytes(b"not a checkpoint")
    with pytest.raises(CheckpointError, match="not a whole safetensors file"):
        fit(problem(), method, key=key, resume=True, **options)


def overflowing(bound):
    """A network whose outputs overflow once its weight exceeds a bound."""

    def apply(params, x):
        grown = jnp.where(params["w"][0, 0] > bound, jnp.inf, 1.0)
        return x @ params["w"] * grown

    x = np.stack([np.ones(40), np.zeros(40)], 1).astype(np.float32)
    return Problem(apply, lambda _: {"w": jnp.zeros((2, 2))}, (x, np.zeros(40, np.int32)))


@pytest.mark.fast
def test_a_loss_that_is_not_finite_stops_the_fit(tmp_path):
    method = MAP(epochs=100, learning_rate=0.01, schedule="constant")
    options = {"chunk_steps": 5, "checkpoint": tmp_path / "c", "checkpoint_interval": 0.0}
    with pytest.raises(NonFiniteLossError) as error:
        fit(overflowing(0.3), method, key=jax.random.key(0), progress="silent", **options)
    said = str(error.value)
    # The weight grows by 0.01 per step and exceeds the bound after about thirty.
    assert "after step 3" in said
    assert "learning rate of 0.01" in said
    saved = read_checkpoint(tmp_path / "c")
    assert f"{tmp_path / 'c'} (step {saved.step})" in said
    assert all(np.isfinite(array).all() for array in saved.arrays.values())
    with pytest.raises(NonFiniteLossError, match=r"starting weights.*no checkpoint"):
        fit(overflowing(-1.0), method, key=jax.random.key(0), progress="silent")


@pytest.mark.fast
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda p: fit(p, "vi", key=jax.random.key(0)), "method must be one of VI, IVON"),  # pyright: ignore[reportArgumentType, reportCallIssue]
        (lambda p: fit(p.data, VI(), key=jax.random.key(0)), "must be an onebasin.Problem"),
        (lambda p: fit(p, VI(), key=0), "must be a JAX random key"),  # pyright: ignore[reportArgumentType, reportCallIssue]
        (lambda p: fit(p, VI(), key=jax.random.split(jax.random.key(0))), "one key"),
        (lambda p: fit(p, VI(), key=jax.random.key(0), runs=0), "runs must be at least 1"),
        (lambda p: fit(p, VI(), key=jax.random.key(0), progress="loud"), "progress must be"),  # pyright: ignore[reportArgumentType, reportCallIssue]
        (lambda p: fit(p, VI(), key=jax.random.key(0), resume=True), "give out= or checkpoint="),
        (lambda _: VI(epochs=0), "epochs of VI must be a whole number"),
        (lambda _: VI(initial_std=-1.0), "initial_std of VI must be a positive"),
        (lambda _: VI(momentum=1.0), "momentum of VI must be at least 0 and below 1"),
        (lambda _: HMC(leapfrog_steps=0), "leapfrog_steps of HMC"),
        (lambda _: HMC(step_size=float("nan")), "step_size of HMC"),
        (lambda _: HMC(masses=(("w", 0.0),)), "mass of 'w' of HMC must be a positive number"),
        (lambda _: HMC(masses=(("w", 2.0),), adapt_mass=True), "leave out adapt_mass or masses"),
        (
            lambda _: HMC(masses=(("w", 2.0), ("w", 3.0))),
            "masses of HMC must name every array once",
        ),
        (lambda _: HMC(masses="w"), "masses of HMC must be pairs of a name and a number"),  # pyright: ignore[reportArgumentType]
        (lambda _: HMC(masses=2.0), "masses of HMC must be pairs of a name and a number"),  # pyright: ignore[reportArgumentType]
        (lambda _: HMC(masses=((2.0, "w"),)), "masses of HMC must be pairs of a name and a number"),  # pyright: ignore[reportArgumentType]
        (lambda _: Ensemble(members=0), "members of Ensemble"),
    ],
)
def test_wrong_arguments_are_refused_before_any_computation(call, message):
    with pytest.raises(ValueError, match=message):
        call(problem())


def test_a_mass_of_an_unknown_array_is_refused_before_files_are_overwritten(tmp_path):
    out = tmp_path / "q.st"
    for path in (out, out.with_name("q.st.checkpoint"), out.with_name("q.st.part")):
        path.write_text("an earlier fit")
    method = HMC(masses=(("hiden", 2.0),))
    with pytest.raises(ValueError, match=r"mass of 'hiden', which is not an array .* hidden, out$"):
        fit(problem(), method, key=jax.random.key(0), out=out, overwrite=True)
    assert {path.read_text() for path in tmp_path.iterdir()} == {"an earlier fit"}


def test_a_missing_folder_is_named():
    with pytest.raises(FileNotFoundError, match="folder of"):
        fit(problem(), VI(), key=jax.random.key(0), out="/no/such/folder/q.st")


def test_progress_in_plain_lines_and_history(tmp_path, capsys):
    method = VI(epochs=4, batch_size=50)
    result = fit(
        problem(),
        method,
        key=jax.random.key(0),
        progress="plain",
        history=tmp_path / "h.jsonl",
        chunk_steps=20,
    )
    told = capsys.readouterr().err.splitlines()
    lines = [line for line in told if not line.startswith("note: ")]  # of σ, after so few steps
    assert lines[-1].startswith("VI, step: 40/40  0:00 left  epoch 4")
    assert "accuracy" in lines[-1]
    assert "left" in lines[-1]
    found = read_history(tmp_path / "h.jsonl")
    assert found.ended
    rows = found.rows
    assert rows == [{k: v for k, v in row.items() if k != "seconds"} for row in result.history]
    assert [row["step"] for row in rows] == [20, 40]
    fit(problem(), method, key=jax.random.key(0), progress="bar", chunk_steps=20)
    assert "40/40" in capsys.readouterr().err


def test_progress_omits_transitions_when_none_has_ended():
    row = {"step": 3, "loss": [0.5, 0.7], "acceptance": [0.0, 0.0], "transitions": [0.0, 0.0]}
    assert figures_of(row) == "loss 0.6"
    ended = {**row, "acceptance": [0.9, 0.7], "transitions": [1.0, 1.0]}
    assert figures_of(ended) == "loss 0.6  acceptance 0.8  transitions 1"
    assert figures_of({"step": 3, "loss": [0.5]}) == "loss 0.5"
