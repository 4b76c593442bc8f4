"""State_dicts in files: read as they are, moved by a symmetry, written with all that they had."""

import json
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

import onebasin as ob
from onebasin.checkpoints import Entries, is_checkpoint, read_checkpoint
from onebasin.cli.main import main
from onebasin.tensor_files import TensorFileError

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
RNG = np.random.default_rng(0)


def state_dict(dtype: type = np.float32, seed: int = 0) -> dict[str, np.ndarray]:
    """Two layers around a normalisation, with entries that are neither params nor statistics."""
    rng = np.random.default_rng(seed)
    numbers = lambda *shape: rng.normal(size=shape).astype(dtype)
    return {
        "0.weight": numbers(5, 3),
        "0.bias": numbers(5),
        "1.running_mean": numbers(5),
        "1.num_batches_tracked": np.array(7),
        "2.weight": numbers(4, 5),
        "positions": np.arange(6).reshape(2, 3),
    }


def symmetry() -> ob.Symmetry:
    params = {name: state_dict()[name] for name in ("0.weight", "0.bias", "2.weight")}
    places = [("0.weight", 0), ("0.bias", 0), ("2.weight", 1), ("state:1.running_mean", 0)]
    state = {"1.running_mean": np.ones(5)}
    return ob.Symmetry.by_hand(params, {"hidden": places}, state)


def permuted(tensors: dict[str, np.ndarray], order: np.ndarray) -> dict[str, np.ndarray]:
    """Written out: rows of the first layer, columns of the second, one running statistic."""
    rows = {name: tensors[name][order] for name in ("0.weight", "0.bias", "1.running_mean")}
    columns = np.ascontiguousarray(tensors["2.weight"][:, order])  # safetensors ignores strides
    return {**tensors, **rows, "2.weight": columns}


def same(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> bool:
    return found.keys() == expected.keys() and all(
        found[n].dtype == a.dtype and np.array_equal(found[n], a) for n, a in expected.items()
    )


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, BFLOAT16])
def test_a_moved_file_drops_into_the_place_of_the_old(dtype: type, tmp_path: Path) -> None:
    """The same header to the byte: names, types, order and metadata; only the numbers move."""
    old, new = tmp_path / "old.safetensors", tmp_path / "new.safetensors"
    tensors = state_dict(dtype)
    save_file(tensors, old, metadata={"format": "pt", "epoch": "12"})
    entries = Entries(read_checkpoint(old), symmetry())
    order = np.array([3, 0, 4, 1, 2])
    p = ob.Permutation({"hidden": order})
    entries.checkpoint.write(new, lambda name: entries.moved(name, p))
    length = 8 + int.from_bytes(old.read_bytes()[:8], "little")
    assert old.read_bytes()[:length] == new.read_bytes()[:length]
    assert same(dict(read_checkpoint(new).tensors), permuted(tensors, order))
    with safe_open(new, framework="numpy") as file:
        assert file.metadata() == {"format": "pt", "epoch": "12"}
    assert entries.kept == ["1.num_batches_tracked", "positions"]


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.module."])
def test_the_prefix_of_a_wrapper_is_kept_in_files(prefix: str, files: Path) -> None:
    """DataParallel and torch.compile put one before every name; Lightning adds other entries."""
    wrapped = {prefix + name: array for name, array in state_dict().items()}
    save_file({**wrapped, "loss.weight": np.ones(3)}, "wrapped.safetensors")
    entries = Entries(read_checkpoint("wrapped.safetensors"), symmetry())
    order = np.array([3, 0, 4, 1, 2])
    entries.checkpoint.write(
        "moved.safetensors", lambda name: entries.moved(name, ob.Permutation({"hidden": order}))
    )
    moved = {prefix + name: a for name, a in permuted(state_dict(), order).items()}
    assert same(load_file("moved.safetensors"), {**moved, "loss.weight": np.ones(3)})
    # Beside a file without a prefix.
    save_file(moved, "moved.safetensors")
    save_file(state_dict(), "plain.safetensors")
    main(["align", "moved.safetensors", "--to", "plain.safetensors", "--symmetry", "net.json",
          "--out", "back.safetensors"])  # fmt: skip
    assert same(load_file("back.safetensors"), wrapped)
    merged = ob.merge([moved, "plain.safetensors"], symmetry=symmetry())
    assert merged.state_dict.keys() == wrapped.keys()


def test_of_two_modules_in_a_file_none_is_guessed(tmp_path: Path) -> None:
    both = {f"{who}.{n}": a for who in ("student", "teacher") for n, a in state_dict().items()}
    save_file(both, tmp_path / "both.safetensors")
    with pytest.raises(ValueError, match=r"both.safetensors is not of the network .* is missing"):
        Entries(read_checkpoint(tmp_path / "both.safetensors"), symmetry())


def test_a_copy_under_a_second_name_moves_too(tmp_path: Path) -> None:
    """As files of tied weights have it that were saved under both names."""
    tensors = state_dict() | {"head.weight": state_dict()["2.weight"].copy()}
    save_file(tensors, tmp_path / "tied.safetensors")
    entries = Entries(read_checkpoint(tmp_path / "tied.safetensors"), symmetry())
    assert entries.tied == {"head.weight": "2.weight"}
    order = np.array([1, 2, 3, 4, 0])
    moved = entries.moved("head.weight", ob.Permutation({"hidden": order}))
    assert np.array_equal(moved, tensors["2.weight"][:, order])


def test_every_type_and_shape_is_read(tmp_path: Path) -> None:
    tensors = {
        name.__name__: np.ones((2, 3), name)
        for name in (np.bool_, np.uint8, np.int8, np.int16, np.uint16, np.int32, np.uint64)
    } | {"none": np.zeros((0, 4), np.float32), "scalar": np.array(3.0)}
    save_file(tensors, tmp_path / "all.safetensors")
    assert same(dict(read_checkpoint(tmp_path / "all.safetensors").tensors), tensors)


def shards(folder: Path, tensors: dict[str, np.ndarray]) -> Path:
    """A folder in the form of Hugging Face, with two shards."""
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "own"}')
    names = list(tensors)
    parts = {"model-1-of-2.safetensors": names[:3], "model-2-of-2.safetensors": names[3:]}
    for file, own in parts.items():
        save_file({name: tensors[name] for name in own}, folder / file, metadata={"format": "pt"})
    index = {name: file for file, own in parts.items() for name in own}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    return folder


def test_a_folder_of_shards_is_written_as_it_was(tmp_path: Path) -> None:
    old, new = shards(tmp_path / "old", state_dict()), tmp_path / "new"
    assert is_checkpoint(old)
    entries = Entries(read_checkpoint(old), symmetry())
    order = np.array([4, 3, 2, 1, 0])
    p = ob.Permutation({"hidden": order})
    entries.checkpoint.write(new, lambda name: entries.moved(name, p))
    assert sorted(f.name for f in new.iterdir()) == sorted(f.name for f in old.iterdir())
    assert (new / "config.json").read_text() == (old / "config.json").read_text()
    assert same(dict(read_checkpoint(new).tensors), permuted(state_dict(), order))
    with pytest.raises(FileExistsError):
        entries.checkpoint.write(new, lambda name: entries.moved(name, p))
    with pytest.raises(ValueError, match="is the folder that is read"):
        entries.checkpoint.write(old, lambda name: entries.moved(name, p), overwrite=True)


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ({"weight_map": {"w": "../secret.safetensors"}}, "is not a file beside it"),
        ({"weight_map": {"w": "gone.safetensors"}}, "lacks gone"),
        ({"weight_map": {"missing": "model-1-of-2.safetensors"}}, "lacks the tensor 'missing'"),
        ({"weights": {}}, "has no weight_map"),
    ],
)
def test_damaged_folders_are_refused(index: dict, message: str, tmp_path: Path) -> None:
    folder = shards(tmp_path / "folder", state_dict())
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises((TensorFileError, FileNotFoundError), match=message):
        read_checkpoint(folder)


def test_other_files_are_refused_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "cut.safetensors").write_bytes(b"\x10\0\0\0\0\0\0\0{")
    with pytest.raises(TensorFileError, match="not a whole safetensors file"):
        read_checkpoint(tmp_path / "cut.safetensors")
    with pytest.raises(FileNotFoundError, match="there is no file"):
        read_checkpoint(tmp_path / "none.safetensors")
    with pytest.raises(TensorFileError, match="holds neither model"):
        read_checkpoint(tmp_path)
    save_file({"0.weight": np.ones((5, 3))}, tmp_path / "half.safetensors")
    with pytest.raises(ValueError, match=r"not of the network of this symmetry: leaf '.*missing"):
        Entries(read_checkpoint(tmp_path / "half.safetensors"), symmetry())


def test_posteriors_of_ours_are_not_plain_state_dicts(tmp_path: Path) -> None:
    params = {"w": np.ones(3, np.float32)}
    ob.save(tmp_path / "q.safetensors", ob.MeanField(params, params))
    save_file(params, tmp_path / "plain.safetensors")
    assert not is_checkpoint(tmp_path / "q.safetensors")
    assert is_checkpoint(tmp_path / "plain.safetensors")


# The command.


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """`a` is a permuted copy of `b`, beside the symmetry of both."""
    monkeypatch.chdir(tmp_path)
    order = np.array([3, 0, 4, 1, 2])
    save_file(permuted(state_dict(), order), "a.safetensors", metadata={"format": "pt"})
    save_file(state_dict(), "b.safetensors")
    symmetry().save("net.json")
    return tmp_path


def test_align_needs_neither_network_nor_pytorch(files: Path) -> None:
    command = ["align", "a.safetensors", "--to", "b.safetensors", "--symmetry", "net.json"]
    program = (
        "import sys; from onebasin.cli.main import main; main(sys.argv[1:])\n"
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *command, "--out", "moved.safetensors"],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert "transpositions" in done.stdout
    assert "2 other entries unchanged" in done.stdout
    assert same(load_file("moved.safetensors"), state_dict())


def test_align_reports_as_json(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["align", "a.safetensors", "--to", "b.safetensors", "--symmetry", "net.json", "--out",
          "moved.safetensors", "--json"])  # fmt: skip
    report = json.loads(capsys.readouterr().out)["files"][0]
    assert report["distance_after"] == pytest.approx(0, abs=1e-6)
    assert report["transpositions"] == 3  # the cycles of [3 0 4 1 2] are (0 3 1) and (2 4)
    assert report["unchanged"] == ["1.num_batches_tracked", "positions"]


def test_a_folder_is_aligned_again_into_the_same_folder(files: Path) -> None:
    shards(files / "a", permuted(state_dict(), np.array([3, 0, 4, 1, 2])))
    shards(files / "b", state_dict())
    command = ["align", "a", "--to", "b", "--symmetry", "net.json", "--out", "moved"]
    main(command)
    (files / "moved" / "config.json").write_text("{")  # as a killed copy might leave it
    with pytest.raises(SystemExit):
        main(command)
    main([*command, "--overwrite"])
    assert (files / "moved" / "config.json").read_bytes() == (files / "a/config.json").read_bytes()
    assert same(dict(read_checkpoint("moved").tensors), state_dict())


def test_several_files_are_aligned_jointly(files: Path) -> None:
    main(["align", "a.safetensors", "b.safetensors", "--symmetry", "net.json", "--out", "moved"])
    moved = [load_file(f"moved/{name}.safetensors") for name in "ab"]
    assert same(moved[0], moved[1])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--to", "b.safetensors"], "does not name its network; give --network"),
        (["--to", "q.safetensors", "--symmetry", "net.json"], "align files of one kind"),
        (["--to", "b.safetensors", "--symmetry", "net.json", "--objective", "kl"], "--objective"),
        (["--symmetry", "net.json"], "nothing to align a.safetensors to"),
        (["--to", "b.safetensors", "--symmetry", "none.json"], "there is no file none.json"),
    ],
)
def test_mistakes_are_one_sentence(
    files: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    params = {"w": np.ones(3, np.float32)}
    ob.save("q.safetensors", ob.MeanField(params, params))
    with pytest.raises(SystemExit) as stop:
        main(["align", "a.safetensors", *arguments, "--out", "moved.safetensors"])
    assert stop.value.code == 2
    assert message in capsys.readouterr().err
    assert not Path("moved.safetensors").exists()
