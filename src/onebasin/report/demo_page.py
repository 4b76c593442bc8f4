"""What `onebasin demo` found: two paragraphs, and a page with a verdict for each claim."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from onebasin.evaluation import Profile
from onebasin.experiments.claims import Claim, judge, plus_minus, removal
from onebasin.experiments.experiment import Findings, Picture, Table, write_findings
from onebasin.experiments.record import RECORD_VERSION, versions
from onebasin.experiments.runner import machine
from onebasin.figures.evaluation import profile_figure
from onebasin.report.page import Source, render

PAGE = "report.html"
SHARE = 0.15  # of the barrier, that may remain in so small a network
FITTED, ALIGNED = "as fitted", "aligned"
ENSEMBLE, RAW, REBASED = "ensemble of five", "one Gaussian, as trained", "one Gaussian, aligned"


def demo_summary(profiles: Mapping[str, Profile], accuracy: Mapping[str, float]) -> list[str]:
    """The findings in words; `accuracy` is on the test images, by posterior."""
    before, after = profiles[FITTED], profiles[ALIGNED]
    share = 1 - after.barrier / before.barrier
    return [
        f"The two posteriors classify {before.accuracy[0]:.1%} and {before.accuracy[-1]:.1%} of "
        f"the test images correctly. Along the path between them the loss rises by "
        f"{before.barrier:.2f} nats and the accuracy falls to {min(before.accuracy):.1%}, as if "
        f"they were two different solutions. After the hidden units of one are permuted to match "
        f"the other, the barrier is {after.barrier:.2f} nats, {share:.0%} lower, and the accuracy "
        f"stays at or above {min(after.accuracy):.1%}.",
        f"The ensemble of five networks classifies {accuracy[ENSEMBLE]:.1%} correctly. A single "
        f"Gaussian with the mean and standard deviation of their weights classifies "
        f"{accuracy[RAW]:.1%} correctly, because it averages unrelated units. After their units "
        f"are aligned, one Gaussian classifies {accuracy[REBASED]:.1%} correctly.",
    ]


def write_demo_page(
    folder: Path,
    profiles: Mapping[str, Profile],
    accuracy: Mapping[str, float],
    config: Mapping[str, Any],
) -> Path:
    """Write the page into the folder, in the form of `onebasin report`."""
    summary = demo_summary(profiles, accuracy)
    rows = [[name, f"{score:.2%}"] for name, score in accuracy.items()]
    found = Findings(
        _claims(profiles, accuracy),
        [Table("Test accuracy", ["posterior", "accuracy"], rows)],
        [
            Picture(
                "barrier",
                "Loss and accuracy along the path between the two posteriors",
                summary[0],
                profile_figure(profiles),
            )
        ],
    )
    record = {
        "record": RECORD_VERSION,
        "experiment": "demo",
        "title": "Two posteriors, one basin",
        "question": " ".join(summary),
        "source": "onebasin demo",
        "preset": "demo",
        "config": dict(config),
        **write_findings(found, folder, "demo"),
        "stages": {},
        "versions": versions(),
        "machines": [machine()],
    }
    path = folder / PAGE
    path.write_text(render([Source(record, folder)], "OneBasin demo"), encoding="utf-8")
    return path


def _claims(profiles: Mapping[str, Profile], accuracy: Mapping[str, float]) -> Sequence[Claim]:
    before, after = profiles[FITTED], profiles[ALIGNED]
    conditions = "MLP 2×64 on the embedded digits, 355 test images, 64 draws"
    claim = partial(judge, conditions=conditions, published_scale=False)
    removed = removal(after.barrier, after.barrier_stderr, before.barrier, SHARE)
    return [
        claim(
            "Alignment removes most of the barrier between two variational posteriors",
            removed.holds,
            published=removed.beside("zero barrier after alignment"),
            source="Rossi et al. 2023",
            figure="Rossi et al., loss barriers, MLPs",
            ours=f"{plus_minus(before.barrier, before.barrier_stderr)} → "
            f"{plus_minus(after.barrier, after.barrier_stderr)} nats "
            f"({after.barrier / before.barrier:.1%} remains)",
            criterion=removed.criterion,
        ),
        claim(
            "After alignment, one Gaussian represents several networks more accurately",
            accuracy[REBASED] > accuracy[RAW],
            published="accuracy of draws 52.25 % raw, 97.72 % rebased (MNIST)",
            source="Xiao et al. 2023, table 1",
            ours=f"{accuracy[RAW]:.1%} raw, {accuracy[REBASED]:.1%} rebased",
            criterion="the rebased Gaussian classifies more test images correctly",
        ),
    ]
