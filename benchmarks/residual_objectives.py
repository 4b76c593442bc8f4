"""Which objective connects two residual networks: barriers by objective and width.

    python benchmarks/residual_objectives.py --cache FOLDER resnet16 resnet32

The pairs are those of `alignment_pairs.py`: ResNet20 on the embedded digits, fitted independently.
Each row is one way to align q1 with q0, with the final W2 distance (to distinguish a failed search
from a misleading objective) and the barrier on the test images, plain and repaired.
"""

import argparse
from pathlib import Path
from typing import Any

import jax

from alignment_pairs import BUDGETS, make_pair, problem_of
from machine import describe, record
from onebasin.alignment import Activations, align
from onebasin.alignment.activations import objective_on
from onebasin.alignment.objective import ObjectiveLike
from onebasin.choices import ObjectiveName
from onebasin.data import Dataset
from onebasin.evaluation.distances import wasserstein
from onebasin.evaluation.profiles import profile
from onebasin.paths import geodesic, repair
from onebasin.posterior import Posterior
from onebasin.problem import Problem

POINTS, SAMPLES, IMAGES = 5, 16, 500
WEIGHTS: tuple[ObjectiveName, ...] = ("l2", "w2", "kl", "reverse-kl")
OBJECTIVES: tuple[ObjectiveName, ...] = (*WEIGHTS, "activations", "correlations")


def measure(name: str, cache: Path) -> dict[str, Any]:
    pair, problem = make_pair(name, cache), problem_of(name)
    (q0, q1), symmetry = pair.posteriors, pair.symmetry
    images = problem.x[:IMAGES]
    rows = {"as fitted": _row(problem, q0, q1)}
    # Correlations after the nonlinearity alone, as recorded; learned_alignment.py has all sites.
    by: dict[str, ObjectiveLike] = {
        way: objective_on(way, problem.apply, images, sites="after") for way in OBJECTIVES
    }
    aligned = {way: align(q1, to=q0, symmetry=symmetry, objective=by[way]) for way in by}
    correlations = Activations(problem.apply, images, correlation=True, sites="after")
    aligned["w2 from correlations"] = align(q1, to=q0, symmetry=symmetry, starts=correlations)
    for way, found in aligned.items():
        rows[way] = _row(problem, q0, found.posterior)
        print(name, way, rows[way], flush=True)
    return {"accuracies": pair.accuracies, "rows": rows}


def _row(problem: Problem, q0: Posterior, q1: Posterior) -> dict[str, float]:
    assert isinstance(problem.data, Dataset)
    path = repair(geodesic(q0, q1), problem.apply, problem.x[:IMAGES])
    found = profile(
        path,
        problem.apply,
        problem.data.test,
        key=jax.random.key(0),
        points=POINTS,
        num_samples=SAMPLES,
    )
    assert found.plain is not None  # the path is repaired
    return {
        "w2_distance": float(wasserstein(q0, q1)),
        "barrier": found.plain.barrier,
        "barrier_stderr": found.plain.barrier_stderr,
        "lowest_accuracy": float(found.plain.accuracy.min()),
        "repaired_barrier": found.barrier,
        "repaired_barrier_stderr": found.barrier_stderr,
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    residual = [name for name in BUDGETS if name.startswith("resnet")]
    parser.add_argument("names", nargs="+", choices=residual)
    parser.add_argument("--cache", type=Path, required=True)
    arguments = parser.parse_args()
    sizes = {"points": POINTS, "samples": SAMPLES, "images_to_match": IMAGES}
    for each in arguments.names:
        found = measure(each, arguments.cache)
        record("residual_objectives", {"sizes": sizes, "machine": describe(), each: found})
