"""Arrays and tables in files of one's own: .npz, .csv, .parquet, or a folder of .npy.

An archive or a folder holds x_train, y_train, x_test and y_test, or x and y, which are split later.
Of a table, all columns but the targets are features.
"""

import csv
import hashlib
import itertools
import math
import sys
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tokenize import TokenError
from typing import IO

import numpy as np
from numpy.lib import format as npy

from onebasin.data.dataset import DataFileError
from onebasin.regular_files import check_regular

TABLES = (".csv", ".parquet")
SPLIT = ("x_train", "y_train", "x_test", "y_test")
WHOLE = ("x", "y")
SUFFIX = ".npy"
NAMES_NEEDED = f"{', '.join(SPLIT)}, or {' and '.join(WHOLE)}"
MOST_COMPRESSED = 1040  # times; DEFLATE reaches about 1032
ROWS_AT_ONCE = 1000  # of a CSV, kept as text
LONGEST_LABEL = 200  # characters
# What readers of zip archives and of .npy raise for damaged ones.
_DAMAGED = (ValueError, EOFError, KeyError, TypeError, OverflowError, NotImplementedError)
_DAMAGED += (OSError, SyntaxError, TokenError, RuntimeError, zipfile.BadZipFile, zlib.error)
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
    check_regular(path, DataFileError, or_folder=True)
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
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    return f"sha256:{digest.hexdigest()}"


def _read_npz(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an archive; zip keeps a checksum of each, which reading to its end checks."""
    found = {}
    try:
        with zipfile.ZipFile(path) as archive:
            for member in archive.infolist():
                if member.filename.endswith(SUFFIX):
                    if member.file_size > MOST_COMPRESSED * max(member.compress_size, 1):
                        raise ValueError(f"{member.filename} cannot have {member.file_size} bytes")
                    with archive.open(member) as stream:
                        array = _read_array(stream, member.file_size)
                    found[member.filename.removesuffix(SUFFIX)] = array
    except _DAMAGED as error:
        raise DataFileError(
            f"{path} is not a whole .npz of plain arrays; write it with numpy.savez: {error}"
        ) from None
    return found


def _read_folder(path: Path) -> dict[str, np.ndarray]:
    found = {}
    for file in sorted(path.glob(f"*{SUFFIX}")):
        check_regular(file, DataFileError)
        try:
            with file.open("rb") as stream:
                found[file.stem] = _read_array(stream, file.stat().st_size)
        except _DAMAGED as error:
            raise DataFileError(
                f"{file} is not a whole .npy of plain numbers; write it with numpy.save: {error}"
            ) from None
    return found


def _read_array(stream: IO[bytes], size: int) -> np.ndarray:
    """The array in an .npy of `size` bytes: no room is made for more than it holds."""
    version = npy.read_magic(stream)
    if version not in ((1, 0), (2, 0), (3, 0)):
        raise ValueError(f"it has version {version} of the format")
    read_header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, by_columns, dtype = read_header(stream)
    if dtype.hasobject:
        raise ValueError("it holds objects, which could run code")
    promised, held = math.prod(shape) * dtype.itemsize, size - stream.tell()
    if promised != held:
        raise ValueError(f"its shape {shape} takes {promised} bytes, but it holds {held}")
    data = bytearray(held)
    if stream.readinto(data) != held or stream.read(1):  # pyright: ignore[reportAttributeAccessIssue]
        raise ValueError("it is cut short")
    return np.frombuffer(data, dtype).reshape(shape, order="F" if by_columns else "C")


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
        if not x[0].size:
            raise DataFileError(
                f"{x_name} of {path} has shape {x.shape}, so no numbers; give at least one column"
            )
        parts.append((x, y))
    for index, name in enumerate(names[:2]):
        shapes = [part[index].shape[1:] for part in parts]
        if len(set(shapes)) > 1:
            raise DataFileError(
                f"in {path} one example of {name} has shape {shapes[0]} and one of "
                f"{names[2 + index]} {shapes[1]}; give both the same"
            )
    files = [path / f"{name}.npy" for name in names] if path.is_dir() else [path]
    return Arrays(path, tuple(parts), _digest(*files))


def _read_csv(path: Path) -> dict[str, np.ndarray]:
    """The columns of a CSV with a header line: numbers, or texts as objects."""
    texts: set[int] = set()
    while True:
        try:
            return _read_columns(path, texts)
        except _NotNumbers as found:  # after rows of numbers: read it again as texts
            texts.add(found.column)
        except (UnicodeDecodeError, csv.Error) as error:
            raise DataFileError(f"{path} is not a CSV in UTF-8; save it as one: {error}") from None


class _NotNumbers(Exception):
    def __init__(self, column: int) -> None:
        self.column = column


def _read_columns(path: Path, texts: set[int]) -> dict[str, np.ndarray]:
    """The columns, of which those in `texts` are known not to be numbers throughout."""
    with path.open(newline="", encoding="utf-8-sig") as file:
        sample = file.read(4096)
        file.seek(0)
        delimiter = max(",;\t", key=sample.partition("\n")[0].count)
        rows = (row for row in csv.reader(file, delimiter=delimiter) if row)
        header = [name.strip() for name in next(rows, [])]
        _check_distinct(path, header)
        parts: list[list[np.ndarray]] = [[] for _ in header]
        first = 2  # the number of the row after the header
        while some := list(itertools.islice(rows, ROWS_AT_ONCE)):
            for number, row in enumerate(some, first):
                if len(row) != len(header):
                    raise DataFileError(
                        f"{path} has {len(row)} cells in row {number} where the header has "
                        f"{len(header)}; fill or remove the row"
                    )
            for index, cells in enumerate(zip(*some, strict=True)):
                part = _as_texts(cells) if index in texts else _as_numbers(cells)
                if part.dtype == object and index not in texts:
                    if parts[index]:
                        raise _NotNumbers(index)
                    texts.add(index)
                parts[index].append(part)
            first += len(some)
    if first == 2:
        raise DataFileError(f"{path} holds no rows; give a header line and at least one row")
    # The parts of a column are let go as soon as it is whole.
    return {name: np.concatenate(parts.pop(0)) for name in header}


def _as_numbers(cells: Sequence[str]) -> np.ndarray:
    """Cells as numbers, or as texts if one of them is no finite number."""
    numbers = _converted(np.array([cell.strip() for cell in cells], object))
    whole = numbers is not None and np.isfinite(numbers).all()
    return numbers if numbers is not None and whole else _as_texts(cells)


def _as_texts(cells: Sequence[str]) -> np.ndarray:
    # Equal texts are one object: labels repeat.
    return np.array([sys.intern(cell.strip()) for cell in cells], object)


def _converted(texts: np.ndarray) -> np.ndarray | None:
    """Texts as whole numbers or fractions, if they all are."""
    for kind in (np.int64, np.float64):
        try:
            return texts.astype(kind)
        except (ValueError, OverflowError):
            continue
    return None


def _read_parquet(path: Path) -> dict[str, np.ndarray]:
    try:
        from pyarrow import ArrowException, parquet  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise ImportError(
            f"reading {path} needs pyarrow; install it with: pip install 'onebasin[parquet]'"
        ) from None
    arrays: dict[str, np.ndarray] = {}
    try:
        with parquet.ParquetFile(path, page_checksum_verification=True) as file:
            names = file.schema_arrow.names
            _check_distinct(path, names)
            # Repeated values take no room in the file: it could fill the memory.
            promised = 4 * file.metadata.num_rows * len(names)
            if promised > MOST_COMPRESSED * path.stat().st_size:
                raise ValueError(f"it promises {promised} bytes, too many for a file of its size")
            for name in names:  # one at a time: a whole table would be in memory twice
                column = file.read(columns=[name])[name]
                if column.null_count:
                    raise DataFileError(
                        f"column '{name}' of {path} has missing values; fill or drop them"
                    )
                arrays[name] = np.array(column.to_numpy())
                if len(arrays[name]) != file.metadata.num_rows:
                    raise ValueError(f"column '{name}' has {len(arrays[name])} rows, not all")
    except DataFileError:
        raise
    except (ArrowException, OSError, ValueError, KeyError) as error:
        raise DataFileError(
            f"{path} is not a whole Parquet file; write it again: {error}"
        ) from None
    return arrays


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
    both = next((name for name in target if name in drop), None)
    if both is not None:
        raise DataFileError(
            f"column '{both}' of {path} is to be predicted and dropped; name it in one of "
            "target= and drop="
        )
    columns = [name for name in table if name not in (*target, *drop)]
    if not columns:
        raise DataFileError(f"{path} has no column left to predict from; drop fewer")
    features = [_numbers(path, name, table[name], feature=True) for name in columns]
    x = np.empty((len(features[0]), len(features)), np.float32)
    with np.errstate(over="ignore"):  # numbers that are too large are refused later
        for index, column in enumerate(features):
            x[:, index] = column
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
    texts = np.array([str(cell) for cell in column], object)
    for row, text in enumerate(texts):
        if text.lower() in MISSING:
            raise DataFileError(
                f"column '{name}' of {path} has no value in row {row + 1}; fill the gap or remove "
                "the row"
            )
    numbers = _converted(texts)
    if numbers is not None:
        return numbers
    if feature:
        wrong = next(text for text in texts if not _is_number(text))
        raise DataFileError(
            f"column '{name}' of {path} holds words ('{wrong:.20}'); write numbers in their place, "
            f"or leave it out with drop=('{name}',)"
        )
    longest = max(map(len, texts))
    if longest > LONGEST_LABEL:
        raise DataFileError(
            f"column '{name}' of {path} holds texts of up to {longest} characters, which are no "
            "labels; name another column with target="
        )
    return texts.astype(str)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
