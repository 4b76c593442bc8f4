"""`onebasin align` on files."""

import json
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from alignment_cases import gaussian, mlp_shapes, random_like, same_tree
from onebasin.alignment import Activations
from onebasin.cli.align import Align, run
from onebasin.data import load_dataset
from onebasin.networks import MLP, to_config
from onebasin.networks.described import DescribedNetwork
from onebasin.posterior import Samples, load, read_header, save
from onebasin.symmetry import Permutation, find_symmetry


def posterior(widths=(8, 6), seed=0):
    q = gaussian(mlp_shapes(widths), seed)
    return q, to_config(MLP(widths=widths, num_classes=3), input_shape=(5,))


def network_of(path):
    return DescribedNetwork.from_config(read_header(path).network, path)


def symmetry_of(path):
    network = network_of(path)
    return find_symmetry(network, network.shapes, network.x)


def some_draws(count):
    trees = [random_like(mlp_shapes((8, 6)), seed) for seed in range(count)]
    return Samples(jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees))


@pytest.fixture
def files(tmp_path):
    paths = []
    for seed in range(3):
        q, network = posterior(seed=seed)
        paths.append(save(tmp_path / f"q{seed}.safetensors", q, network=network, note=seed))
    return paths


def test_one_to_another(files, tmp_path, capsys):
    out = tmp_path / "moved.safetensors"
    run(Align((files[1],), out, to=files[0], json=True))
    report = json.loads(capsys.readouterr().out)
    (line,) = report["files"]
    assert line["distance_after"] < line["distance_before"]
    header = read_header(out)
    assert header.provenance["note"] == 1
    notes = header.provenance["alignment"]
    symmetry = symmetry_of(out)
    permutation = Permutation({k: np.array(v) for k, v in notes["permutation"].items()})
    assert same_tree(load(out), symmetry.act(permutation, load(files[1])))
    run(Align((files[1],), out, to=files[0], overwrite=True))
    assert "transpositions" in capsys.readouterr().out


def test_all_kinds(files, tmp_path, capsys):
    """Scales of a ReLU network: nearer than permutations bring it, and the same function."""
    out, plain = tmp_path / "moved.safetensors", tmp_path / "permuted.safetensors"
    run(Align((files[1],), out, to=files[0], kinds="all", json=True))
    (line,) = json.loads(capsys.readouterr().out)["files"]
    assert line["exact"]
    run(Align((files[1],), plain, to=files[0], json=True))
    (permuted,) = json.loads(capsys.readouterr().out)["files"]
    assert line["distance_after"] < permuted["distance_after"]
    network, x = network_of(out), np.ones((2, 5), np.float32)
    before, after = (network.apply(load(path).moments()[0], x) for path in (files[1], out))
    np.testing.assert_allclose(after, before, rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="--kinds all is for one target"):
        run(Align(tuple(files), tmp_path / "joint", kinds="all"))


def test_many_files(files, tmp_path, capsys):
    run(Align(tuple(files[1:]), tmp_path / "moved", to=files[0], objective="l2"))
    assert sorted(p.name for p in (tmp_path / "moved").iterdir()) == [f.name for f in files[1:]]
    run(Align(tuple(files), tmp_path / "joint", json=True))
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert len(report["files"]) == 3
    assert report["trace"][-1] >= report["trace"][0]


def test_draws_of_one_file(tmp_path, capsys):
    _, network = posterior()
    path = save(tmp_path / "draws.safetensors", some_draws(5), network=network)
    run(Align((path,), tmp_path / "aligned.safetensors", objective="l2"))
    assert "5 draws" in capsys.readouterr().out
    assert load(tmp_path / "aligned.safetensors").num_draws == 5


@pytest.fixture
def planted(tmp_path):
    """Files of a posterior over digits, and of a copy with its units in another order."""
    network = to_config(MLP(widths=(8, 6), num_classes=10), input_shape=(8, 8, 1))
    q = gaussian(mlp_shapes((8, 6), inputs=64, outputs=10), 0)
    first = save(tmp_path / "first.safetensors", q, network=network)
    symmetry = symmetry_of(first)
    copy = symmetry.act(symmetry.random(key=jax.random.key(1)), q)
    return first, save(tmp_path / "copy.safetensors", copy, network=network)


@pytest.mark.parametrize("objective", ["activations", "correlations"])
def test_by_what_units_do_on_data(planted, tmp_path, capsys, objective):
    first, copy = planted
    out = tmp_path / "moved.safetensors"
    run(Align((copy,), out, to=first, json=True, objective=objective, data="digits", examples=70))
    assert same_tree(load(out), load(first))
    (report,) = json.loads(capsys.readouterr().out)["files"]
    # Any objective finds a planted copy: that it was this one, its distance tells.
    chosen = Activations(
        network_of(first),
        load_dataset("digits").train.x[:70],
        correlation=objective == "correlations",
    )
    expected = chosen.measure(load(copy), load(first), symmetry_of(first))
    assert report["distance_before"] == pytest.approx(expected, rel=1e-5)
    assert report["distance_after"] == pytest.approx(0, abs=1e-6)


def test_learned_on_the_path(planted, tmp_path, capsys):
    first, copy = planted
    out = tmp_path / "moved.safetensors"
    learn = partial(Align, objective="path-loss")
    one = partial(learn, (copy,), out, to=first)
    run(one(data="digits", examples=70, steps=2, json=True))
    (report,) = json.loads(capsys.readouterr().out)["files"]
    losses = {start["name"]: -start["score"] for start in report["starts"]}
    assert set(losses) == {"identity", "w2", "correlations", "correlations after"}
    assert report["distance_before"] == pytest.approx(losses["identity"], rel=1e-5)
    # The labels are not the network's, but a path without a barrier is left as it is.
    assert report["distance_after"] == pytest.approx(min(losses.values()), rel=1e-5)
    assert same_tree(load(out), load(first))
    rich = {"data": "digits", "examples": 70, "steps": 2, "kinds": "all"}
    run(one(**rich, overwrite=True, json=True))
    (report,) = json.loads(capsys.readouterr().out)["files"]
    assert {start["name"] for start in report["starts"]} == {"identity", "w2"}
    # float32: the scales that were found are one but for rounding
    assert report["distance_after"] == pytest.approx(min(losses.values()), rel=1e-4)
    together = tmp_path / "together"
    run(learn((first, copy), together, to=None, data="digits", examples=70, steps=2, json=True))
    (trace,) = (json.loads(capsys.readouterr().out)["trace"],)
    assert trace[0] == pytest.approx(-min(losses.values()), rel=0.2)  # at other draws of the noise
    assert same_tree(load(together / first.name), load(together / copy.name))
    with pytest.raises(ValueError, match="path-loss learns on data; name a data set with --data"):
        run(one())
    with pytest.raises(ValueError, match="--time-limit is for --objective path-loss"):
        run(Align((copy,), out, to=first, time_limit=3.0))


def test_draws_are_brought_to_a_gaussian_by_what_their_units_do(planted, tmp_path):
    first, copy = planted
    q = load(copy)
    draws = save(
        tmp_path / "draws.safetensors",
        Samples(jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), q.mean)),
        network=read_header(first).network,
    )
    out = tmp_path / "moved.safetensors"
    run(Align((draws,), out, to=first, objective="correlations", data="digits"))
    assert same_tree(jax.tree.map(lambda leaf: leaf[1], load(out).draws), load(first).mean)


def test_data_are_refused_where_they_make_no_sense(files, planted, tmp_path):
    out = tmp_path / "moved.safetensors"
    first, copy = planted
    by_units = partial(Align, objective="correlations", data="digits")
    with pytest.raises(ValueError, match="compares units on data; name a data set with --data"):
        run(Align((copy,), out, to=first, objective="correlations"))
    with pytest.raises(ValueError, match="w2 uses no data; drop --data"):
        run(Align((copy,), out, to=first, data="digits"))
    with pytest.raises(ValueError, match="is for one target; name it with --to"):
        run(by_units((first, copy), tmp_path / "both"))
    with pytest.raises(ValueError, match="--examples is 1; compare units on at least two"):
        run(by_units((copy,), out, to=first, examples=1))
    with pytest.raises(ValueError, match=r"takes inputs of shape \(5,\) and digits has \(8"):
        run(by_units((files[1],), out, to=files[0]))
    assert not out.exists()


def test_refused_before_anything_is_written(files, tmp_path):
    out = tmp_path / "moved.safetensors"
    other, network = posterior(widths=(8, 7))
    wide = save(tmp_path / "wide.safetensors", other, network=network)
    with pytest.raises(ValueError, match=r"leaf 'Dense_1/bias' is \(7,\) in one and \(6,\)"):
        run(Align((wide,), out, to=files[0]))
    q, network = posterior()
    tanh = save(tmp_path / "tanh.safetensors", q, network={**network, "activation": "tanh"})
    with pytest.raises(ValueError, match="different networks: 'activation' differs"):
        run(Align((tanh,), out, to=files[0]))
    drawn = save(tmp_path / "draws.safetensors", some_draws(2), network=network)
    with pytest.raises(ValueError, match=r"is a Samples and .* a MeanField"):
        run(Align((drawn,), out, to=files[0]))
    foreign = save(tmp_path / "foreign.safetensors", q)
    with pytest.raises(ValueError, match="different networks"):
        run(Align((foreign,), out, to=files[0]))
    with pytest.raises(ValueError, match="does not name its network"):
        run(Align((foreign,), out, to=foreign))
    with pytest.raises(ValueError, match="nothing to align"):
        run(Align((files[0],), out))
    several = Align(tuple(files), out)
    for options in (replace(several, search=True), replace(several, starts=("random",))):
        with pytest.raises(ValueError, match="are for one target; name it with --to"):
            run(options)
    with pytest.raises(ValueError, match="is a folder; with one posterior --out is a file"):
        run(Align((files[1],), tmp_path, to=files[0], overwrite=True))
    tensors = load_file(files[1])
    tensors["mean/Dense_0/kernel"][0, 0] = np.nan
    with safe_open(files[1], framework="numpy") as file:
        metadata = file.metadata()
    save_file(tensors, tmp_path / "nan.safetensors", metadata=metadata)
    with pytest.raises(ValueError, match="the numbers of 'mean/Dense_0/kernel' have changed"):
        run(Align((tmp_path / "nan.safetensors",), out, to=files[0]))
    assert not out.exists()
    run(Align((files[1],), out, to=files[0]))
    with pytest.raises(ValueError, match="exists; give --overwrite"):
        run(Align((files[1],), out, to=files[0]))
