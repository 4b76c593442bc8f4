"""Time to align against width, and against the number of draws (figure A2 of Rossi et al.).

    python benchmarks/alignment_figure.py

Reads results/alignment_speed.json and results/alignment_many.json, fits seconds = a·nᵇ to each
line by least squares in logarithms (CPU seconds, which other work on a machine disturbs less),
and writes results/alignment_timings.{svg,png} and the exponents to
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
    axes.plot(grid, scale * grid**exponent, style, color=colour, lw=1.2, label=label)
    axes.annotate(
        f"n^{exponent:.1f}",
        (grid[-1], scale * grid[-1] ** exponent),
        xytext=(5, 0),
        textcoords="offset points",
        color=colour,
        fontsize=8,
        va="center",
    )
    return {"label": label, "x": list(x), "seconds": list(y), "scale": scale, "exponent": exponent}


def by_width(axes, rows, kind, fits):
    for objective, style in (("l2", "--"), ("w2", "-")):
        chosen = sorted(
            (int(r["pair"][len(kind) :]), r)
            for r in rows
            if r["pair"].startswith(kind) and r["objective"] == objective
        )
        if len(chosen) < 2:
            continue
        widths = [w for w, _ in chosen]
        for name, colour in (("plain", ORANGE), ("default", BLUE)):
            who = "plain" if name == "plain" else "OneBasin"
            seconds = [r[name]["cpu_seconds"] for _, r in chosen]
            fits.append(
                draw(axes, widths, seconds, f"{who}, {objective}", colour, style) | {"of": kind}
            )
    axes.set(xscale="log", yscale="log", xlabel="width", ylabel="CPU seconds to align a pair")
    widths = sorted({int(r["pair"][len(kind) :]) for r in rows if r["pair"].startswith(kind)})
    axes.set_xticks(widths, [str(w) for w in widths])
    axes.minorticks_off()
    if widths:
        axes.set_xlim(widths[0] / 1.25, widths[-1] * 1.6)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, fontsize=8)
    else:
        axes.set_visible(False)  # nothing was measured yet


def main():
    rows = json.loads((RESULTS / "alignment_speed.json").read_text())["speed"]
    draws = json.loads((RESULTS / "alignment_many.json").read_text())
    fits = []
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(11, 3.6), layout="constrained")
    by_width(left, rows, "mlp", fits)
    left.set_title("MLP, three hidden layers", fontsize=10)
    by_width(middle, rows, "resnet", fits)
    middle.set_title("ResNet20", fontsize=10)
    for objective, style in (("w2", "-"), ("log-density", "--")):
        chosen = sorted(
            (r["draws"], r["cpu_seconds"])
            for r in draws.values()
            if r.get("objective") == objective and r["draws"] > 2
        )
        if len(chosen) > 1:
            counts, seconds = zip(*chosen, strict=True)
            fits.append(draw(right, counts, seconds, objective, BLUE, style) | {"of": "draws"})
            right.set_xticks(counts, [str(c) for c in counts])
            right.set_xlim(counts[0] / 1.3, counts[-1] * 1.8)
    right.set(xscale="log", yscale="log", xlabel="draws", ylabel="CPU seconds to align all")
    right.minorticks_off()
    right.set_title("Joint alignment, MLP 3×512", fontsize=10)
    right.legend(frameon=False, fontsize=8)
    for axes in (left, middle, right):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", color="0.9", lw=0.6)
    figure.savefig(RESULTS / "alignment_timings.svg", metadata={"Date": None})
    figure.savefig(RESULTS / "alignment_timings.png", dpi=150)
    (RESULTS / "alignment_timings.json").write_text(json.dumps(fits, indent=1) + "\n")
    for fit in fits:
        print(f"{fit['of']:<7} {fit['label']:<18} {fit['scale']:.2e} n^{fit['exponent']:.2f}")


if __name__ == "__main__":
    main()
