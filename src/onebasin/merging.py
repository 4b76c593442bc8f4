"""Merge checkpoints: move them into one basin and average them, one tensor at a time.

The members keep their files: tensors of safetensors files are memory maps, and the average of a
tensor is computed when it is written. What is held in memory is what alignment needs, and with a
network and data the weights of one member at a time.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import jax
import numpy as np
from numpy.typing import ArrayLike

from onebasin.alignment import align, align_many
from onebasin.checkpoints import Checkpoint, Entries, read_checkpoint
from onebasin.data import Split
from onebasin.evaluation import Predictive, predictive
from onebasin.networks import NetworkLike
from onebasin.posterior import Samples
from onebasin.symmetry import Permutation, Symmetry, transpositions
from onebasin.tensor_files import Pathlike
from onebasin.trees import add_axis

Member: TypeAlias = Pathlike | Mapping[str, ArrayLike]


@dataclass(frozen=True)
class Score:
    """Negative log likelihood in nats per example, and the share of examples classified right."""

    nll: float
    accuracy: float


@dataclass(frozen=True)
class Scores:
    """What was merged and what came of it, on the same examples."""

    members: tuple[Score, ...]
    plain: Score
    """The average of the members as they were."""
    merged: Score
    """The average of the aligned members."""
    ensemble: Score
    """The average of the members' class probabilities, which takes a run of every member."""


@dataclass(frozen=True)
class Merge:
    """The weighted average of aligned checkpoints: the result of `merge`.

    >>> import onebasin as ob
    >>> symmetry = ob.Symmetry.by_hand({"w": np.zeros(2)}, {"units": [("w", 0)]})
    >>> merged = ob.merge([{"w": np.array([1.0, 5.0])}, {"w": np.array([7.0, 3.0])}],
    ...                   symmetry=symmetry)
    >>> merged
    Merge(2 members, 1 transpositions)
    >>> merged.tensor("w")
    array([2., 6.])
    """

    permutations: tuple[Permutation, ...]
    """What moves every member into the labelling of the first."""
    weights: tuple[float, ...]
    entries: tuple[Entries, ...] = field(repr=False)
    scores: Scores | None = None

    def __repr__(self) -> str:
        swaps = sum(int(transpositions(p)) for p in self.permutations)
        return f"Merge({len(self.entries)} members, {swaps} transpositions)"

    def tensor(self, name: str) -> np.ndarray:
        """One entry of the merged state_dict, averaged in double precision.

        Entries that are not floating-point numbers, such as counters, are those of the first
        member.
        """
        moved = (e.moved(name, p) for e, p in zip(self.entries, self.permutations, strict=True))
        return _average(moved, self.weights)

    @property
    def state_dict(self) -> dict[str, np.ndarray]:
        """All entries, in memory."""
        return {name: self.tensor(name) for name in self.entries[0].checkpoint.tensors}

    def write(self, path: Pathlike, *, overwrite: bool = False) -> Path:
        """Write a file like that of the first member: its names, data types and metadata."""
        return self.entries[0].checkpoint.write(path, self.tensor, overwrite=overwrite)


def merge(
    members: Sequence[Member],
    *,
    symmetry: Symmetry,
    weights: Sequence[float] | None = None,
    network: NetworkLike | None = None,
    data: Split | None = None,
    max_sweeps: int = 100,
) -> Merge:
    """Align checkpoints to one another and average them.

    Two are aligned pairwise and more jointly, by the distance of their weights. Running statistics
    move with their units and are averaged too.

    Args:
      members: files or folders of state_dicts, or state_dicts of arrays in memory.
      symmetry: the symmetry of their network, found by `find_symmetry` or loaded from a file.
      weights: the share of each member; equal by default. Two members with 1 − t and t give the
        point at t of the line between them.
      network: the network, to score the result; takes the entries of the symmetry as params.
      data: examples with class labels to score it on.
      max_sweeps: the maximum number of sweeps over the groups.

    >>> import onebasin as ob
    >>> symmetry = ob.Symmetry.by_hand({"w": np.zeros(2)}, {"units": [("w", 0)]})
    >>> members = [{"w": np.array([1.0, 5.0])}, {"w": np.array([7.0, 3.0])}]
    >>> ob.merge(members, symmetry=symmetry, weights=[0.75, 0.25]).tensor("w")
    array([1.5, 5.5])
    """
    if len(members) < 2:
        raise ValueError(f"merge needs at least two members, got {len(members)}")
    shares = _shares(weights, len(members))
    if (network is None) != (data is None):
        raise ValueError("scores need both network and data; give both or neither")
    entries = tuple(Entries(_checkpoint(member), symmetry) for member in members)
    _check_alike(entries)
    params = [own.params for own in entries]
    if len(params) == 2:
        found = align(
            params[1], to=params[0], symmetry=symmetry, objective="l2", max_sweeps=max_sweeps
        )
        permutations = (symmetry.identity(), found.permutation)
    else:
        joint = align_many(params, symmetry=symmetry, objective="l2", max_sweeps=max_sweeps)
        back = symmetry.inverse(joint.permutations[0])
        permutations = tuple(symmetry.compose(back, p) for p in joint.permutations)
    result = Merge(permutations, shares, entries)
    if network is None or data is None:
        return result
    return Merge(permutations, shares, entries, _scores(result, symmetry, network, data))


def _shares(weights: Sequence[float] | None, count: int) -> tuple[float, ...]:
    if weights is None:
        return (1 / count,) * count
    if len(weights) != count or not all(np.isfinite(w) and w >= 0 for w in weights):
        raise ValueError(f"give {count} weights, one for each member, of zero or more")
    if not sum(weights) > 0:
        raise ValueError("all weights are zero; give at least one that is positive")
    return tuple(float(w) / sum(weights) for w in weights)


def _checkpoint(member: Member) -> Checkpoint:
    if not isinstance(member, Mapping):
        return read_checkpoint(member)
    tensors = {name: np.asarray(array) for name, array in member.items()}
    return Checkpoint(Path("a state_dict in memory"), tensors, {})


def _check_alike(entries: Sequence[Entries]) -> None:
    """Refuse members whose other entries differ in names or shapes."""
    first = entries[0].checkpoint
    for own in (e.checkpoint for e in entries[1:]):
        for name in sorted(first.tensors.keys() | own.tensors.keys()):
            shapes = [getattr(c.tensors.get(name), "shape", None) for c in (own, first)]
            if shapes[0] != shapes[1]:
                raise ValueError(
                    f"{own.path} and {first.path} are of different networks: '{name}' has shape "
                    f"{shapes[0]} in one and {shapes[1]} in the other"
                )


def _average(arrays: Any, weights: Sequence[float]) -> np.ndarray:
    """Σ wᵢ aᵢ in double precision, in the data type of the first."""
    total, first = None, None
    for array, weight in zip(arrays, weights, strict=True):
        first = array if first is None else first
        if first.dtype.kind in "biu":
            return first
        total = weight * array.astype(np.float64) + (0 if total is None else total)
    assert first is not None
    return np.asarray(total, first.dtype)


def _scores(result: Merge, symmetry: Symmetry, network: NetworkLike, data: Split) -> Scores:
    """Every member, the plain and the aligned average, and the ensemble, on the same examples."""
    log_probs = []

    def score(tensors: Any, keep: bool = False) -> Score:
        tree = {name: np.asarray(tensors(name)) for name in symmetry.layouts}
        state = {name: np.asarray(tensors(name)) for name in symmetry.state_layouts} or None
        one = Samples(add_axis(tree), state=add_axis(state) if state else None)
        # A single draw is used as it is, whatever the key.
        key, likelihood = jax.random.key(0), "categorical"
        found = predictive(one, network, data.x, key=key, likelihood=likelihood, progress="silent")
        assert isinstance(found, Predictive)  # that of classes
        if keep:
            log_probs.append(found.log_probs)
        return _score(found.log_probs, data.y)

    members = tuple(score(e.checkpoint.tensors.__getitem__, keep=True) for e in result.entries)
    identity = (symmetry.identity(),) * len(members)
    plain = score(Merge(identity, result.weights, result.entries).tensor)
    merged = score(result.tensor)
    shares = np.log(np.maximum(result.weights, np.finfo(float).tiny))
    mixed = np.logaddexp.reduce([p + w for p, w in zip(log_probs, shares, strict=True)])
    return Scores(members, plain, merged, _score(mixed, data.y))


def _score(log_probs: np.ndarray, y: ArrayLike) -> Score:
    labels = np.asarray(y)
    nll = -float(log_probs[np.arange(len(labels)), labels].mean(dtype=np.float64))
    return Score(nll, float((log_probs.argmax(-1) == labels).mean()))
