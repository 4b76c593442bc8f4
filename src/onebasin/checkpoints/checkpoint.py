"""Checkpoints: state_dicts in files, as they come from PyTorch training and from Hugging Face.

    weights.safetensors      names and tensors
    weights.pt               the same, pickled; only tensors are loaded from it
    folder/                  config.json, and model.safetensors or several shards with an index

Nothing is downloaded. Tensors of safetensors files are memory maps, read when they are used.
"""

import json
import shutil
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from onebasin.atomic import write_atomically
from onebasin.checkpoints.layout import Layout, layout_of, map_layout, read_layout, write_like
from onebasin.checkpoints.pickled import read_pickled, write_pickled
from onebasin.pytorch_tensors import import_torch
from onebasin.regular_files import check_regular
from onebasin.tensor_files import Pathlike, TensorFileError
from onebasin.tensor_files import check_new as check_new_file

PICKLED = (".pt", ".pth", ".bin")
INDEX, WHOLE = "model.safetensors.index.json", "model.safetensors"
OURS = "onebasin-posterior"  # the format of posterior files, which are safetensors files too


@dataclass(frozen=True)
class Checkpoint:
    """The entries of a state_dict, by name.

    >>> import tempfile
    >>> from safetensors.numpy import save_file
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_file({"w": np.ones((2, 3), np.float32)}, f"{folder}/weights.safetensors")
    ...     read_checkpoint(f"{folder}/weights.safetensors")
    Checkpoint(1 tensors, 6 numbers)
    """

    path: Path
    tensors: Mapping[str, np.ndarray]
    files: Mapping[Path, Layout] = field(repr=False)
    """The layout of every safetensors file that holds tensors."""
    names: Mapping[str, str] = field(default_factory=dict, repr=False)
    """For every name in the files that of its tensor, where they differ (`unwrapped`)."""

    def __repr__(self) -> str:
        count = sum(array.size for array in self.tensors.values())
        return f"Checkpoint({len(self.tensors)} tensors, {count:,} numbers)"

    def unwrapped(self, wanted: Collection[str]) -> "Checkpoint":
        """The same without the prefix that the wrapper of a module gives to names.

        DataParallel, torch.compile and Lightning save `module.fc.weight` for `fc.weight`, and so
        on. A prefix is taken off if it is the only one with which every name that is wanted is
        found, and none without; what is written has the names of the file again.
        """
        if not wanted or any(name in self.tensors for name in wanted):
            return self
        first = next(iter(wanted))
        found = [name.removesuffix(first) for name in self.tensors if name.endswith(f".{first}")]
        fits = [p for p in found if all(p + name in self.tensors for name in wanted)]
        if len(fits) != 1:
            return self
        names = {name: name.removeprefix(fits[0]) for name in self.tensors}
        if len(set(names.values())) < len(names):
            return self
        tensors = {names[name]: array for name, array in self.tensors.items()}
        return replace(self, tensors=tensors, names=names)

    @property
    def names_in_file(self) -> Mapping[str, str]:
        """For every name in the files that of its tensor."""
        return self.names or {name: name for name in self.tensors}

    def write(
        self, path: Pathlike, change: Callable[[str], np.ndarray], *, overwrite: bool = False
    ) -> Path:
        """Write a checkpoint like this one, in the form that the path names.

        Args:
          path: a `.safetensors` or `.pt` file, or for a folder of shards a folder, which gets the
            other files of this one too.
          change: gives the tensor of each name; they are asked for and written one at a time.
          overwrite: replace what is there.
        """
        path = Path(path)
        change = self._by_file(change)
        if self.path.is_dir():
            return self._write_folder(path, change, overwrite)
        check_new_file(path, overwrite=overwrite)
        if path.suffix in PICKLED:
            torch = import_torch()
            names = self.names_in_file
            kinds = {name: self.tensors[own].dtype.name for name, own in names.items()}
            dtypes = {name: getattr(torch, kind) for name, kind in kinds.items()}
            write_pickled(path, {name: change(name) for name in kinds}, dtypes)
            return path
        if path.suffix != ".safetensors":
            raise ValueError(f"{path} must end in .safetensors, {' or '.join(PICKLED)}")
        held = {name: self.tensors[own] for name, own in self.names_in_file.items()}
        layout = next(iter(self.files.values()), None) or layout_of(held, {"format": "pt"})
        write_like(path, layout, ((name, change(name)) for name in layout.in_order()))
        return path

    def _by_file(self, change: Callable[[str], np.ndarray]) -> Callable[[str], np.ndarray]:
        """As `change`, asked by names in the files."""
        names = self.names_in_file
        return lambda name: change(names[name])

    def _write_folder(
        self, path: Path, change: Callable[[str], np.ndarray], overwrite: bool
    ) -> Path:
        if path.exists() and not (path.is_dir() and overwrite):
            raise FileExistsError(f"{path} exists; give overwrite=True to replace its files")
        if path.exists() and path.samefile(self.path):
            raise ValueError(f"{path} is the folder that is read; name another")
        path.mkdir(exist_ok=True)
        weights = {file.name for file in self.files}
        # An index or shards of what was there before would be read instead of the new files.
        for old in (path / INDEX, *sorted(path.glob("*.safetensors"))):
            if old.name not in weights and old.is_file():
                old.unlink()
        for other in sorted(self.path.iterdir()):
            if other.is_file() and other.name not in weights and other.suffix not in PICKLED:
                copy = path / other.name
                write_atomically(copy, lambda part, other=other: shutil.copyfile(other, part))
        for file, layout in self.files.items():
            moved = ((name, change(name)) for name in layout.in_order())
            write_like(path / file.name, layout, moved)
        return path


def read_checkpoint(path: Pathlike) -> Checkpoint:
    """The state_dict of a file, or of a folder in the form of Hugging Face.

    Args:
      path: a `.safetensors` or `.pt` file, or a folder with `config.json` and `.safetensors` files.
        A `.pt` file that holds anything but tensors is refused: it could run code.
    """
    path = check_regular(Path(path), TensorFileError, or_folder=True)
    if path.is_dir():
        return _read_folder(path)
    if not path.exists():
        raise FileNotFoundError(f"there is no file {path}; check the name")
    if path.suffix in PICKLED:
        return Checkpoint(path, read_pickled(path), {})
    layout = read_layout(path)
    return Checkpoint(path, map_layout(path, layout), {path: layout})


def is_checkpoint(path: Pathlike) -> bool:
    """Whether a path holds a plain state_dict, and not a posterior of ours."""
    path = Path(path)
    if path.is_dir():
        return (path / INDEX).is_file() or (path / WHOLE).is_file()
    if path.suffix in PICKLED:
        return path.is_file()
    if path.suffix != ".safetensors" or not path.is_file():
        return False
    try:
        return not read_layout(path).metadata.get("format", "").startswith("onebasin")
    except TensorFileError:
        return False


def _read_folder(path: Path) -> Checkpoint:
    """A folder of Hugging Face: one file of weights, or shards with an index."""
    if check_regular(path / INDEX, TensorFileError).exists():
        try:
            index = json.loads((path / INDEX).read_text(encoding="utf-8"))["weight_map"]
            shards = sorted(set(index.values()))
        except (ValueError, KeyError, TypeError, AttributeError):
            raise TensorFileError(f"{path / INDEX} is damaged: it has no weight_map") from None
    elif (path / WHOLE).is_file():
        index, shards = None, [WHOLE]
    else:
        raise TensorFileError(
            f"{path} holds neither {WHOLE} nor {INDEX}; name a file, or a folder in the form of "
            "Hugging Face"
        )
    files: dict[Path, Layout] = {}
    tensors: dict[str, np.ndarray] = {}
    for shard in shards:
        if not isinstance(shard, str) or Path(shard).name != shard:  # no way out of the folder
            raise TensorFileError(f"{path / INDEX} names '{shard}', which is not a file beside it")
        if not (path / shard).is_file():
            raise FileNotFoundError(f"{path} lacks {shard}, which its index names")
        files[path / shard] = read_layout(path / shard)
        tensors |= map_layout(path / shard, files[path / shard])
    missing = sorted(set(index or tensors) - set(tensors))
    if missing:
        raise TensorFileError(f"{path} lacks the tensor '{missing[0]}', which its index names")
    return Checkpoint(path, tensors, files)
