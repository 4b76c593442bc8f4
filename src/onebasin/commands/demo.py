"""`onebasin demo`: the idea on the embedded digits, in a minute."""

import sys
from dataclasses import dataclass


@dataclass(frozen=True)
class Demo:
    """Show on the embedded digits what OneBasin does; nothing is downloaded.

    Example: onebasin demo
    """

    seed: int = 0
    """All randomness follows from it."""


COMMAND = Demo


def run(config: Demo) -> None:
    import jax
    import numpy as np

    import onebasin as ob
    from onebasin.commands.symmetry import network_symmetry

    say = lambda text: sys.stdout.write(text + "\n")
    data = ob.load_dataset("digits")
    say(f"Data: {data.name}, {len(data.train.x)} training and {len(data.test.x)} test images.")
    network = ob.networks.LeNet(width=6)
    symmetry = network_symmetry(network, data.train.x.shape[1:])
    say("\nA small convolutional network. These hidden units may be permuted:\n")
    say(str(symmetry))
    x = data.test.x[:256]
    key = jax.random.key(config.seed)
    params = network.init(key, x)["params"]
    permutation = symmetry.random(key=key)
    moved = symmetry.act(permutation, params)
    before = network.apply({"params": params}, x)
    after = network.apply({"params": moved}, x)
    distance = np.sqrt(
        sum(float(((a - b) ** 2).sum()) for a, b in zip(*map(jax.tree.leaves, (params, moved))))
    )
    swaps = ob.transpositions(permutation).total
    say(
        f"\nA random permutation ({swaps} transpositions) moves the weights by {distance:.2f} "
        f"and the outputs by {float(np.abs(after - before).max()):.1e}."
    )
