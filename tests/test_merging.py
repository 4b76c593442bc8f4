"""Merging: the average of aligned checkpoints, its scores, and the command."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from safetensors.numpy import load_file, save_file

import onebasin as ob
from onebasin.checkpoints import read_checkpoint
from onebasin.cli.main import main
from onebasin.trees import leaves_by_path, with_leaves

ORDERS = [np.arange(6), np.array([3, 0, 4, 1, 5, 2]), np.array([5, 4, 3, 2, 1, 0])]


def weights(seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        "in.weight": rng.normal(size=(6, 4)).astype(np.float32),
        "norm.running_mean": rng.normal(size=6).astype(np.float32),
        "out.weight": rng.normal(size=(3, 6)).astype(np.float32),
        "steps": np.array(seed),
    }


def permuted(tensors: dict[str, np.ndarray], order: np.ndarray) -> dict[str, np.ndarray]:
    rows = {name: tensors[name][order] for name in ("in.weight", "norm.running_mean")}
    columns = np.ascontiguousarray(tensors["out.weight"][:, order])
    return {**tensors, **rows, "out.weight": columns}


def noisy(tensors: dict[str, np.ndarray], seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng([9, seed])
    return {
        name: a + 0.01 * rng.normal(size=a.shape).astype(a.dtype) if a.dtype.kind == "f" else a
        for name, a in tensors.items()
    }


def apply(params, x, state):
    hidden = jnp.tanh(x @ params["in.weight"].T - state["norm.running_mean"])
    return hidden @ params["out.weight"].T


SYMMETRY = ob.Symmetry.by_hand(
    {name: weights()[name] for name in ("in.weight", "out.weight")},
    {"hidden": [("in.weight", 0), ("out.weight", 1), ("state:norm.running_mean", 0)]},
    {"norm.running_mean": np.zeros(6)},
)


@pytest.mark.parametrize("count", [2, 3])
def test_permuted_copies_merge_into_what_they_are_copies_of(count: int) -> None:
    """The mean of noisy copies, in the labelling of the first, by hand."""
    plain = [noisy(weights(), seed) for seed in range(count)]
    members = [permuted(own, order) for own, order in zip(plain, ORDERS, strict=False)]
    found = ob.merge(members, symmetry=SYMMETRY)
    for name, tensor in found.state_dict.items():
        expected = np.mean([np.float64(own[name]) for own in plain], axis=0)
        if name == "steps":
            expected = plain[0][name]
        np.testing.assert_allclose(tensor, expected, rtol=1e-6, atol=1e-7)  # rounding to float32
        assert tensor.dtype == members[0][name].dtype


def test_shares_of_two_are_a_point_of_the_line() -> None:
    a, b = weights(), permuted(noisy(weights(), 1), ORDERS[1])
    found = ob.merge([a, b], symmetry=SYMMETRY, weights=[3, 1])
    assert found.weights == (0.75, 0.25)
    moved = noisy(weights(), 1)["in.weight"]
    expected = 0.75 * np.float64(a["in.weight"]) + 0.25 * np.float64(moved)
    np.testing.assert_allclose(found.tensor("in.weight"), expected, rtol=1e-6, atol=1e-7)


def test_scores_are_those_of_their_definitions() -> None:
    rng = np.random.default_rng(3)
    x = rng.normal(size=(40, 4)).astype(np.float32)
    members = [permuted(noisy(weights(), i), order) for i, order in enumerate(ORDERS)]
    labels = np.asarray(apply(members[0], x, members[0]).argmax(-1))
    scores = ob.merge(members, symmetry=SYMMETRY, network=apply, data=ob.Split(x, labels)).scores
    assert scores is not None
    log_p = [np.asarray(jax.nn.log_softmax(apply(own, x, own)), np.float64) for own in members]

    def nll(table: np.ndarray) -> float:
        return -table[np.arange(40), labels].mean()

    for score, table in zip(scores.members, log_p, strict=True):
        assert score.nll == pytest.approx(nll(table), rel=1e-5)
        assert score.accuracy == (table.argmax(-1) == labels).mean()
    ensemble = np.log(np.mean(np.exp(log_p), axis=0))
    assert scores.ensemble.nll == pytest.approx(nll(ensemble), rel=1e-5)
    mean = {name: np.mean([own[name] for own in members], axis=0) for name in members[0]}
    plain = np.asarray(jax.nn.log_softmax(apply(mean, x, mean)))
    assert scores.plain.nll == pytest.approx(nll(plain), rel=1e-5)
    # Copies up to noise of 1 %: the aligned average is as good as they are, the plain one is not.
    assert scores.merged.accuracy > 0.95 > scores.plain.accuracy


def test_scores_of_numbers() -> None:
    """With a Gaussian likelihood: RMSE, and the ensemble as a mixture of Gaussians."""
    x = np.random.default_rng(3).normal(size=(40, 4)).astype(np.float32)
    members = [permuted(noisy(weights(), i), order) for i, order in enumerate(ORDERS[:2])]
    outputs = np.stack([np.float64(apply(own, x, own)) for own in members])
    y = outputs[0] + 0.3
    likelihood = ob.likelihoods.Gaussian(noise_std=0.5)
    scores = ob.merge(
        members, symmetry=SYMMETRY, network=apply, data=ob.Split(x, y), likelihood=likelihood,
        weights=[1, 3],
    ).scores  # fmt: skip
    assert scores is not None
    density = -((y - outputs) ** 2) / (2 * 0.25) - np.log(0.5 * np.sqrt(2 * np.pi))
    for score, log_p, out in zip(scores.members, density.sum(-1), outputs, strict=True):
        assert score.score_name == "rmse"
        assert score.score == pytest.approx(np.sqrt(np.mean((out - y) ** 2)), rel=1e-4)
        assert score.nll == pytest.approx(-log_p.mean(), rel=1e-4)
        assert np.isnan(score.accuracy)
    mixed = np.logaddexp(*(density.sum(-1) + np.log([[0.25], [0.75]])))
    assert scores.ensemble.nll == pytest.approx(-mixed.mean(), rel=1e-4)


def digits_net() -> tuple[ob.Network, list[dict[str, np.ndarray]], ob.Dataset]:
    """A Linen network with batch normalisation, and two fits of it in one basin."""
    data = ob.load_dataset("digits")

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x, train=False):
            h = nn.Dense(12, use_bias=False)(x.reshape(len(x), -1))
            h = nn.BatchNorm(use_running_average=not train, momentum=0.9)(h)
            return nn.Dense(10)(nn.relu(h))

    own = ob.networks.from_linen(Net(), Net().init(jax.random.key(0), data.train.x[:1]))
    network = ob.Network(own.apply, own.params, own.state, running=own.running)
    problem = ob.Problem.from_network(Net(), data)
    fits = ob.fit(problem, ob.MAP(epochs=8, batch_size=100), key=jax.random.key(0), runs=2,
                  progress="silent")  # fmt: skip
    members = []
    for fit in fits:
        state = jax.tree.map(lambda leaf: np.reshape(leaf, -1), fit.posterior.state)
        flat = {**leaves_by_path(fit.posterior.draw(0)), **leaves_by_path(state)}
        members.append({name: np.asarray(leaf) for name, leaf in flat.items()})
    return flat_network(network), members, data


def flat_network(network: ob.Network) -> ob.Network:
    """The network with its params and state by name, as in a state_dict."""
    assert network.running is not None
    inside = network.running
    fill = lambda flat, like: with_leaves(like, flat)
    params = lambda flat: fill(flat, network.params)
    state = lambda flat: fill(flat, network.state)

    def update(p, x, s):
        out, after = inside.update(params(p), x, state(s))
        return out, leaves_by_path(after)

    observe = lambda p, x, s: leaves_by_path(inside.observe(params(p), x, state(s)))
    return ob.Network(
        lambda p, x, s: network.apply(params(p), x, state(s)),
        leaves_by_path(network.params),
        leaves_by_path(network.state),
        running=ob.networks.RunningStatistics(update, observe, inside.pairs),
    )


def test_statistics_are_repaired_or_reset() -> None:
    """As `refresh_state` and `repair` do, with the data given."""
    network, members, data = digits_net()
    symmetry = ob.find_symmetry(network, x=data.train.x[:2])
    options = {"symmetry": symmetry, "network": network, "data": data}
    reset = ob.merge(members, correct="reset", **options)
    params = {name: reset.tensor(name) for name in network.params}
    expected = ob.refresh_state(params, network, data.train.x)
    for name, leaf in expected.items():
        np.testing.assert_allclose(reset.tensor(name), leaf, rtol=1e-6)
        assert not np.allclose(
            reset.tensor(name), ob.merge(members, symmetry=symmetry).tensor(name)
        )
    assert reset.scores is not None
    assert reset.scores.corrected is not None
    out = network.apply(params, data.test.x, expected)
    assert reset.scores.corrected.accuracy == np.mean(out.argmax(-1) == data.test.y)

    repaired = ob.merge(members, correct="repair", weights=[3, 1], **options)
    ends = []
    for own, p in zip(members, repaired.permutations, strict=True):
        ends.append(symmetry.act(p, {name: own[name] for name in network.params}))
        state = {name: own[name] for name in leaves_by_path(network.state)}
        ends.append(symmetry.act_on_state(p, state))
    path = ob.line(ends[0], ends[2], ends[1], ends[3])
    point = ob.repair(path, network, data.train.x[:1000], symmetry=symmetry)(0.25).draw(0)
    for name, leaf in point.items():
        np.testing.assert_allclose(repaired.tensor(name), leaf, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"correct": "reset"}, "give network and data"),
        ({"correct": "mend", "network": apply}, "give both or neither"),
        (
            {"correct": "reset", "network": apply, "data": ob.Split(np.ones((2, 4)), np.ones(2))},
            "this network has none",
        ),
        (
            {
                "members": [weights(), weights(1), weights(2)],
                "correct": "repair",
                "network": apply,
                "data": ob.Split(np.ones((2, 4)), np.ones(2)),
            },
            "is for two members, got 3",
        ),
        ({"members": [weights()]}, "at least two members"),
        ({"weights": [1.0]}, "give 2 weights"),
        ({"weights": [0.0, 0.0]}, "all weights are zero"),
        ({"weights": [-1.0, 2.0]}, "give 2 weights"),
        ({"network": apply}, "need both network and data"),
        ({"members": [weights(), {"w": np.ones(2)}]}, "not of the network of this symmetry"),
        ({"members": [weights(), {**weights(), "more": np.ones(2)}]}, "different networks: 'more'"),
    ],
)
def test_mistakes_are_refused(options: dict, message: str) -> None:
    arguments = {"members": [weights(), weights(1)], **options}
    with pytest.raises(ValueError, match=message):
        ob.merge(arguments.pop("members"), symmetry=SYMMETRY, **arguments)


def test_running_statistics_that_are_not_finite_are_refused() -> None:
    params, state = {"w": np.ones(3)}, {"v": np.ones(3)}
    groups = {"units": [("w", 0), ("state:v", 0)]}
    symmetry = ob.Symmetry.by_hand(params, groups, state)
    members = [params | state, params | {"v": np.array([1, np.nan, 1])}]
    with pytest.raises(ValueError, match="holds NaN or infinity in 'v'"):
        ob.merge(members, symmetry=symmetry)


@pytest.mark.parametrize(
    ("array", "said"),
    [
        (np.full(3, 1e300), "their products exceed double precision"),
        (np.full(3, 1e-300), "their products exceed double precision"),
        (np.ones(3) * 1j, "'w' holds complex128 numbers"),
    ],
)
def test_numbers_beyond_what_is_computed_are_refused(array: np.ndarray, said: str) -> None:
    symmetry = ob.Symmetry.by_hand({"w": np.ones(3)}, {"units": [("w", 0)]})
    with pytest.raises(ValueError, match=said):
        ob.merge([{"w": array}, {"w": array}], symmetry=symmetry)


def test_a_folder_that_is_replaced_holds_nothing_of_the_old_checkpoint(tmp_path: Path) -> None:
    """An index that stayed would name the old shards, which would be read in its place."""
    for name, shards in (("old", {"model-1": "w", "model-2": "b"}), ("new", {"model": "w"})):
        (tmp_path / name).mkdir()
        for file, tensor in shards.items():
            arrays = {tensor: np.full(3, len(shards), np.float32)}
            save_file(arrays, tmp_path / name / f"{file}.safetensors")
    index = {"weight_map": {"w": "model-1.safetensors", "b": "model-2.safetensors"}}
    (tmp_path / "old" / "model.safetensors.index.json").write_text(json.dumps(index))
    (tmp_path / "old" / "notes.txt").write_text("kept")
    new = read_checkpoint(tmp_path / "new")
    new.write(tmp_path / "old", lambda name: new.tensors[name], overwrite=True)
    found = read_checkpoint(tmp_path / "old").tensors
    assert {name: array.tolist() for name, array in found.items()} == {"w": [1.0, 1.0, 1.0]}
    assert {p.name for p in (tmp_path / "old").iterdir()} == {"model.safetensors", "notes.txt"}


def test_weights_that_are_not_finite_are_refused_by_name(tmp_path: Path) -> None:
    broken = weights()
    broken["out.weight"][1, 2] = np.inf
    paths = [tmp_path / "a.safetensors", tmp_path / "b.safetensors"]
    for path, tensors in zip(paths, (weights(), broken), strict=True):
        save_file(tensors, path)
    with pytest.raises(ValueError, match=r"b\.safetensors holds NaN or infinity in 'out\.weight'"):
        ob.merge(paths, symmetry=SYMMETRY)


def test_the_command_writes_a_file_like_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    a, b = weights(), permuted(weights(), ORDERS[1])
    save_file(a, "a.safetensors", metadata={"format": "pt"})
    save_file(b, "b.safetensors")
    SYMMETRY.save("net.json")
    command = ["merge", "a.safetensors", "b.safetensors", "--symmetry", "net.json"]
    main([*command, "--out", "merged.safetensors", "--json"])
    report = json.loads(capsys.readouterr().out)
    assert [m["transpositions"] for m in report["members"]] == [0, 4]  # a cycle of five
    found = load_file("merged.safetensors")
    for name, tensor in a.items():
        np.testing.assert_allclose(found[name], tensor, rtol=1e-7)
    with pytest.raises(SystemExit):
        main([*command, "--out", "merged.safetensors"])
    assert "--overwrite" in capsys.readouterr().err


MAKER = """
import jax, jax.numpy as jnp, onebasin as ob

def apply(params, x):
    hidden = jnp.tanh(x.reshape(len(x), -1) @ params["in.weight"].T)
    return hidden @ params["out.weight"].T

def make_network(key):
    a, b = jax.random.split(key)
    return ob.Network(apply, {
        "in.weight": jax.random.normal(a, (6, 64)), "out.weight": jax.random.normal(b, (10, 6)),
    })
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A network of digits, and two files of it that are permuted copies, in a folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(MAKER)
    rng = np.random.default_rng(0)
    own = {"in.weight": rng.normal(size=(6, 64)), "out.weight": rng.normal(size=(10, 6))}
    (tmp_path / "runs").mkdir()
    for name, order in zip("ab", ORDERS, strict=False):
        moved = {"in.weight": own["in.weight"][order], "out.weight": own["out.weight"][:, order]}
        whole = {key: np.ascontiguousarray(leaf, np.float32) for key, leaf in moved.items()}
        save_file(whole, tmp_path / "runs" / f"{name}.safetensors")
    return tmp_path


NAMED = ["--network", "./net.py:make_network"]


def test_a_folder_is_merged_by_a_network_and_scored(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["merge", "runs", *NAMED, "--data", "digits", "--t", "0.25", "--repair", "--out",
          "merged.safetensors", "--json"])  # fmt: skip
    report = json.loads(capsys.readouterr().out)
    assert [m["weight"] for m in report["members"]] == [0.75, 0.25]
    scores = report["scores"]
    first = scores["members"][0]
    for name in ("merged", "corrected", "ensemble"):  # copies: their average is each of them
        assert scores[name]["nll"] == pytest.approx(first["nll"], rel=1e-4)
    assert scores["plain"]["nll"] != pytest.approx(first["nll"], rel=1e-2)
    found = load_file("merged.safetensors")
    own = load_file("runs/a.safetensors")
    np.testing.assert_allclose(found["in.weight"], own["in.weight"], rtol=1e-4, atol=1e-5)


def test_a_file_is_aligned_by_a_network(folder: Path) -> None:
    main(["align", "runs/b.safetensors", "--to", "runs/a.safetensors", *NAMED, "--input-shape",
          "64", "--out", "moved.safetensors"])  # fmt: skip
    moved, own = load_file("moved.safetensors"), load_file("runs/a.safetensors")
    assert all(np.array_equal(moved[name], own[name]) for name in own)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--data", "digits"], "name it with --network"),
        (["--t", "2"], "--t is 2"),
        (["--t", "0.5", "--weights", "1", "2"], "give one of them"),
        (["--reset", "--repair"], "exclude each other"),
        ([*NAMED, "--reset"], "name a data set with --data"),
        (NAMED, "give --input-shape"),
        (["--format", "pt"], "--format pt writes .pt files"),
        ([*NAMED, "--data", "digits", "--reset"], "this network has none"),
    ],
)
def test_options_of_the_command_that_make_no_sense(
    folder: Path, options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["merge", "runs", *options, "--out", "merged.safetensors"])
    assert message in capsys.readouterr().err
    assert not (folder / "merged.safetensors").exists()
