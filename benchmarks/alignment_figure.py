"""Time to align by width and by number of draws (figure A2 of Rossi et al.).

    python benchmarks/alignment_figure.py

Reads results/alignment_speed.json and results/alignment_many.json, fits seconds = a·nᵇ to each
line by least squares in logarithms, and writes results/alignment_timings.svg and the exponents to
results/alignment_timings.json.
"""

import json
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

RESULTS = Path(__file__).parent.parent / "results"
BLUE, ORANGE = "#0072b2", "#d55e00"


def power_law(x, y):
    exponent, offset = np.polyfit(np.log(x), np.log(y), 1)
    return float(np.exp(offset)), float(exponent)


def draw(axes, x, y, label, colour, style):
    axes.plot(x, y, marker="o", ms=4, ls="none", color=colour, mfc=colour if style == "-" else "w")
    scale, exponent = power_law(x, y)
    grid = np.geomspace(min(x), max(x), 50)
    text = f"{label}  ∝ n$^{{{exponent:.1f}}}$"
    axes.plot(grid, scale * grid**exponent, style, color=colour, lw=1.2, label=text)
    return {"label": label, "x": list(x), "seconds": list(y), "scale": scale, "exponent": exponent}


def finish(axes, ticks, title, **labels):
    axes.set(xscale="log", yscale="log", **labels)
    axes.minorticks_off()
    axes.set_xticks(ticks, [str(t) for t in ticks])
    axes.set_xlim(ticks[0] / 1.3, ticks[-1] * 1.3)
    axes.set_title(title, fontsize=10)
    axes.legend(frameon=False, fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="0.9", lw=0.6)


def by_width(axes, rows, kind, title):
    fits, ticks = [], set()
    for objective, style in (("l2", "--"), ("w2", "-")):
        chosen = sorted(
            ((int(r["pair"][len(kind) :]), r) for r in rows if r["objective"] == objective),
            key=lambda pair: pair[0],
        )
        widths = [w for w, _ in chosen]
        ticks |= set(widths)
        for name, colour in (("plain", ORANGE), ("default", BLUE)):
            who = "plain" if name == "plain" else "OneBasin"
            seconds = [r[name]["seconds"] for _, r in chosen]
            fits.append(
                draw(axes, widths, seconds, f"{who}, {objective}", colour, style) | {"of": kind}
            )
    finish(axes, sorted(ticks), title, xlabel="width", ylabel="seconds to align a pair")
    return fits


def by_draws(axes, draws, title):
    fits, ticks = [], set()
    for objective, style in (("w2", "-"), ("log-density", "--")):
        chosen = sorted(
            (r["draws"], r["seconds"])
            for r in draws.values()
            if r.get("objective") == objective and r["draws"] > 2
        )
        if len(chosen) > 1:
            counts, seconds = zip(*chosen, strict=True)
            ticks |= set(counts)
            fits.append(draw(axes, counts, seconds, objective, BLUE, style) | {"of": "draws"})
    finish(axes, sorted(ticks), title, xlabel="draws", ylabel="seconds to align all")
    return fits


def main():
    rows = json.loads((RESULTS / "alignment_speed.json").read_text())["speed"]
    rows = [r for r in rows if not r["plain"].get("stopped_early")]  # incomplete runs have no time
    draws = json.loads((RESULTS / "alignment_many.json").read_text())
    panels = []
    for kind, title in (("mlp", "MLP, three hidden layers"), ("resnet", "ResNet20")):
        own = [r for r in rows if r["pair"].startswith(kind)]
        if len({r["pair"] for r in own}) > 1:  # a line needs two widths
            panels.append(lambda axes, own=own, k=kind, t=title: by_width(axes, own, k, t))
    panels.append(lambda axes: by_draws(axes, draws, "Joint alignment, MLP 3×512"))
    figure, grid = plt.subplots(
        1, len(panels), figsize=(4 * len(panels), 3.6), layout="constrained", squeeze=False
    )
    fits = [fit for panel, axes in zip(panels, grid[0], strict=True) for fit in panel(axes)]
    figure.savefig(RESULTS / "alignment_timings.svg", metadata={"Date": None})
    (RESULTS / "alignment_timings.json").write_text(json.dumps(fits, indent=1) + "\n")
    for fit in fits:
        print(f"{fit['of']:<7} {fit['label']:<18} {fit['scale']:.2e} n^{fit['exponent']:.2f}")


if __name__ == "__main__":
    main()
