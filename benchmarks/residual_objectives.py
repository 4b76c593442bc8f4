"""Which objective brings two residual networks together: barriers by objective and width.

    python benchmarks/residual_objectives.py --cache FOLDER resnet16 resnet32

The pairs are those of `alignment_pairs.py`: ResNet20 on the embedded digits, fitted independently.
Each row is one way to bring q1 to q0, with the W2 distance that it ends at (to tell a search that
failed from an objective that misleads) and the barrier on the test images, plain and repaired.
"""

import argparse
from pathlib import Path
from typing import Any

import jax

from alignment_pairs import BUDGETS, make_pair, problem_of
from machine import describe, record
from onebasin.alignment import align
from onebasin.alignment.activations import objective_on
from onebasin.evaluation.distances import wasserstein
from onebasin.evaluation.profiles import profile
from onebasin.paths import geodesic, repair

POINTS, SAMPLES, IMAGES = 5, 16, 500
WAYS = ("l2", "w2", "kl", "reverse-kl", "activations", "correlations", "w2 from correlations")


def measure(name: str, cache: Path) -> dict[str, Any]:
    pair, problem = make_pair(name, cache), problem_of(name)
    (q0, q1), symmetry = pair.posteriors, pair.symmetry
    images = problem.x[:IMAGES]
    rows = {"as fitted": _row(problem, q0, q1)}
    for way in WAYS:
        objective, starts = objective_on(way, problem.apply, images), ("auto",)
        if way == "w2 from correlations":
            objective = "w2"
            starts = (objective_on("correlations", problem.apply, images),)
        moved = align(q1, to=q0, symmetry=symmetry, objective=objective, starts=starts).posterior
        rows[way] = _row(problem, q0, moved)
        print(name, way, rows[way], flush=True)
    return {"accuracies": pair.accuracies, "rows": rows}


def _row(problem: Any, q0: Any, q1: Any) -> dict[str, float]:
    path = repair(geodesic(q0, q1), problem.apply, problem.x[:IMAGES])
    found = profile(
        path,
        problem.apply,
        problem.data.test,
        key=jax.random.key(0),
        points=POINTS,
        num_samples=SAMPLES,
    )
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
