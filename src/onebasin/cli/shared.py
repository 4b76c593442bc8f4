"""What commands share: options, checks before work, and output."""

import json
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from onebasin.choices import DataName, LikelihoodName, NetworkName, SplitName, Standardise

if TYPE_CHECKING:
    from distributed import Client

    from onebasin.data import Dataset, Split
    from onebasin.experiments.stage import Stage
    from onebasin.posterior import Header, Posterior

DATA_FILES = (".npz", ".csv", ".parquet")
FILES = ".npz, .csv, .parquet or a folder of .npy"


@dataclass(frozen=True, kw_only=True)
class JsonOption:
    json: bool = False
    """Print the result as one JSON object on standard output."""


@dataclass(frozen=True, kw_only=True)
class FileOptions(JsonOption):
    """How data in files of one's own are read (`onebasin data --help` describes them)."""

    target: tuple[str, ...] = ()
    """Column of a table to predict, or several columns of numbers."""
    drop: tuple[str, ...] = ()
    """Columns of a table to leave out."""
    test_share: float | None = None
    """Share of the examples kept for testing if the file has no test split of its own; by default
    0.2, or that of the fit."""
    standardise: Standardise = "auto"
    """Subtract the mean of the training examples and divide by their standard deviation; auto is
    both features and real targets of tables, none of arrays, and whatever the fit did."""
    likelihood: LikelihoodName | None = None
    """What the targets are: labels (categorical, bernoulli) or numbers (the others); by default
    that of the fit, else by the type of the targets."""
    noise_std: float | None = None
    """Standard deviation of the noise of a likelihood that has one."""


@dataclass(frozen=True, kw_only=True)
class DataOptions(FileOptions):
    root: Path | None = None
    """Folder of the data sets; by default ONEBASIN_DATA, then the cache."""


@dataclass(frozen=True, kw_only=True)
class SeededOptions(DataOptions):
    seed: int = 0
    """Seed of all random numbers."""


@dataclass(frozen=True, kw_only=True)
class NetworkOptions:
    network: str | None = None
    """Your own network, as ./file.py:function or package.module:function; by default the network
    that the file names."""
    input_shape: tuple[int, ...] = ()
    """Shape of one input, if neither the file nor data tell it."""
    symmetry: Path | None = None
    """File of a symmetry, used instead of tracing the network."""


@dataclass(frozen=True, kw_only=True)
class EvaluationOptions(DataOptions):
    data: str | None = None
    """Also evaluate on this data set or data file."""
    split: SplitName = "test"
    """Training or test data."""
    limit: int | None = None
    """Use only the first LIMIT examples."""


@dataclass(frozen=True, kw_only=True)
class FigureOption:
    figure: Path | None = None
    """Write a figure to this .pdf, .png or .svg file."""


@dataclass(frozen=True, kw_only=True)
class OverwriteOption:
    overwrite: bool = False
    """Replace files that exist."""


def check_data_name(name: str) -> None:
    """Refuse what is neither a data set nor the name of a data file, before any work."""
    known = get_args(DataName)
    if name in known or is_data_file(name):
        return
    close = get_close_matches(name, known, 1)
    hint = f"did you mean '{close[0]}'? " if close else ""
    raise ValueError(
        f"there is no data set '{name}'; {hint}give {', '.join(known)}, or a file of your own "
        f"({FILES})"
    )


def is_data_file(name: str) -> bool:
    """Whether a name is meant as a file or folder of data.

    >>> is_data_file("houses.csv"), is_data_file("mnist")
    (True, False)
    """
    if name in get_args(DataName):
        return False
    return Path(name).suffix.lower() in DATA_FILES or (name != "" and Path(name).exists())


def check_options(config: object) -> None:
    """Refuse what common options cannot mean, before any work."""
    for field in ("data", "ood"):
        name = getattr(config, field, None)
        if isinstance(name, str):
            check_data_name(name)
    share, noise = getattr(config, "test_share", None), getattr(config, "noise_std", None)
    if share is not None and not 0 < share < 1:
        raise ValueError(f"--test-share is {share:g}; give a number between 0 and 1")
    if noise is not None and not 0 < noise < math.inf:
        raise ValueError(f"--noise-std is {noise:g}; give a positive number")
    shape = getattr(config, "input_shape", ())
    if any(size < 1 for size in shape):
        given = " ".join(map(str, shape))
        raise ValueError(f"--input-shape must be a positive shape, got {given}; see --help")
    symmetry = getattr(config, "symmetry", None)
    if symmetry is not None:
        if not symmetry.is_file():
            raise FileNotFoundError(
                f"there is no file {symmetry}; make one with `onebasin symmetry --out`"
            )
        from onebasin.symmetry import Symmetry

        Symmetry.load(symmetry)  # what is not one is refused even where the command needs none


def read_data(
    config: FileOptions,
    name: str,
    root: Path | None,
    *,
    limit: int | None = None,
    record: Mapping[str, Any] | None = None,
) -> "Dataset":
    """A data set by name, or a file read as the options say; `record` is that of the fit."""
    from onebasin.data import load_dataset, read_dataset

    check_data_name(name)
    if not is_data_file(name):
        for field in ("target", "drop", "test_share"):
            if getattr(config, field) not in ((), None):
                flag = field.replace("_", "-")
                raise ValueError(f"--{flag} is for data files of your own; {name} needs none")
        return load_dataset(name, root=root, limit=limit)  # pyright: ignore[reportArgumentType]
    return read_dataset(
        name,
        target=config.target,
        drop=config.drop,
        test_share=config.test_share,
        standardise=config.standardise,
        likelihood=config.likelihood,
        limit=limit,
        record=record,
    )


def check_size(network: str, width: int | None, depth: int | None) -> None:
    """Refuse a network without units, and sizes of a network that has its own."""
    built_in = get_args(NetworkName)
    for flag, value, sized in (("width", width, built_in), ("depth", depth, ("mlp", "vit", "gpt"))):
        if value is not None and network not in sized:
            of = ", ".join(sized)
            raise ValueError(f"--{flag} is a size of {of}; drop it for other networks")
    if width is not None and width < 1:
        raise ValueError(f"--width is {width}; give a positive number, or none for the default")
    if depth is not None and depth < 0:
        raise ValueError(f"--depth is {depth}; give the number of hidden layers, 0 or more")


def load_checked(path: Path) -> "Posterior":
    """A posterior whose numbers are whole; draws stay in their file, which may exceed memory."""
    from onebasin.posterior import load, read_header
    from onebasin.tensor_files import verify_tensors

    if read_header(path).kind == "Samples":
        verify_tensors(path)
        return load(path, mapped=True)
    return load(path)


def check_limit(limit: int | None) -> None:
    if limit is not None and limit < 1:
        raise ValueError(f"--limit is {limit}; use at least one example")


def first_examples(data: "Dataset", split: SplitName, limit: int | None) -> "Split":
    """The first `limit` examples of a split, or all."""
    check_limit(limit)
    return (data.train if split == "train" else data.test).first(limit)


def check_new(path: Path | None, *, overwrite: bool) -> None:
    """Refuse to replace a file, before any work."""
    if path is not None and path.exists() and not overwrite:
        raise ValueError(f"{path} exists; give --overwrite to replace it, or name another file")


def check_folder(path: Path | None) -> None:
    """Refuse a file in a folder that does not exist, before any work."""
    if path is not None and not path.parent.is_dir():
        raise FileNotFoundError(f"the folder of {path} does not exist; make it first")


def check_figure(path: Path | None) -> None:
    """Refuse the name of a figure that cannot be written, before any work."""
    from onebasin.figures.style import check_figure_path

    if path is not None:
        check_figure_path(path)


def write_figure(path: Path | None, draw: Callable[[], Any]) -> None:
    """Draw and write a figure, if one is wanted; this comes after the numbers are printed."""
    from onebasin.figures.style import save_figure

    if path is not None:
        save_figure(draw(), path)


def writing(*paths: Path) -> AbstractContextManager[None]:
    """Create the folders of files and keep other processes from writing these files."""
    from onebasin.atomic import locked

    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
    return locked(*paths)


def write_posterior(
    path: Path, posterior: "Posterior", header: "Header", *, overwrite: bool, **record: Any
) -> None:
    """Save a posterior with the network and provenance of its source, and what was done."""
    from onebasin.posterior import save

    provenance = {**header.provenance, **record}
    save(path, posterior, network=header.network, overwrite=overwrite, **provenance)


def print_result(result: Mapping[str, Any], text: str | Sequence[str], *, as_json: bool) -> None:
    """One JSON object, or text: a string, or parts of one line."""
    words = text if isinstance(text, str) else "  ".join(text)
    sys.stdout.write((json.dumps(result) if as_json else words) + "\n")
    sys.stdout.flush()  # what comes after may fail


def cluster(
    name: str | None, stages: "Iterable[Stage] | None" = None
) -> "AbstractContextManager[Client | None]":
    """A client of the cluster that --cluster names, or None without one.

    The stages that it is for, if they are known, say how many devices its workers need.
    """
    if not name:
        return nullcontext()
    from onebasin.experiments.cluster import connect
    from onebasin.experiments.stage import fewest_devices

    return connect(name, None if stages is None else fewest_devices(stages))
