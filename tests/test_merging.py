"""Merging: the average of aligned checkpoints, its scores, and the command."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import onebasin as ob
from onebasin.cli.main import main

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


@pytest.mark.parametrize(
    ("options", "message"),
    [
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
