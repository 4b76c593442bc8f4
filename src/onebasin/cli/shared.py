"""What commands share: options, opening files and data, checks before work, and output."""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onebasin.choices import DataName, ObjectiveName, SplitName

if TYPE_CHECKING:
    from onebasin.data import Dataset, Split
    from onebasin.networks.described import DescribedNetwork
    from onebasin.posterior import Header, Posterior
    from onebasin.symmetry import Symmetry

MATCHED = 1000  # training examples of an objective on data


@dataclass(frozen=True, kw_only=True)
class JsonOption:
    json: bool = False
    """Print the result as one JSON object on standard output."""


@dataclass(frozen=True, kw_only=True)
class DataOptions(JsonOption):
    root: Path | None = None
    """Folder of the data sets; by default ONEBASIN_DATA, then the cache."""


@dataclass(frozen=True, kw_only=True)
class SeededOptions(DataOptions):
    seed: int = 0
    """Seed of all random numbers."""


@dataclass(frozen=True, kw_only=True)
class EvaluationOptions(DataOptions):
    data: DataName | None = None
    """Also evaluate on this data set."""
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


@dataclass(frozen=True)
class Opened:
    """Posterior files of one network, and the network."""

    path: Path
    """The first file."""
    posteriors: "tuple[Posterior, ...]"
    network: "DescribedNetwork"
    headers: "tuple[Header, ...]"

    def symmetry(self) -> "Symmetry":
        from onebasin.symmetry import find_symmetry

        return find_symmetry(self.network, self.network.shapes, self.network.x)

    def data(self, name: DataName, root: Path | None) -> "Dataset":
        return open_data(name, root, self.network, self.path)

    def examples(self, config: EvaluationOptions) -> "Split | None":
        """The examples to evaluate on, if any."""
        check_limit(config.limit)
        if config.data is None:
            return None
        return first_examples(self.data(config.data, config.root), config.split, config.limit)

    def align_second(
        self, objective: ObjectiveName, data: "Dataset", seed: int
    ) -> "tuple[Posterior, dict[str, Any]]":
        """The second posterior aligned to the first, and a report of the distances."""
        import jax

        from onebasin.evaluation.comparison import align_and_measure

        return align_and_measure(
            *self.posteriors,
            network=self.network,
            symmetry=self.symmetry(),
            objective=objective,
            x=data.train.x[:MATCHED],
            key=jax.random.key(seed),
        )


def check_size(width: int | None, depth: int) -> None:
    """Refuse a network without units."""
    if width is not None and width < 1:
        raise ValueError(f"--width is {width}; give a positive number, or none for the default")
    if depth < 0:
        raise ValueError(f"--depth is {depth}; give the number of hidden layers, 0 or more")


def load_checked(path: Path) -> "Posterior":
    """A posterior whose numbers are whole; draws stay in their file, which may exceed memory."""
    from onebasin.posterior import load, read_header
    from onebasin.tensor_files import verify_tensors

    if read_header(path).kind == "Samples":
        verify_tensors(path)
        return load(path, mapped=True)
    return load(path)


def open_posteriors(*paths: Path) -> Opened:
    """Read posteriors; files with different params are refused before any array is read."""
    from onebasin.networks.described import DescribedNetwork
    from onebasin.posterior import read_header
    from onebasin.posterior.headers import check_same_params

    headers = [read_header(path) for path in paths]
    check_same_params(dict(zip(paths, headers, strict=True)))
    first = headers[0]
    network = DescribedNetwork.from_config(first.network, paths[0], first.params_shapes())
    return Opened(paths[0], tuple(load_checked(path) for path in paths), network, tuple(headers))


def open_data(
    name: DataName, root: Path | None, network: "DescribedNetwork", path: Path
) -> "Dataset":
    """A data set whose examples fit the network of a file."""
    from onebasin.data import load_dataset

    data = load_dataset(name, root=root)
    shape = tuple(data.test.x.shape[1:])
    if shape != network.input_shape:
        raise ValueError(
            f"{path} takes inputs of shape {network.input_shape} and {name} has {shape}; give the "
            "data it was fitted to with --data"
        )
    return data


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
