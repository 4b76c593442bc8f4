"""`onebasin demo`: align two posteriors, and fit one Gaussian to an aligned ensemble."""

import sys
import tempfile
import textwrap
import time
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Demo:
    """Fit a small network twice to the embedded digits and align the two posteriors.

    Nothing is downloaded. Posteriors, figures and an HTML page are written to a new temporary
    folder, or to the folder given by --out.

    Example: onebasin demo
    """

    out: Path | None = None
    """Folder to write to; it must not hold files of an earlier run."""
    epochs: int = 60
    """Passes over the 1,442 training images."""
    seed: int = 0
    """Seed of all random numbers."""


COMMAND = Demo


def run(config: Demo) -> None:
    began = time.perf_counter()
    if config.epochs < 1:
        raise ValueError(f"--epochs is {config.epochs}; fit for at least one")
    folder = config.out or Path(tempfile.mkdtemp(prefix="onebasin-demo-"))
    folder.mkdir(parents=True, exist_ok=True)
    if (folder / "report.html").exists() or list(folder.glob("*.safetensors")):
        raise ValueError(f"{folder} holds files of an earlier run; name another folder with --out")
    import jax

    import onebasin as ob
    from onebasin.report.demo_page import (
        ALIGNED,
        ENSEMBLE,
        FITTED,
        RAW,
        REBASED,
        demo_summary,
        write_demo_page,
    )

    keys = jax.random.split(jax.random.key(config.seed), 4)
    data = ob.load_dataset("digits")
    say(f"1. Load {len(data.train.x)} training and {len(data.test.x)} test images of digits.")
    network = ob.networks.MLP(widths=(64, 64), num_classes=10)
    problem = ob.Problem.from_network(network, data, prior_variance=0.1)

    say("2. Fit the same Bayesian neural network twice by variational inference.")
    method = ob.VI(epochs=config.epochs, batch_size=100)
    out = folder / "posterior.safetensors"
    q0, q1 = (r.posterior for r in ob.fit(problem, method, key=keys[0], runs=2, out=out))

    say("3. Trace the network to find the groups of hidden units that can be permuted:\n")
    symmetry = ob.find_symmetry(problem.apply, q0.moments()[0], data.train.x[:4])
    say(textwrap.indent(str(symmetry), "   "))

    aligned = ob.align(q1, to=q0, symmetry=symmetry, objective="w2")
    say(
        f"\n4. Align the second posterior to the first: {int(aligned.transpositions)} "
        "transpositions;\n   squared Wasserstein distance "
        f"{aligned.distance_before:.1f} → {aligned.distance_after:.1f}."
    )

    say("5. Measure the loss along the path between the two posteriors.")
    options = {"key": keys[1], "points": 13, "num_samples": 64}
    profiles = {
        name: ob.profile(ob.geodesic(q0, end), problem.apply, data.test, **options)
        for name, end in ((FITTED, q1), (ALIGNED, aligned.posterior))
    }

    say("6. Fit one Gaussian to an ensemble of five networks, before and after alignment.")
    method = ob.Ensemble(members=5, epochs=config.epochs, batch_size=100, learning_rate=3e-3)
    ensemble = ob.fit(problem, method, key=keys[2], out=folder / "ensemble.safetensors").posterior
    posteriors = {
        ENSEMBLE: ensemble,
        RAW: ob.compact(ensemble, symmetry=symmetry, rebase="none").posterior,
        REBASED: ob.compact(ensemble, symmetry=symmetry).posterior,
    }
    ob.save(folder / "compact.safetensors", posteriors[REBASED], network=problem.network)
    options = {"key": keys[3], "num_samples": 64}
    accuracy = {
        name: ob.accuracy(ob.predict(q, problem.apply, data.test.x, **options), data.test.y)
        for name, q in posteriors.items()
    }
    settings = {"epochs": config.epochs, "seed": config.seed}
    page = write_demo_page(folder, profiles, accuracy, settings)
    for paragraph in demo_summary(profiles, accuracy):
        say("\n" + textwrap.fill(paragraph, 80))
    say(
        f"\nPosteriors and figures: {folder}\nOpen in a browser: {page}\n"
        f"({time.perf_counter() - began:.0f} seconds)"
    )


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
