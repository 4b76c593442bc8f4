"""Posteriors with weights of odd magnitudes: the planted permutation is found, or refused.

Means and standard deviations are multiplied by factors from 1e-38 to 1e37, one permutation is
planted, and every objective must find it or say in one sentence why it cannot. Gaussians of low
rank and merged state_dicts are tried as well.
"""

import random
from pathlib import Path
from typing import Any

import jax
import numpy as np

import onebasin as ob
from onebasin.choices import WeightObjective
from onebasin.trees import leaves_by_path

OBJECTIVES: tuple[WeightObjective, ...] = (
    "w2",
    "l2",
    "kl",
    "reverse-kl",
    "kl-reduced",
    "log-density",
)
JOINT: tuple[WeightObjective, ...] = ("w2", "l2", "log-density")
FORMS = ("pair", "points", "joint", "merge", "low-rank", "precision")
SHAPES = {
    "a": {"kernel": (6, 8), "bias": (8,)},
    "b": {"kernel": (8, 8), "bias": (8,)},
    "c": {"kernel": (8, 3), "bias": (3,)},
}
GROUPS = {
    "first": [("a/kernel", 1), ("a/bias", 0), ("b/kernel", 0)],
    "second": [("b/kernel", 1), ("b/bias", 0), ("c/kernel", 0)],
}
LEAST, LARGEST = -37.5, 37.0  # decimal exponents of the factors


def drawn(seed: int, mean: float, std: float, *, constant: bool) -> tuple[ob.MeanField, Any]:
    """A posterior with means and standard deviations of these magnitudes, and its symmetry."""
    rng = np.random.default_rng(seed)

    def tree(draw: Any, factor: float) -> Any:
        def leaf(shape: tuple[int, ...]) -> np.ndarray:
            values = np.clip(draw(shape), -9, 9) * factor
            return values.astype(np.float32)

        return jax.tree.map(leaf, SHAPES, is_leaf=lambda shape: isinstance(shape, tuple))

    means = tree(lambda shape: rng.normal(size=shape), mean)
    spread = 0.0 if constant else 0.3
    stds = tree(lambda shape: np.exp(spread * rng.normal(size=shape)), std)
    return ob.MeanField(means, stds), ob.Symmetry.by_hand(means, GROUPS)


def same(a: Any, b: Any) -> bool:
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return all(np.array_equal(x, y) for x, y in pairs)


def target_of(form: str, q: ob.MeanField, seed: int) -> Any:
    """A posterior of the kind that a form needs, with factors of the size of its deviations."""
    if form in ("points", "merge"):
        return q.mean
    if form not in ("low-rank", "precision"):
        return q
    rng = np.random.default_rng(seed)
    power = 1 if form == "low-rank" else -1
    with np.errstate(all="ignore"):
        factors = jax.tree.map(
            lambda s: (0.5 * rng.normal(size=(2, *s.shape)) * s**power).astype(np.float32), q.std
        )
    return (ob.LowRank if form == "low-rank" else ob.LowRankPrecision)(q.mean, q.std, factors)


def defect_of(
    seed: int, mean: float, std: float, objective: WeightObjective, form: str, *, constant: bool
) -> str | None:
    """What is wrong with an alignment; None if it is right or refused."""
    q, symmetry = drawn(seed, mean, std, constant=constant)
    try:
        target = target_of(form, q, seed)
    except ValueError as error:  # factors beyond single precision
        return None if "has NaN or infinity" in str(error) else f"not built: {error}"
    keys = jax.random.split(jax.random.key(seed), 3)
    moved = [symmetry.act(symmetry.random(key=key), target) for key in keys]
    options: Any = {"symmetry": symmetry, "objective": objective}
    try:
        if form == "joint":
            found = ob.align_many(moved, progress="silent", **options).posteriors
            return None if all(same(one, found[0]) for one in found) else "members differ"
        if form == "merge":
            merged = ob.merge([leaves_by_path(one) for one in moved], symmetry=symmetry)
            first = leaves_by_path(moved[0])
            means = {name: merged.tensor(name) for name in first}
            near = all(np.allclose(means[n], first[n], rtol=1e-6, atol=0) for n in first)
            return None if near else "the average of equal members is not the first"
        found = ob.align(moved[0], to=target, **options)
    except ValueError as error:
        return None if "\n" not in str(error) else f"refused in several lines: {error}"
    except Exception as error:  # what this looks for
        return f"{type(error).__name__}: {error}"
    if not same(found.posterior, target):
        return "the planted permutation was not found"
    after = found.distance_after
    return None if np.isfinite([after, found.score]).all() else f"distance {after}"


def attack(folder: Path, count: int, seed: int) -> dict[str, Any]:
    """Align posteriors of random magnitudes; a defect is what was aligned and how it ended."""
    del folder
    chance = random.Random(seed)
    defects = []
    for number in range(count):
        mean = 10 ** chance.uniform(LEAST, LARGEST)
        std = mean if chance.random() < 0.5 else 10 ** chance.uniform(LEAST, LARGEST)
        form = chance.choice(FORMS)
        objective = chance.choice(JOINT if form == "joint" else OBJECTIVES)
        if form in ("points", "merge"):
            objective = chance.choice(("w2", "l2"))
        # Equal deviations hide means that are much smaller, in any precision.
        constant = mean >= std and chance.random() < 0.5
        found = defect_of(number, mean, std, objective, form, constant=constant)
        if found:
            defects.append(f"{form}, {objective}, means {mean:.1e}, stds {std:.1e}: {found}")
    return {"tried": count, "clean": count - len(defects), "defects": defects}
