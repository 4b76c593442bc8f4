"""Joint alignment and compaction with their matches on a Dask cluster of real processes."""

import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from alignment_cases import mlp_shapes, random_like
from compact_cases import permuted
from onebasin import align_many, compact, find_symmetry
from onebasin.alignment.members import Members
from onebasin.cli.main import main
from onebasin.experiments.cluster import connect
from onebasin.mapped import InFile, by_reference
from onebasin.networks import MLP, to_config
from onebasin.networks.described import DescribedNetwork
from onebasin.posterior import LowRank, MeanField, Samples, load, save

pytest.importorskip("distributed")

DRAWS = 24


@pytest.fixture(scope="module")
def client():
    with connect("local:2") as client:
        yield client


@pytest.fixture(scope="module")
def symmetry_and_file(tmp_path_factory):
    config = to_config(MLP(widths=(6,), num_classes=3), input_shape=(4,))
    network = DescribedNetwork.from_config(config, "net")
    mean = random_like(mlp_shapes((6,), inputs=4, outputs=3), 0)
    symmetry = find_symmetry(network, network.shapes, network.x)
    posterior = MeanField(mean, jax.tree.map(lambda a: jnp.full(a.shape, 0.1), mean))
    draws = Samples(posterior.sample(DRAWS, key=jax.random.key(1)), jnp.arange(DRAWS) % 4)
    path = tmp_path_factory.mktemp("draws") / "draws.safetensors"
    save(path, permuted(symmetry, draws)[0], network=config)
    return symmetry, path


def assert_equal(a, b):
    jax.tree.map(np.testing.assert_array_equal, a, b)


def test_draws_are_compacted_on_a_cluster_as_in_one_process(client, symmetry_and_file):
    symmetry, path = symmetry_and_file
    alone, spread = (
        compact(load(path, mapped=True), symmetry=symmetry, rank=3, client=one, progress="silent")
        for one in (None, client)
    )
    assert_equal(dict(alone.permutations.indices), dict(spread.permutations.indices))
    assert isinstance(alone.posterior, LowRank)
    assert isinstance(spread.posterior, LowRank)
    assert_equal(alone.posterior.mean, spread.posterior.mean)
    assert_equal(alone.posterior.factors, spread.posterior.factors)
    assert alone.trace == spread.trace


@pytest.mark.parametrize("objective", ["w2", "log-density"])
def test_draws_are_aligned_on_a_cluster_as_in_one_process(client, symmetry_and_file, objective):
    symmetry, path = symmetry_and_file
    seen = []
    alone, spread = (
        align_many(
            load(path, mapped=True),
            symmetry=symmetry,
            objective=objective,
            client=one,
            progress=lambda what, done, of: seen.append((done, of)),
        )
        for one in (None, client)
    )
    assert_equal(dict(alone.stacked.indices), dict(spread.stacked.indices))
    assert alone.trace == spread.trace
    assert (DRAWS - 1, DRAWS - 1) in seen or (DRAWS, DRAWS) in seen


def test_what_a_worker_raises_is_raised_here(client, symmetry_and_file):
    symmetry, path = symmetry_and_file
    samples = load(path, mapped=True)
    path.rename(path.with_suffix(".away"))
    try:
        with pytest.raises(FileNotFoundError):
            align_many(samples, symmetry=symmetry, client=client, progress="silent")
    finally:
        path.with_suffix(".away").rename(path)


def test_mapped_draws_are_sent_as_their_place_in_the_file(symmetry_and_file):
    members = Members.of(load(symmetry_and_file[1], mapped=True))
    copy = pickle.loads(pickle.dumps(members))
    for i in range(DRAWS):
        assert_equal(members[i].mean, copy[i].mean)
    large = Members.of(Samples({"w": np.zeros((DRAWS, 10_000), np.float32)}))
    assert len(pickle.dumps(members)) < 4000 < len(pickle.dumps(large))


def test_a_part_of_a_map_knows_its_place(tmp_path):
    path = tmp_path / "numbers"
    np.arange(60, dtype=np.float32).tofile(path)
    whole = np.memmap(path, np.float32, "r", 8, (4, 5))
    for part in (whole, whole[1:3], whole[2], whole[1:][1]):
        place = by_reference(part)
        assert isinstance(place, InFile)
        np.testing.assert_array_equal(place.opened(), part)
    assert by_reference(whole[:, 1:]) is not None
    assert not isinstance(by_reference(whole[:, 1:]), InFile)  # it has gaps


def test_the_command_takes_a_cluster(symmetry_and_file, tmp_path):
    _, path = symmetry_and_file
    outs = [tmp_path / "alone.safetensors", tmp_path / "spread.safetensors"]
    for out, more in zip(outs, ([], ["--cluster", "local:2"]), strict=True):
        main(["compact", str(path), "--rank", "2", "--out", str(out), *more])
    alone, spread = map(load, outs)
    assert_equal(alone.mean, spread.mean)
