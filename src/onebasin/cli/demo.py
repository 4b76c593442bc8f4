"""`onebasin demo`: two posteriors of one network before and after alignment, and one of many."""

import sys
import tempfile
import textwrap
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Demo:
    """Fit one small network twice on the embedded digits and bring both posteriors into one basin.

    Nothing is downloaded. Posteriors, figures and a page to open in a browser go into a new
    temporary folder, or into the folder named by --out.

    Example: onebasin demo
    """

    out: Path | None = None
    """Folder for what is made; it must not hold files of an earlier run."""
    epochs: int = 60
    """Passes over the 1,442 training images."""
    seed: int = 0
    """All randomness follows from it."""


COMMAND = Demo
REPORT = "report.html"


def run(config: Demo) -> None:
    began = time.perf_counter()
    folder = config.out or Path(tempfile.mkdtemp(prefix="onebasin-demo-"))
    folder.mkdir(parents=True, exist_ok=True)
    if (folder / REPORT).exists() or list(folder.glob("*.safetensors")):
        raise ValueError(f"{folder} holds files of an earlier run; name another folder by --out")
    import jax

    import onebasin as ob

    keys = jax.random.split(jax.random.key(config.seed), 4)
    data = ob.load_dataset("digits")
    say(f"1. Data: {len(data.train.x)} training and {len(data.test.x)} test images of digits.")
    network = ob.networks.MLP(widths=(64, 64), num_classes=10)
    problem = ob.Problem.from_network(network, data, prior_variance=0.1)

    say("2. Fitting the same Bayesian network twice, by variational inference.")
    method = ob.VI(epochs=config.epochs, batch_size=100)
    out = folder / "posterior.safetensors"
    results = ob.fit(problem, method, key=keys[0], runs=2, out=out)
    q0, q1 = (result.posterior for result in results)

    say("3. The hidden units that may be permuted, found by tracing the network:\n")
    symmetry = ob.find_symmetry(problem.apply, q0.mean, data.train.x[:4])
    say("\n".join(f"   {line}" for line in str(symmetry).splitlines()))

    aligned = ob.align(q1, to=q0, symmetry=symmetry, objective="w2")
    swaps = int(ob.transpositions(aligned.permutation))
    say(
        f"\n4. Aligning the second to the first: {swaps} transpositions; squared Wasserstein "
        f"distance {aligned.distance_before:.1f} → {aligned.distance_after:.1f}."
    )

    say("5. The loss on the way from one posterior to the other.")
    ends = {"as fitted": q1, "aligned": aligned.posterior}
    profiles = {
        name: ob.profile(
            ob.geodesic(q0, end), problem.apply, data.test, key=keys[1], points=13, num_samples=64
        )
        for name, end in ends.items()
    }

    say("6. Five networks boiled down to one Gaussian, as trained and put into one order.")
    method = ob.Ensemble(members=5, epochs=config.epochs, batch_size=100, learning_rate=3e-3)
    ensemble = ob.fit(problem, method, key=keys[2], out=folder / "ensemble.safetensors").posterior
    posteriors = _compacted(ensemble, symmetry)
    ob.save(folder / "compact.safetensors", posteriors[ORDERED], network=problem.network)
    scores = {
        name: ob.accuracy(
            ob.predict(q, problem.apply, data.test.x, key=keys[3], num_samples=64), data.test.y
        )
        for name, q in posteriors.items()
    }
    words = _words(profiles, scores)
    page = _write_page(folder, config, profiles, scores, words)
    for paragraph in words:
        say("\n" + textwrap.fill(paragraph, 80))
    say(
        f"\nPosteriors and figures: {folder}\nOpen in a browser: {page}\n"
        f"({time.perf_counter() - began:.0f} seconds)"
    )


ALL, RAW, ORDERED = "the five networks", "one Gaussian, as trained", "one Gaussian, in order"


def _compacted(ensemble: Any, symmetry: Any) -> dict[str, Any]:
    from onebasin.compaction import compact

    return {
        ALL: ensemble,
        RAW: compact(ensemble, symmetry=symmetry, rebase="none").posterior,
        ORDERED: compact(ensemble, symmetry=symmetry).posterior,
    }


def _words(profiles: dict[str, Any], scores: dict[str, float]) -> list[str]:
    """What was seen, in plain words."""
    before, after = (profiles[name].barrier for name in ("as fitted", "aligned"))
    accuracy = profiles["as fitted"].accuracy
    lowest = {name: min(p.accuracy) for name, p in profiles.items()}
    return [
        f"The two posteriors classify {accuracy[0]:.1%} and {accuracy[-1]:.1%} of the test images "
        f"right. On the way between them the loss rises by {before:.2f} nats and accuracy falls "
        f"to {lowest['as fitted']:.1%}: they look like two solutions. With the hidden units of "
        f"one put into the other's order the rise is {after:.2f} nats, {1 - after / before:.0%} "
        f"less, and accuracy stays at {lowest['aligned']:.1%} or above.",
        f"Five networks together are right on {scores[ALL]:.1%}. One Gaussian with their mean "
        f"and spread as they are is right on {scores[RAW]:.1%}, as it averages units that have "
        f"nothing to do with each other; after their units were put into one order, on "
        f"{scores[ORDERED]:.1%}, at a fifth of the cost.",
    ]


def _write_page(
    folder: Path, config: Demo, profiles: dict[str, Any], scores: dict[str, float], words: list[str]
) -> Path:
    """A report of what was seen, as `onebasin report` writes them."""
    from onebasin.experiments.claims import Claim, judge, plus_minus
    from onebasin.experiments.experiment import Findings, Picture, Table, write_findings
    from onebasin.experiments.record import RECORD_VERSION
    from onebasin.experiments.runner import machine, versions
    from onebasin.figures.evaluation import profile_figure
    from onebasin.report.page import Source, render

    before, after = (profiles[name] for name in ("as fitted", "aligned"))

    def claim(text: str, holds: bool, **what: Any) -> Claim:
        conditions = "MLP 2×64 on the embedded digits, 355 test images, 64 draws"
        return judge(text, holds, conditions=conditions, published_scale=False, **what)

    found = Findings(
        [
            claim(
                "Alignment removes the barrier between two variational posteriors",
                after.barrier < 0.15 * before.barrier,
                published="zero barrier after alignment",
                source="Rossi et al. 2023",
                ours=f"{plus_minus(before.barrier, before.barrier_stderr)} → "
                f"{plus_minus(after.barrier, after.barrier_stderr)} nats",
                criterion="at most 15 % of the barrier is left",
            ),
            claim(
                "Put into one order, several networks become one Gaussian",
                scores[ORDERED] > scores[RAW],
                published="accuracy of draws 52.25 % raw, 97.72 % rebased (MNIST)",
                source="Xiao et al. 2023, table 1",
                ours=f"{scores[RAW]:.1%} raw, {scores[ORDERED]:.1%} rebased",
                criterion="the rebased Gaussian classifies more test images right",
            ),
        ],
        [
            Table(
                "Test accuracy",
                ["posterior", "right"],
                [[name, f"{score:.2%}"] for name, score in scores.items()],
            )
        ],
        [
            Picture(
                "barrier",
                "Loss and accuracy on the way from one posterior to the other",
                words[0],
                profile_figure(profiles),
            )
        ],
    )
    record = {
        "record": RECORD_VERSION,
        "experiment": "demo",
        "title": "Two posteriors, one basin",
        "question": " ".join(words),
        "source": "onebasin demo",
        "preset": "demo",
        "config": {"epochs": config.epochs, "seed": config.seed},
        **write_findings(found, folder, "demo"),
        "stages": {},
        "versions": versions(),
        "machines": [machine()],
    }
    path = folder / REPORT
    path.write_text(render([Source(record, folder)], "OneBasin demo"), encoding="utf-8")
    return path


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
