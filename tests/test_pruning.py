"""Pruning against brute force; sparse files give back exactly what was kept."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from alignment_cases import gaussian, mlp_shapes, relu_mlp, same_tree
from onebasin.cli.prune import Prune, run
from onebasin.networks import MLP, to_config
from onebasin.posterior import MeanField, Samples, save
from onebasin.posterior.sparse import load_sparse, save_sparse
from onebasin.pruning import prune, pruning_curve
from onebasin.trees import leaves_by_path

Q = gaussian(mlp_shapes((7, 6)), 0)


def score(mean, std, by):
    return {"std": -std, "snr": abs(mean) / std, "magnitude": abs(mean)}[by]


def by_hand(mean, std, keep, by, scope):
    """Sort (score, position) as a list and take as many as it takes to reach the share."""
    means, stds = leaves_by_path(mean), leaves_by_path(std)
    rows = [
        (-float(score(m, s, by)), order, name, place)
        for order, name in enumerate(means)
        for place, (m, s) in enumerate(
            zip(np.ravel(means[name]), np.ravel(stds[name]), strict=True)
        )
    ]
    masks = {name: np.zeros(np.size(leaf), bool) for name, leaf in means.items()}
    layer = lambda name: name.split("/")[0] if scope == "layer" else "all"
    for one in {layer(name) for name in means}:
        own = sorted(row for row in rows if layer(row[2]) == one)
        count = next(k for k in range(len(own) + 1) if k / len(own) >= keep - 1e-12)
        for _, _, name, place in own[:count]:
            masks[name][place] = True
    return masks


@pytest.mark.fast
@pytest.mark.parametrize("by", ["std", "snr", "magnitude"])
@pytest.mark.parametrize("scope", ["global", "layer"])
@pytest.mark.parametrize("keep", [1.0, 0.5, 0.07, 0.001])
def test_masks_are_those_of_brute_force(by, scope, keep):
    found = prune(Q.mean, Q.std, keep=keep, by=by, scope=scope)
    expected = by_hand(Q.mean, Q.std, keep, by, scope)
    masks = leaves_by_path(found.mask)
    for name, mask in expected.items():
        np.testing.assert_array_equal(np.ravel(masks[name]), mask)
        kept = np.where(mask, np.ravel(leaves_by_path(Q.mean)[name]), 0)
        np.testing.assert_array_equal(np.ravel(leaves_by_path(found.params)[name]), kept)
    size = sum(mask.size for mask in expected.values())
    assert found.kept == sum(mask.sum() for mask in expected.values()) / size


@given(st.lists(st.integers(0, 2), min_size=1, max_size=30), st.floats(0.01, 1.0))
def test_ties_go_to_the_first_and_the_number_is_exact(values, keep):
    leaf = np.array(values, np.float32)
    found = prune({"a": leaf}, {"a": leaf + 1}, keep=keep, by="std")
    expected = by_hand({"a": leaf}, {"a": leaf + 1}, keep, "std", "global")
    np.testing.assert_array_equal(found.mask["a"], expected["a"])


@pytest.mark.fast
def test_certain_weights():
    mean, std = {"w": np.array([2.0, 0.0, 3.0])}, {"w": np.array([0.0, 0.0, 1.0])}
    # σ = 0: certain and not zero comes first, certainly zero comes last.
    assert prune(mean, std, keep=0.3, by="snr").mask["w"].tolist() == [True, False, False]
    assert prune(mean, std, keep=0.6, by="snr").mask["w"].tolist() == [True, False, True]
    # Leaves of a flat tree are layers of their own.
    flat = {"a": np.array([9.0, 8.0]), "b": np.array([1.0, 2.0])}
    found = prune(flat, keep=0.5, by="magnitude", scope="layer")
    assert [found.mask[k].tolist() for k in "ab"] == [[True, False], [False, True]]


@pytest.mark.fast
def test_refused():
    for keep in (0, 1.5, float("nan")):
        with pytest.raises(ValueError, match="keep is the share"):
            prune(Q.mean, Q.std, keep=keep)
    with pytest.raises(ValueError, match="needs the standard deviations"):
        prune(Q.mean, by="std")
    with pytest.raises(ValueError, match="the std does not match"):
        prune(Q.mean, {"w": np.ones(3)}, by="std")
    with pytest.raises(ValueError, match="leaf 'w' holds NaN"):
        prune({"w": np.array([np.nan])}, by="magnitude")
    with pytest.raises(ValueError, match="no rule to prune by 'sigma'"):
        prune(Q.mean, Q.std, by="sigma")  # pyright: ignore


def test_curve_is_the_accuracy_of_the_pruned_mean():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(90, 5)).astype(np.float32)
    y = np.asarray(relu_mlp(Q.mean, x).argmax(-1))
    keeps = (1.0, 0.6, 0.2)
    curve = pruning_curve(Q, relu_mlp, (x, y), keeps=keeps, by="snr", scope="layer")
    for i, keep in enumerate(keeps):
        params = prune(Q.mean, Q.std, keep=keep, by="snr", scope="layer").params
        logits = relu_mlp(params, x)
        assert curve.accuracy[i] == pytest.approx(np.mean(logits.argmax(-1) == y))
        losses = -jax.nn.log_softmax(logits)[np.arange(90), y]
        assert curve.nll[i] == pytest.approx(float(losses.mean()), rel=1e-5)
    assert curve.accuracy[0] == 1.0
    assert json.loads(json.dumps(curve.summary()))["kept"] == curve.kept.tolist()
    # Draws are pruned by their own mean and spread.
    draws = Samples(Q.sample(50, key=jax.random.key(0)))
    mean, std = draws.moments()
    params = prune(mean, std, keep=0.2, by="snr").params
    own = pruning_curve(draws, relu_mlp, (x, y), keeps=(0.2,), by="snr")
    assert own.accuracy[0] == pytest.approx(np.mean(relu_mlp(params, x).argmax(-1) == y))


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_sparse_files_give_back_what_was_kept(tmp_path, dtype, x64):
    params = jax.tree.map(lambda leaf: leaf.astype(dtype), Q.mean)
    params["kept_zero"] = jnp.zeros(3, dtype)  # a kept zero is not a pruned one
    std = {**Q.std, "kept_zero": jnp.array([1e-9, 9.0, 9.0])}
    found = prune(params, std, keep=0.3, by="std")
    path = save_sparse(tmp_path / "a.safetensors", found, network={"kind": "MLP"}, note=1)
    back = load_sparse(path)
    assert same_tree(back.pruned.params, found.params)
    assert same_tree(back.pruned.mask, found.mask)
    assert bool(back.pruned.mask["kept_zero"][0])
    assert jax.tree.structure(back.pruned.params) == jax.tree.structure(params)
    dtypes = {leaf.dtype.name for leaf in jax.tree.leaves(back.pruned.params)}
    assert dtypes == {dtype}
    assert (back.pruned.kept, back.network, back.provenance) == (
        found.kept, {"kind": "MLP"}, {"note": 1},
    )  # fmt: skip
    with pytest.raises(FileExistsError, match="overwrite=True"):
        save_sparse(path, found)


def test_sparse_files_are_small_and_damage_is_noticed(tmp_path):
    leaf = np.random.default_rng(0).normal(size=(400, 300)).astype(np.float32)
    sizes = []
    for keep in (0.1, 0.01):
        found = prune({"w": leaf}, keep=keep, by="magnitude")
        sizes.append(save_sparse(tmp_path / f"{keep}", found).stat().st_size)
    # Four bytes for a value and four for its place, and a header.
    assert sizes[0] < 8 * 12_000 + 1000
    assert sizes[1] < 8 * 1_200 + 1000
    tensors = load_file(tmp_path / "0.01")
    save_file(tensors, tmp_path / "foreign")
    with pytest.raises(ValueError, match="not a sparse file"):
        load_sparse(tmp_path / "foreign")
    (tmp_path / "short").write_bytes((tmp_path / "0.1").read_bytes()[:5000])
    with pytest.raises(ValueError, match="not a whole safetensors file"):
        load_sparse(tmp_path / "short")
    with pytest.raises(FileNotFoundError):
        load_sparse(tmp_path / "none")


def test_command(tmp_path, capsys):
    net = MLP(widths=(12,), num_classes=10)
    mean = net.init(jax.random.key(0), np.zeros((1, 8, 8, 1), np.float32))["params"]
    q = MeanField(mean, jax.tree.map(lambda m: 0.1 + jnp.abs(m), mean))
    path = save(tmp_path / "q.safetensors", q, network=to_config(net, (8, 8, 1)))
    out, figure = tmp_path / "pruned.safetensors", tmp_path / "curve.png"
    run(Prune(path, out, keep=0.2, data="digits", figure=figure, json=True))
    report = json.loads(capsys.readouterr().out)
    assert report["kept"] == pytest.approx(0.2, abs=0.005)
    assert report["bytes"] < report["bytes_before"]
    assert len(report["curve"]["kept"]) == 12
    assert figure.stat().st_size > 2000
    assert same_tree(load_sparse(out).pruned.params, prune(q.mean, q.std, keep=0.2).params)
    assert load_sparse(out).provenance["pruning"]["accuracy"] == report["accuracy"]
    with pytest.raises(ValueError, match="exists; give --overwrite"):
        run(Prune(path, out))
    with pytest.raises(ValueError, match="needs data"):
        run(Prune(path, tmp_path / "other", curve=True))
    run(Prune(path, out, by="snr", scope="layer", data="digits", overwrite=True))
    assert "accuracy of the mean network" in capsys.readouterr().out
