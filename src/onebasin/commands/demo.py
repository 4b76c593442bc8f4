"""`onebasin demo`: two posteriors of one network, before and after alignment."""

import sys
import tempfile
import textwrap
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Demo:
    """Fit one small network twice on the embedded digits and bring both posteriors into one basin.

    Nothing is downloaded. The posteriors and a figure go into a new temporary folder, or into
    the folder named by --out.

    Example: onebasin demo
    """

    out: Path | None = None
    """Folder for what is made; it must not hold files of an earlier run."""
    epochs: int = 60
    """Passes over the 1,442 training images."""
    seed: int = 0
    """All randomness follows from it."""


COMMAND = Demo


def run(config: Demo) -> None:
    import jax

    import onebasin as ob
    from onebasin.report.figures import profile_figure
    from onebasin.report.style import save_figure

    say = lambda text: (sys.stdout.write(text + "\n"), sys.stdout.flush())
    folder = config.out or Path(tempfile.mkdtemp(prefix="onebasin-demo-"))
    folder.mkdir(parents=True, exist_ok=True)
    figure = folder / "barrier.svg"
    if figure.exists():
        raise ValueError(f"{folder} holds files of an earlier run; name another folder by --out")
    keys = jax.random.split(jax.random.key(config.seed), 3)

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
            ob.geodesic(q0, end), problem.apply, data.test, key=keys[1], points=13, samples=64
        )
        for name, end in ends.items()
    }
    save_figure(profile_figure(profiles), figure)
    before, after = (profiles[name].barrier for name in ends)
    accuracy = profiles["as fitted"].accuracy
    lowest = {name: min(p.accuracy) for name, p in profiles.items()}
    story = (
        f"The two posteriors classify {accuracy[0]:.1%} and {accuracy[-1]:.1%} of the test images "
        f"right. On the way between them the loss rises by {before:.2f} nats and accuracy falls "
        f"to {lowest['as fitted']:.1%}: they look like two solutions. With the hidden units of "
        f"one put into the other's order the rise is {after:.2f} nats, {1 - after / before:.0%} "
        f"less, and accuracy stays at {lowest['aligned']:.1%} or above."
    )
    say("\n" + textwrap.fill(story, 80))
    say(f"\nPosteriors and figure: {folder}")
