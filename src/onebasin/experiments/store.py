"""Finished stages in a store that fsspec opens: a bucket, a server, or another folder.

    URL/run.json               preset and versions, as in the run folder
    URL/stages/<key>/...       the files of a finished stage; result.json is sent last

A folder cannot be renamed in a bucket, so the presence of result.json is what says that a stage is
whole. Two processes that finish the same stage send the same files.
"""

import json
from collections.abc import Mapping
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

from onebasin.atomic import temporary_file
from onebasin.digests import sealed_text, unsealed
from onebasin.experiments.stage import RESULT

RUN = "run.json"


class Store:
    """The store at a URL, such as s3://bucket/run; fsspec reads its keys from the environment."""

    def __init__(self, url: str) -> None:
        try:
            core = import_module("fsspec.core")
        except ImportError:
            raise ImportError(
                "--store needs fsspec; install it with pip install 'onebasin[cluster]'"
            ) from None
        self.url = url
        try:
            self.files, self.root = core.url_to_fs(url)
        except (ValueError, ImportError) as error:
            words = " ".join(str(error).split())
            raise ValueError(f"--store {url} cannot be opened: {words}") from None

    def has(self, key: str) -> bool:
        """Whether a stage is there, whole."""
        return self._exists(f"{self.root}/stages/{key}/{RESULT}")

    def _exists(self, path: str) -> bool:
        self.files.invalidate_cache()  # other processes write here too
        try:
            return self.files.exists(path)
        except Exception as error:  # of any kind: every protocol has its own
            words = " ".join(str(error).split()) or type(error).__name__
            raise ConnectionError(
                f"the store {self.url} does not answer ({words}); check its address and keys"
            ) from None

    def fetch(self, key: str, folder: Path) -> None:
        """Copy a stage into a folder, which appears by one rename."""
        folder.parent.mkdir(parents=True, exist_ok=True)
        there = f"{self.root}/stages/{key}"
        with temporary_file(folder) as part:  # swept if this process is killed
            part.mkdir()
            for path in self.files.find(there):
                name = path.removeprefix(self.files._strip_protocol(there)).lstrip("/")
                (part / name).parent.mkdir(parents=True, exist_ok=True)
                self.files.get_file(path, str(part / name))
            try:
                part.rename(folder)
            except OSError:
                if not folder.exists():  # else another process was faster
                    raise

    def send(self, key: str, folder: Path) -> None:
        """Copy a finished stage into the store, its result last."""
        there = f"{self.root}/stages/{key}"
        self.files.makedirs(there, exist_ok=True)
        paths = sorted(path for path in folder.rglob("*") if path.is_file())
        for path in sorted(paths, key=lambda path: path.name == RESULT):
            target = f"{there}/{path.relative_to(folder).as_posix()}"
            self.files.makedirs(target.rpartition("/")[0], exist_ok=True)
            self.files.put_file(str(path), target)

    def made_with(self) -> Mapping[str, Any] | None:
        """What the run was made with, or none if the store is new."""
        path = f"{self.root}/{RUN}"
        if not self._exists(path):
            return None
        try:
            return unsealed(dict(json.loads(self.files.cat_file(path))))
        except (ValueError, TypeError):
            raise ValueError(
                f"{RUN} of the store {self.url} is damaged; name another store"
            ) from None

    def begin(self, made: Mapping[str, Any]) -> None:
        self.files.makedirs(self.root, exist_ok=True)
        self.files.pipe_file(f"{self.root}/{RUN}", sealed_text(made).encode())


@lru_cache(maxsize=8)
def store_at(url: str) -> Store:
    """The store at a URL, opened once per process."""
    return Store(url)
