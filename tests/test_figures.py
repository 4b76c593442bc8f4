"""Figures are drawn from real results, and the commands that make them run end to end."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from matplotlib.figure import Figure

from onebasin.alignment import Activations
from onebasin.cli.main import main
from onebasin.data import load_dataset
from onebasin.evaluation.distances import wasserstein
from onebasin.evaluation.landscapes import landscape, random_plane
from onebasin.evaluation.measures import reliability
from onebasin.evaluation.profiles import profile
from onebasin.figures.evaluation import (
    excess_figure,
    landscape_figure,
    profile_figure,
    reliability_figure,
)
from onebasin.figures.style import COLOURS, save_figure, series
from onebasin.networks import MLP, from_linen, to_config
from onebasin.networks.described import DescribedNetwork
from onebasin.paths import geodesic, mixture_path
from onebasin.posterior import MeanField, load, read_header, save
from onebasin.symmetry import find_symmetry

KEY = jax.random.key(0)
X = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32)
Y = np.random.default_rng(1).integers(0, 3, 60)


def apply(params, x):
    return jnp.tanh(x @ params["w1"]) @ params["w2"]


def posterior(seed):
    rng = np.random.default_rng(seed)
    shapes = {"w1": (3, 8), "w2": (8, 3)}
    mean = {k: jnp.asarray(rng.normal(size=s), jnp.float32) for k, s in shapes.items()}
    return MeanField(mean, jax.tree.map(lambda m: jnp.full_like(m, 0.1), mean))


@pytest.fixture(scope="module")
def profiles():
    q0, q1 = posterior(0), posterior(1)
    options = {"key": KEY, "points": 5, "num_samples": 8}
    return {
        "geodesic": profile(geodesic(q0, q1), apply, (X, Y), **options),
        "mixture": profile(mixture_path(q0, q1), apply, (X, Y), **options),
    }


def test_profiles_are_drawn_with_bands_units_and_names(profiles):
    figure = profile_figure(profiles)
    loss, accuracy = figure.axes
    assert "nats per example" in loss.get_ylabel()
    assert "%" in accuracy.get_ylabel()
    assert len(loss.collections) == 2  # one band for each curve
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert names[0].startswith("geodesic: barrier")
    # Curves differ in colour, marker and dash.
    lines = [line for line in accuracy.get_lines() if line.get_marker() != "None"]
    assert len({(a.get_color(), a.get_marker()) for a in lines}) == 2
    assert len(excess_figure(profiles).axes[0].collections) == 2


@pytest.mark.parametrize("suffix", ["pdf", "png", "svg"])
def test_figures_are_written_and_the_same_twice(profiles, tmp_path, suffix):
    first, second = (
        save_figure(profile_figure(profiles), tmp_path / f"{i}.{suffix}").read_bytes()
        for i in range(2)
    )
    assert first == second
    assert len(first) > 2000


def test_twice_as_many_curves_as_colours_are_told_apart():
    looks = [series(i) for i in range(2 * len(COLOURS))]
    first, second = looks[: len(COLOURS)], looks[len(COLOURS) :]
    assert not any("markerfacecolor" in look for look in first)
    assert {look["markerfacecolor"] for look in second} == {"white"}
    assert len({tuple(map(str, look.values())) for look in looks}) == len(looks)


def test_landscapes_and_reliability_are_drawn():
    found = landscape(random_plane(posterior(0), key=KEY), apply, (X, Y), points=5)
    figure = landscape_figure(found)
    assert "nats" in figure.axes[1].get_ylabel()
    with pytest.raises(ValueError, match="no 'log_posterior'"):
        landscape_figure(found, "log_posterior")
    probs = np.random.default_rng(0).dirichlet([1.0, 1.0], size=40)
    drawn = reliability_figure({"one": reliability(probs, np.zeros(40, int))})
    assert "confidence" in drawn.axes[1].get_xlabel()


@pytest.mark.fast
def test_bad_names_of_figures_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"not as 'a\.jpg'"):
        save_figure(Figure(), tmp_path / "a.jpg")
    with pytest.raises(FileNotFoundError, match="does not exist"):
        save_figure(Figure(), tmp_path / "none" / "a.pdf")
    with pytest.raises(ValueError, match="no profile"):
        profile_figure({})


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Two posteriors over one network on the embedded digits: the second a permuted first."""
    folder = tmp_path_factory.mktemp("posteriors")
    data = load_dataset("digits")
    net = MLP(widths=(12,), num_classes=10)
    shape = data.test.x.shape[1:]
    network = from_linen(net, net.init(KEY, np.zeros((1, *shape), np.float32)))
    mean = network.params
    q = MeanField(mean, jax.tree.map(lambda m: jnp.full_like(m, 0.01), mean))
    symmetry = find_symmetry(network.apply, mean, data.test.x[:2])
    moved = symmetry.act(symmetry.random(key=KEY), q)
    config = to_config(net, shape)
    return [
        str(save(folder / name, posterior, network=config))
        for name, posterior in (("q0.safetensors", q), ("q1.safetensors", moved))
    ]


def run(capsys, *arguments):
    main(list(arguments))
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("objective", ["w2", "correlations"])
def test_barrier_command_reports_before_and_after_alignment(files, tmp_path, capsys, objective):
    figure = tmp_path / "barrier.svg"
    found = run(
        capsys, "barrier", *files, "--align", objective, "--repair", "--points", "3",
        "--num-samples", "4", "--limit", "100", "--split", "test", "train",
        "--figure", str(figure), "--json",
    )  # fmt: skip
    by_name = {(r["split"], r["ends"]): r for r in found["results"]}
    assert len(by_name) == 4
    # Aligned, it is the same posterior again: nothing is left to repair, nothing to climb.
    aligned = by_name["test", f"aligned ({objective})"]
    assert abs(aligned["largest_excess"]) < 1e-4
    assert "plain" in aligned
    assert found["alignment"]["transpositions"] > 0
    assert found["alignment"]["squared_distance_of_means"] < 1e-6
    # Any objective finds a copy: that it was this one, its distance tells.
    q0, q1 = (load(path) for path in files)
    expected = wasserstein(q0, q1) ** 2
    if objective == "correlations":
        header = read_header(files[0])
        network = DescribedNetwork.from_config(header.network, files[0], header.params_shapes())
        x = load_dataset("digits").train.x[:1000]
        chosen = Activations(network, x, correlation=True)
        expected = chosen.measure(q1, q0, find_symmetry(network, network.shapes, network.x))
    assert found["alignment"]["distance_before"] == pytest.approx(expected, rel=1e-4)
    assert figure.stat().st_size > 2000


def test_compare_command_measures_both(files, tmp_path, capsys):
    found = run(
        capsys, "compare", *files, "--num-samples", "8", "--limit", "100", "--align", "w2",
        "--figure", str(tmp_path / "c.png"), "--json",
    )  # fmt: skip
    # A permuted copy predicts the same, up to its own draws.
    assert found["agreement"] > 0.9
    assert found["total_variation"] < 0.05
    assert set(found["posteriors"]["q0"]) >= {"nll", "accuracy", "brier", "calibration_error"}
    assert found["alignment"]["squared_distance_of_means"] < 1e-6


def test_landscape_command_draws_a_plane(files, tmp_path, capsys):
    figure = tmp_path / "plane.png"
    found = run(
        capsys, "landscape", files[0], "--points", "4", "--limit", "50", "--figure", str(figure),
        "--prior-variance", "0.1", "--json",
    )  # fmt: skip
    assert np.asarray(found["log_posterior"]).shape == (4, 4)
    assert figure.stat().st_size > 2000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--data", "mnist", "--root", "/"], "mnist"),
        (["--figure", "a.jpg"], "a.jpg"),
        (["--path", "mixture", "--repair"], "only a geodesic is repaired"),
        (["--num-samples", "0"], "at least 1"),
    ],
)
def test_bad_input_to_a_command_is_one_sentence(files, capsys, arguments, message):
    with pytest.raises(SystemExit) as left:
        main(["barrier", *files, *arguments])
    assert left.value.code == 2
    assert message in capsys.readouterr().err
