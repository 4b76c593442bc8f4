"""Tensor files: growing files and memory maps, against safetensors itself."""

import json

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from onebasin.tensor_files import (
    ALIGNMENT,
    GrowingFile,
    TensorFileError,
    finite,
    map_tensors,
    read_tensor_header,
    read_tensors,
    verify_tensors,
    write_tensors,
)

pytestmark = pytest.mark.fast

RNG = np.random.default_rng(0)
TENSORS = {
    "chain": np.arange(5, dtype=np.int32),
    "draws/w": RNG.normal(size=(5, 3, 2)).astype(np.float32),
    "draws/b": RNG.normal(size=(5, 1)),
    "draws/half": RNG.normal(size=(5, 3)).astype(np.float16),
    "draws/scalar": np.arange(5, dtype=np.int64),
}
LAYOUT = {name: (array.shape, array.dtype) for name, array in TENSORS.items()}


def grown(path, room=256) -> GrowingFile:
    file = GrowingFile(path, LAYOUT, room)
    file.lay_out()
    for name, array in file.maps().items():
        array[...] = TENSORS[name]
        array.flush()  # pyright: ignore[reportAttributeAccessIssue]
    return file


def assert_equal(found: dict[str, np.ndarray]) -> None:
    assert found.keys() == TENSORS.keys()
    for name, array in found.items():
        assert array.dtype == TENSORS[name].dtype
        np.testing.assert_array_equal(array, TENSORS[name])


def test_a_growing_file_is_a_safetensors_file(tmp_path):
    path = tmp_path / "grown.safetensors"
    grown(path).write_header({"note": "whole", "text": "θ ≈ 1"})
    assert_equal(load_file(path))
    with safe_open(path, "numpy") as file:
        texts = {k: v for k, v in file.metadata().items() if k != "integrity"}
    assert texts == {"note": "whole", "text": "θ ≈ 1"}
    assert verify_tensors(path).checksums is not None
    assert_equal(read_tensors(path)[1])
    assert_equal(map_tensors(path))


def test_a_growing_file_is_not_one_before_its_header(tmp_path):
    path = tmp_path / "grown.safetensors"
    file = GrowingFile(path, LAYOUT, 256)
    assert not file.is_there
    file.lay_out()
    assert file.is_there
    assert path.stat().st_size == file.size
    with pytest.raises(TensorFileError, match=r"grown.safetensors is not a whole safetensors file"):
        read_tensors(path)


def test_the_header_can_be_written_again(tmp_path):
    path = tmp_path / "grown.safetensors"
    file = grown(path)
    file.write_header({"note": "a longer note than the next"})
    file.write_header({"note": "short"})
    assert read_tensor_header(path).metadata["note"] == "short"
    assert_equal(load_file(path))


def test_tensors_are_aligned(tmp_path):
    """Tensors that NumPy can use in place: the first at 64 bytes, each at its own width."""
    file = grown(tmp_path / "grown.safetensors", room=1)
    start = file.size - max(entry["data_offsets"][1] for entry in file.entries.values())
    assert (start - 8) % ALIGNMENT == 0
    for name, entry in file.entries.items():
        assert (start + entry["data_offsets"][0]) % TENSORS[name].dtype.itemsize == 0
    assert all(array.flags.aligned for array in file.maps().values())


def test_too_long_a_header_is_refused_and_changes_nothing(tmp_path):
    path = tmp_path / "grown.safetensors"
    file = grown(path)
    file.write_header({"note": "first"})
    before = path.read_bytes()
    with pytest.raises(TensorFileError, match=r"header of .*grown.* reserved.*shorten"):
        file.write_header({"note": "x" * 1000})
    assert path.read_bytes() == before


def test_a_file_for_other_tensors_is_refused(tmp_path):
    path = tmp_path / "grown.safetensors"
    grown(path)
    layout = {name: ((6, *shape[1:]), dtype) for name, (shape, dtype) in LAYOUT.items()}
    with pytest.raises(ValueError, match=r"grown.safetensors has room for another number"):
        _ = GrowingFile(path, layout, 256).is_there


def test_maps_equal_what_is_read(tmp_path):
    path = tmp_path / "written.safetensors"
    write_tensors(path, TENSORS, {"note": "n"})
    header, read = read_tensors(path)
    mapped = map_tensors(path)
    assert_equal(read)
    assert_equal(mapped)
    assert header.metadata["note"] == "n"
    assert header.checksums is not None
    assert header.checksums.keys() == TENSORS.keys()
    assert header.shapes == {name: array.shape for name, array in TENSORS.items()}
    assert all(isinstance(array, np.memmap) for array in mapped.values())
    with pytest.raises(ValueError, match="read-only"):
        mapped["draws/w"][0] = 1.0


def test_types_that_cannot_be_mapped_are_refused(tmp_path):
    path = tmp_path / "odd.safetensors"
    save_file({"w": np.ones(2, np.uint8)}, path)
    with pytest.raises(TensorFileError, match="'w' holds U8, which cannot be mapped; load it"):
        map_tensors(path)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_non_finite_tensors_are_neither_written_nor_read(tmp_path, bad):
    path = tmp_path / "bad.safetensors"
    tensors = {"fine": np.ones(3), "w": np.array([1.0, bad])}
    with pytest.raises(TensorFileError, match="'w' holds NaN or infinity"):
        write_tensors(path, tensors, {})
    assert not path.exists()
    save_file(tensors, path)
    with pytest.raises(TensorFileError, match="NaN or infinity in 'w'"):
        read_tensors(path)


def test_a_finite_array_whose_sum_overflows_is_written(tmp_path):
    path = tmp_path / "large.safetensors"
    large = np.full(4, 1e308)
    write_tensors(path, {"w": large}, {})
    np.testing.assert_array_equal(read_tensors(path)[1]["w"], large)


def test_json_entries(tmp_path):
    path = tmp_path / "written.safetensors"
    values = finite({"a": [1.0, float("nan")], "b": float("inf"), "c": "text"})
    assert values == {"a": [1.0, None], "b": None, "c": "text"}
    write_tensors(path, TENSORS, {"values": json.dumps(values), "broken": "{"})
    header = read_tensor_header(path)
    assert header.json("values") == values
    for name in ("broken", "absent"):
        with pytest.raises(TensorFileError, match=r"written.safetensors has a damaged header"):
            header.json(name)


def test_damage_to_mapped_numbers_is_found_on_request(tmp_path):
    path = tmp_path / "written.safetensors"
    write_tensors(path, TENSORS, {"note": "n"})
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)
    map_tensors(path)  # looks at no number
    with pytest.raises(TensorFileError, match=r"written.safetensors is damaged: the numbers of"):
        verify_tensors(path)
