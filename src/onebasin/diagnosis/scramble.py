"""The null of alignment: draws as concentrated as the real ones, whose chains share no mode.

Alignment picks, among very many permutations, the one under which draws lie closest, so it lowers
R-hat even where there is nothing to find. To see by how much, the same alignment is run on draws
from which only the thing it looks for has been taken away: that hidden units of one chain
correspond to hidden units of another.

`scramble` moves the entries of every leaf, for each chain by a rearrangement of its own that is
the same for all draws of the chain: along every axis that holds hidden units, the entries are
shuffled among the units, independently for each index of the other axes. So

* each weight keeps its whole series within the chain (spread, trend, autocorrelation);
* each fixed coordinate (the weights from one pixel, to one class) keeps its set of series;
* an entry lands beside entries of other units: the chain has no unit in common with any other
  chain, nor with its own past self.

What it leaves out: chains in different modes would have units that look alike in kind (smooth
receptive fields) and may match by chance better than scrambled ones do. The null is a lower
bound of what alignment can do to unrelated chains.
"""

import jax
import jax.numpy as jnp
import numpy as np

from onebasin.posterior import Samples
from onebasin.symmetry import Place, Symmetry
from onebasin.trees import leaves_by_path


def scramble(samples: Samples, *, symmetry: Symmetry, key: jax.Array) -> Samples:
    """The null of `samples`: give draws that are aligned already.

    Labels that switch within a chain would otherwise be scrambled into spread that no
    permutation takes back.
    """
    symmetry.check_shapes(samples.like)
    seed = np.asarray(jax.random.key_data(key)).ravel().tolist()
    rng = np.random.default_rng(seed)
    places: dict[str, list[Place]] = {}
    for group in symmetry.groups:
        for place in group.places:
            if place.where == "params":
                places.setdefault(place.leaf, []).append(place)
    chain = np.asarray(samples.chain)
    moved = []
    for name, leaf in leaves_by_path(samples.draws).items():
        draws = np.array(leaf)
        shape = draws.shape[1:]
        for one in np.unique(chain):
            index = np.arange(int(np.prod(shape))).reshape(shape)
            for place in places.get(name, []):
                _shuffle(index, place, rng)
            own = np.flatnonzero(chain == one)
            flat = draws[own].reshape(len(own), -1)
            draws[own] = flat[:, index.ravel()].reshape(len(own), *shape)
        moved.append(jnp.asarray(draws))
    return Samples(jax.tree.unflatten(jax.tree.structure(samples.draws), moved), samples.chain)


def _shuffle(index: np.ndarray, place: Place, rng: np.random.Generator) -> None:
    """Shuffle entries among the units of a place, each line along its axis by itself."""
    lines = np.moveaxis(index, place.axis, -1)  # a view: writing to it changes the index
    lines[..., place.positions] = rng.permuted(lines[..., place.positions], axis=-2)
