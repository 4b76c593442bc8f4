"""The 1,797 handwritten digits of 8×8 pixels that come with scikit-learn."""

import numpy as np

from onebasin.data.dataset import Dataset, Split

NUM_CLASSES = 10
COUNTS = (1442, 355)
_EVERY = 5


def load_digits() -> Dataset:
    """Pixels scaled from 0..16 to [0, 1]; every fifth example of each class is a test example.

    The split uses no random numbers, so it is the same on every machine.
    """
    from sklearn import datasets

    images, labels = datasets.load_digits(return_X_y=True)
    x = (np.asarray(images).reshape(-1, 8, 8, 1) / 16).astype(np.float32)
    y = np.asarray(labels, np.int32)
    test = np.zeros(len(y), bool)
    for label in range(NUM_CLASSES):
        test[np.flatnonzero(y == label)[_EVERY - 1 :: _EVERY]] = True
    train = Split(x[~test], y[~test])
    held_out = Split(x[test], y[test])
    return Dataset("digits", train, held_out, NUM_CLASSES, "embedded", COUNTS)
