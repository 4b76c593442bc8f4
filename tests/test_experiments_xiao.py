"""The experiments of Xiao et al. at toy size: each asserts its claim, not that it ran."""

import shutil
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

from onebasin.experiments import compact_stages, larger_stages, table1_larger
from onebasin.experiments.runner import Run
from onebasin.inference.checkpoint import CheckpointError
from onebasin.posterior import Samples
from onebasin.problem import Problem
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


def test_gaussians_for_the_larger_network(folder):
    found = numbers(folder, "table1", "larger")
    rows = {r["name"]: r for r in found["table"]["rows"]}
    config = table1_larger.TOY
    alone = table1_larger.one_gaussian(config)
    fitted = config.sampler.chains // 2 * config.sampler.draws
    for count in (1, *table1_larger.COMPONENTS):
        made = found[alone if count == 1 else table1_larger.mixture(config, count)]
        assert made["components"] == count
        assert made["draws"] == fitted
        assert made["rank"] <= config.rank <= fitted / 4
        assert sum(made["shares"]) == pytest.approx(1)
    # Its noise is calibrated, which neither the raw weights nor the outputs alone decide.
    for other in (f"rank {config.rank}, calibrated", f"rank {config.rank}, of the outputs"):
        spread = 2 * (rows[alone]["total_variation_stderr"] + rows[other]["total_variation_stderr"])
        assert rows[alone]["total_variation"] < rows[other]["total_variation"] + spread


def test_draws_are_divided_by_what_they_predict():
    """Two planted groups, whose weights are equally far from each other."""
    rng = np.random.default_rng(0)
    signs = rng.permutation(np.repeat([-1.0, 1.0], 10))
    weights = np.stack([signs * np.ones(20), rng.normal(size=20)], 1)  # the second is not used
    task = Problem(
        lambda p, x: x * p["w"][0],
        lambda _: {"w": jnp.zeros(2)},
        (np.ones((5, 1)), np.zeros((5, 1))),
        "gaussian",
    )
    draws = Samples({"w": jnp.asarray(weights)})
    groups = larger_stages.divided(task, draws, task.x, 2)
    assert sorted(map(len, groups)) == [10, 10]
    assert all(len(set(signs[own])) == 1 for own in groups)
    few = Samples({"w": jnp.asarray(weights[:3])})
    assert [own.tolist() for own in larger_stages.divided(task, few, task.x, 2)] == [[0, 1, 2]]


def test_a_rank_above_a_quarter_of_the_draws_is_refused():
    with pytest.raises(ValueError, match="more than a quarter of the 48 draws"):
        replace(table1_larger.TOY, rank=13)
