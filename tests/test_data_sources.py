"""Where data sets are found, how they are limited, and how they are described."""

import hashlib
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from data_files import idx_bytes, tar_bytes, write_cifar10, write_mnist
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
from onebasin.data.examples import examples_of, training_examples

pytestmark = pytest.mark.usefixtures("no_data_folder")

# --- digits, limits and splits ---------------------------------------------------------------


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
    # Every fifth example of each class is for testing: a fifth, rounded down.
    np.testing.assert_array_equal(test, (train + test) // 5)
    # The two splits together are the data of scikit-learn.
    from sklearn.datasets import load_digits

    published, _ = load_digits(return_X_y=True)
    images = np.concatenate([data.train.x, data.test.x]).reshape(-1, 64) * 16
    assert sorted(map(tuple, images)) == sorted(map(tuple, published))


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
    with pytest.raises(ValueError, match=r"limit is .*; give a positive number"):
        load_dataset("digits", limit=limit)


@pytest.mark.fast
def test_a_limit_beyond_the_data_is_refused():
    with pytest.raises(ValueError, match="limit is 5000, but that split of digits has 1442"):
        load_dataset("digits", limit=5000)


@pytest.mark.fast
def test_unknown_name_lists_the_known_ones():
    with pytest.raises(ValueError, match=r"'minst'.*digits, pydoc, mnist, fashion-mnist"):
        load_dataset("minst")  # pyright: ignore[reportArgumentType]


@pytest.mark.fast
def test_splits_have_one_target_per_example():
    with pytest.raises(ValueError, match="as many examples of both"):
        Split(np.zeros((3, 2)), np.zeros(4))
    split = Split(np.zeros((3, 2)), np.zeros(3))
    data = Dataset("mine", split, split, 2)
    assert "3 train + 3 test examples of 2, 2 classes, from memory" in repr(data)


@pytest.mark.fast
@pytest.mark.parametrize("pair", [False, True])
def test_examples_of_a_split_or_a_pair(pair):
    split = Split(np.arange(6.0).reshape(3, 2), np.array([2, 0, 1]))
    x, y = examples_of((split.x.tolist(), [2, 0, 1]) if pair else split)
    assert isinstance(x, np.ndarray)
    np.testing.assert_array_equal(x, split.x)
    np.testing.assert_array_equal(y, split.y)


@pytest.mark.fast
def test_training_examples_of_a_data_set_a_split_or_a_pair():
    train = Split(np.arange(6.0).reshape(3, 2), np.array([2, 0, 1]))
    data = Dataset("mine", train, Split(train.x[:1], train.y[:1]), 3)
    for given in (data, train, (train.x, train.y)):
        x, y = training_examples(given)
        np.testing.assert_array_equal(x, train.x)
        np.testing.assert_array_equal(y, train.y)


@pytest.mark.fast
@pytest.mark.parametrize(
    ("take", "given", "says"),
    [
        (
            examples_of,
            load_dataset("digits"),
            r"data is a Dataset; .* \(pass its .train or .test\)",
        ),
        (examples_of, np.zeros((2, 2)), r"data is a ndarray; give a split .* or a pair \(x, y\)$"),
        (examples_of, (np.zeros(2),) * 3, "data is a tuple; give a split"),
        (examples_of, (np.zeros((3, 2)), np.zeros(2)), "give one target per example"),
        (examples_of, (np.zeros(()), np.zeros(())), "give one target per example"),
        (examples_of, (np.zeros((0, 2)), np.zeros(0)), "there are no examples; give at least one"),
        (training_examples, (np.zeros(3), np.zeros(3)), "needs a batch axis and at least one more"),
        (training_examples, ([[1.0], [np.inf]], [0, 1]), "x holds NaN or infinity; clean"),
    ],
)
def test_bad_examples_are_refused(take, given, says):
    with pytest.raises(ValueError, match=says):
        take(given)


# --- search order ----------------------------------------------------------------------------


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
    # A named folder without files of this data set does not hide the cache.
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
def test_files_of_another_data_set_are_refused(tmp_path, monkeypatch):
    write_mnist(tmp_path)
    digest = hashlib.md5((tmp_path / "t10k-labels-idx1-ubyte.gz").read_bytes()).hexdigest()
    fashion = SOURCES["fashion-mnist"]
    # Labels with the published checksum of Fashion-MNIST must not be read as those of MNIST.
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
    assert "data_batch_3.bin is not a whole number" in found["cifar10"].note
    assert "has 8 labels; download both again" in found["mnist"].note
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
        "pydoc": "embedded",
        "mnist": "cache",
        "fashion-mnist": "nowhere",
        "cifar10": "ONEBASIN_DATA",
        "cifar100": "nowhere",
    }


def test_describing_data_imports_nothing_heavy():
    code = (
        "import sys; from onebasin.data import describe, render; render(describe()); "
        "print([m for m in ('jax', 'flax', 'sklearn', 'scipy', 'matplotlib') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
