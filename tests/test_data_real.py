"""The published data files."""

import numpy as np
import pytest

from onebasin.data import describe, load_dataset


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
    # The class counts and mean intensity of MNIST in the literature.
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
    # The known mean intensity of the training set, whatever its order.
    assert abs(data.train.x.mean(dtype=np.float64) - 0.2860) < 2e-3


@pytest.mark.real_data
def test_real_cifar10(real_data):
    data = load_dataset("cifar10", root=real_data)
    assert_images(data, (32, 32, 3))
    assert np.bincount(data.train.y).tolist() == [5000] * 10
    assert np.bincount(data.test.y).tolist() == [1000] * 10
    # The usual channel means for normalisation: they fail if channels or planes are mixed up.
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
