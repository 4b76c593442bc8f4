"""Parameters at which rotations exist: gains of normalisations folded into what reads them.

A normalisation's output times a gain γ, plus a shift β, read by kernels W, is the same function as
with γ = 1, β/γ and γW (the gain multiplies the rows of W). Where the symmetry of a stream is
orthogonal, its gains are folded so; where folding is no symmetry of the network (a gain that
something else reads as well), the stream has no rotation either.
"""

from typing import TYPE_CHECKING, Any, TypeVar

import jax
import numpy as np

from onebasin.posterior import LowRank, LowRankPrecision, MeanField, Mixture, Samples
from onebasin.posterior.protocol import Posterior
from onebasin.symmetry.find_kinds import fold_actions
from onebasin.symmetry.kinds import key_of
from onebasin.symmetry.linear_action import multiplied_posterior, multiplied_tree
from onebasin.trees import PyTree, leaves_by_path, take_entry

if TYPE_CHECKING:
    from onebasin.symmetry.symmetry import Symmetry

T = TypeVar("T")
ONE = 1e-4  # how far from one a folded gain may be, in single precision and after a file


def canonical(symmetry: "Symmetry", target: T) -> T:
    """Params or a posterior with the gains of orthogonal groups folded; see the module."""
    folded: Any
    match target:
        case Samples():
            trees = [
                _folded(symmetry, take_entry(target.draws, i)) for i in range(target.num_draws)
            ]
            draws = jax.tree.map(lambda *leaves: np.stack(leaves), *trees)
            folded = Samples(draws, target.chain, target.state)
        case Mixture():
            parts = tuple(canonical(symmetry, part) for part in target.components)
            folded = Mixture(parts, target.weights)
        case MeanField() | LowRank() | LowRankPrecision():
            folded = multiplied_posterior(target, _actions(symmetry, target.mean))
        case Posterior():
            raise ValueError(
                f"the gains of a {type(target).__name__} cannot be folded; give params, Samples, "
                "MeanField or LowRank"
            )
        case _:
            folded = _folded(symmetry, target)
    return folded


def unfolded(symmetry: "Symmetry", target: T, like: Any) -> T:
    """A folded target with the gains of `like`: the same function, in the gauge of that one.

    `like` is a params tree or has a mean. Draws and mixtures have many gains: there they stay one.
    """
    tree = getattr(like, "mean", like)
    if isinstance(like, Samples | Mixture) or not any(m.folded for m in symmetry.mixings.values()):
        return target
    actions = {leaf: own.transposed_inverse() for leaf, own in _actions(symmetry, tree).items()}
    if not isinstance(target, Samples | Mixture | Posterior):
        return multiplied_tree(target, 0, actions)
    return multiplied_posterior(target, actions)


def check_folded(symmetry: "Symmetry", target: Any, names: set[str]) -> None:
    """Refuse params or a posterior of which these groups have gains that are not folded."""
    if isinstance(target, Mixture):
        for part in target.components:
            check_folded(symmetry, part, names)
        return
    tree = target.draws if isinstance(target, Samples) else getattr(target, "mean", target)
    leaves = leaves_by_path(tree)
    for name in names:
        for (leaf, _, _), _ in symmetry.mixings[name].folded:
            if not np.abs(np.asarray(leaves[leaf], np.float64) - 1).max() <= ONE:
                raise ValueError(
                    f"group '{name}' can be mixed by matrices only where the gain '{leaf}' is one; "
                    "fold it first with symmetry.canonical(params)"
                )


def folded_leaves(symmetry: "Symmetry") -> dict[str, str]:
    """The leaves of gains that folding makes one, each with its group."""
    return {
        key[0]: group.name
        for group in symmetry.groups
        if group.name in symmetry.mixings
        for key, _ in symmetry.mixings[group.name].folded
        if any(key_of(place) == key for place in group.places)
    }


def _folded(symmetry: "Symmetry", params: PyTree) -> PyTree:
    return multiplied_tree(params, 0, _actions(symmetry, params))


def _actions(symmetry: "Symmetry", params: PyTree) -> dict[str, Any]:
    leaves = leaves_by_path(params)
    actions = fold_actions(symmetry, symmetry.mixings, leaves)
    if actions is None:
        gains = ", ".join(folded_leaves(symmetry))
        raise ValueError(
            f"a gain is zero, so it cannot be folded (gains: {gains}); align this network with "
            "permutations, signs and scales only"
        )
    return actions
