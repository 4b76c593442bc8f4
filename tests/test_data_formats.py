"""The parsers of data files, against files written byte by byte."""

import gzip
import io

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_files import PIXELS, cifar_bytes, idx_bytes, tar_bytes, write_cifar10, write_mnist
from onebasin.choices import DataName
from onebasin.data import DataFileError, load_dataset, pixels
from onebasin.data.cifar import count_records, member_sizes, read_records
from onebasin.data.idx import TYPES, read_idx, read_idx_header

pytestmark = pytest.mark.usefixtures("no_data_folder")

# --- IDX -------------------------------------------------------------------------------------


@pytest.mark.fast
def test_an_idx_file_written_by_hand(tmp_path):
    path = tmp_path / "a"
    # int16, two dimensions 2×3, big-endian: 1, 2, 3, 256, −1, −2
    path.write_bytes(
        bytes.fromhex("0000 0b02 00000002 00000003 0001 0002 0003 0100 ffff fffe".replace(" ", ""))
    )
    array = read_idx(path)
    assert array.dtype == np.int16
    np.testing.assert_array_equal(array, [[1, 2, 3], [256, -1, -2]])
    assert read_idx_header(path) == (np.dtype(">i2"), (2, 3))


@settings(max_examples=60, deadline=None)
@given(data=st.data(), code=st.sampled_from(sorted(TYPES)), zipped=st.booleans())
def test_idx_round_trip(tmp_path_factory, data, code, zipped):
    native = TYPES[code].newbyteorder("=")
    array = data.draw(hnp.arrays(native, hnp.array_shapes(min_dims=0, max_dims=4, min_side=0)))
    path = tmp_path_factory.mktemp("idx") / "array"
    raw = idx_bytes(array, code)
    path.write_bytes(gzip.compress(raw, mtime=0) if zipped else raw)
    again = read_idx(path)
    assert again.dtype == native
    assert again.shape == array.shape
    np.testing.assert_array_equal(again, array)


GOOD = idx_bytes(np.zeros((2, 28, 28)), 0x08)


@pytest.mark.fast
@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "not an IDX file"),
        (b"\0\0\x08", "not an IDX file"),
        (b"\x80\x02}q" + b"\0" * 100, "not an IDX file"),
        (b"\0\0\x07\x01\0\0\0\x01\0", "type code 0x07"),
        (GOOD[:10], "inside its IDX header"),
        (GOOD[:-1], "is truncated: its header promises 1568"),
        (GOOD + b"\0", "is too long: its header promises 1568"),
        (b"\0\0\x08\x03" + b"\xff" * 12, "cannot hold"),
        (gzip.compress(GOOD, mtime=0)[:-9], "not a complete gzip"),
        (gzip.compress(GOOD, mtime=0)[:12], "not a complete gzip"),
        (gzip.compress(GOOD, mtime=0)[:30] + b"\x55" * 10, "not a complete gzip"),
        (b"\x1f\x8b" + b"\xaa" * 50, "not a complete gzip"),
    ],
)
def test_idx_errors_name_the_file(tmp_path, data, says):
    path = tmp_path / "train-images-idx3-ubyte"
    path.write_bytes(data)
    with pytest.raises(DataFileError, match=says) as caught:
        read_idx(path)
    assert str(path) in str(caught.value)


# --- MNIST from a folder ---------------------------------------------------------------------


@pytest.mark.fast
@pytest.mark.parametrize("place", ["MNIST/raw", "MNIST", "mnist", "mnist/raw", "."])
@pytest.mark.parametrize("zipped", [True, False])
def test_mnist_layouts(tmp_path, place, zipped):
    arrays = write_mnist(tmp_path / place, zipped=zipped)
    data = load_dataset("mnist", root=tmp_path)
    assert (data.name, data.num_classes) == ("mnist", 10)
    assert data.source == str(tmp_path / place)
    assert data.train.x.shape == (7, 28, 28, 1)
    assert data.train.x.dtype == np.float32
    assert data.train.y.dtype == np.int32
    np.testing.assert_array_equal(
        data.train.x[..., 0] * np.float32(255), arrays["train-images-idx3-ubyte"]
    )
    np.testing.assert_array_equal(data.test.y, arrays["t10k-labels-idx1-ubyte"])
    assert data.available == (7, 3)
    assert data.published == (60_000, 10_000)
    assert "hold 7 + 3" in data.note
    assert "hold 7 + 3" in repr(data)


@pytest.mark.fast
@pytest.mark.parametrize("block", [1, 3000, 1 << 20])
def test_pixels_do_not_depend_on_the_blocks_they_are_read_in(tmp_path, monkeypatch, block):
    """Fractions of 255 in single precision, the same with a limit, from files and archives."""
    monkeypatch.setattr(pixels, "BLOCK", block)
    arrays = write_mnist(tmp_path / "mnist")
    write_cifar10(tmp_path / "cifar10")
    files = {p.name: p.read_bytes() for p in sorted((tmp_path / "cifar10").iterdir())}
    packed = dict(reversed(files.items()))  # in another order
    (tmp_path / "archive").mkdir()
    (tmp_path / "archive" / "cifar-10-binary.tar.gz").write_bytes(tar_bytes(packed))
    records = np.stack([np.frombuffer(files[f"data_batch_{i}.bin"], np.uint8) for i in range(1, 6)])
    planes = records.reshape(10, 1 + PIXELS)[:, 1:].reshape(10, 3, 32, 32)
    whole: dict[DataName, np.ndarray] = {
        "mnist": arrays["train-images-idx3-ubyte"][..., None],
        "cifar10": planes.transpose(0, 2, 3, 1),
    }
    for name, bytes_ in whole.items():
        expected = bytes_.astype(np.float32) / np.float32(255)
        for folder in ("mnist",) if name == "mnist" else ("cifar10", "archive"):
            for limit in (None, 5):
                data = load_dataset(name, root=tmp_path / folder, limit=limit)
                np.testing.assert_array_equal(data.train.x, expected[:limit])
                assert len(data.train.y) == len(data.train.x)
                assert data.available == (len(expected), len(data.test))


@pytest.mark.fast
def test_labels_beyond_the_limit_are_checked(tmp_path):
    write_cifar10(tmp_path)
    (tmp_path / "data_batch_5.bin").write_bytes(cifar_bytes([[1], [10]]))
    with pytest.raises(DataFileError, match=r"data_batch_5.bin has label 10 at record 1"):
        load_dataset("cifar10", root=tmp_path, limit=3)


@pytest.mark.fast
def test_each_mnist_has_its_own_folder(tmp_path):
    digits = write_mnist(tmp_path / "MNIST/raw", seed=1)
    fashion = write_mnist(tmp_path / "FashionMNIST/raw", seed=2)
    for data, arrays in (
        (load_dataset("mnist", root=tmp_path), digits),
        (load_dataset("fashion-mnist", root=tmp_path), fashion),
    ):
        np.testing.assert_array_equal(data.train.y, arrays["train-labels-idx1-ubyte"])


@pytest.mark.fast
def test_a_broken_pair_names_the_files(tmp_path):
    write_mnist(tmp_path)
    labels = tmp_path / "train-labels-idx1-ubyte"
    (tmp_path / f"{labels.name}.gz").unlink()

    def load_with(array, code=0x08):
        labels.write_bytes(idx_bytes(np.asarray(array), code))
        load_dataset("mnist", root=tmp_path)

    with pytest.raises(DataFileError, match=r"has 7 images but .* has 6 labels"):
        load_with([0] * 6)
    with pytest.raises(DataFileError, match=r"train-labels.* has label 10 at record 6"):
        load_with([0] * 6 + [10])
    with pytest.raises(DataFileError, match=r"train-labels.*int32 values"):
        load_with([0] * 7, 0x0C)
    with pytest.raises(DataFileError, match=r"train-labels.* has shape \(7, 1\) instead of n"):
        load_with([[0]] * 7)


@pytest.mark.fast
def test_wrong_image_shape_and_no_images(tmp_path):
    write_mnist(tmp_path)
    images = tmp_path / "t10k-images-idx3-ubyte"
    images.write_bytes(idx_bytes(np.zeros((3, 8, 8)), 0x08))
    with pytest.raises(DataFileError, match=r"t10k-images.*n × 28 × 28"):
        load_dataset("mnist", root=tmp_path)
    images.write_bytes(idx_bytes(np.zeros((0, 28, 28)), 0x08))
    (tmp_path / "t10k-labels-idx1-ubyte").write_bytes(idx_bytes(np.zeros(0), 0x08))
    with pytest.raises(DataFileError, match=r"t10k-images.*no images"):
        load_dataset("mnist", root=tmp_path)


# --- CIFAR -----------------------------------------------------------------------------------


def parsed(data, where, label_bytes, kept=2):
    """The pixels of the first records, as bytes again, and all labels."""
    count = count_records(len(data), where, label_bytes=label_bytes)
    images = np.zeros((min(kept, count), 32, 32, 3), np.float32)
    given = {"label_bytes": label_bytes, "num_classes": 10**label_bytes}
    labels = read_records(io.BytesIO(data), count, where, images, **given)
    return images * np.float32(255), labels


@pytest.mark.fast
def test_cifar_records_byte_by_byte():
    pixels = bytes(range(256)) * 4 + bytes([7]) * 1024 + bytes([200]) * 1024
    images, labels = parsed(bytes([3]) + pixels + bytes([9]) + bytes(PIXELS), "file", 1)
    np.testing.assert_array_equal(labels, [3, 9])
    assert images[0, 0, 5, 0] == 5  # red, row 0, column 5
    assert images[0, 2, 3, 0] == 2 * 32 + 3
    assert (images[0, :, :, 1] == 7).all()
    assert (images[0, :, :, 2] == 200).all()
    assert not images[1].any()


@pytest.mark.fast
def test_cifar100_takes_the_fine_label():
    data = cifar_bytes([[4, 72], [19, 99]])
    _, labels = parsed(data, "file", 2)
    np.testing.assert_array_equal(labels, [72, 99])


@pytest.mark.fast
@pytest.mark.parametrize(
    ("data", "label_bytes", "says"),
    [
        (b"", 1, "here.bin is empty"),
        (cifar_bytes([[0]])[:-1], 1, "here.bin has 3072 bytes.*not a whole number"),
        (cifar_bytes([[0], [10]]), 1, "here.bin has label 10 at record 1"),
        (cifar_bytes([[0, 100]]), 2, "here.bin has label 100"),
        (cifar_bytes([[20, 5]]), 2, "here.bin .coarse labels. has label 20"),
    ],
)
def test_cifar_errors_name_the_file(data, label_bytes, says):
    with pytest.raises(DataFileError, match=says):
        parsed(data, "here.bin", label_bytes)


@pytest.mark.fast
@pytest.mark.parametrize("place", ["cifar-10-batches-bin", "cifar10", "."])
def test_cifar10_layouts(tmp_path, place):
    write_cifar10(tmp_path / place)
    data = load_dataset("cifar10", root=tmp_path)
    np.testing.assert_array_equal(data.train.y, [0, 9, 1, 8, 2, 7, 3, 6, 4, 5])
    np.testing.assert_array_equal(data.test.y, [5, 4])
    assert data.train.x.shape == (10, 32, 32, 3)
    assert data.train.x.flags.c_contiguous


@pytest.mark.fast
def test_cifar_archive_is_read_without_unpacking(tmp_path):
    loose = tmp_path / "loose"
    write_cifar10(loose)
    folder = tmp_path / "zipped"
    folder.mkdir()
    files = {f"cifar-10-batches-bin/{p.name}": p.read_bytes() for p in loose.iterdir()}
    # A member that would be extracted outside the folder is ignored.
    files = {"../escaped.bin": b"x", "cifar-10-batches-bin/readme.html": b"hello", **files}
    (folder / "cifar-10-binary.tar.gz").write_bytes(tar_bytes(files))
    one, other = load_dataset("cifar10", root=folder), load_dataset("cifar10", root=loose)
    np.testing.assert_array_equal(one.train.x, other.train.x)
    np.testing.assert_array_equal(one.test.y, other.test.y)
    assert sorted(p.name for p in tmp_path.rglob("*") if p.is_file() and p.parent != loose) == [
        "cifar-10-binary.tar.gz"
    ]


@pytest.mark.fast
def test_bad_archives_name_the_file(tmp_path):
    path = tmp_path / "cifar-100-binary.tar.gz"
    whole = tar_bytes({"train.bin": cifar_bytes([[1, 1]] * 3), "test.bin": cifar_bytes([[1, 1]])})
    path.write_bytes(whole[:-2000])
    with pytest.raises(DataFileError, match=r"cifar-100-binary.tar.gz is not a complete tar"):
        load_dataset("cifar100", root=tmp_path)
    path.write_bytes(b"<html>Not found</html>")
    with pytest.raises(DataFileError, match=r"cifar-100-binary.tar.gz is not a complete tar"):
        load_dataset("cifar100", root=tmp_path)
    path.write_bytes(tar_bytes({"train.bin": b""}))
    with pytest.raises(DataFileError, match=r"cifar-100-binary.tar.gz does not contain test.bin"):
        member_sizes(path, ("train.bin", "test.bin"))
    bad = {"train.bin": cifar_bytes([[1, 1]]), "test.bin": cifar_bytes([[1, 255]])}
    path.write_bytes(tar_bytes(bad))
    with pytest.raises(DataFileError, match=r"cifar-100-binary.tar.gz:test.bin has label 255"):
        load_dataset("cifar100", root=tmp_path)
