"""A network inside a wider one of the same structure.

Every unit of the narrow network becomes a unit of the wide one, and the further units are made of
zeros: nothing enters them, and nothing that reads them gets anything from them. Whatever their
nonlinearity makes of zero, the weights that read it are zero, so in plain layers (dense,
convolutional, attention over more heads, a normalisation of each unit by itself) the function is
the same for all inputs. Statistics *over* units (LayerNorm, RMSNorm, GroupNorm over the channels of
a group, a mean over units) are divided by another number of them, and attention is scaled by the
dimensions of a head: there the function changes, and embedding is refused.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np

from onebasin.networks import Apply, NetworkLike, apply_of
from onebasin.networks.network import Network
from onebasin.posterior import LowRank, MeanField, Mixture, Posterior, Samples
from onebasin.problem import Problem
from onebasin.symmetry.layout import Concat, Fixed, Layout, Layouts, Product, Units
from onebasin.symmetry.randomised import CannotRun, Randomised
from onebasin.symmetry.recording import atoms_of_groups
from onebasin.symmetry.symmetry import Symmetry
from onebasin.symmetry.tracing import find_symmetry, trace_network
from onebasin.trees import PyTree, path_name

EmbeddedT = TypeVar("EmbeddedT")
SMALL = 1e-6  # std of the weights of further units, in terms of the smallest std of their leaf
SEED = [0]


class CannotEmbed(ValueError):
    """A network that computes another function inside the wider one; the message says why."""


def embed(
    posterior: EmbeddedT,
    network: NetworkLike,
    *,
    into: NetworkLike,
    like: PyTree | Posterior | None = None,
    x: Any = None,
) -> EmbeddedT:
    """A posterior (or params) of a network as one of a wider network of the same structure.

    The mover of an alignment between networks of different widths: embed the narrow posterior, then
    `align` it to one of the wide network, and go through the wide network from one to the other.
    Units of the wide network that no unit of the narrow one matches get a partner made of zeros.

    It is the same function wherever no statistic is taken over the units that are added, which is
    verified numerically before anything is returned: units of plain layers, heads, channels
    normalised one by one. Units under LayerNorm, RMSNorm or a mean over units, and the dimensions
    inside a head, cannot be added. Draws and params are embedded exactly; the further weights of a
    Gaussian have a std of a millionth of the smallest one in their leaf.

    Args:
      posterior: a posterior of the narrow network, or its params.
      network: the narrow network: a `Problem`, a `Network`, or `apply(params, x)`.
      into: the wide one.
      like: params (or a posterior) of the wide network; only shapes are read. Needed unless `into`
        is a `Problem` or a `Network`.
      x: a batch of inputs; needed unless one of the two is a `Problem`.

    Returns:
      A posterior of the same kind over the params of the wide network.

    Raises:
      CannotEmbed: the structures differ, or the function would change.

    >>> import jax, jax.numpy as jnp, onebasin as ob
    >>> apply = lambda p, x: jnp.tanh(x @ p["w1"]) @ p["w2"]
    >>> narrow = {"w1": jnp.ones((2, 3)), "w2": jnp.ones((3, 1))}
    >>> wide = {"w1": jnp.ones((2, 5)), "w2": jnp.ones((5, 1))}
    >>> x = jnp.ones((4, 2))
    >>> found = ob.embed(narrow, apply, into=apply, like=wide, x=x)
    >>> found["w1"].shape, bool((apply(found, x) == apply(narrow, x)).all())
    ((2, 5), True)
    """
    own = posterior.like if isinstance(posterior, Posterior) else posterior
    sides = _Side.of(network, own, x, into), _Side.of(into, _like(into, like), x, network)
    narrow, wide = sides
    found = [find_symmetry(s.apply, s.params, s.x, state=s.state) for s in sides]
    params = tree_places(found[0].layouts, found[1].layouts, found[0].blocks or found[1].blocks)
    state = tree_places(found[0].state_layouts, found[1].state_layouts, {})
    embedding = Embedding(params, state)
    _check_function(embedding, narrow, wide, *found)
    return cast(EmbeddedT, embedding.of(posterior))


class _Side(NamedTuple):
    apply: Apply
    params: PyTree
    state: PyTree | None
    x: Any

    @classmethod
    def of(cls, network: NetworkLike, params: PyTree, x: Any, other: NetworkLike) -> "_Side":
        for given in (network, other):
            if x is None and isinstance(given, Problem):
                x = given.x[:2]
            if x is None and isinstance(given, Network):
                x = given.example
        if x is None:
            raise ValueError("the inputs of the networks are missing; give embed a batch x")
        state = network.state if isinstance(network, Network | Problem) else None
        return cls(apply_of(network), params, state, x)


def _like(into: NetworkLike, like: PyTree | Posterior | None) -> PyTree:
    if like is not None:
        return like.like if isinstance(like, Posterior) else like
    if isinstance(into, Problem):
        return into.shapes
    if isinstance(into, Network):
        return into.params
    raise ValueError("the params of the wide network are missing; give embed like=")


class Embedding(NamedTuple):
    """Where every entry of the narrow leaves is in the wide ones, axis by axis."""

    params: Mapping[str, "Places"]
    state: Mapping[str, "Places"]

    def of(self, posterior: Any) -> Any:
        """A posterior or params of the wide network."""
        match posterior:
            case MeanField(mean, std, state):
                return MeanField(self.tree(mean), self.std(std), self.state_tree(state))
            case LowRank(mean, std, factors, state):
                wide = self.tree(mean), self.std(std), self.tree(factors, 1)
                return LowRank(*wide, self.state_tree(state))
            case Samples():
                state = self.state_tree(posterior.state, 1)
                return Samples(self.tree(posterior.draws, 1), posterior.chain, state)
            case Mixture(components, weights):
                return Mixture(tuple(map(self.of, components)), weights)
            case Posterior():
                raise ValueError(
                    f"a {type(posterior).__name__} cannot be embedded; embed its draws as Samples, "
                    "or its mean as params"
                )
            case _:
                return self.tree(posterior)

    def tree(self, tree: PyTree, lead: int = 0) -> PyTree:
        """The params with zeros for the further units, after `lead` leading axes."""
        return _widened(tree, self.params, lead, 0.0)

    def std(self, tree: PyTree) -> PyTree:
        """Standard deviations, small ones for the further units."""
        return _widened(tree, self.params, 0, None)

    def state_tree(self, tree: PyTree | None, lead: int = 0) -> PyTree | None:
        """Running statistics; ones do as means and as variances, since the weights are zero."""
        return None if tree is None else _widened(tree, self.state, lead, 1.0)


class Places(NamedTuple):
    """For each axis of a leaf, where its entries are in the wide leaf, and the wide shape."""

    positions: tuple[np.ndarray, ...]
    shape: tuple[int, ...]


def tree_places(narrow: Layouts, wide: Layouts, blocks: Mapping[str, Any]) -> dict[str, Places]:
    """The places of every leaf; refused if the two networks differ in more than widths."""
    assert not blocks  # `find_symmetry` gives heads one order
    if set(narrow) != set(wide):
        odd = min(set(narrow) ^ set(wide))
        where = "the narrow" if odd in narrow else "the wide"
        raise CannotEmbed(
            f"leaf '{odd}' is one of {where} network only; embed a network into a wider one of the "
            "same structure"
        )
    found = {}
    for leaf, axes in narrow.items():
        if len(axes) != len(wide[leaf]):
            raise CannotEmbed(
                f"leaf '{leaf}' has {len(axes)} axes in one network and {len(wide[leaf])} in the "
                "other; embed a network into a wider one of the same structure"
            )
        positions = tuple(
            _positions(mine, theirs, f"axis {number} of leaf '{leaf}'")
            for number, (mine, theirs) in enumerate(zip(axes, wide[leaf], strict=True))
        )
        found[leaf] = Places(positions, tuple(layout.size for layout in wide[leaf]))
    return found


def _positions(narrow: Layout, wide: Layout, where: str) -> np.ndarray:
    """The position in the wide axis of each position of the narrow one."""
    match narrow, wide:
        case Fixed(n), Fixed(m) if n == m:
            return np.arange(n)
        case Fixed(n), Fixed(m):
            raise CannotEmbed(
                f"{where} has {n} positions that are no units and {m} in the wide network; only "
                "hidden units can be added"
            )
        case Units(group, n), Units(other, m) if group == other:
            if n > m:
                raise CannotEmbed(
                    f"group '{group}' has {n} units and only {m} in the wide network; embed the "
                    "network with fewer units into the other"
                )
            return np.arange(n)
        case Product(parts), Product(others) if len(parts) == len(others):
            index = np.zeros(1, np.int64)
            for part, other in zip(parts, others, strict=True):
                inner = _positions(part, other, where)
                index = (index[:, None] * other.size + inner).reshape(-1)
            return index
        case Concat(parts), Concat(others) if len(parts) == len(others):
            pieces, start = [], 0
            for part, other in zip(parts, others, strict=True):
                pieces.append(_positions(part, other, where) + start)
                start += other.size
            return np.concatenate(pieces)
    raise CannotEmbed(
        f"the units along {where} are arranged in another way in the wide network; embed a network "
        "into a wider one of the same structure"
    )


def _widened(tree: PyTree, places: Mapping[str, Places], lead: int, fill: float | None) -> PyTree:
    """Every leaf in an array of the wide shape; None fills it with a small part of its minimum."""

    def widen(path: Any, leaf: Any) -> Any:
        own = places.get(path_name(path))
        if own is None or np.shape(leaf)[lead:] == own.shape:
            return leaf
        array = np.asarray(leaf)
        value = SMALL * float(array.min()) if fill is None else fill
        out = np.full((*array.shape[:lead], *own.shape), value, array.dtype)
        out[(..., *np.ix_(*own.positions))] = array
        return jnp.asarray(out, array.dtype) if isinstance(leaf, jax.Array) else out

    return jax.tree_util.tree_map_with_path(widen, tree)


def _check_function(
    embedding: Embedding, narrow: _Side, wide: _Side, mine: Symmetry, theirs: Symmetry
) -> None:
    """Refuse an embedding that changes the function at random params, in double precision."""
    sizes = {group.name: group.size for group in mine.groups}
    added = [group.name for group in theirs.groups if group.size > sizes[group.name]]
    if not added:
        return
    with jax.numpy_dtype_promotion("standard"), jax.enable_x64(True):
        first, second = (
            Randomised(side.apply, side.params, side.x, side.state, double=True, rows=None)
            for side in (narrow, wide)
        )
        if not (first.accepts_operands() and second.accepts_operands()):
            first, second = (
                Randomised(side.apply, side.params, side.x, side.state, double=False, rows=None)
                for side in (narrow, wide)
            )
        try:
            params, state, outputs, tolerance = first.settle(SEED)
        except CannotRun as error:
            raise CannotEmbed(str(error)) from None
        inside = second.run(embedding.tree(params), embedding.state_tree(state))
    shapes = [[leaf.size for leaf in found.leaves] for found in (outputs, inside)]
    change = inside.distance(outputs) if shapes[0] == shapes[1] else float("inf")
    if not change <= tolerance:
        raise CannotEmbed(
            f"the network computes something else inside the wide one (its outputs change by "
            f"{change:.1e} of their range): {_reason(wide, theirs, added)}"
        )


def _reason(wide: _Side, symmetry: Symmetry, added: list[str]) -> str:
    """Which of the groups that gain units are to blame, as far as the trace shows."""
    traced = trace_network(wide.apply, wide.params, wide.x, wide.state)
    names = atoms_of_groups(traced, symmetry)
    reduced = {
        names[atom]
        for primitive, operands, results in traced.trace.steps
        if primitive.startswith("reduce_")
        for operand in operands
        for atom in operand.free_atoms()
        if atom in names and not any(atom in result.free_atoms() for result in results)
    }
    for name in added:
        if name in reduced:
            return (
                f"units of group '{name}' are normalised or averaged over, and their statistics "
                "change with their number; give both networks as many of them"
            )
    return (
        f"it depends on how many units there are of {', '.join(map(repr, added))}, as attention is "
        "scaled by the dimensions of a head; give both networks as many of them"
    )
