"""Data: the parsers against files written byte by byte, the search order, and real downloads."""

import gzip
import hashlib
import http.server
import io
import socket
import struct
import subprocess
import sys
import tarfile
import threading
from dataclasses import replace

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onebasin.data import (
    NAMES,
    SOURCES,
    DataFileError,
    Dataset,
    Download,
    Split,
    describe,
    load_dataset,
    render,
)
from onebasin.data.cifar import parse_records, read_members
from onebasin.data.idx import TYPES, read_idx, read_idx_header

PIXELS = 3 * 32 * 32


# --- files written by hand -------------------------------------------------------------------


def idx_bytes(array: np.ndarray, code: int) -> bytes:
    head = bytes([0, 0, code, array.ndim]) + b"".join(struct.pack(">I", n) for n in array.shape)
    return head + array.astype(TYPES[code]).tobytes()


def write_mnist(folder, train=7, test=3, *, zipped=True, seed=0):
    """A small but well-formed MNIST; returns the arrays that were written."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    arrays = {}
    for prefix, count in (("train", train), ("t10k", test)):
        arrays[f"{prefix}-images-idx3-ubyte"] = rng.integers(0, 256, (count, 28, 28), np.uint8)
        arrays[f"{prefix}-labels-idx1-ubyte"] = rng.integers(0, 10, count).astype(np.uint8)
    for name, array in arrays.items():
        data = idx_bytes(array, 0x08)
        if zipped:
            (folder / f"{name}.gz").write_bytes(gzip.compress(data, mtime=0))
        else:
            (folder / name).write_bytes(data)
    return arrays


def cifar_bytes(labels: list[list[int]], seed=0) -> bytes:
    """Records of label bytes followed by pixels."""
    rng = np.random.default_rng(seed)
    return b"".join(
        bytes(label) + rng.integers(0, 256, PIXELS, np.uint8).tobytes() for label in labels
    )


def write_cifar10(folder, seed=0):
    folder.mkdir(parents=True, exist_ok=True)
    for i, name in enumerate(SOURCES["cifar10"].files):
        (folder / name).write_bytes(cifar_bytes([[i], [9 - i]], seed + i))


def tar_bytes(files: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as tar:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return stream.getvalue()


@pytest.fixture(autouse=True)
def _no_folder_named(monkeypatch, request):
    """Tests name their folders themselves, except those on the real files."""
    if "real_data" not in request.fixturenames:
        monkeypatch.delenv("ONEBASIN_DATA", raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")


# --- IDX -------------------------------------------------------------------------------------


@pytest.mark.fast
def test_idx_bytes_mean_what_the_format_says(tmp_path):
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
        (GOOD[:-1], "cut short"),
        (GOOD + b"\0", "longer than its header"),
        (b"\0\0\x08\x03" + b"\xff" * 12, "cannot hold"),
        (gzip.compress(GOOD, mtime=0)[:-9], "not a whole gzip"),
        (gzip.compress(GOOD, mtime=0)[:12], "not a whole gzip"),
        (gzip.compress(GOOD, mtime=0)[:30] + b"\x55" * 10, "not a whole gzip"),
        (b"\x1f\x8b" + b"\xaa" * 50, "not a whole gzip"),
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
def test_each_mnist_has_its_own_folder(tmp_path):
    digits = write_mnist(tmp_path / "MNIST/raw", seed=1)
    fashion = write_mnist(tmp_path / "FashionMNIST/raw", seed=2)
    for name, arrays in (("mnist", digits), ("fashion-mnist", fashion)):
        y = load_dataset(name, root=tmp_path).train.y
        np.testing.assert_array_equal(y, arrays["train-labels-idx1-ubyte"])


@pytest.mark.fast
def test_a_broken_pair_names_the_files(tmp_path):
    write_mnist(tmp_path)
    labels = tmp_path / "train-labels-idx1-ubyte"
    (tmp_path / f"{labels.name}.gz").unlink()

    def load_with(array, code=0x08):
        labels.write_bytes(idx_bytes(np.asarray(array), code))
        load_dataset("mnist", root=tmp_path)

    with pytest.raises(DataFileError, match="do not pair up: 7 images and 6 labels"):
        load_with([0] * 6)
    with pytest.raises(DataFileError, match=r"train-labels.* has label 10 at record 6"):
        load_with([0] * 6 + [10])
    with pytest.raises(DataFileError, match=r"train-labels.*int32 values"):
        load_with([0] * 7, 0x0C)
    with pytest.raises(DataFileError, match=r"train-labels.*shape \(7, 1\)"):
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


@pytest.mark.fast
def test_cifar_records_byte_by_byte():
    pixels = bytes(range(256)) * 4 + bytes([7]) * 1024 + bytes([200]) * 1024
    images, labels = parse_records(
        bytes([3]) + pixels + bytes([9]) + bytes(PIXELS), "file", label_bytes=1, num_classes=10
    )
    assert images.shape == (2, 32, 32, 3)
    np.testing.assert_array_equal(labels, [3, 9])
    assert images[0, 0, 5, 0] == 5  # red, row 0, column 5
    assert images[0, 2, 3, 0] == 2 * 32 + 3
    assert (images[0, :, :, 1] == 7).all()
    assert (images[0, :, :, 2] == 200).all()
    assert not images[1].any()


@pytest.mark.fast
def test_cifar100_takes_the_fine_label():
    data = cifar_bytes([[4, 72], [19, 99]])
    _, labels = parse_records(data, "file", label_bytes=2, num_classes=100)
    np.testing.assert_array_equal(labels, [72, 99])


@pytest.mark.fast
@pytest.mark.parametrize(
    ("data", "label_bytes", "says"),
    [
        (b"", 1, "here.bin is empty"),
        (cifar_bytes([[0]])[:-1], 1, "here.bin has 3072 bytes.*no whole number"),
        (cifar_bytes([[0], [10]]), 1, "here.bin has label 10 at record 1"),
        (cifar_bytes([[0, 100]]), 2, "here.bin has label 100"),
        (cifar_bytes([[20, 5]]), 2, "here.bin .coarse labels. has label 20"),
    ],
)
def test_cifar_errors_name_the_file(data, label_bytes, says):
    with pytest.raises(DataFileError, match=says):
        parse_records(data, "here.bin", label_bytes=label_bytes, num_classes=10**label_bytes)


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
    # A member that would land outside the folder if it were extracted is simply not touched.
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
    with pytest.raises(DataFileError, match=r"cifar-100-binary.tar.gz is not a whole tar"):
        load_dataset("cifar100", root=tmp_path)
    path.write_bytes(b"<html>Not found</html>")
    with pytest.raises(DataFileError, match=r"cifar-100-binary.tar.gz is not a whole tar"):
        load_dataset("cifar100", root=tmp_path)
    path.write_bytes(tar_bytes({"train.bin": b""}))
    with pytest.raises(DataFileError, match=r"cifar-100-binary.tar.gz does not contain test.bin"):
        read_members(path, ("train.bin", "test.bin"))
    bad = {"train.bin": cifar_bytes([[1, 1]]), "test.bin": cifar_bytes([[1, 255]])}
    path.write_bytes(tar_bytes(bad))
    with pytest.raises(DataFileError, match=r"cifar-100-binary.tar.gz:test.bin has label 255"):
        load_dataset("cifar100", root=tmp_path)


# --- digits, limits, and the objects ---------------------------------------------------------


@pytest.mark.fast
def test_digits():
    data = load_dataset("digits")
    assert (len(data.train), len(data.test)) == data.available == (1442, 355)
    assert data.train.x.shape[1:] == (8, 8, 1)
    assert data.train.x.dtype == np.float32
    assert data.train.x.min() == 0
    assert data.train.x.max() == 1
    assert data.source == "embedded"
    assert data.note == ""
    train, test = np.bincount(data.train.y), np.bincount(data.test.y)
    # Every fifth of each class, so the share of test examples is a fifth, rounded down.
    np.testing.assert_array_equal(test, (train + test) // 5)
    # The two splits together are scikit-learn's set.
    from sklearn.datasets import load_digits

    images = np.concatenate([data.train.x, data.test.x]).reshape(-1, 64) * 16
    assert sorted(map(tuple, images)) == sorted(map(tuple, load_digits().data))


@pytest.mark.fast
def test_limit_takes_the_first_examples():
    whole = load_dataset("digits")
    some = load_dataset("digits", limit=100)
    np.testing.assert_array_equal(some.train.x, whole.train.x[:100])
    assert len(some.test) == len(whole.test)
    assert some.available == whole.available
    both = load_dataset("digits", limit=(50, 20))
    assert (len(both.train), len(both.test)) == (50, 20)
    assert len(load_dataset("digits", limit=(None, 5)).train) == 1442


@pytest.mark.fast
@pytest.mark.parametrize("limit", [0, -1, 1.5, True, (1, 2, 3), (0, 1), "10"])
def test_bad_limits(limit):
    with pytest.raises(ValueError, match="limit must be"):
        load_dataset("digits", limit=limit)


@pytest.mark.fast
def test_limit_beyond_what_is_there():
    with pytest.raises(ValueError, match="asks for 5000 examples, but that split of digits has"):
        load_dataset("digits", limit=5000)


@pytest.mark.fast
def test_unknown_name_lists_the_known_ones():
    with pytest.raises(ValueError, match=r"no data set 'minst'.*digits, mnist, fashion-mnist"):
        load_dataset("minst")


@pytest.mark.fast
def test_splits_pair_up():
    with pytest.raises(ValueError, match="same number of examples"):
        Split(np.zeros((3, 2)), np.zeros(4))
    split = Split(np.zeros((3, 2)), np.zeros(3))
    data = Dataset("mine", split, split, 2)
    assert "3 train + 3 test examples of 2, 2 classes, from memory" in repr(data)


# --- where files are looked for --------------------------------------------------------------


@pytest.mark.fast
def test_search_order(tmp_path, monkeypatch):
    places = {name: tmp_path / name for name in ("root", "named", "cache")}
    for seed, folder in enumerate(places.values()):
        write_mnist(folder / "MNIST/raw", seed=seed)
    monkeypatch.setenv("ONEBASIN_DATA", str(places["named"]))

    def source(**kwargs):
        return load_dataset("mnist", cache=places["cache"], **kwargs).source

    assert source(root=places["root"]).startswith(str(places["root"]))
    assert source().startswith(str(places["named"]))
    monkeypatch.delenv("ONEBASIN_DATA")
    assert source().startswith(str(places["cache"]))
    # A named folder that has nothing of this set does not hide the cache.
    monkeypatch.setenv("ONEBASIN_DATA", str(tmp_path / "root" / "MNIST"))
    write_cifar10(places["cache"])
    assert load_dataset("cifar10", cache=places["cache"]).source == str(places["cache"])


@pytest.mark.fast
def test_missing_files_are_named(tmp_path, monkeypatch):
    with pytest.raises(FileNotFoundError, match=r"has no files of cifar10. Put cifar-10-binary"):
        load_dataset("cifar10", root=tmp_path)
    with pytest.raises(FileNotFoundError, match=r"train-images-idx3-ubyte.gz.* into MNIST/raw"):
        load_dataset("mnist", root=tmp_path)
    write_mnist(tmp_path)
    (tmp_path / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(FileNotFoundError, match="lacks t10k-labels-idx1-ubyte of mnist"):
        load_dataset("mnist", root=tmp_path)
    monkeypatch.setenv("ONEBASIN_DATA", str(tmp_path))
    with pytest.raises(FileNotFoundError, match=r"ONEBASIN_DATA\) lacks t10k-labels"):
        load_dataset("mnist", cache=tmp_path / "cache")
    monkeypatch.setenv("ONEBASIN_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(FileNotFoundError, match=r"ONEBASIN_DATA names .*nowhere.*not a folder"):
        load_dataset("mnist")
    with pytest.raises(FileNotFoundError, match=r"root names .*nowhere.*not a folder"):
        load_dataset("mnist", root=tmp_path / "nowhere")


@pytest.mark.fast
def test_a_namesake_is_refused(tmp_path, monkeypatch):
    write_mnist(tmp_path)
    digest = hashlib.md5((tmp_path / "t10k-labels-idx1-ubyte.gz").read_bytes()).hexdigest()
    fashion = SOURCES["fashion-mnist"]
    # Had these labels been published as Fashion-MNIST's, they must not be read as MNIST's.
    monkeypatch.setitem(
        SOURCES, "fashion-mnist", replace(fashion, downloads=(Download("labels", digest, ()),))
    )
    with pytest.raises(DataFileError, match="belongs to fashion-mnist, not to mnist"):
        load_dataset("mnist", root=tmp_path)


# --- describe --------------------------------------------------------------------------------


@pytest.mark.fast
def test_describe(tmp_path):
    write_mnist(tmp_path / "MNIST/raw")
    write_cifar10(tmp_path)
    fashion = tmp_path / "FashionMNIST/raw"
    write_mnist(fashion)
    (fashion / "t10k-images-idx3-ubyte.gz").unlink()
    found = {one.name: one for one in describe(root=tmp_path)}
    assert tuple(found) == NAMES
    assert found["digits"].counts == (1442, 355)
    assert found["mnist"].counts == (7, 3)
    assert found["mnist"].folder == str(tmp_path / "MNIST/raw")
    assert "60000 + 10000 were published" in found["mnist"].note
    assert found["cifar10"].counts == (10, 2)
    assert found["fashion-mnist"].note == "lacks t10k-images-idx3-ubyte"
    assert found["cifar100"].place == "nowhere"
    lines = render(list(found.values())).splitlines()
    assert len(lines) == 2 + len(NAMES)
    assert lines[0].split() == ["data", "set", "found", "in", "train", "test", "folder", "note"]
    (tmp_path / "data_batch_3.bin").write_bytes(b"odd")
    (tmp_path / "MNIST/raw/train-labels-idx1-ubyte").write_bytes(idx_bytes(np.zeros(8), 8))
    (tmp_path / "cifar-100-binary.tar.gz").write_bytes(tar_bytes({}))
    found = {one.name: one for one in describe(root=tmp_path)}
    assert "data_batch_3.bin is no whole number" in found["cifar10"].note
    assert "do not pair up: 7 images and 8 labels" in found["mnist"].note
    assert found["cifar100"].note == "in cifar-100-binary.tar.gz"


@pytest.mark.fast
def test_describe_without_a_folder(tmp_path, monkeypatch):
    write_mnist(tmp_path / "cache/mnist")
    found = {one.name: one for one in describe(cache=tmp_path / "cache")}
    assert found["mnist"].place == "cache"
    assert found["cifar10"].note == "would be downloaded on first use"
    write_cifar10(tmp_path / "named")
    monkeypatch.setenv("ONEBASIN_DATA", str(tmp_path / "named"))
    assert {one.name: one.place for one in describe(cache=tmp_path / "cache")} == {
        "digits": "embedded",
        "mnist": "cache",
        "fashion-mnist": "nowhere",
        "cifar10": "ONEBASIN_DATA",
        "cifar100": "nowhere",
    }


def test_data_is_light():
    code = (
        "import sys; from onebasin.data import describe, render; render(describe()); "
        "print([m for m in ('jax', 'flax', 'sklearn', 'scipy', 'matplotlib') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


# --- downloads, against a server on this machine ---------------------------------------------


class Server:
    """An HTTP server over a dictionary of files; `requests` lists the paths that were asked for."""

    def __init__(self, files: dict[str, bytes], promise: int = 0):
        self.requests: list[str] = []
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                outer.requests.append(self.path)
                data = files.get(self.path)
                self.send_response(404 if data is None else 200)
                body = data or b"no such file"
                self.send_header("Content-Length", str(len(body) + promise))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *args):
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


def published_at(source, files: dict[str, bytes], *addresses: str):
    """`source` as if these were the published files, to be had at these addresses."""
    return replace(
        source,
        downloads=tuple(
            Download(name, hashlib.md5(data).hexdigest(), tuple(f"{a}/{name}" for a in addresses))
            for name, data in files.items()
        ),
    )


def files_in(folder):
    return sorted(p.name for p in folder.rglob("*") if p.is_file()) if folder.exists() else []


@pytest.fixture
def mnist_files(tmp_path):
    write_mnist(tmp_path / "published")
    order = [d.name for d in SOURCES["mnist"].downloads]
    return {name: (tmp_path / "published" / name).read_bytes() for name in order}


def test_download_then_cache(tmp_path, mnist_files):
    cache = tmp_path / "cache"
    with Server({f"/{name}": data for name, data in mnist_files.items()}) as server:
        source = published_at(SOURCES["mnist"], mnist_files, server.address)
        first = load_dataset(source, cache=cache)
        assert len(server.requests) == 4
        again = load_dataset(source, cache=cache)
        assert len(server.requests) == 4
    offline = load_dataset(source, cache=cache)
    for data in (again, offline):
        np.testing.assert_array_equal(data.train.x, first.train.x)
    assert files_in(cache) == sorted(mnist_files)
    assert first.available == (7, 3)


def test_download_continues_where_the_cache_is_incomplete(tmp_path, mnist_files):
    cache = tmp_path / "cache"
    with Server({f"/{name}": data for name, data in mnist_files.items()}) as server:
        source = published_at(SOURCES["mnist"], mnist_files, server.address)
        load_dataset(source, cache=cache)
        (cache / "MNIST/raw/t10k-images-idx3-ubyte.gz").unlink()
        load_dataset(source, cache=cache)
        assert server.requests[4:] == ["/t10k-images-idx3-ubyte.gz"]


def test_the_next_mirror_is_tried(tmp_path, mnist_files):
    good = {f"/{name}": data for name, data in mnist_files.items()}
    bad = {**good, "/train-images-idx3-ubyte.gz": b"something else"}
    bad.pop("/train-labels-idx1-ubyte.gz")
    with Server(bad) as first, Server(good) as second:
        source = published_at(SOURCES["mnist"], mnist_files, first.address, second.address)
        data = load_dataset(source, cache=tmp_path / "cache")
    assert second.requests == ["/train-images-idx3-ubyte.gz", "/train-labels-idx1-ubyte.gz"]
    assert data.available == (7, 3)


def test_a_wrong_checksum_leaves_nothing(tmp_path, mnist_files):
    cache = tmp_path / "cache"
    tampered = {f"/{name}": data + b"\0" for name, data in mnist_files.items()}
    with Server(tampered) as server:
        source = published_at(SOURCES["mnist"], mnist_files, server.address)
        with pytest.raises(DataFileError, match=r"train-images.*checksum is wrong") as caught:
            load_dataset(source, cache=cache)
    assert server.address in str(caught.value)
    assert "ONEBASIN_DATA" in str(caught.value)
    assert files_in(cache) == []


def test_an_interrupted_download_leaves_nothing(tmp_path, mnist_files):
    cache = tmp_path / "cache"
    files = {f"/{name}": data for name, data in mnist_files.items()}
    with Server(files, promise=10) as server:
        source = published_at(SOURCES["mnist"], mnist_files, server.address)
        with pytest.raises(FileNotFoundError, match="could not be downloaded"):
            load_dataset(source, cache=cache)
    assert files_in(cache) == []


def test_cifar_archive_is_downloaded_and_kept_whole(tmp_path):
    archive = tar_bytes(
        {
            "cifar-100-binary/train.bin": cifar_bytes([[0, 42], [1, 7]]),
            "cifar-100-binary/test.bin": cifar_bytes([[19, 99]]),
        }
    )
    files = {"cifar-100-binary.tar.gz": archive}
    cache = tmp_path / "cache"
    with Server({"/cifar-100-binary.tar.gz": archive}) as server:
        source = published_at(SOURCES["cifar100"], files, server.address)
        load_dataset(source, cache=cache)
        data = load_dataset(source, cache=cache)
        assert len(server.requests) == 1
    np.testing.assert_array_equal(data.train.y, [42, 7])
    np.testing.assert_array_equal(data.test.y, [99])
    assert files_in(cache) == ["cifar-100-binary.tar.gz"]


def test_no_network_and_no_folder(tmp_path, mnist_files):
    with socket.socket() as unused:  # a port that nobody listens on
        unused.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{unused.getsockname()[1]}"
        source = published_at(SOURCES["mnist"], mnist_files, address)
        with pytest.raises(FileNotFoundError) as caught:
            load_dataset(source, cache=tmp_path / "cache")
    message = str(caught.value)
    for name in mnist_files:
        assert name in message
    for word in ("root=", "ONEBASIN_DATA", str(tmp_path / "cache/MNIST/raw")):
        assert word in message


@pytest.mark.fast
def test_published_checksums_are_distinct_md5s():
    downloads = [d for source in SOURCES.values() for d in source.downloads]
    assert len({d.md5 for d in downloads}) == len(downloads) == 10
    for download in downloads:
        assert len(download.md5) == 32
        int(download.md5, 16)
        assert len(download.urls) >= 2
        assert all(url.endswith(download.name) for url in download.urls)


# --- the real files --------------------------------------------------------------------------


def assert_images(data, shape):
    for split in (data.train, data.test):
        assert split.x.shape == (len(split.y), *shape)
        assert split.x.dtype == np.float32
        assert split.x.min() == 0
        assert split.x.max() == 1
        assert split.y.dtype == np.int32
        assert np.unique(split.y).tolist() == list(range(data.num_classes))


@pytest.mark.real_data
def test_real_mnist(real_data):
    data = load_dataset("mnist")
    assert data.source.startswith(str(real_data))
    assert_images(data, (28, 28, 1))
    assert data.available == data.published
    assert data.note == ""
    assert data.train.y[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
    assert data.test.y[:10].tolist() == [7, 2, 1, 0, 4, 1, 4, 9, 5, 9]
    # The class counts and mean intensity that the literature gives for MNIST.
    assert np.bincount(data.train.y).tolist() == [
        5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949,
    ]  # fmt: skip
    assert np.bincount(data.test.y).tolist() == [
        980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009,
    ]  # fmt: skip
    assert abs(data.train.x.mean(dtype=np.float64) - 0.1307) < 5e-5


@pytest.mark.real_data
def test_real_fashion_mnist(real_data):
    data = load_dataset("fashion-mnist", root=real_data)
    assert_images(data, (28, 28, 1))
    assert np.bincount(data.train.y).tolist() == [6000] * 10
    assert np.bincount(data.test.y).tolist() == [1000] * 10
    # All 70,000 images whatever their order: the known mean intensity of the training set.
    assert abs(data.train.x.mean(dtype=np.float64) - 0.2860) < 2e-3


@pytest.mark.real_data
def test_real_cifar10(real_data):
    data = load_dataset("cifar10", root=real_data)
    assert_images(data, (32, 32, 3))
    assert np.bincount(data.train.y).tolist() == [5000] * 10
    assert np.bincount(data.test.y).tolist() == [1000] * 10
    # The channel means that everybody normalises by: they fail if channels or planes are mixed up.
    means = data.train.x.mean(axis=(0, 1, 2), dtype=np.float64)
    np.testing.assert_allclose(means, [0.4914, 0.4822, 0.4465], atol=5e-5)


@pytest.mark.real_data
def test_real_cifar100(real_data):
    data = load_dataset("cifar100", root=real_data, limit=(5000, 1000))
    assert data.train.x.shape == (5000, 32, 32, 3)
    assert len(data.test) == 1000
    assert data.num_classes == 100
    assert data.train.y.max() <= 99
    if data.available != data.published:
        assert "50000 + 10000 were published" in data.note


@pytest.mark.real_data
def test_real_folder_is_described(real_data):
    counts = {one.name: one.counts for one in describe(root=real_data)}
    assert counts["mnist"] == (60_000, 10_000)
    assert counts["cifar10"] == (50_000, 10_000)
