"""Gradients and seconds that each sampler needs: to agree between chains, and per effective draw.

    python benchmarks/sampler_speed.py --out FOLDER                   # 1,000 images, width 32
    python benchmarks/sampler_speed.py --out FOLDER --limit 7000 --width 128 --gradients 1000000

MNIST (the real files), an MLP with one hidden layer, prior N(0, 1). Every sampler gets about the
same number of full-batch gradients over all its chains, warm-up included, except NUTS, whose
trajectories have the lengths it chooses. A prediction is the probability of one class for one
test image, and there are 1,000 of them. For growing shares of the draws, the R-hat and the
effective sample size (ESS) of the slowest prediction are computed. Fits resume: a run that was
stopped continues with the same command, and with --only the other rows are kept. Seconds are
gradients × the seconds per gradient of each sampler, measured in turns at the end, so that a busy
machine slows all alike. Writes results/sampler_speed.json.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

from inference import Chunk
from machine import RESULTS, describe, interleaved, record
from onebasin.data import load_dataset
from onebasin.evaluation import predict, total_variation
from onebasin.inference.diagnostics import ess, predictions, rhat
from onebasin.inference.fit_result import FitResult
from onebasin.inference.fitting import fit
from onebasin.inference.methods import (
    HMC,
    MCLMC,
    NUTS,
    AdjustedMCLMC,
    FullBatchMethod,
    to_config,
)
from onebasin.networks import MLP
from onebasin.posterior import Samples
from onebasin.problem import Problem

PREDICTIONS = 1000
SHARES = 20  # numbers of draws at which the chains are examined
RHAT, ESS = 1.05, 400
ENERGY_ERRORS = (5e-4, 5e-3, 2e-2)
OPENING = 60  # epochs before the chains that begin at modes


def methods(gradients: int, step_size: float) -> dict[str, FullBatchMethod]:
    """Every sampler with about this many gradients; a trajectory of HMC is π/2 long."""
    length = round(1.5 / step_size)
    heavy = (("Dense_1/kernel", 2.0), ("Dense_1/bias", 2.0))
    transitions = gradients // (4 * length)
    hmc: dict[str, Any] = {"step_size": step_size, "adapt_step_size": False, "data_chunk": 1000}
    micro: dict[str, Any] = {"step_size": step_size, "data_chunk": 1000}
    two_stage, leapfrog = gradients // (2 * 4), gradients // 4
    found: dict[str, FullBatchMethod] = {
        "HMC": HMC(
            **hmc,
            leapfrog_steps=length,
            masses=heavy,
            warmup=max(transitions // 10, 4),
            draws=transitions - max(transitions // 10, 4),
        ),
        "NUTS": NUTS(
            step_size=step_size,
            warmup=max(transitions // 3, 8),
            draws=transitions,
            max_doublings=8,
            data_chunk=1000,
        ),
        "AdjustedMCLMC": AdjustedMCLMC(
            **micro,
            integrator="leapfrog",
            target_acceptance=0.7,
            leapfrog_steps=length,
            warmup=transitions // 4,
            draws=transitions - transitions // 4,
        ),
        "MCLMC, 12 chains begun at modes": MCLMC(
            **micro, chains=12, mode_epochs=OPENING, **sampling(gradients // (2 * 12), 4, 200)
        ),
    }
    for error in ENERGY_ERRORS:
        shown = f"energy error {error:g}"
        found[f"MCLMC, {shown}"] = MCLMC(**micro, energy_error=error, **sampling(two_stage, 5, 400))
        found[f"MCLMC, leapfrog, {shown}"] = MCLMC(
            **micro, energy_error=error, integrator="leapfrog", **sampling(leapfrog, 5, 400)
        )
    return found


def sampling(steps: int, part: int, draws: int) -> dict[str, Any]:
    """A `part`-th of the steps as warm-up, and about `draws` draws."""
    thin, warmup = max(steps // draws, 1), steps // part
    return {"warmup": warmup, "thin": thin, "draws": (steps - warmup) // thin}


def gradients_of(method: FullBatchMethod, result: FitResult[Samples]) -> tuple[float, float]:
    """Gradients over all chains before the first draw is kept, and after."""
    chains, epochs = method.chains, method.mode_epochs
    if isinstance(method, NUTS):
        each = [np.sum(row["leapfrog_steps"]) for row in result.history]
        kept = float(np.sum(result.stats["leapfrog_steps"]) * method.draws)
        return float(np.sum(each)) - kept, kept
    per_step = per_step_of(method)
    if isinstance(method, HMC | AdjustedMCLMC):
        per_step *= method.leapfrog_steps
    kept = chains * method.draws * method.thin * per_step
    return chains * (epochs + method.warmup * per_step), kept  # an epoch of Adam is a gradient


def per_step_of(method: FullBatchMethod) -> int:
    """Gradients per step of the integrator."""
    two = isinstance(method, MCLMC | AdjustedMCLMC) and method.integrator == "two-stage"
    return 2 if two else 1


def course(values: np.ndarray, before: float, kept: float) -> Iterator[dict[str, float]]:
    """R-hat and ESS of the slowest prediction after growing shares of the draws."""
    draws = values.shape[1]
    for count in sorted({max(4, draws * i // SHARES) for i in range(1, SHARES + 1)}):
        part = values[:, :count]
        yield {
            "draws": count,
            "gradients": before + kept * count / draws,
            "rhat": float(np.nanmax(rhat(part))),
            "ess": float(np.nanmin(ess(part))),
        }


def first_for_good(rows: list[dict[str, float]], reached: list[bool]) -> float | None:
    """The gradients from which on the condition holds."""
    good = [i for i in range(len(rows)) if all(reached[i:])]
    return rows[good[0]]["gradients"] if good else None


def examine(
    problem: Problem, method: FullBatchMethod, result: FitResult[Samples], reference: Samples | None
) -> dict[str, Any]:
    images = np.asarray(problem.data.test.x)[: -(-PREDICTIONS // 9)]  # pyright: ignore[reportAttributeAccessIssue]
    values = predictions(problem, result.posterior, images)
    values = values.reshape(*values.shape[:2], -1)[..., :PREDICTIONS]
    before, kept = gradients_of(method, result)
    rows = list(course(values, before, kept))
    last = rows[-1]
    per_draw = kept / last["ess"]
    reached = first_for_good(rows, [row["ess"] >= ESS for row in rows])
    found: dict[str, Any] = {
        "settings": to_config(method),
        "gradients": before + kept,
        "gradients_before_the_first_draw": before,
        "rhat_at_the_end": last["rhat"],
        "ess_of_slowest": last["ess"],
        "ess_of_median": float(np.nanmedian(ess(values))),
        "gradients_per_effective_draw_of_slowest": per_draw,
        "gradients_to_rhat": first_for_good(rows, [row["rhat"] <= RHAT for row in rows]),
        "gradients_to_ess": reached or before + ESS * per_draw,
        "ess_was_reached": reached is not None,
        "course": rows,
    }
    for name in ("acceptance", "energy_error", "divergences"):
        if name in result.stats:
            found[name] = np.asarray(result.stats[name]).tolist()
    found["step_size"] = float(np.mean(result.history[-1]["step_size"])) if result.history else None
    if reference is not None:
        test, key = np.asarray(problem.data.test.x)[:1000], jax.random.key(0)  # pyright: ignore[reportAttributeAccessIssue]
        p, q = predict([result.posterior, reference], problem, test, key=key, num_samples=200)
        found["total_variation_to_hmc"] = total_variation(p, q)
        found["agreement_with_hmc"] = float((p.argmax(1) == q.argmax(1)).mean())
    return found


def seconds_per_gradient(problem: Problem, chosen: dict[str, Any], rounds: int) -> dict[str, float]:
    """The samplers in turns, a few dozen gradients of every chain at a time."""
    chunks, counts = {}, {}
    for name, method in chosen.items():
        if isinstance(method, NUTS):  # its steps are those of HMC
            continue
        steps = 40 // per_step_of(method)
        chunks[name] = Chunk(problem, method, steps)
        counts[name] = 40 * method.chains
    seconds = interleaved(chunks, rounds)
    found = {name: float(np.median(seconds[name])) / counts[name] for name in chunks}
    return found | {name: found["HMC"] for name in chosen if name not in found and "HMC" in found}


def known_rows(setting: str) -> dict[str, Any]:
    """What was recorded of this setting: samplers that are not measured again keep their rows."""
    path = RESULTS / "sampler_speed.json"
    found = json.loads(path.read_text()) if path.exists() else {}
    return found.get(setting, {"methods": {}})["methods"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder of the draws")
    parser.add_argument("--data", default="mnist")
    parser.add_argument("--limit", type=int, default=1000)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--gradients", type=int, default=120_000)
    parser.add_argument("--step-size", type=float, default=0.01)
    parser.add_argument("--only", nargs="+")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    data = load_dataset(options.data, limit=options.limit)
    problem = Problem.from_network(MLP(widths=(options.width,)), data, prior_variance=1.0)
    chosen = methods(options.gradients, options.step_size)
    if options.only:
        chosen = {name: chosen[name] for name in options.only}
    setting = f"784-{options.width}-10 on {options.limit:,} of {options.data}"
    rows: dict[str, Any] = known_rows(setting) if options.only else {}
    reference = None
    for i, (name, method) in enumerate(chosen.items()):
        stem = name.lower().replace(",", "").replace(" ", "-")
        result = fit(
            problem,
            method,
            key=jax.random.key(i),
            out=options.out / f"{stem}.safetensors",
            history=options.out / f"{stem}.jsonl",
            resume=True,
        )
        rows[name] = examine(problem, method, result, reference)
        reference = result.posterior if name == "HMC" else reference
        shown = {k: v for k, v in rows[name].items() if k not in ("course", "settings")}
        print(name, shown, flush=True)
    record("sampler_speed", {setting: {"methods": rows, "machine": describe()}})
    for name, seconds in seconds_per_gradient(problem, chosen, options.rounds).items():
        rows[name]["seconds_per_gradient"] = seconds
        for aim in ("rhat", "ess"):
            count = rows[name][f"gradients_to_{aim}"]
            rows[name][f"seconds_to_{aim}"] = None if count is None else count * seconds
    print(record("sampler_speed", {setting: {"methods": rows, "machine": describe()}}))


if __name__ == "__main__":
    main()
