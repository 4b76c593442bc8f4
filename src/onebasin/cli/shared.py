"""What the commands `barrier`, `compare` and `landscape` share: files, network, data, output.

Nothing heavy is imported until a command runs, so help and errors in flags are instant.
"""

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onebasin.choices import ObjectiveName

MATCHED = 1000  # training examples on which activations are matched


@dataclass(frozen=True)
class Opened:
    """Posterior files of one network, and the network."""

    posteriors: tuple[Any, ...]
    apply: Callable[..., Any]
    network: Any
    input_shape: tuple[int, ...]
    headers: tuple[Any, ...]


def open_posteriors(paths: Sequence[Path]) -> Opened:
    """Read posteriors; refuse files over different params before any array is read."""
    from onebasin.cli.symmetry import file_network
    from onebasin.posterior import load, read_header
    from onebasin.trees import first_difference

    headers = tuple(read_header(path) for path in paths)
    for path, header in zip(paths[1:], headers[1:], strict=True):
        difference = first_difference(headers[0].params_shapes(), header.params_shapes())
        if difference:
            raise ValueError(f"{path} is over other params than {paths[0]}: {difference}")
    network, input_shape = file_network(paths[0])
    posteriors = tuple(load(path) for path in paths)

    def apply(params: Any, x: Any) -> Any:
        return network.apply({"params": params}, x)

    return Opened(posteriors, apply, network, input_shape, headers)


def open_data(name: str, root: Path | None, input_shape: tuple[int, ...], what: str) -> Any:
    """A data set whose examples fit the network."""
    from onebasin.data import load_dataset

    data = load_dataset(name, root=root)
    if tuple(data.test.x.shape[1:]) != tuple(input_shape):
        raise ValueError(
            f"{what} takes inputs of shape {tuple(input_shape)} and {name} has "
            f"{tuple(data.test.x.shape[1:])}; name the data it was fitted to"
        )
    return data


def align_second(
    opened: Opened, objective: ObjectiveName, seed: int, data: Any
) -> tuple[Any, dict[str, Any]]:
    """The second posterior moved to the first, and a report of how.

    Activations, if the objective is of them, are those on the first training examples of `data`.
    """
    import jax

    from onebasin.alignment import align
    from onebasin.alignment.activations import objective_on
    from onebasin.cli.symmetry import network_symmetry
    from onebasin.evaluation.distances import aligned_distance

    q0, q1 = opened.posteriors[:2]
    symmetry = network_symmetry(opened.network, opened.input_shape)
    score = objective_on(objective, opened.apply, data.train.x[:MATCHED])
    found = align(q1, to=q0, symmetry=symmetry, objective=score, key=jax.random.key(seed))
    pair = aligned_distance(q0, q1, found.permutation, symmetry)
    report = {
        "objective": objective,
        "distance_before": found.distance_before,
        "distance_after": found.distance_after,
        "squared_distance_of_means": pair.squared,
        "transpositions": int(pair.transpositions.total),
        "seconds": found.seconds,
    }
    return found.posterior, report


def write_json(value: Any) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
