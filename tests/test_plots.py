"""`.plot()` of results: what is drawn, into which axes, and how a notebook shows it."""

import io
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import matplotlib.style
import numpy as np
import pytest
from matplotlib import image
from matplotlib.figure import Figure

import onebasin as ob
from onebasin.figures.diagnosis import diagnosis_figure
from onebasin.figures.evaluation import landscape_figure, profile_figure
from onebasin.figures.searches import history_figure

KEY = jax.random.key(0)
X = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
Y = np.random.default_rng(1).integers(0, 3, 40)


def apply(params, x):
    return jnp.tanh(x @ params["w1"]) @ params["w2"]


def init(key):
    first, second = jax.random.split(key)
    return {"w1": jax.random.normal(first, (3, 8)), "w2": jax.random.normal(second, (8, 3))}


@pytest.fixture(scope="module")
def results():
    problem = ob.Problem(apply, init, (X, Y))
    method = ob.Ensemble(members=2, epochs=30, batch_size=40)
    fit = ob.fit(problem, method, key=KEY, progress="silent")
    symmetry = ob.find_symmetry(problem)
    noise = jax.vmap(init)(jax.random.split(KEY, 16))
    draws = ob.Samples(noise, np.repeat([0, 1], 8))
    q0, q1 = (ob.MeanField(*draws.take(np.flatnonzero(draws.chain == c)).moments()) for c in (0, 1))
    alignment = ob.align(q1, to=q0, symmetry=symmetry)
    path = ob.geodesic(q0, alignment.posterior)
    options = {"key": KEY, "points": 5, "num_samples": 4, "progress": "silent"}
    return {
        "fit": fit,
        "draws": draws,
        "alignment": alignment,
        "profile": ob.profile(path, problem, (X, Y), **options),
        "diagnosis": ob.diagnose(draws, symmetry=symmetry, key=KEY, progress="silent"),
        "compact": ob.compact(draws, symmetry=symmetry, progress="silent"),
        "compact of posteriors": ob.compact([q0, q1], symmetry=symmetry, progress="silent"),
        "landscape": ob.landscape(ob.random_plane(q0, key=KEY), problem, (X, Y), points=4),
        "pruning": ob.pruning_curve(q0, problem, (X, Y), keeps=(1.0, 0.5)),
    }


def lines(ax):
    return [np.asarray(line.get_ydata(), float) for line in ax.get_lines()]


def test_what_is_drawn_is_the_result(results):
    profile, alignment, fit = (results[name] for name in ("profile", "alignment", "fit"))
    loss, accuracy = profile.plot().axes
    assert np.array_equal(lines(loss)[0], profile.nll)
    assert np.array_equal(lines(accuracy)[0], 100 * profile.score)
    search, moved = alignment.plot().axes
    assert np.array_equal(lines(search)[0], alignment.trace)
    units = alignment.permutation["w1"]
    assert moved.patches[0].get_width() == pytest.approx(100 * np.mean(units != np.arange(8)))
    panels = {ax.get_title(): ax for ax in fit.plot().axes}
    assert next(iter(panels)) == "loss"
    assert len(fit.history) == 15, "a short fit has a course too: every second of 30 steps"
    assert np.array_equal(np.array(lines(panels["loss"])).T, [row["loss"] for row in fit.history])
    compact = results["compact"]
    trace, sigma = compact.plot().axes
    assert np.array_equal(lines(trace)[0], compact.trace)
    labels = [text.get_text() for text in sigma.get_legend().get_texts()]
    every = np.concatenate([np.ravel(s) for s in results["draws"].moments()[1].values()])
    assert labels[0] == f"draws as given: median {np.median(every):.3g}"
    assert labels[1].startswith("Gaussian")


def test_a_history_has_gaps_where_no_transition_ended():
    ends = {"acceptance": [0.0, 0.8, 0.0, 0.9], "transitions": [0, 1, 0, 2]}
    rows = [{"step": 10 * i, "loss": 1.0, **{k: v[i] for k, v in ends.items()}} for i in range(4)]
    loss, acceptance = history_figure(rows).axes
    assert lines(loss)[0].tolist() == [1.0] * 4
    assert np.asarray(acceptance.get_lines()[0].get_xydata()).tolist() == [[10, 0.8], [30, 0.9]]
    with pytest.raises(ValueError, match="no history to draw"):
        history_figure([])


def test_they_are_the_figures_of_the_commands(results):
    found = results["diagnosis"], results["landscape"], results["profile"]
    drawn = diagnosis_figure(found[0]), landscape_figure(found[1]), profile_figure({"a": found[2]})
    for result, other in zip(found, drawn, strict=True):
        mine, theirs = (
            [value for ax in figure.axes for value in lines(ax)]
            for figure in (result.plot(), other)
        )
        assert len(mine) == len(theirs) > 0
        for one, two in zip(mine, theirs, strict=True):
            np.testing.assert_array_equal(one, two)


def test_axes_of_ones_own_keep_their_style(results):
    plotted = {name: result for name, result in results.items() if name != "draws"}
    with matplotlib.style.context("dark_background"):
        for name, result in plotted.items():
            figure = Figure()
            ax = figure.subplots()
            assert result.plot(ax=ax) is figure, name
            assert ax.has_data(), name
            assert ax.xaxis.label.get_color() == "white", name
        figure = Figure()
        axes = figure.subplots(1, 2)
        results["profile"].plot(ax=axes)
        assert all(ax.has_data() for ax in axes)
    with pytest.raises(ValueError, match="ax holds 3 axes; give from 1 to 2 of them"):
        results["profile"].plot(ax=Figure().subplots(1, 3))


def test_a_notebook_shows_a_page_that_can_be_read_in_both_themes(results):
    with matplotlib.style.context("dark_background"):
        png, size = results["profile"].plot()._repr_png_()
    pixels = image.imread(io.BytesIO(png))
    assert pixels.shape[1] // 2 == size["width"]
    corner, darkest = pixels[0, 0, :3], pixels[..., :3].sum(-1).min()
    assert corner.min() == 1, "the page is white"
    assert darkest < 0.1, "and its text is black"


@dataclass
class Recorded:
    """What `profile_figure` reads, planted."""

    height: float
    score_name: str = ""
    plain: None = None
    barrier_stderr: float = 0.0

    def __post_init__(self):
        self.t = np.linspace(0, 1, 5)
        self.excess = self.height * np.array([0, 0.5, 1, 0.5, 0])
        self.nll = self.mean_nll = 1 + self.excess
        self.nll_stderr = self.excess_stderr = 0.1 * self.excess
        self.score = np.full(5, np.nan)
        self.barrier = max(self.height, 0.0)


def test_curves_that_coincide_are_told_apart_by_their_excess():
    heights = {"as fitted": 2.0, "aligned": 0.02, "repaired": 0.005, "below": -0.01}
    curves = {name: Recorded(height) for name, height in heights.items()}
    loss, excess = profile_figure(curves).axes
    assert excess.get_yscale() == "log"
    first, aligned, repaired, below = lines(excess)
    np.testing.assert_allclose(aligned[1:-1], [0.01, 0.02, 0.01])
    np.testing.assert_allclose(repaired[1:-1], [0.0025, 0.005, 0.0025])
    assert np.isnan(below).all(), "a loss below the line has no place on this axis"
    low, high = excess.get_ylim()
    assert low < 0.0025 < np.nanmax(first) < high
    assert len(profile_figure({n: curves[n] for n in ("as fitted", "aligned")}).axes) == 1
    assert len(loss.get_lines()) == 2 * len(curves)
