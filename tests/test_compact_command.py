"""`onebasin compact` on files."""

import json
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

from alignment_cases import gaussian, mlp_shapes, same_tree
from compact_cases import draws_of
from onebasin.cli.compact import CompactOptions, run
from onebasin.compaction import compact
from onebasin.networks import MLP, to_config
from onebasin.networks.described import DescribedNetwork
from onebasin.posterior import LowRank, MeanField, Samples, load, read_header, save
from onebasin.symmetry import find_symmetry

SHAPES = mlp_shapes((8, 6))
NETWORK = to_config(MLP(widths=(8, 6), num_classes=3), input_shape=(5,))


@pytest.fixture
def files(tmp_path):
    paths = []
    for seed in (0, 100):
        samples = Samples(draws_of(6, SHAPES, seed).draws, jnp.asarray([0, 0, 0, 1, 1, 1]))
        path = tmp_path / f"draws{seed}.safetensors"
        paths.append(save(path, samples, network=NETWORK, note=seed))
    return paths


def test_draws_of_two_files(files, tmp_path, capsys):
    out = tmp_path / "made" / "q.safetensors"
    run(CompactOptions(tuple(files), out, rank=3, balance=True, json=True))
    report = json.loads(capsys.readouterr().out)
    assert report["members"] == 12
    assert report["balanced"] == ["Dense_0", "Dense_1"]
    header = read_header(out)
    assert header.network == NETWORK
    assert header.provenance["note"] == 0
    assert header.provenance["compaction"]["trace"] == report["trace"]
    posterior = load(out)
    assert isinstance(posterior, LowRank)
    assert posterior.rank == 3
    run(CompactOptions(tuple(files), out, rebase="none", overwrite=True))
    assert "12 members, rank 0" in capsys.readouterr().out
    assert isinstance(load(out), MeanField)


def test_the_file_holds_what_python_gives(files, tmp_path, capsys):
    out = tmp_path / "q.safetensors"
    run(CompactOptions((files[0],), out, rank=1, chains=(1,)))
    network = DescribedNetwork.from_config(NETWORK, files[0])
    symmetry = find_symmetry(network, network.shapes, network.x)
    whole = load(files[0])
    kept = Samples({k: {n: a[3:] for n, a in v.items()} for k, v in whole.draws.items()})
    assert same_tree(load(out), compact(kept, symmetry=symmetry, rank=1).posterior)
    assert "3 members" in capsys.readouterr().out


def test_looking_at_inputs(tmp_path, capsys):
    """The embedded digits: 8 × 8 pixels, 10 classes."""
    shapes = mlp_shapes((6,), inputs=64, outputs=10)
    network = to_config(MLP(widths=(6,), num_classes=10), input_shape=(8, 8, 1))
    path = save(tmp_path / "draws.safetensors", draws_of(8, shapes), network=network)
    out = tmp_path / "q.safetensors"
    with pytest.raises(ValueError, match="need inputs; name a data set with --data"):
        run(CompactOptions((path,), out, rebase="contributions"))
    options = CompactOptions(
        (path,), out, rank=2, rebase="contributions", data="digits", inputs=50, calibrate=True
    )
    run(replace(options, json=True))
    report = json.loads(capsys.readouterr().out)
    found = report["calibration"]
    assert found["divergence"] < found["divergence_before"]
    assert read_header(out).provenance["compaction"]["calibration"] == found
    assert set(report["prediction"]["before"]) == {"accuracy", "nll"}
    run(replace(options, overwrite=True))
    text = capsys.readouterr().out
    assert "noise: diagonal" in text
    assert "test examples: accuracy" in text


@pytest.mark.fast
def test_mapped_draws_are_those_of_the_file(files):
    mapped, read = load(files[0], mapped=True), load(files[0])
    assert same_tree(mapped, read)
    assert isinstance(mapped.draws["Dense_0"]["kernel"].base, np.memmap) or isinstance(
        mapped.draws["Dense_0"]["kernel"], np.memmap
    )


def test_refused_before_anything_is_written(files, tmp_path):
    out = tmp_path / "q.safetensors"
    tanh = {**NETWORK, "activation": "tanh"}
    other = save(tmp_path / "tanh.safetensors", draws_of(3, SHAPES), network=tanh)
    with pytest.raises(ValueError, match="different networks: 'activation' differs"):
        run(CompactOptions((files[0], other), out))
    q = save(tmp_path / "gaussian.safetensors", gaussian(SHAPES, 0), network=NETWORK)
    with pytest.raises(ValueError, match="not both at once"):
        run(CompactOptions((files[0], q), out))
    with pytest.raises(ValueError, match="is a Gaussian already"):
        run(CompactOptions((q,), out))
    with pytest.raises(ValueError, match=r"rank is 6, and 6 members"):
        run(CompactOptions((files[0],), out, rank=6))
    with pytest.raises(ValueError, match="holds a chain 7"):
        run(CompactOptions((files[0],), out, chains=(7,)))
    with pytest.raises(ValueError, match="name at least one file"):
        run(CompactOptions((), out))
    with pytest.raises(ValueError, match="no group of this network can be balanced"):
        run(CompactOptions((other,), out, balance=True))
    assert not out.exists()
    out.write_text("")
    with pytest.raises(ValueError, match="exists; give --overwrite"):
        run(CompactOptions((files[0],), out))
