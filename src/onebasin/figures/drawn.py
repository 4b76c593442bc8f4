"""What figures read: any object with these attributes is drawn, a result or a record of one."""

from typing import Any, Protocol

import numpy as np


class DrawnProfile(Protocol):
    """A loss along a path, such as `Profile`."""

    @property
    def t(self) -> np.ndarray: ...
    @property
    def nll(self) -> np.ndarray: ...
    @property
    def nll_stderr(self) -> Any: ...  # an array, which may be a cached property
    @property
    def excess(self) -> np.ndarray: ...
    @property
    def excess_stderr(self) -> Any: ...
    @property
    def mean_nll(self) -> np.ndarray: ...
    @property
    def score(self) -> np.ndarray: ...
    @property
    def score_name(self) -> str: ...
    @property
    def barrier(self) -> float: ...
    @property
    def barrier_stderr(self) -> float: ...
    @property
    def plain(self) -> "DrawnProfile | None": ...


class DrawnPlane(Protocol):
    """The plane of a landscape."""

    @property
    def points(self) -> np.ndarray: ...
    @property
    def names(self) -> tuple[str, ...]: ...
    @property
    def unit(self) -> str: ...


class DrawnLandscape(Protocol):
    """Values on a plane, such as `Landscape`."""

    @property
    def plane(self) -> DrawnPlane: ...
    @property
    def a(self) -> np.ndarray: ...
    @property
    def b(self) -> np.ndarray: ...
    @property
    def nll(self) -> np.ndarray: ...
    @property
    def score(self) -> np.ndarray: ...
    @property
    def score_name(self) -> str: ...
    @property
    def log_posterior(self) -> np.ndarray | None: ...


class DrawnReliability(Protocol):
    """Accuracy by confidence."""

    @property
    def edges(self) -> np.ndarray: ...
    @property
    def confidence(self) -> np.ndarray: ...
    @property
    def accuracy(self) -> np.ndarray: ...
    @property
    def count(self) -> np.ndarray: ...
    @property
    def error(self) -> float: ...


class DrawnGeometry(Protocol):
    """Draws in their principal directions."""

    @property
    def scores(self) -> np.ndarray: ...
    @property
    def explained(self) -> np.ndarray: ...
    @property
    def between(self) -> float: ...
    @property
    def between_expected(self) -> float: ...


class DrawnWeights(Protocol):
    """Statistics of single weights."""

    @property
    def rhat(self) -> np.ndarray: ...


class DrawnView(Protocol):
    """Statistics of draws in one arrangement."""

    @property
    def weights(self) -> DrawnWeights: ...
    @property
    def sigma(self) -> np.ndarray: ...
    @property
    def geometry(self) -> DrawnGeometry: ...


class DrawnDiagnosis(Protocol):
    """Chains before and after alignment, such as `Diagnosis`."""

    @property
    def before(self) -> DrawnView: ...
    @property
    def after(self) -> DrawnView: ...
    @property
    def null(self) -> DrawnView: ...
    @property
    def chain(self) -> np.ndarray: ...


class DrawnPruning(Protocol):
    """A score by the share of weights kept, such as `PruningCurve`."""

    @property
    def kept(self) -> np.ndarray: ...
    @property
    def score(self) -> np.ndarray: ...
    @property
    def score_name(self) -> str: ...


class DrawnAlignment(Protocol):
    """A search for a permutation, such as `Alignment`."""

    @property
    def objective(self) -> str: ...
    @property
    def trace(self) -> tuple[float, ...]: ...
    @property
    def permutation(self) -> Any: ...  # arrays of indices by group
    @property
    def distance_before(self) -> Any: ...  # a number
    @property
    def distance_after(self) -> Any: ...
