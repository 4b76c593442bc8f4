"""The files of a fit: posteriors, checkpoint, history; where they are and when they may be made."""

from dataclasses import dataclass
from pathlib import Path

from onebasin.atomic import sweep_parts
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
        to, saved, told = (None if p is None else Path(p) for p in (out, checkpoint, history))
        if saved is None and to is not None:
            saved = to.with_name(to.name + ".checkpoint")
        for path in (to, saved, told):
            if path is not None and not path.parent.is_dir():
                raise FileNotFoundError(f"the folder of {path} does not exist; make it first")
            if path is not None and path.is_dir():
                raise ValueError(f"{path} is a folder; give the path of a file")
        return cls(to, saved, told, runs)

    def outs(self) -> list[Path]:
        """One posterior file per run: `q.safetensors`, or `q-0.safetensors`, `q-1.safetensors`…"""
        if self.out is None:
            return []
        if self.runs is None:
            return [self.out]
        return [
            self.out.with_name(f"{self.out.stem}-{run}{self.out.suffix}")
            for run in range(self.runs)
        ]

    def draws(self, run: int) -> Path | None:
        """Where the draws of a run gather; None to keep them in memory."""
        if self.out is not None:
            out = self.outs()[run]
            return out.with_name(out.name + ".part")
        if self.checkpoint is not None:
            return self.checkpoint.with_name(f"{self.checkpoint.name}.draws-{run}")
        return None

    def existing(self) -> list[Path]:
        files = [*self.outs(), self.checkpoint, self.history]
        return [path for path in files if path is not None and path.exists()]

    def refuse_existing(self) -> None:
        for path in self.existing():
            raise FileExistsError(
                f"{path} exists; give overwrite=True to replace it, or resume=True to continue"
            )

    def sweep(self) -> None:
        """Remove the half-written files a killed process left beside these names."""
        for path in (self.checkpoint, *self.outs()):
            if path is not None:
                sweep_parts(path)

    def clear(self) -> None:
        """Forget an earlier fit under these names."""
        gathering = [self.draws(run) for run in range(self.runs or 1)]
        for path in (self.checkpoint, self.history, *gathering):
            if path is not None:
                path.unlink(missing_ok=True)
