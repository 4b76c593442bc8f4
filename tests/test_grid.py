"""Sweeps: the grid of a file, its stages, and the tables."""

import csv
import math
from dataclasses import fields, replace

import jax
import numpy as np
import pytest
from matplotlib.container import ErrorbarContainer

from onebasin.evaluation.transposition_studies import planted_study
from onebasin.experiments import prior_temperature, width
from onebasin.experiments.common_stages import Align, Measure
from onebasin.experiments.grid import MOST_ROWS, grid_from, read_grid
from onebasin.experiments.pairs import Pair, Sizes
from onebasin.experiments.runner import Run
from onebasin.experiments.setting import Setting, problem
from onebasin.experiments.sweep import run_sweep, stages_of, summarise
from onebasin.experiments.yaml_files import read_yaml
from onebasin.figures.sweeps import axis_figure
from onebasin.inference.methods import HMC, MAP, VI

SMALL = {
    "fit": {"data": "digits", "width": [4, 6], "depth": 1, "limit": 100, "epochs": 1},
    "barrier": {"points": 3, "num-samples": 2, "examples": 20},
}


def test_every_combination_is_a_cell():
    fit = {"method": "vi", "width": [8, 16], "prior-variance": [0.01, 0.1, 1.0], "depth": 1}
    grid = grid_from({"fit": fit, "align": {"objective": ["l2", "w2"]}, "repeats": 2})
    assert grid.axes == {
        "width": (8, 16),
        "prior_variance": (0.01, 0.1, 1.0),
        "align.objective": ("l2", "w2"),
    }
    cells = list(grid.cells())
    assert len(cells) == 2 * 3 * 2 * 2
    assert cells[0].axes == {"width": 8, "prior_variance": 0.01, "align.objective": "l2"}
    assert [c.repeat for c in cells[:4]] == [0, 1, 0, 1]
    fits = {f.stage for s in stages_of(cells) for f in s.lineage()[0].inputs.values()} | {
        s for last in stages_of(cells) for s in last.lineage() if s.name == "fit-posterior"
    }
    assert len({s.key for s in fits if s.name == "fit-posterior"}) == 2 * 3 * 4  # shared by l2, w2


def test_a_cell_has_the_stages_of_an_experiment():
    """So a sweep and `reproduce` share their fits."""
    setting = Setting("digits", width=8, depth=1)
    pair = Pair(setting, VI(epochs=3), 0.5, Sizes(5, 8))
    fit = {"width": 8, "depth": 1, "epochs": 3}
    (cell,) = grid_from({"fit": fit, "barrier": {"points": 5, "num_samples": 8}}).cells()
    assert {n: s.key for n, s in cell.stages.items()} == {n: s.key for n, s in pair.plan().items()}


def test_repeats_have_posteriors_of_their_own():
    first, second = grid_from({"repeats": 2}).cells()
    seeds = [
        {s.config.seed for last in cell.stages.values() for s in last.lineage()[:-1]}
        for cell in (first, second)
    ]
    assert seeds[0].isdisjoint(seeds[1])


def test_options_reach_their_stages():
    content = {
        "fit": {"method": "hmc", "draws": 7, "temperature": 0.5, "data": "digits"},
        "align": {"objective": "correlations", "search": True},
        "barrier": {"path": "repaired", "split": "train"},
    }
    (cell,) = grid_from(content).cells()
    fit = cell.stages["before"].lineage()[0].config
    assert fit.method == HMC(draws=7)
    assert fit.setting == Setting("digits", temperature=0.5)
    align, measure = cell.stages["align"].config, cell.stages["after"].config
    assert align == Align(fit.setting, "correlations", search=True)
    assert measure == Measure(fit.setting, "repaired", "train")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ([1], "needs the sections"),
        ({"fits": {}}, "'fits' is not a section"),
        ({"fit": [1]}, "fit must map options to values"),
        ({"fit": {"widht": 8}}, "'widht' is not fit: an option"),
        ({"fit": {"method": "vi", "draws": 8}}, "'draws' is not fit: an option"),
        ({"fit": {"method": "magic"}}, "method cannot be 'magic'; choose 'vi'"),
        ({"fit": {"width": "wide"}}, "width cannot be 'wide'"),
        ({"fit": {"width": True}}, "width cannot be True"),
        ({"fit": {"width": [8, 8]}}, "each of its values once"),
        ({"fit": {"width": []}}, "each of its values once"),
        ({"fit": {"prior_variance": math.inf}}, "prior_variance cannot be inf"),
        ({"fit": {"data": "nmist"}}, "data cannot be 'nmist'; choose 'digits'"),
        ({"fit": {"epochs": [1, 0]}}, "epochs of VI must be a whole number"),
        ({"align": {"objective": "w3"}}, "objective cannot be 'w3'"),
        ({"align": {"seed": 1}}, "'seed' is not align: an option"),
        ({"barrier": {"path": "crooked"}}, "path cannot be 'crooked'"),
        ({"barrier": {"points": [5, 2]}}, "points cannot be 2; give at least 3"),
        ({"fit": {"planted": 1}}, "planted is for networks that are trained; set method: map"),
        (
            {"fit": {"method": "map", "planted": 8, "width": 8}},
            "planted cannot be 8; a permutation",
        ),
        ({"fit": {"method": "map", "planted": -1}}, "planted cannot be -1; give at least 0"),
        ({"fit": {"width": 0}}, "width cannot be 0; give at least 1"),
        ({"fit": {"temperature": -1.0}}, "temperature cannot be -1.0; give a positive number"),
        ({"repeats": 0}, "repeats must be a whole number"),
        ({"fit": {"width": list(range(1, MOST_ROWS + 2))}}, "at most 100,000"),
    ],
)
def test_a_grid_that_cannot_be_is_refused(content, words):
    with pytest.raises(ValueError, match=words):
        grid_from(content)


def test_a_file_that_is_not_yaml_is_refused(tmp_path):
    path = tmp_path / "grid.yaml"
    path.write_text("fit: [")
    with pytest.raises(ValueError, match=r"grid\.yaml is not YAML"):
        read_grid(path)
    path.write_text("[" * 5000)
    with pytest.raises(ValueError, match=r"grid\.yaml is not YAML \(it nests too deeply\)"):
        read_grid(path)
    path.write_text("fit:\n  width: 8\n  depth: 1\n  width: 16\n")
    with pytest.raises(ValueError, match=r"not YAML \(line 4 gives 'width' a second time\)"):
        read_grid(path)
    with pytest.raises(FileNotFoundError, match="there is no file"):
        read_grid(tmp_path / "none.yaml")


def test_keys_of_yaml_may_be_merged_and_overridden(tmp_path):
    path = tmp_path / "grid.yaml"
    path.write_text("align: &own {seed: 3}\nfit:\n  <<: *own\n  seed: 4\n")
    assert read_yaml(path) == {"align": {"seed": 3}, "fit": {"seed": 4}}


def test_the_summary_has_means_and_standard_errors():
    rng = np.random.default_rng(0)
    rows = [
        {
            "width": w,
            "repeat": r,
            **{
                name: float(rng.normal())
                for name in ("barrier_as_fitted", "barrier_aligned", "loss", "accuracy")
            },
        }
        for w in (8, 16)
        for r in range(5)
    ]
    for found in summarise(rows, ["width"]):
        values = [row["loss"] for row in rows if row["width"] == found["width"]]
        assert found["loss"] == pytest.approx(np.mean(values))
        assert found["loss_stderr"] == pytest.approx(np.std(values, ddof=1) / math.sqrt(5))
    alone = summarise(rows[:1], ["width"])
    assert alone[0]["loss_stderr"] is None


def test_a_sweep_writes_its_tables_and_grows(tmp_path):
    run = Run(tmp_path, "sweep", quiet=True)
    small = {**SMALL, "fit": {**SMALL["fit"], "width": [4]}}
    (first,) = run_sweep(grid_from(small), run)
    stages = {p.name: p.stat().st_mtime_ns for p in (tmp_path / "stages").iterdir()}
    rows = run_sweep(grid_from(SMALL), run)
    assert len(rows) == 2
    assert {**first, "width": 4} == rows[0]
    after = {p.name: p.stat().st_mtime_ns for p in (tmp_path / "stages").iterdir()}
    assert {name: after[name] for name in stages} == stages  # nothing was run again
    with (tmp_path / "table.csv").open() as file:
        read = list(csv.DictReader(file))
    assert [row["width"] for row in read] == ["4", "6"]
    assert float(read[1]["barrier_aligned"]) == rows[1]["barrier_aligned"]
    parquet = pytest.importorskip("pyarrow.parquet")
    assert parquet.read_table(tmp_path / "table.parquet").to_pylist() == rows
    assert (tmp_path / "sweep-width.svg").exists()


def test_many_combinations_are_averaged_in_the_figure():
    summary = [
        {
            "width": w,
            "seed": s,
            "barrier_as_fitted": 2.0,
            "barrier_as_fitted_stderr": 0.1,
            "barrier_aligned": float(s),
            "barrier_aligned_stderr": 0.1,
        }
        for w in (8, 32)
        for s in range(7)
    ]
    (ax,) = axis_figure(summary, "width", ["seed"]).axes
    drawn = [c for c in ax.containers if isinstance(c, ErrorbarContainer)]
    (line,) = [c for c in drawn if c.lines[0].get_linestyle() == "-"]
    np.testing.assert_allclose(
        np.asarray(line.lines[0].get_ydata(orig=False)), 3.0
    )  # the mean of 0, …, 6
    (bars,) = line.lines[2]
    low, high = np.array(bars.get_segments()[0])[:, 1]
    assert (high - low) / 2 == pytest.approx(np.std(range(7), ddof=1) / math.sqrt(7))


@pytest.mark.parametrize(
    "text",
    [
        "grid = {'fit': {'width': [2**n for n in range(3, 6)], 'depth': 1}}",
        "def grid():\n    return {'fit': {'width': (8, 16, 32), 'depth': 1}}",
    ],
)
def test_a_python_file_holds_a_grid(tmp_path, text):
    path = tmp_path / "grid.py"
    path.write_text(text)
    assert read_grid(path) == grid_from({"fit": {"width": [8, 16, 32], "depth": 1}})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("width = 3", "has no variable or function 'grid'"),
        ("grid = {'fit': {'widht': 3}}", "'widht' is not fit: an option"),
        ("1 / 0", "ended with ZeroDivisionError: division by zero"),
    ],
)
def test_a_python_file_without_a_grid_is_refused(tmp_path, text, message):
    path = tmp_path / "grid.py"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        read_grid(path)


def keys(stages):
    return {stage.key for stage in stages}


def published(module, config):
    """The keys of the last stages of a published experiment."""
    return keys(stage for plan in module.plan(config).values() for stage in plan.values())


def options(pair):
    """A pair of the published sweeps as the options of a grid."""
    setting = {f.name: getattr(pair.setting, f.name) for f in fields(pair.setting)}
    method = {f.name: getattr(pair.vi, f.name) for f in fields(pair.vi)}
    changed = {f.name: method[f.name] for f in fields(pair.vi) if method[f.name] != f.default}
    sizes = pair.sizes
    barrier = {"points": sizes.points, "num_samples": sizes.num_samples}
    return {"fit": {**setting, **changed}, "barrier": {**barrier, "examples": sizes.examples}}


def presets(module):
    """The presets of a published sweep; at the smallest one, fits share a program."""
    apart = replace(module.TOY, pair=replace(module.TOY.pair, together=0))
    real = [pytest.param(c, marks=pytest.mark.real_data) for c in (module.CPU, module.PAPER)]
    return [apart, *real]


@pytest.mark.parametrize("config", presets(width))
def test_the_published_sweep_over_widths_is_a_grid(config):
    grid = options(config.pair)
    grid["fit"]["width"] = list(config.widths)
    assert keys(stages_of(list(grid_from(grid).cells()))) == published(width, config)


@pytest.mark.parametrize("config", presets(prior_temperature))
def test_the_published_sweep_over_priors_and_temperatures_is_two_grids(config):
    found = set()
    for name, values in (
        ("prior_variance", config.variances),
        ("temperature", config.temperatures),
    ):
        grid = options(config.pair)
        grid["fit"][name] = list(values)
        found |= keys(stages_of(list(grid_from(grid).cells())))
    assert found == published(prior_temperature, config)


def test_the_published_sweep_over_planted_transpositions_is_a_grid(tmp_path):
    """The rows hold what the study of all networks in one program finds."""
    setting = Setting("digits", width=8, depth=1, prior_variance=1.0, limit=300)
    method = MAP(epochs=6, batch_size=100, learning_rate=1e-2)
    fit = {"method": "map", "planted": [0, 3, 7], "data": "digits", "width": 8, "depth": 1}
    fit |= {"prior_variance": 1.0, "limit": 300, "epochs": 6, "batch_size": 100}
    content = {
        "fit": {**fit, "learning_rate": 1e-2},
        "align": {"objective": "l2"},
        "barrier": {"points": 5, "num_samples": 1},
        "repeats": 2,
    }
    run = Run(tmp_path / "run", "sweep", quiet=True)
    rows = run_sweep(grid_from(content), run)
    key = jax.random.key(0)
    study = planted_study(
        problem(setting), method, key=key, planted=(0, 3, 7), runs=2, points=5, progress="silent"
    )
    assert len(rows) == len(study) == 6
    found = {(row["planted"], row["repeat"]): row for row in rows}
    for record in study:
        row = found[record.planted, record.run]
        assert row["transpositions"] == record.found
        for ours, theirs in (("as_fitted", "before"), ("aligned", "after")):
            # One network at a time or six at once: sums in another order, grown over 18 steps.
            barrier = getattr(record, f"barrier_{theirs}")
            assert row[f"barrier_{ours}"] == pytest.approx(barrier, abs=2e-4)
