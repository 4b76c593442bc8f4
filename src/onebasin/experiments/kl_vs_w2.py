"""Does KL matching miss symmetries that W2 finds? In two dimensions, and on fitted posteriors.

The appendix reduces KL(P#q1 ‖ q0) to (m0 − P m1)ᵀ diag(1/s0²) (m0 − P m1), which no longer depends
on s1: with both means on the diagonal all P tie and the identity is kept. The trace term that the
reduction drops does depend on P, and with it the KL finds the permutation that W2 finds.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Ellipse

from onebasin.alignment import align
from onebasin.alignment.objective import objective_named
from onebasin.experiments import presets
from onebasin.experiments.claims import judge
from onebasin.experiments.common_stages import POSTERIOR, Align, aligned, measured
from onebasin.experiments.curves import Curve, barrier_table
from onebasin.experiments.experiment import Experiment, Findings, Outcomes, Picture, Plan, Table
from onebasin.experiments.pairs import Pair, Sizes
from onebasin.experiments.stage import Stage, Work, step
from onebasin.figures.style import COLOURS, PAGE, paper
from onebasin.posterior import MeanField
from onebasin.symmetry import Permutation, Symmetry

Objective = Literal["w2", "kl", "kl-reduced"]
TITLES: dict[Objective, str] = {
    "w2": "W2",
    "kl": "KL, exact",
    "kl-reduced": "KL, reduced as in the appendix",
}
IDENTITY, SWAP = np.array([0, 1]), np.array([1, 0])
SOURCE = "Rossi et al. 2023, appendix A, figure A1"
FIGURE = "Rossi et al., figure A1"


@dataclass(frozen=True)
class Plane:
    """Two Gaussians in two dimensions that are mirror images in the line y = x."""

    mean: tuple[float, float] = (1.0, 1.0)
    std: tuple[float, float] = (0.25, 0.75)


@dataclass(frozen=True)
class KLvsW2:
    pair: Pair
    plane: Plane = Plane()


TOY = KLvsW2(presets.TOY_PAIR)
CPU = KLvsW2(Pair(presets.MNIST, presets.CPU_VI, 0.98, Sizes(7, 32)))
PAPER = KLvsW2(Pair(presets.MNIST, presets.PAPER_VI_MNIST, 0.98))


@step(version=1, seconds=lambda _: 1.0)
def match_in_the_plane(config: Plane, inputs: dict[str, Path], work: Work) -> dict[str, Any]:
    """The value of each objective at both permutations, and the one that alignment returns."""
    del inputs, work
    q0, q1 = (
        MeanField({"w": jnp.asarray(config.mean)}, {"w": jnp.asarray(std)})
        for std in (config.std, config.std[::-1])
    )
    sym = Symmetry.by_hand(q0.mean, {"units": [("w", 0)]})
    found = {}
    for name in TITLES:
        measure = objective_named(name).measure
        values = [
            float(measure(sym.act(Permutation({"units": p}), q1), q0, sym))
            for p in (IDENTITY, SWAP)
        ]
        chosen = align(q1, to=q0, symmetry=sym, objective=name).permutation.indices["units"]
        found[name] = {
            "at_identity": values[0],
            "at_swap": values[1],
            "swaps": bool((np.asarray(chosen) == SWAP).all()),
        }
    return found


def plan(config: KLvsW2) -> dict[str, Plan]:
    q0, q1 = config.pair.fits()
    measure = config.pair.measure
    stages = {"before": measured(measure, q0, q1)}
    for name in TITLES:
        stages[f"align-{name}"] = aligned(Align(config.pair.setting, name), q0, q1)
        stages[name] = measured(measure, q0, stages[f"align-{name}"][POSTERIOR])
    return {"plane": {"match": Stage(match_in_the_plane, config.plane)}, "posteriors": stages}


def conclude(config: KLvsW2, outcomes: Mapping[str, Outcomes]) -> Findings:
    found = Findings()
    if "plane" in outcomes:
        found += _in_the_plane(config.plane, outcomes["plane"]["match"].result)
    if "posteriors" in outcomes:
        found += _on_posteriors(config.pair, outcomes["posteriors"])
    return found


def _in_the_plane(plane: Plane, found: Mapping[str, Any]) -> Findings:
    swapped: dict[Objective, str] = {
        name: "recovers the symmetry" if found[name]["swaps"] else "returns the identity"
        for name in TITLES
    }
    claim = partial(
        judge,
        source=SOURCE,
        figure=FIGURE,
        criterion="alignment returns the identity",
        conditions=f"two Gaussians with mean {plane.mean} and standard deviations {plane.std} and "
        f"{plane.std[::-1]}",
        published_scale=True,
    )
    claims = [
        claim(
            "In two dimensions W2 matching recovers the symmetry",
            found["w2"]["swaps"],
            headline=f"W2 {swapped['w2']}",
            published="W2 matching recovers it",
            ours=f"W2 {swapped['w2']}",
            criterion="alignment returns the swap",
        ),
        claim(
            "KL matching in the reduced form returns the identity",
            not found["kl-reduced"]["swaps"],
            headline=f"reduced KL {swapped['kl-reduced']}",
            published="KL matching returns the identity",
            ours=f"the reduced form {swapped['kl-reduced']}",
        ),
        claim(
            "KL matching loses the covariance information",
            not found["kl"]["swaps"],
            headline=f"exact KL {swapped['kl']}",
            published="only a distance between means is left",
            ours=f"the exact KL {swapped['kl']}: {found['kl']['at_identity']:.3g} nats at the "
            f"identity, {found['kl']['at_swap']:.3g} at the swap",
            criterion="alignment by the exact KL returns the identity",
        ),
    ]
    rows = [
        [title, f"{found[n]['at_identity']:.4g}", f"{found[n]['at_swap']:.4g}", swapped[n]]
        for n, title in TITLES.items()
    ]
    title = "Mirror images in two dimensions"
    table = Table(title, ["objective", "at identity", "at swap", "alignment"], rows)
    alt = "; ".join(f"{TITLES[n]} {words}" for n, words in swapped.items())
    return Findings(claims, [table], [Picture("plane", title, alt, _figure(plane, found))])


def _on_posteriors(pair: Pair, done: Outcomes) -> Findings:
    curves = {"as fitted": Curve(done["before"].result)}
    curves |= {title: Curve(done[name].result) for name, title in TITLES.items()}
    w2, kl = curves[TITLES["w2"]], curves[TITLES["kl"]]
    claim = judge(
        "On fitted posteriors W2 matching leaves no larger barrier than KL matching",
        w2.barrier <= kl.barrier + 3 * (w2.error**2 + kl.error**2) ** 0.5,
        published="argued, not measured",
        source=SOURCE,
        figure=FIGURE,
        ours=f"W2 {w2.barrier_text}, exact KL {kl.barrier_text} nats",
        criterion="barrier after W2 above that after the exact KL by at most three standard errors",
        conditions=pair.conditions,
        published_scale=pair.setting.same_size(PAPER.pair.setting),
        fits=[pair.requirement(curves.values())],
        **w2.measured,
    )
    return Findings([claim], [barrier_table(f"{pair.setting.title}, test data", curves)])


def _figure(plane: Plane, found: Mapping[str, Any]) -> Figure:
    with paper():
        figure = Figure(figsize=(PAGE, 2.3), layout="constrained")
        axes = figure.subplots(1, 4, sharex=True, sharey=True)
        panels = {"as fitted": False, **{t: found[n]["swaps"] for n, t in TITLES.items()}}
        for ax, (title, swaps) in zip(axes, panels.items(), strict=True):
            second = plane.std if swaps else plane.std[::-1]
            for name, std, colour, dash in (
                ("$q_0$", plane.std, COLOURS[0], "-"),
                ("$q_1$" if title == "as fitted" else "$P\\#q_1$", second, COLOURS[1], "--"),
            ):
                for times in (1, 2):
                    size = [2 * times * s for s in std]
                    ax.add_patch(
                        Ellipse(plane.mean, *size, fill=False, edgecolor=colour, linestyle=dash)
                    )
                ax.plot([], [], color=colour, linestyle=dash, label=name)
            ax.plot([-1, 3], [-1, 3], color="#888888", linewidth=0.6)
            ax.set(xlim=(-1, 3), ylim=(-1, 3), aspect="equal", title=title.replace(" as", "\nas"))
            ax.set_xlabel("$\\theta_1$")
        axes[0].set_ylabel("$\\theta_2$")
        axes[0].legend(loc="lower right")
    return figure


EXPERIMENT = Experiment("kl-vs-w2", {"toy": TOY, "cpu": CPU, "paper": PAPER}, plan, conclude)
