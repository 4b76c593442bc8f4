"""Merge checkpoints: move them into one basin and average them, one tensor at a time.

The members keep their files: tensors of safetensors files are memory maps, and the average of a
tensor is computed when it is written. What is held in memory is what alignment needs, and with a
network and data the weights of one member at a time (of two, to repair their average).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

import jax
import numpy as np
from numpy.typing import ArrayLike

from onebasin.alignment import align, align_many
from onebasin.checkpoints import DTYPES, Checkpoint, Entries, read_checkpoint
from onebasin.choices import check_choice
from onebasin.data import Dataset, Split
from onebasin.evaluation import (
    MixturePredictive,
    Predictive,
    accuracy,
    nll,
    predictive,
    rmse,
)
from onebasin.inference.refreshing import refresh_state
from onebasin.likelihoods import LikelihoodLike
from onebasin.networks import Network, NetworkLike
from onebasin.paths import line, repair
from onebasin.posterior import Samples
from onebasin.symmetry import Permutation, Symmetry, transpositions
from onebasin.tensor_files import Pathlike
from onebasin.trees import add_axis

Member: TypeAlias = Pathlike | Mapping[str, ArrayLike]
Correction: TypeAlias = Literal["repair", "reset"]
Tensors: TypeAlias = Callable[[str], np.ndarray]
CALIBRATING = 1000  # training examples on which units are repaired


@dataclass(frozen=True)
class Score:
    """How well a network predicts."""

    nll: float
    """Negative log likelihood in nats per example."""
    score: float
    """The share of examples classified right, or the root mean squared error of numbers."""
    score_name: Literal["accuracy", "rmse"] = "accuracy"

    @property
    def accuracy(self) -> float:
        """The share of examples classified right; NaN where targets are numbers."""
        return self.score if self.score_name == "accuracy" else float("nan")

    def summary(self) -> dict[str, float]:
        """The numbers by name."""
        return {"nll": self.nll, self.score_name: self.score}


@dataclass(frozen=True)
class Scores:
    """What was merged and what came of it, on the same examples."""

    members: tuple[Score, ...]
    plain: Score
    """The average of the members as they were."""
    merged: Score
    """The average of the aligned members."""
    ensemble: Score
    """The average of the members' predictions, which takes a run of every member."""
    corrected: Score | None = None
    """The average of the aligned members, repaired or reset."""


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
    corrected: Mapping[str, np.ndarray] = field(default_factory=dict, repr=False)
    """Entries that a repair or a reset of running statistics has changed."""

    def __repr__(self) -> str:
        swaps = sum(int(transpositions(p)) for p in self.permutations)
        return f"Merge({len(self.entries)} members, {swaps} transpositions)"

    def tensor(self, name: str) -> np.ndarray:
        """One entry of the merged state_dict, averaged in double precision.

        Entries that are not floating-point numbers, such as counters, are those of the first
        member.
        """
        lead = self.entries[0]
        known = lead.tied.get(name, name) if self.corrected else name
        if known in self.corrected:
            return np.asarray(self.corrected[known], lead.checkpoint.tensors[name].dtype)
        moved = (e.moved(name, p) for e, p in zip(self.entries, self.permutations, strict=True))
        return _average(moved, self.weights)

    @property
    def state_dict(self) -> dict[str, np.ndarray]:
        """All entries, in memory."""
        names = self.entries[0].checkpoint.names_in_file
        return {name: self.tensor(own) for name, own in names.items()}

    def write(self, path: Pathlike, *, overwrite: bool = False) -> Path:
        """Write a file like that of the first member: its names, data types and metadata."""
        return self.entries[0].checkpoint.write(path, self.tensor, overwrite=overwrite)


def merge(
    members: Sequence[Member],
    *,
    symmetry: Symmetry,
    weights: Sequence[float] | None = None,
    network: NetworkLike | None = None,
    data: Dataset | Split | None = None,
    likelihood: LikelihoodLike = "categorical",
    correct: Correction | None = None,
    max_sweeps: int = 100,
) -> Merge:
    """Align checkpoints to one another and average them.

    Two are aligned pairwise and more jointly, by the distance of their weights. Running statistics
    move with their units and are averaged too.

    Args:
      members: files or folders of state_dicts, or state_dicts of arrays in memory.
      symmetry: the symmetry of their network, found by `find_symmetry` or loaded from a file.
      weights: the share of each member; equal by default. Two members with 1 − t and t give the
        point at t of the geodesic between them, a straight line.
      network: the network, to score the result; takes the entries of the symmetry as params.
      data: examples to score it on: the test examples of a `Dataset`, or those given.
      likelihood: what the targets are; a name, or a value from `onebasin.likelihoods`.
      correct: what to do about the statistics of units, which averaging changes: "reset" measures
        the running statistics anew (as `refresh_state`), "repair" gives every hidden unit the mean
        and standard deviation that two members have there (as `repair`). Both use the training
        examples of a `Dataset`, or those given.
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
    if correct is not None:
        _check_correction(correct, network, len(members))
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
    train, test = (data.train, data.test) if isinstance(data, Dataset) else (data, data)
    if correct is not None:
        changed = (_reset if correct == "reset" else _repaired)(result, symmetry, network, train.x)
        result = replace(result, corrected=changed)
    return replace(result, scores=_scores(result, symmetry, network, test, likelihood))


def _check_correction(correct: Correction, network: NetworkLike | None, count: int) -> None:
    check_choice(correct, Correction, "correct")
    if network is None:
        raise ValueError(f'correct="{correct}" runs the network on data; give network and data')
    if correct == "repair" and count != 2:
        raise ValueError(
            f'correct="repair" is for two members, got {count}; correct="reset" takes any number'
        )
    if correct == "reset" and getattr(network, "running", None) is None:
        raise ValueError(
            'correct="reset" measures running statistics anew, and this network has none; take '
            'correct="repair"'
        )


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
    for name, array in tensors.items():
        if array.dtype not in DTYPES.values():
            raise ValueError(f"'{name}' holds {array.dtype} numbers, which are not supported")
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


def _trees(tensors: Tensors, symmetry: Symmetry) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """The params and the running statistics of a member or an average, in memory."""
    params = {name: np.asarray(tensors(name)) for name in symmetry.layouts}
    return params, {name: np.asarray(tensors(name)) for name in symmetry.state_layouts} or None


def _reset(
    result: Merge, symmetry: Symmetry, network: NetworkLike, x: ArrayLike
) -> dict[str, np.ndarray]:
    """The running statistics that the average has on data."""
    assert isinstance(network, Network)  # it has running statistics
    params, _ = _trees(result.tensor, symmetry)
    state = refresh_state(params, network, x)
    return {name: np.asarray(leaf) for name, leaf in state.items()}


def _repaired(
    result: Merge, symmetry: Symmetry, network: NetworkLike, x: ArrayLike
) -> dict[str, np.ndarray]:
    """The params with which every hidden unit has the statistics interpolated between the ends."""
    ends = [
        _trees(lambda name, e=own, p=permutation: e.moved(name, p), symmetry)
        for own, permutation in zip(result.entries, result.permutations, strict=True)
    ]
    (first, state0), (second, state1) = ends
    path = line(first, second, state0, state1)
    some = np.asarray(x)[:CALIBRATING]
    point = repair(path, network, some, symmetry=symmetry)(result.weights[1])
    return {name: np.asarray(leaf) for name, leaf in point.draw(0).items()}


def _scores(
    result: Merge,
    symmetry: Symmetry,
    network: NetworkLike,
    data: Split,
    likelihood: LikelihoodLike,
) -> Scores:
    """Every member, the plain and the aligned average, and the ensemble, on the same examples."""

    def predicted(tensors: Tensors) -> Predictive | MixturePredictive:
        params, state = _trees(tensors, symmetry)
        one = Samples(add_axis(params), state=add_axis(state) if state else None)
        # A single draw is used as it is, whatever the key.
        key = jax.random.key(0)
        return predictive(one, network, data.x, key=key, likelihood=likelihood, progress="silent")

    each = [predicted(own.checkpoint.tensors.__getitem__) for own in result.entries]
    identity = (symmetry.identity(),) * len(each)
    aligned = replace(result, corrected={})
    plain = replace(aligned, permutations=identity)
    found = {
        "members": tuple(_score(one, data.y) for one in each),
        "ensemble": _score(_mixed(each, result.weights), data.y),
        "plain": _score(predicted(plain.tensor), data.y),
        "merged": _score(predicted(aligned.tensor), data.y),
    }
    corrected = _score(predicted(result.tensor), data.y) if result.corrected else None
    return Scores(**found, corrected=corrected)


def _mixed(
    each: Sequence[Predictive | MixturePredictive], weights: Sequence[float]
) -> Predictive | MixturePredictive:
    """The ensemble: a weighted average of probabilities or densities."""
    first = each[0]
    if isinstance(first, MixturePredictive):
        outputs = np.concatenate([one.outputs for one in each if isinstance(one, type(first))])
        return replace(first, outputs=outputs, weights=np.asarray(weights))
    shares = np.log(np.maximum(weights, np.finfo(float).tiny))
    tables = [one.log_probs for one in each if isinstance(one, Predictive)]
    mixed = np.logaddexp.reduce([p + w for p, w in zip(tables, shares, strict=True)])
    return replace(first, log_probs=mixed)


def _score(p: Predictive | MixturePredictive, y: ArrayLike) -> Score:
    if isinstance(p, Predictive):
        return Score(nll(p, y), accuracy(p, y))
    return Score(nll(p, y), rmse(p, y), "rmse")
