"""The result of `fit`: made at the end of a fit, or read from the files of one that had ended."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic

import numpy as np

from onebasin.inference.checkpoint import check_same_fit, settings_of
from onebasin.inference.closing import advice, closing_words
from onebasin.inference.diagnostics import record_statistics
from onebasin.inference.draws import read_statistics
from onebasin.inference.files import Files
from onebasin.inference.history import read_rows
from onebasin.inference.methods import Method
from onebasin.posterior import PosteriorT, load, read_header
from onebasin.problem import Problem
from onebasin.tensor_files import finite

if TYPE_CHECKING:  # Matplotlib is imported only when a figure is made
    from matplotlib.figure import Figure

    from onebasin.figures.canvas import AxesLike

# Statistics of one execution, which are returned and not written to files.
OF_THIS_TIME = (
    *("seconds", "compile_seconds", "memory", "devices", "chunk_steps"),
    *("steps_this_time", "resumed_from"),
)


@dataclass(frozen=True, repr=False)
class FitResult(Generic[PosteriorT]):
    """The result of `fit`.

    Attributes:
      posterior: a `MeanField` (`VI`, `IVON`, diagonal `Laplace`), a `LowRank` (`SWAG`), a
        `LowRankPrecision` or `Kronecker` (`Laplace`) or `Samples` (the others).
      history: one row per chunk of steps.
      stats: durations, memory and, for chains, acceptance, divergences, energy, R-hat and ESS; for
        `Laplace` the estimate of the log evidence.
      problem: what was fitted.
      method: how.
      path: the file of the posterior, if one was written.

    >>> import jax, onebasin as ob
    >>> data = ob.load_dataset("digits", limit=100)
    >>> problem = ob.Problem.from_network(ob.networks.MLP(widths=(8,)), data)
    >>> result = ob.fit(problem, ob.MAP(epochs=2), key=jax.random.key(0), progress="silent")
    >>> result
    FitResult(MAP, Samples(610 parameters, 1 draws))
    >>> result.stats["steps"]
    2
    """

    posterior: PosteriorT
    history: list[dict[str, Any]]
    stats: dict[str, Any]
    problem: Problem
    method: Method
    path: Path | None = None

    def __repr__(self) -> str:
        where = "" if self.path is None else f", {str(self.path)!r}"
        words = self.summary
        return f"FitResult({type(self.method).__name__}, {self.posterior!r}{where})" + (
            f"\n{words}" if words else ""
        )

    @property
    def summary(self) -> str:
        """R-hat, ESS, acceptance and divergences of chains on one line; empty for other fits."""
        return closing_words(self.stats, self._draws)

    @property
    def notes(self) -> tuple[str, ...]:
        """What the fit should not have ended with, each in a sentence with its remedy."""
        return advice(self.stats, self._draws)

    def plot(self, *, ax: "AxesLike | None" = None) -> "Figure":
        """The history of the fit: loss, accuracy, acceptance and what else it recorded.

        Args:
          ax: axes to draw in, instead of a new figure: of the loss, or of the first few panels.
        """
        from onebasin.figures.searches import history_figure

        return history_figure(self.history, ax=ax)

    @property
    def _draws(self) -> int:
        return getattr(self.posterior, "num_draws", 0)


def finished_results(
    files: Files, config: dict[str, Any], problem: Problem, method: Method
) -> list[FitResult[Any]] | None:
    """The results of a fit that had ended before it was resumed."""
    assert files.checkpoint is not None
    outs = files.outs()
    if files.checkpoint.exists() or not outs or not all(path.exists() for path in outs):
        return None
    files.sweep()
    results = []
    for path, rows in zip(outs, read_rows(files.history, len(outs)), strict=True):
        check_same_fit(settings_of(path), config, str(path))
        results.append(result_from(path, problem, method, rows))
    return results


def result_from(
    path: Path, problem: Problem, method: Method, rows: list[dict[str, Any]]
) -> FitResult[Any]:
    """The result of a finished fit, from its file."""
    posterior, records = load(path, like=problem.shapes), read_statistics(path)
    stats = read_header(path).provenance["stats"]
    stats |= record_statistics(records) if records else {}
    return FitResult(posterior, rows, stats, problem, method, path)


def lasting_stats(stats: Mapping[str, Any]) -> dict[str, Any]:
    """The numbers and short lists among the statistics; NaN and infinity become None in JSON.

    What differs when a fit is repeated, interrupted or moved to another machine is left out.
    """
    short = {k: v for k, v in stats.items() if k not in OF_THIS_TIME and np.size(v) <= 64}
    return finite({k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in short.items()})
