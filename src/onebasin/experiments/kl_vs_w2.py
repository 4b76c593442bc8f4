"""Does KL matching miss symmetries that W2 finds? In two dimensions, and on fitted posteriors.

The appendix reduces KL(P#q1 ‖ q0) to (m0 − P m1)ᵀ diag(1/s0²) (m0 − P m1), which no longer sees
the deviations: with both means on the diagonal every P ties and the identity is kept. The trace
term that the reduction drops does depend on P, and with it the KL finds what W2 finds.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Ellipse

from onebasin.alignment import align
from onebasin.alignment.objective import objective_named
from onebasin.experiments import presets
from onebasin.experiments.claims import Claim, judge
from onebasin.experiments.common_stages import POSTERIOR, Align, aligned, fits, measured
from onebasin.experiments.curves import Curve, barrier_table
from onebasin.experiments.experiment import Experiment, Findings, Outcomes, Picture, Plan, Table
from onebasin.experiments.pairs import Sizes, requirement
from onebasin.experiments.setting import Setting
from onebasin.experiments.stage import Stage, Work, step
from onebasin.figures.style import COLOURS, PAGE, paper
from onebasin.inference.methods import VI
from onebasin.posterior import MeanField
from onebasin.symmetry import Permutation, Symmetry

OBJECTIVES = ("w2", "kl", "kl-reduced")
TITLES = {"w2": "W2", "kl": "KL, exact", "kl-reduced": "KL, reduced as in the appendix"}
IDENTITY, SWAP = np.array([0, 1]), np.array([1, 0])
SOURCE = "Rossi et al. 2023, appendix A, figure A1"


@dataclass(frozen=True)
class Plane:
    """Two Gaussians in two dimensions that are mirror images on y = x."""

    mean: tuple[float, float] = (1.0, 1.0)
    std: tuple[float, float] = (0.25, 0.75)


@dataclass(frozen=True)
class KLvsW2:
    plane: Plane
    setting: Setting
    vi: VI
    accuracy: float
    sizes: Sizes
    together: int = 0


TOY = KLvsW2(Plane(), presets.TOY, presets.TOY_VI, 0.9, Sizes(9, 32), together=presets.TOGETHER)
CPU = KLvsW2(Plane(), presets.MNIST, presets.CPU_VI, 0.98, Sizes(7, 32))
PAPER = KLvsW2(Plane(), presets.MNIST, presets.PAPER_VI_MNIST, 0.98, Sizes(25, 128))


@step(version=1, seconds=lambda _: 1.0)
def match_in_the_plane(config: Plane, inputs: dict[str, Path], work: Work) -> dict[str, Any]:
    """Each objective's value at both permutations, and which one alignment returns."""
    del inputs, work
    q0, q1 = (
        MeanField({"w": jnp.asarray(config.mean)}, {"w": jnp.asarray(std)})
        for std in (config.std, config.std[::-1])
    )
    sym = Symmetry.by_hand(q0.mean, {"units": [("w", 0)]})
    found = {}
    for name in OBJECTIVES:
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
    q0, q1 = fits(config.setting, config.vi, 2, together=config.together)
    measure = config.sizes.measure(config.setting)
    stages = {"before": measured(measure, q0, q1)}
    for name in OBJECTIVES:
        stages[f"align-{name}"] = aligned(Align(config.setting, name), q0, q1)
        stages[name] = measured(measure, q0, stages[f"align-{name}"][POSTERIOR])
    return {
        "plane": {"match": Stage(match_in_the_plane, config.plane)},
        "posteriors": stages,
    }


def conclude(config: KLvsW2, outcomes: Mapping[str, Outcomes]) -> Findings:
    claims: list[Claim] = []
    tables: list[Table] = []
    pictures: list[Picture] = []
    if "plane" in outcomes:
        _plane(config.plane, outcomes["plane"]["match"].result, claims, tables, pictures)
    _posteriors(config, outcomes.get("posteriors"), claims, tables)
    return Findings(claims, tables, pictures)


def _plane(plane: Plane, found: Mapping[str, Any], claims: list, tables: list, pictures: list):
    def swapped(name: str) -> str:
        return "recovers the symmetry" if found[name]["swaps"] else "returns the identity"

    conditions = (
        f"two Gaussians with mean {plane.mean} and deviations {plane.std} and {plane.std[::-1]}"
    )
    common: dict[str, Any] = {"source": SOURCE, "conditions": conditions, "published_scale": True}
    claims += [
        judge(
            "In two dimensions W2 matching recovers the symmetry",
            found["w2"]["swaps"],
            published="W2 matching recovers it",
            ours=f"W2 {swapped('w2')}",
            criterion="alignment returns the swap",
            **common,
        ),
        judge(
            "KL matching in the reduced form returns the identity",
            not found["kl-reduced"]["swaps"],
            published="KL matching returns the identity",
            ours=f"the reduced form {swapped('kl-reduced')}",
            criterion="alignment returns the identity",
            **common,
        ),
        judge(
            "KL matching loses the covariance information",
            not found["kl"]["swaps"],
            published="only a distance between means is left",
            ours=f"the exact KL {swapped('kl')}: {found['kl']['at_identity']:.3g} nats at the "
            f"identity, {found['kl']['at_swap']:.3g} at the swap",
            criterion="alignment by the exact KL returns the identity",
            reason="the trace term depends on the permutation; only the log-determinant does not",
            **common,
        ),
    ]
    rows = [
        [TITLES[n], f"{found[n]['at_identity']:.4g}", f"{found[n]['at_swap']:.4g}", swapped(n)]
        for n in OBJECTIVES
    ]
    title = "Mirror images in two dimensions"
    tables.append(Table(title, ["objective", "at identity", "at swap", "alignment"], rows))
    alt = "; ".join(f"{TITLES[n]} {swapped(n)}" for n in OBJECTIVES)
    pictures.append(Picture("plane", title, alt, _figure(plane, found)))


def _posteriors(config: KLvsW2, done: Outcomes | None, claims: list, tables: list) -> None:
    curves = {}
    if done is not None:
        curves["as fitted"] = Curve(done["before"].result)
        curves |= {TITLES[n]: Curve(done[n].result) for n in OBJECTIVES}
        tables.append(barrier_table(f"{config.setting.title}, test data", curves))
    w2, kl = curves.get(TITLES["w2"]), curves.get(TITLES["kl"])
    holds, ours = None, "–"
    if w2 is not None and kl is not None:
        allowed = 3 * (w2.error**2 + kl.error**2) ** 0.5
        holds = w2.barrier <= kl.barrier + allowed
        ours = f"W2 {w2.barrier_text}, exact KL {kl.barrier_text} nats"
    claims.append(
        judge(
            "On fitted posteriors W2 matching leaves no larger barrier than KL matching",
            holds,
            published="argued, not measured",
            source=SOURCE,
            ours=ours,
            criterion="barrier after W2 no larger than after the exact KL, within three errors",
            conditions=f"{config.setting.title}; {config.vi.epochs} epochs; {config.sizes}",
            published_scale=config.setting.same_size(PAPER.setting),
            fits=[requirement(list(curves.values()), config.accuracy)] if curves else [],
            value=None if w2 is None else w2.barrier,
            stderr=None if w2 is None else w2.error,
        )
    )


def _figure(plane: Plane, found: Mapping[str, Any]) -> Figure:
    with paper():
        figure = Figure(figsize=(PAGE, 2.3), layout="constrained")
        axes = figure.subplots(1, 4, sharex=True, sharey=True)
        panels = {"as fitted": False, **{TITLES[n]: found[n]["swaps"] for n in OBJECTIVES}}
        for ax, (title, swaps) in zip(axes, panels.items(), strict=True):
            second = plane.std if swaps else plane.std[::-1]
            for name, std, colour, dash in (
                ("$q_0$", plane.std, COLOURS[0], "-"),
                ("$q_1$" if title == "as fitted" else "$P\\#q_1$", second, COLOURS[1], "--"),
            ):
                for times in (1, 2):
                    size = [2 * times * s for s in std]
                    ellipse = Ellipse(
                        plane.mean, *size, fill=False, edgecolor=colour, linestyle=dash
                    )
                    ax.add_patch(ellipse)
                ax.plot([], [], color=colour, linestyle=dash, label=name)
            ax.plot([-1, 3], [-1, 3], color="#888888", linewidth=0.6)
            ax.set(xlim=(-1, 3), ylim=(-1, 3), aspect="equal", title=title.replace(" as", "\nas"))
            ax.set_xlabel("$\\theta_1$")
        axes[0].set_ylabel("$\\theta_2$")
        axes[0].legend(loc="lower right")
    return figure


EXPERIMENT = Experiment(
    name="kl-vs-w2",
    title="KL against Wasserstein matching",
    question="Does matching by KL lose the symmetry that matching by W2 finds?",
    presets={"toy": TOY, "cpu": CPU, "paper": PAPER},
    plan=plan,
    conclude=conclude,
)
