"""The null of alignment: draws as concentrated as the real ones, whose chains share no mode.

Alignment chooses, among very many permutations, the one that brings draws closest, so it lowers
R-hat even if there is no common mode. To measure by how much, the same alignment is run on draws
from which only the correspondence between hidden units of different chains has been removed.

`scramble` rearranges the entries of every leaf, differently for each chain but equally for all
draws of a chain: along every axis of hidden units, the entries are shuffled among the units,
independently for each index of the other axes. So

* each weight keeps its whole series within the chain (variance, trend, autocorrelation);
* each fixed coordinate (the weights from one pixel, to one class) keeps its set of series;
* the entries of one unit are scattered over other units: the chain has no unit in common with any
  other chain, nor with its former self.

Its limitation: chains in different modes have units of the same kind (smooth receptive fields),
which may match by chance better than scrambled ones. The null is a lower bound on what alignment
does to unrelated chains.
"""

import jax
import jax.numpy as jnp
import numpy as np

from onebasin.posterior import Samples
from onebasin.symmetry import Place, Symmetry
from onebasin.trees import leaves_by_path, with_leaves


def scramble(samples: Samples, *, symmetry: Symmetry, key: jax.Array) -> Samples:
    """The null of `samples`, which must already be aligned.

    Otherwise label switching within a chain would turn into variance that no permutation removes.
    """
    symmetry.check_shapes(samples.like)
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)).ravel().tolist())
    places: dict[str, list[Place]] = {}
    for group in symmetry.groups:
        for place in group.places:
            if place.where == "params":
                places.setdefault(place.leaf, []).append(place)
    chain = np.asarray(samples.chain)
    moved = {}
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
        moved[name] = jnp.asarray(draws)
    return Samples(with_leaves(samples.draws, moved), samples.chain)


def _shuffle(index: np.ndarray, place: Place, rng: np.random.Generator) -> None:
    """Shuffle entries among the units of a place, independently for each line along its axis."""
    lines = np.moveaxis(index, place.axis, -1)  # a view: writing to it changes the index
    lines[..., place.positions] = rng.permuted(lines[..., place.positions], axis=-2)
