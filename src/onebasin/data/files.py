"""Arrays and tables in files of one's own: .npz, .csv, .parquet, or a folder of .npy.

An archive or a folder holds x_train, y_train, x_test and y_test, or x and y, which are split later.
Of a table, all columns but the targets are features.
"""

import csv
import hashlib
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from onebasin.data.dataset import DataFileError

TABLES = (".csv", ".parquet")
SPLIT = ("x_train", "y_train", "x_test", "y_test")
WHOLE = ("x", "y")
NAMES_NEEDED = f"{', '.join(SPLIT)}, or {' and '.join(WHOLE)}"
MISSING = ("", "na", "nan", "null", "none", "?")  # cells of a table without a value


@dataclass(frozen=True)
class Arrays:
    """What a file holds: training and test examples, or examples that are not split yet."""

    path: Path
    parts: tuple[tuple[np.ndarray, np.ndarray], ...]
    """(x, y) of all examples, or of training and test."""
    digest: str
    columns: tuple[str, ...] = ()
    """The names of the features of a table."""

    @property
    def is_table(self) -> bool:
        return self.path.suffix.lower() in TABLES


def read_arrays(path: Path, *, target: Sequence[str] = (), drop: Sequence[str] = ()) -> Arrays:
    """The examples in a file or folder; `target` and `drop` name columns of a table."""
    suffix = path.suffix.lower()
    if not path.exists():
        raise DataFileError(f"there is no data file {path}; give the path of one that exists")
    if not path.is_dir() and suffix not in (".npz", *TABLES):
        raise DataFileError(
            f"{path} is not a data file; give .npz, .csv, .parquet or a folder of .npy"
        )
    if suffix in TABLES and not path.is_dir():
        if not target:
            raise DataFileError(f"{path} is a table; name the column to predict with target=")
        read = _read_csv if suffix == ".csv" else _read_parquet
        return _from_table(path, read(path), target, drop)
    if target or drop:
        raise DataFileError(f"{path} has no columns; target= and drop= are for .csv and .parquet")
    return _from_names(path, _read_folder(path) if path.is_dir() else _read_npz(path))


def _digest(*paths: Path) -> str:
    digest = hashlib.sha256()
    for path in paths:
        digest.update(path.read_bytes())
    return f"sha256:{digest.hexdigest()}"


def _read_npz(path: Path) -> dict[str, np.ndarray]:
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except (ValueError, EOFError, zipfile.BadZipFile, AttributeError) as error:
        raise DataFileError(
            f"{path} is not a whole .npz of plain arrays; write it with numpy.savez: {error}"
        ) from None


def _read_folder(path: Path) -> dict[str, np.ndarray]:
    found = {}
    for file in sorted(path.glob("*.npy")):
        try:
            found[file.stem] = np.load(file, allow_pickle=False)
        except (ValueError, EOFError) as error:
            raise DataFileError(
                f"{file} is not a whole .npy of plain numbers; write it with numpy.save: {error}"
            ) from None
    return found


def _from_names(path: Path, arrays: Mapping[str, np.ndarray]) -> Arrays:
    names = next((n for n in (SPLIT, WHOLE) if all(one in arrays for one in n)), None)
    if names is None:
        listed = ", ".join(sorted(arrays)) or "no arrays"
        raise DataFileError(f"{path} holds {listed}; it must hold {NAMES_NEEDED}")
    pairs = zip(names[::2], names[1::2], strict=True)
    parts = []
    for x_name, y_name in pairs:
        x, y = arrays[x_name], arrays[y_name]
        for name, array in ((x_name, x), (y_name, y)):
            if array.ndim < 1 or array.dtype.kind not in "biuf" + "US" * (name == y_name):
                raise DataFileError(
                    f"{name} of {path} has shape {array.shape} and type {array.dtype}; give one "
                    "number or array of numbers per example"
                )
        if len(x) != len(y):
            raise DataFileError(
                f"{path} has {len(x)} rows of {x_name} but {len(y)} of {y_name}; give one target "
                "per example"
            )
        if not len(x):
            raise DataFileError(f"{x_name} of {path} is empty; give at least one example")
        parts.append((x, y))
    files = [path / f"{name}.npy" for name in names] if path.is_dir() else [path]
    return Arrays(path, tuple(parts), _digest(*files))


def _read_csv(path: Path) -> dict[str, np.ndarray]:
    """The columns of a CSV with a header line, each as text."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            sample = file.read(4096)
            file.seek(0)
            delimiter = max(",;\t", key=sample.partition("\n")[0].count)
            rows = [row for row in csv.reader(file, delimiter=delimiter) if row]
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataFileError(f"{path} is not a CSV in UTF-8; save it as one: {error}") from None
    if len(rows) < 2:
        raise DataFileError(f"{path} holds no rows; give a header line and at least one row")
    header = [name.strip() for name in rows[0]]
    for number, row in enumerate(rows[1:], 2):
        if len(row) != len(header):
            raise DataFileError(
                f"{path} has {len(row)} cells in row {number} where the header has "
                f"{len(header)}; fill or remove the row"
            )
    _check_distinct(path, header)
    cells = np.array([[cell.strip() for cell in row] for row in rows[1:]])
    return dict(zip(header, cells.T, strict=True))


def _read_parquet(path: Path) -> dict[str, np.ndarray]:
    try:
        from pyarrow import ArrowException, parquet  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise ImportError(
            f"reading {path} needs pyarrow; install it with: pip install 'onebasin[parquet]'"
        ) from None
    try:
        table = parquet.read_table(path)
    except ArrowException as error:
        raise DataFileError(
            f"{path} is not a whole Parquet file; write it again: {error}"
        ) from None
    _check_distinct(path, table.column_names)
    for name in table.column_names:
        if table[name].null_count:
            raise DataFileError(f"column '{name}' of {path} has missing values; fill or drop them")
    return {name: np.asarray(table[name].to_numpy()) for name in table.column_names}


def _check_distinct(path: Path, names: Sequence[str]) -> None:
    twice = next((name for name in names if list(names).count(name) > 1), None)
    if twice is not None:
        raise DataFileError(f"{path} has two columns called '{twice}'; rename one")


def _from_table(
    path: Path, table: Mapping[str, np.ndarray], target: Sequence[str], drop: Sequence[str]
) -> Arrays:
    for name in (*target, *drop):
        if name not in table:
            raise DataFileError(f"{path} has no column '{name}'; it has {', '.join(table)}")
    columns = [name for name in table if name not in (*target, *drop)]
    if not columns:
        raise DataFileError(f"{path} has no column left to predict from; drop fewer")
    features = [_numbers(path, name, table[name], feature=True) for name in columns]
    x = np.stack([column.astype(np.float32) for column in features], axis=1)
    targets = [_numbers(path, name, table[name], feature=False) for name in target]
    if len(targets) > 1 and any(column.dtype.kind not in "iuf" for column in targets):
        raise DataFileError(
            f"{path}: several targets hold labels; give one column of labels, or several of numbers"
        )
    y = targets[0] if len(targets) == 1 else np.stack(targets, axis=1)
    return Arrays(path, ((x, y),), _digest(path), tuple(columns))


def _numbers(path: Path, name: str, column: np.ndarray, *, feature: bool) -> np.ndarray:
    """A column as numbers; a target may also hold labels in words."""
    if column.dtype.kind in "biuf":
        return column
    texts: Any = np.array([str(cell) for cell in column])
    for row, text in enumerate(texts):
        if text.lower() in MISSING:
            raise DataFileError(
                f"column '{name}' of {path} has no value in row {row + 1}; fill the gap or remove "
                "the row"
            )
    for kind in (np.int64, np.float64):
        try:
            return texts.astype(kind)
        except (ValueError, OverflowError):
            continue
    if feature:
        wrong = next(text for text in texts if not _is_number(text))
        raise DataFileError(
            f"column '{name}' of {path} holds words ('{wrong:.20}'); write numbers in their place, "
            f"or leave it out with drop=('{name}',)"
        )
    return texts


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
