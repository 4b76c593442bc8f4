"""Data of one's own as a `Dataset`: split, labelled and standardised, with a record of all that.

The record goes into the files of posteriors fitted to the data. With it, the same examples are test
examples ever after, and new data are standardised by the numbers of the training examples.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from onebasin.choices import LikelihoodName, Standardise, check_choice
from onebasin.data.dataset import DataFileError, Dataset, Split
from onebasin.data.files import Arrays, read_arrays

SEED = 0  # of the split: the same examples are test examples in every fit
TEST_SHARE = 0.2
CLASSIFYING = ("categorical", "bernoulli")  # targets of these are labels


def read_dataset(
    path: str | Path,
    *,
    target: str | Sequence[str] = (),
    drop: Sequence[str] = (),
    test_share: float | None = None,
    standardise: Standardise = "auto",
    likelihood: LikelihoodName | None = None,
    limit: int | None = None,
    record: Mapping[str, Any] | None = None,
) -> Dataset:
    """Read data of your own from .npz, .csv, .parquet or a folder of .npy.

    An archive or a folder holds x_train, y_train, x_test and y_test, or x and y. Of a table, all
    columns but the target are features.

    Args:
      path: the file or folder.
      target: the column to predict, or several.
      drop: columns that are no features.
      test_share: the share of the examples kept for testing, chosen at random once and for all;
        0.2 by default. Files with a test split of their own take none.
      standardise: subtract the mean of the training examples and divide by their standard
        deviation: "features", "both" features and real targets, or "none". "auto" is both for
        tables, none for arrays.
      likelihood: what the targets are: labels for "categorical" and "bernoulli", else numbers. By
        default words, and whole numbers in arrays, are labels, and fractions numbers.
      limit: keep only the first training examples.
      record: the `record` of the data a posterior was fitted to. Labels and standardisation follow
        it, as does whatever is not given here.

    >>> import tempfile, numpy as np, onebasin as ob
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.savez(f"{folder}/points.npz", x=np.ones((10, 3)), y=np.arange(10) % 2)
    ...     ob.read_dataset(f"{folder}/points.npz").train
    Split(8 examples of shape (3,))
    """
    known = dict(record or {})
    path = Path(path)
    names = (target,) if isinstance(target, str) else tuple(target)
    check_choice(standardise, Standardise, "way to standardise")
    arrays = read_arrays(
        path, target=names or known.get("target", ()), drop=drop or known.get("drop", ())
    )
    likelihood = likelihood or known.get("likelihood")
    share = known.get("test_share") if test_share is None else test_share
    (x, y), (test_x, test_y) = _split(arrays, share)
    labels = _labels(path, arrays, likelihood, known)
    is_split = len(arrays.parts) == 2
    arrays = replace(arrays, parts=())  # copied by now, unless they came split
    if labels is not None:
        y, test_y = (_numbered(path, part, labels) for part in (y, test_y))
    else:
        y, test_y = (_real(part) for part in (y, test_y))
    x, test_x = (_real(part) for part in (x, test_x))
    _check_finite(path, x, y, test_x, test_y)
    if limit is not None and not 0 < limit <= len(x):
        raise ValueError(
            f"limit is {limit}; {path} has {len(x):,} training examples, so give 1 to {len(x)}"
        )
    x, y = x[:limit], y[:limit]
    scaling = known.get("scaling")
    if scaling is None:
        scaling = _scaling(x, None if labels is not None else y, standardise, arrays.is_table)
    x, test_x = (_scaled(part, scaling.get("x"), path) for part in (x, test_x))
    if labels is None:
        y, test_y = (_scaled(part, scaling.get("y"), path) for part in (y, test_y))
    _check_finite(path, x, y, test_x, test_y)
    made = {
        "name": str(path),
        "digest": arrays.digest,
        "target": list(names or known.get("target", ())),
        "drop": list(drop or known.get("drop", ())),
        "columns": list(arrays.columns),
        "test_share": share if is_split or share is not None else TEST_SHARE,
        "likelihood": likelihood,
        "labels": labels,
        "scaling": scaling,
    }
    if likelihood == "bernoulli" and labels is not None and len(labels) != 2:
        raise DataFileError(
            f"the targets in {path} have {len(labels)} labels; likelihood='bernoulli' takes two"
        )
    classes = None if labels is None else len(labels)
    counts = (len(x), len(test_x))
    folder = str(path.parent)
    return Dataset(
        path.name, Split(x, y), Split(test_x, test_y), classes, folder, counts, record=made
    )


def _split(
    arrays: Arrays, share: float | None
) -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Training and test examples."""
    if len(arrays.parts) == 2:
        if share is not None:
            raise DataFileError(f"{arrays.path} has a test split of its own; drop test_share=")
        return arrays.parts[0], arrays.parts[1]
    share = TEST_SHARE if share is None else share
    ((x, y),) = arrays.parts
    if not 0 < share < 1:
        raise ValueError(f"test_share is {share}; give a share between 0 and 1")
    count = round(share * len(x))
    if not 0 < count < len(x):
        raise DataFileError(
            f"{arrays.path} holds {len(x)} examples, of which test_share={share} keeps {count} for "
            "testing; training and testing need at least one each"
        )
    order = np.random.default_rng(SEED).permutation(len(x))
    # In the order of the file: the first rows stay first.
    test, train = np.sort(order[:count]), np.sort(order[count:])
    return (x[train], y[train]), (x[test], y[test])


def _labels(
    path: Path, arrays: Arrays, likelihood: str | None, known: Mapping[str, Any]
) -> list[Any] | None:
    """The labels in the order of their classes; None for real targets."""
    if "labels" in known:
        return known["labels"]
    ys = [y for _, y in arrays.parts]
    kind = ys[0].dtype.kind
    words = kind in "USb"
    if likelihood is None and not words:
        if kind == "f":
            return None
        if arrays.is_table:
            raise DataFileError(
                f"the targets in {path} are whole numbers, which may be labels or amounts; say "
                "likelihood='categorical', or for amounts likelihood='gaussian' or "
                "likelihood='poisson'"
            )
        likelihood = "categorical"
    if likelihood is not None and likelihood not in CLASSIFYING:
        if words:
            raise DataFileError(
                f"the targets in {path} are words, not numbers; take likelihood='categorical'"
            )
        return None
    if kind == "f" and any((y % 1 != 0).any() for y in ys):
        raise DataFileError(
            f"the targets in {path} are fractions, not labels; take likelihood='gaussian'"
        )
    if ys[0].ndim != 1:
        raise DataFileError(f"the labels in {path} have shape {ys[0].shape}; give one per example")
    found = np.unique(np.concatenate(ys))
    if kind in "iuf" and found[0] >= 0 and found[-1] < 10_000 and not arrays.is_table:
        return list(range(int(found[-1]) + 1))  # the labels are the classes themselves
    if kind in "iuf":
        return [int(label) for label in found]
    return [str(label) for label in found]


def _numbered(path: Path, y: np.ndarray, labels: Sequence[Any]) -> np.ndarray:
    """The class of every label."""
    index = {label: number for number, label in enumerate(labels)}
    cells: Any = y.astype(np.int64).tolist() if y.dtype.kind in "iuf" else map(str, y.tolist())
    found = [index.get(cell, -1) for cell in cells]
    if -1 in found:
        raise DataFileError(
            f"{path} holds the label {y[found.index(-1)]!s:.20}, unlike the data of the fit; "
            f"its classes are {', '.join(map(str, labels[:10]))}"
        )
    return np.array(found, np.int32)


def _real(values: np.ndarray) -> np.ndarray:
    """Floating-point numbers; bytes, as pixels have them, become fractions of 255."""
    if values.dtype == np.uint8:
        return values.astype(np.float32) / np.float32(255)
    with np.errstate(over="ignore"):  # numbers that are too large are refused later
        return values.astype(np.float32)


def _check_finite(path: Path, *parts: np.ndarray) -> None:
    if not all(np.isfinite(part).all() for part in parts):
        raise DataFileError(
            f"{path} holds NaN, infinity, or numbers too large for single precision; remove "
            "or rescale them"
        )


def _scaling(
    x: np.ndarray, y: np.ndarray | None, how: Standardise, is_table: bool
) -> dict[str, Any]:
    """Mean and standard deviation of the training examples, by column."""
    how = ("both" if is_table else "none") if how == "auto" else how
    found = {}
    if how != "none":
        found["x"] = _mean_and_std(x)
    if how == "both" and y is not None:
        found["y"] = _mean_and_std(y)
    return found


def _mean_and_std(values: np.ndarray) -> dict[str, list[float]]:
    """Over all axes but the last one, of columns or channels; of a vector one number each."""
    rows = np.asarray(values, np.float64).reshape(-1, values.shape[-1] if values.ndim > 1 else 1)
    mean, std = rows.mean(0), rows.std(0)
    # A column that never changes stays zero.
    return {"mean": mean.tolist(), "std": np.where(std > 0, std, 1.0).tolist()}


def _scaled(values: np.ndarray, by: Mapping[str, Any] | None, path: Path) -> np.ndarray:
    if by is None:
        return values
    mean, std = np.array(by["mean"]), np.array(by["std"])
    width = values.shape[-1] if values.ndim > 1 else 1
    if width != len(mean):
        raise DataFileError(
            f"{path} has {width} columns where the data of the fit had {len(mean)}; give the same "
            "columns"
        )
    with np.errstate(over="ignore", invalid="ignore"):
        scaled = values - mean
        scaled /= std
        return scaled.astype(np.float32)
