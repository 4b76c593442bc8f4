"""The files of a fit: posteriors, checkpoint and history."""

from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from onebasin.atomic import locked, sweep_all
from onebasin.inference.checkpoint import remove_parts
from onebasin.tensor_files import Pathlike


@dataclass(frozen=True)
class Files:
    """Where a fit reads and writes."""

    out: Path | None
    checkpoint: Path | None
    history: Path | None
    runs: int | None

    @classmethod
    def of(
        cls,
        out: Pathlike | None,
        checkpoint: Pathlike | None,
        history: Pathlike | None,
        runs: int | None,
    ) -> "Files":
        if out is not None and Path(out).is_dir():
            raise ValueError(f"{out} is a folder; give the path of a file")
        if checkpoint is None and out is not None:
            checkpoint = Path(out).with_name(Path(out).name + ".checkpoint")
        paths = tuple(None if p is None else Path(p) for p in (out, checkpoint, history))
        for path in paths:
            if path is not None and not path.parent.is_dir():
                raise FileNotFoundError(f"the folder of {path} does not exist; create it first")
            if path is not None and path.is_dir():
                raise ValueError(f"{path} is a folder; give the path of a file")
        files = cls(paths[0], paths[1], paths[2], runs)
        named = [path.resolve() for path in files._named()]
        for path in named:
            if named.count(path) > 1:
                raise ValueError(f"{path} cannot be two files of one fit; give each its own path")
        return files

    def outs(self) -> list[Path]:
        """One posterior file per run: `q.safetensors`, or `q-0.safetensors`, `q-1.safetensors`…"""
        if self.out is None:
            return []
        if self.runs is None:
            return [self.out]
        stem, suffix = self.out.stem, self.out.suffix
        return [self.out.with_name(f"{stem}-{run}{suffix}") for run in range(self.runs)]

    def draws(self, run: int) -> Path | None:
        """The file that collects the draws of a run; None to keep them in memory."""
        if self.out is not None:
            out = self.outs()[run]
            return out.with_name(out.name + ".part")
        if self.checkpoint is not None:
            return self.checkpoint.with_name(f"{self.checkpoint.name}.draws-{run}")
        return None

    def check_new(self) -> None:
        """Raise if one of the files exists."""
        for path in (*self.outs(), self.checkpoint, self.history):
            if path is not None and path.exists():
                raise FileExistsError(
                    f"{path} exists; give overwrite=True to replace it, or resume=True to continue"
                )

    def _named(self) -> list[Path]:
        """The files that the user knows of."""
        return [path for path in (*self.outs(), self.checkpoint, self.history) if path is not None]

    def _collected(self) -> list[Path]:
        """The files in which draws are collected."""
        draws = [self.draws(run) for run in range(self.runs or 1)]
        return [path for path in draws if path is not None]

    def locked(self) -> AbstractContextManager[None]:
        """Keep other processes from writing these files."""
        return locked(*self._named())

    def sweep(self) -> None:
        """Remove what a killed process left beside these files."""
        sweep_all(*self._named(), *self._collected())

    def remove_progress(self) -> None:
        """Remove the checkpoint, history and collected draws of an earlier fit."""
        for path in (self.history, *self._collected()):
            if path is not None:
                path.unlink(missing_ok=True)
        self.remove_checkpoint()

    def remove_checkpoint(self) -> None:
        """Remove the checkpoint and its parts."""
        if self.checkpoint is not None:
            self.checkpoint.unlink(missing_ok=True)
            remove_parts(self.checkpoint)
