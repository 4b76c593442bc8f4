"""The experiments of Xiao et al. at toy size: each asserts its claim, not that it ran."""

import shutil
from dataclasses import replace

import pytest

from onebasin.experiments import compact_stages
from onebasin.experiments.runner import Run
from onebasin.inference.checkpoint import CheckpointError
from toy_runs import XIAO, claims, numbers, toy_folder

SMALLER = "holds at smaller scale"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return toy_folder(XIAO, tmp_path_factory)


def test_dynamics(folder):
    found = claims(folder, "dynamics")
    assert {claim["verdict"] for claim in found.values()} == {SMALLER}


def test_transpositions(folder):
    found = claims(folder, "transpositions")
    assert {claim["verdict"] for claim in found.values()} == {SMALLER}
    rows = numbers(folder, "transpositions", "planted")["study"]["records"]
    assert all(row["barrier_after"] <= row["barrier_before"] for row in rows)
    along = numbers(folder, "transpositions", "line")["study"]["records"]
    permuted = [r for r in along if r["kind"] == "permuted" and r["run"] == 0]
    counts = [r["transpositions"] for r in sorted(permuted, key=lambda r: r["t"])]
    assert counts[0] == 0
    assert counts[-1] > len(counts)


def test_table1(folder):
    found = claims(folder, "table1")
    rows = {r["name"]: r for r in numbers(folder, "table1", "all")["table"]["rows"]}
    for kind in ("HMC", "Ens."):
        rebased, raw = rows[f"{kind} q_r"], rows[f"{kind} q_d"]
        assert rebased["agreement"] > raw["agreement"]
        assert rebased["total_variation"] < raw["total_variation"]
    first = "After rebasing, one diagonal Gaussian better represents HMC draws"
    assert found[first]["verdict"] == SMALLER
    assert "agreement 0.8249" in found[first]["published"]


def test_sigma_pruning(folder):
    found = claims(folder, "sigma-pruning")
    pruned = [claim for text, claim in found.items() if "keeps more of the accuracy" in text]
    assert [claim["verdict"] for claim in pruned] == [SMALLER, SMALLER]


def test_unimodality(folder):
    found = claims(folder, "unimodality")
    removed = "Between rebased draws of different chains, most of the barrier is removed"
    assert found[removed]["verdict"] == SMALLER
    chains = numbers(folder, "unimodality", "all")["chains"]
    assert chains["after"]["variance_between_chains"] < chains["before"]["variance_between_chains"]


def test_a_finished_fit_is_adopted_if_it_is_the_same(folder, tmp_path):
    stage = compact_stages.TOY.fits()["vi"].stage
    file = tmp_path / "mine.safetensors"
    shutil.copy(next(folder.glob(f"stages/{stage.key}/posterior.safetensors")), file)
    run = Run(tmp_path / "run", "toy", quiet=True, adopt=[file])
    run.open()
    taken = run.perform(stage)
    assert taken["runs"][0]["last"] == {}, "it was loaded, not fitted"
    assert (run.folder(stage) / "posterior.safetensors").read_bytes() == file.read_bytes()
    # The same method and key, but of another problem.
    other = (
        replace(compact_stages.TOY, setting=replace(compact_stages.TOY.setting, width=10))
        .fits()["vi"]
        .stage
    )
    with pytest.raises(CheckpointError, match="belongs to another fit: problem"):
        run.perform(other)
