"""The time of alignment compared with a plain version of the published algorithm, on trained pairs.

    python benchmarks/alignment_speed.py --cache FOLDER --out results/alignment_speed.json

For every pair and objective, in one process: the plain run from the identity; `align` from the
identity with the same order of visits (the same path, so only work is saved); `align` from the
identity in its own order; and `align` with its defaults, which begins with a forward pass. What
counts is the time until the score is within 1e-4 of the plain run's final score; the time to the
stricter 1e-4 of the plain run's gain is also recorded, and so are CPU seconds, which other work on
the machine disturbs less. Neither side is charged for scoring its start: the plain run's clock is
stopped while it scores, and a descent scores its start last. Neither is charged for reading the
weights: the plain run's clock starts afterwards, and ours are warm calls, in which posteriors that
were aligned before are not read again; `first_call` is the call from the same start with new
posteriors. `--starts` adds, timed separately, the best of several starts compared with the plain
algorithm's best over 5 random orders.
"""

import argparse
import contextlib
import json
import os
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from unittest import mock

import jax
import numpy as np

import plain_matching
from alignment_pairs import BUDGETS, make_pair
from machine import matmul_rate
from onebasin.alignment import FrankWolfe, align
from onebasin.alignment.assignment import gap, solve
from onebasin.alignment.objective import objective_named
from onebasin.alignment.scores import ScoreTable
from plain_matching import plain_match

CLOSE = 1e-4
OURS = ("same_order", "same_start", "first_call", "default")


def clocked(function):
    wall, cpu = time.perf_counter(), time.process_time()
    result = function()
    return result, time.perf_counter() - wall, time.process_time() - cpu


def reached(scores, seconds, goal):
    """The first second at which the score reaches the goal, or None."""
    return next((t for s, t in zip(scores, seconds, strict=True) if s >= goal), None)


def exact_score(pair, objective, permutation):
    q0, q1 = pair.posteriors
    features = objective_named(objective).features(q1, q0, pair.symmetry)
    return ScoreTable(features, permutation).total()


def certificate(pair, objective, permutation):
    """An upper bound on the gain of any one group, as a share of the score (0 is optimal)."""
    q0, q1 = pair.posteriors
    features = objective_named(objective).features(q1, q0, pair.symmetry)
    table = ScoreTable(features, permutation)
    worst = 0.0
    for group in pair.symmetry.groups:
        matrix = table.scores(group.name)
        now = permutation[group.name]
        prices = solve(matrix, certify=True, name=group.name).prices
        assert prices is not None
        bound = gap(matrix, now, prices)
        worst = max(worst, bound / float(np.abs(matrix[np.arange(len(now)), now]).sum()))
    return worst


def clocked_without_scoring(function):
    """As `clocked`, without the time that the plain run takes to score its trace."""
    spent, score = 0.0, plain_matching.total_score

    def scoring(*args):
        nonlocal spent
        began = time.process_time()
        try:
            return score(*args)
        finally:
            spent += time.process_time() - began

    with mock.patch.object(plain_matching, "total_score", scoring):
        result, wall, cpu = clocked(function)
    return result, wall, cpu - spent


def measure(pair, objective, repeats, max_sweeps):
    q0, q1 = pair.posteriors
    common = {"to": q0, "symmetry": pair.symmetry, "objective": objective}
    ways = {
        "plain": lambda: plain_match(
            pair.symmetry, q1, q0, objective, seed=[0, 0], max_sweeps=max_sweeps
        ),
        "same_order": lambda: align(q1, **common, starts=("identity",), order="random"),
        "same_start": lambda: align(q1, **common, starts=("identity",)),
        "first_call": lambda: align(
            replace(q1), **{**common, "to": replace(q0)}, starts=("identity",)
        ),
        "default": lambda: align(q1, **common),
    }
    for name in OURS:
        ways[name]()  # the first call warms up
    # In turn, so that other work on the machine affects all alike.
    runs = {name: [] for name in ways}
    for _ in range(repeats):
        for name, way in ways.items():
            runs[name].append((clocked_without_scoring if name == "plain" else clocked)(way))
    plain, _, plain_cpu = min(runs["plain"], key=lambda run: run[0].seconds)
    start, final = plain.trace[0][1], plain.trace[-1][1]
    goal = final - CLOSE * abs(final)
    strict = final - CLOSE * (final - start)
    row = {
        "pair": pair.name,
        "objective": objective,
        "accuracies": pair.accuracies,
        "conditions": {
            "cores": os.cpu_count(),
            "blas_threads": os.environ.get("OPENBLAS_NUM_THREADS", "all"),
            "load_average": os.getloadavg()[0],
            "matmul_gflops": matmul_rate() / 1e9,
        },
        "plain": {
            "seconds": plain.seconds,
            "cpu_seconds": plain_cpu,
            "seconds_until_close": reached(
                [s for _, s in plain.trace], [t for t, _ in plain.trace], goal
            ),
            "sweeps": plain.sweeps,
            "stopped_early": plain.sweeps == max_sweeps,
            "score_start": start,
            "score": final,
        },
    }
    for name in OURS:
        found, _, cpu = min(runs[name], key=lambda run: run[0].seconds)
        score = exact_score(pair, objective, found.permutation)
        close = reached(found.trace, found.trace_seconds, goal)
        row[name] = {
            "seconds": found.seconds,
            "cpu_seconds": cpu,
            "seconds_until_close": close,
            "sweeps": found.sweeps,
            "solves": found.solves,
            "score": score,
            "share_of_plain_gain": (score - start) / (final - start),
            "seconds_until_close_strict": reached(found.trace, found.trace_seconds, strict),
            "converged": found.converged,
            "certificate": certificate(pair, objective, found.permutation),
            "times_faster": None if close is None else plain.seconds / close,
            "times_faster_whole_run": plain.seconds / found.seconds,
            # The CPU clock is too coarse for runs of milliseconds.
            "times_faster_cpu_whole_run": plain_cpu / cpu if plain_cpu > 0.1 else None,
            "times_faster_close_to_close": (
                None if close is None else row["plain"]["seconds_until_close"] / close
            ),
        }
    return row


def plain_order(pair, objective, seed, cache, quick=False):
    """Score and seconds of one plain run, cached beside the pair: at width 4096 it takes minutes.

    With `quick`, another exact solver replaces SciPy's (the same permutations, sooner), and only
    the end is scored.
    """
    kept = cache / f"{pair.name}-{objective}-order{seed}{'-quick' if quick else ''}.json"
    if not kept.exists():
        q0, q1 = pair.posteriors
        with contextlib.ExitStack() as swapped:
            if quick:
                solver = QuickAssignment(pair.symmetry)
                parts = {"linear_sum_assignment": solver, "total_score": lambda *_: 0.0}
                for name, part in parts.items():
                    swapped.enter_context(mock.patch.object(plain_matching, name, part))
            run = plain_match(pair.symmetry, q1, q0, objective, seed=seed)
        targets, movers = (plain_matching.features(q, objective) for q in (q0, q1))
        axes = plain_matching.axes_of_leaves(pair.symmetry)
        score = plain_matching.total_score(axes, targets, movers, run.permutation.indices)
        found = {"score": score, "sweeps": run.sweeps, "seconds": run.seconds, "quick": quick}
        kept.write_text(json.dumps(found) + "\n")
        print(kept.stem, f"{score}, {run.sweeps} sweeps, {run.seconds:.0f} s", flush=True)
    return json.loads(kept.read_text())


class QuickAssignment:
    """Exact assignment, warm-started with the prices of the most similar earlier matrix.

    The plain algorithm does not say which group a matrix belongs to. Weak duality does: prices
    bound the score from above, and those of the same group bound it most tightly. In the first
    sweep every group is new. Narrow groups have no prices and are solved cold.
    """

    def __init__(self, symmetry):
        self.groups = Counter(group.size for group in symmetry.groups)
        self.prices = {size: [] for size in self.groups}

    def __call__(self, scores, maximize):
        assert maximize
        known = self.prices[len(scores)]
        warm, which = None, len(known)
        if which == self.groups[len(scores)]:
            bounds = [(scores - p).max(axis=1).sum() + p.sum() for p in known]
            which = int(np.argmin(bounds))
            warm = known[which]
        found = solve(scores, prices=warm)
        if found.prices is not None:
            known[which : which + 1] = [found.prices]
        return np.arange(len(scores)), found.columns


def largest_difference(pair, objective, cache):
    """The largest difference of scores over the orders run with both solvers, and their number."""
    both = []
    for seed in range(5):
        stem = f"{pair.name}-{objective}-order{seed}"
        files = [cache / f"{stem}.json", cache / f"{stem}-quick.json"]
        if all(file.exists() for file in files):
            both.append(np.ptp([json.loads(file.read_text())["score"] for file in files]))
    return max(both, default=None), len(both)


def never_worse(pair, objective, search, cache, quick):
    """Several starts compared with the plain algorithm's best over 5 random orders.

    With `search`, Frank and Wolfe's method continues from the best start. With `quick`, all plain
    runs except the first use another exact solver; the two are compared on the orders that were run
    with both.
    """
    q0, q1 = pair.posteriors
    first = plain_order(pair, objective, 0, cache)
    plain = [first, *(plain_order(pair, objective, seed, cache, quick) for seed in range(1, 5))]
    apart, compared = largest_difference(pair, objective, cache)
    common = {"to": q0, "symmetry": pair.symmetry, "objective": objective}
    starts = ("forward", "identity", "shaken", "shaken")
    found, seconds, _ = clocked(lambda: align(q1, **common, starts=starts, key=jax.random.key(0)))
    best = max(run["score"] for run in plain)
    score = without = exact_score(pair, objective, found.permutation)
    if search:
        further, more, _ = clocked(
            lambda: align(q1, **common, starts=(found.permutation,), search=FrankWolfe())
        )
        score, seconds = exact_score(pair, objective, further.permutation), seconds + more
    return {
        "pair": pair.name,
        "objective": objective,
        "plain_scores": [run["score"] for run in plain],
        "plain_sweeps": [run["sweeps"] for run in plain],
        "plain_seconds": sum(run["seconds"] for run in plain),
        "plain_solver": "SciPy, then another exact one" if quick else "SciPy",
        "solvers_differ_by": apart,
        "orders_by_both_solvers": compared,
        "starts": [vars(s) for s in found.starts],
        "search": search,
        "score_before_search": without,
        "score": score,
        "seconds": seconds,
        "above_plain_best": (score - best) / abs(best),
        "never_worse": bool(score >= best - 1e-6 * abs(best)),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--pairs", nargs="+", default=list(BUDGETS), choices=list(BUDGETS))
    parser.add_argument("--objectives", nargs="+", default=["l2", "w2"])
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument(
        "--plain-sweeps", type=int, default=100, help="stop the plain run after this many sweeps"
    )
    parser.add_argument("--starts", action="store_true")
    parser.add_argument(
        "--search", action="store_true", help="with --starts: continue from the best"
    )
    parser.add_argument(
        "--quick", action="store_true", help="with --starts: plain orders by a faster exact solver"
    )
    arguments = parser.parse_args()
    key = "starts" if arguments.starts else "speed"
    results = json.loads(arguments.out.read_text()) if arguments.out.exists() else {}
    rows = {f"{r['pair']}/{r['objective']}": r for r in results.get(key, [])}
    for name in arguments.pairs:
        pair = make_pair(name, arguments.cache)
        for objective in arguments.objectives:
            if arguments.starts:
                row = never_worse(
                    pair, objective, arguments.search, arguments.cache, arguments.quick
                )
                print(name, objective, f"{row['above_plain_best']:+.2e}", row["never_worse"])
            else:
                row = measure(pair, objective, arguments.repeats, arguments.plain_sweeps)
                print(
                    name,
                    objective,
                    f"plain {row['plain']['seconds']:.2f} s",
                    *(
                        f"{k} {row[k]['seconds']:.2f} s ×{row[k]['times_faster'] or 0:.1f} "
                        f"(cpu ×{row[k]['times_faster_cpu_whole_run'] or 0:.1f})"
                        for k in OURS
                    ),
                    flush=True,
                )
            rows[f"{name}/{objective}"] = row
            results[key] = list(rows.values())
            arguments.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
