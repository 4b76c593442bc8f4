"""Draws and data that do not fit into memory: processes with little room for large files."""

import json
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from alignment_cases import same_tree
from onebasin.networks import MLP, to_config
from onebasin.networks.described import DescribedNetwork
from onebasin.posterior import Samples, load, read_header, save
from onebasin.posterior.draw_moments import draw_moments
from onebasin.posterior.sparse import load_sparse
from onebasin.symmetry import Permutation, find_symmetry
from onebasin.trees import leaves_by_path, take_entry

SCRIPT = Path(__file__).with_name("limited_process.py")
LARGE = 300_000_000  # bytes of a large file
ROOM = LARGE // 3
NETWORK = MLP(widths=(256,), num_classes=10)
SHAPE = (64,)
COLUMNS = 512  # of inputs
FEW, ORIGINAL = 4, 37  # draws of the small file; draws that differ before they repeat

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="this system does not tell a process's memory"
)


class Repeated:
    """Draws that repeat after a while, made when they are written."""

    def __init__(self, draws: np.ndarray, count: int) -> None:
        self.draws, self.dtype = draws, draws.dtype
        self.shape, self.ndim = (count, *draws.shape[1:]), draws.ndim
        self.nbytes = draws[:1].nbytes * count

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, which: slice) -> np.ndarray:
        return self.draws[np.arange(*which.indices(len(self))) % len(self.draws)]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A folder with a small and a large file of draws, and a target."""
    folder = tmp_path_factory.mktemp("draws")
    params = NETWORK.init(jax.random.key(0), np.zeros((1, *SHAPE), np.float32))["params"]
    rng = np.random.default_rng(0)
    original = jax.tree.map(
        lambda leaf: rng.normal(leaf, 1.0, (ORIGINAL, *leaf.shape)).astype(np.float32), params
    )
    size = sum(leaf[0].nbytes for leaf in jax.tree.leaves(original))
    network = to_config(NETWORK, input_shape=SHAPE)
    for name, count in (("small", FEW), ("large", LARGE // size)):
        draws = jax.tree.map(lambda leaf, count=count: Repeated(leaf, count), original)
        chain = np.arange(count, dtype=np.int32) * 2 // count
        save(folder / f"{name}.safetensors", Samples(draws, chain), network=network)
    save(folder / "target.safetensors", Samples(take_entry(original, slice(9))), network=network)
    return folder


def run_limited(folder, room=ROOM, **work):
    done = subprocess.run(
        [sys.executable, str(SCRIPT), json.dumps({"room": room, **work})],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def run_command(folder, *words):
    """Run a command on the small file, then on the large one, NAME being their names."""
    commands = [[word.replace("NAME", name) for word in words] for name in ("small", "large")]
    run_limited(folder, commands=commands)


def check_moved(folder, moved, permutations):
    """The draws of the large file, moved as they should be."""
    draws, moved = (load(folder / name, mapped=True) for name in ("large.safetensors", moved))
    assert moved.num_draws == draws.num_draws
    np.testing.assert_array_equal(moved.chain, draws.chain)
    header = read_header(folder / "large.safetensors")
    network = DescribedNetwork.from_config(header.network, "large")
    symmetry = find_symmetry(network, network.shapes, network.x)
    for index in (0, ORIGINAL + 1, draws.num_draws - 1):
        assert same_tree(moved.draw(index), symmetry.act(permutations(index), draws.draw(index)))


def test_a_large_file_of_draws_is_aligned(files):
    assert (files / "large.safetensors").stat().st_size > 0.95 * LARGE
    run_command(
        files, "align", "NAME.safetensors", "--to", "target.safetensors", "--out", "NAME-moved"
    )
    found = read_header(files / "large-moved").provenance["alignment"]["permutation"]
    check_moved(files, "large-moved", lambda _: Permutation(found))


def test_a_large_file_of_draws_is_pruned(files):
    run_command(files, "prune", "NAME.safetensors", "--by", "snr", "--out", "NAME-pruned")
    pruned = load_sparse(files / "large-pruned").pruned
    draws = load(files / "large.safetensors", mapped=True).draws
    leaves, means = leaves_by_path(pruned.params), {}
    for name, leaf in leaves_by_path(draws).items():
        means[name] = np.mean(leaf, axis=0, dtype=np.float64)
        kept = np.asarray(leaves_by_path(pruned.mask)[name])
        np.testing.assert_allclose(leaves[name], np.where(kept, means[name], 0), rtol=1e-6)
    assert 0.1 <= pruned.kept < 0.1001


def test_large_data_are_predicted(tmp_path):
    rng = np.random.default_rng(0)
    rows = 3 * LARGE // (4 * COLUMNS)
    known = np.append(rng.choice(rows, 20), rows - 1)
    for name, count in (("small", 1000), ("large", rows)):
        x = np.memmap(tmp_path / name, np.float32, "w+", shape=(count, COLUMNS))
        x[known % count] = rng.normal(size=(len(known), COLUMNS))
    run_limited(tmp_path, 3 * ROOM, predict=["small", "large"], columns=COLUMNS)
    inputs = np.memmap(tmp_path / "large", np.float32, "r", shape=(rows, COLUMNS))
    (tmp_path / "some").write_bytes(inputs[known].tobytes())
    run_limited(tmp_path, predict=["small", "some"], columns=COLUMNS)
    whole, some = (np.load(tmp_path / f"{name}.npy") for name in ("large", "some"))
    assert len(whole) == rows
    np.testing.assert_allclose(whole[known], some, rtol=1e-5, atol=1e-5)


@pytest.mark.fast
@pytest.mark.parametrize("shape", [(7,), (50, 3), (400, 20, 300), (3, 0)])
def test_moments_of_draws_read_by_block(shape):
    draws = np.random.default_rng(1).normal(1e3, 1e-2, shape)  # squares lose eight digits
    mean, std = draw_moments(draws)
    np.testing.assert_allclose(mean, draws.mean(0), rtol=1e-14)
    np.testing.assert_allclose(std, draws.std(0), rtol=1e-9)
    assert draw_moments(draws.astype(np.float32))[1].dtype == np.float32
