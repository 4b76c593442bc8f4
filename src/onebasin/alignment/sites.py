"""The sites of a network where the units of a group can be seen, and their moments over data.

Units are seen after the nonlinearity, as inputs of the layers that read them (or, of attention's
queries and keys, as factors of their products), and before it, as outputs of every layer that makes
them (with its gain and shift). In a residual stream that is once for every block. What each array
of the network is comes from its trace.

The moments of two networks' units at one site are all that objectives on activations need: with
n observations, the means and the centred products Σ (z⁰ᵢ − z̄⁰ᵢ)(z¹ⱼ − z̄¹ⱼ). They are collected
batch by batch and merged without cancellation (Chan, Golub and LeVeque 1983), so the number of
examples is not bounded by memory.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, TypeAlias

import jax
import numpy as np

from onebasin.networks import Apply
from onebasin.symmetry import Symmetry
from onebasin.symmetry.layers import Channels
from onebasin.symmetry.recording import Recorder, Site
from onebasin.symmetry.rules import Value
from onebasin.trees import PyTree

Which: TypeAlias = Literal["all", "after"]
"""All sites of a group, or only those after the nonlinearity."""
Point: TypeAlias = tuple[PyTree, PyTree | None]  # params and running statistics
BATCH = 128  # examples run at once


@dataclass(frozen=True)
class UnitSite:
    """One array of the network that carries the units of a group."""

    group: str
    where: Literal["before", "after"]
    """Before or after the nonlinearity."""
    site: Site
    value: Value


@dataclass
class PairMoments:
    """Moments of the units of two networks over the same observations.

    >>> z0, z1 = np.array([[1.0, 3.0]]), np.array([[2.0, 6.0]])
    >>> found = PairMoments.of(z0, z1)
    >>> found.add(PairMoments.of(z0 + 1, z1 + 2))
    >>> found.count, found.cross.tolist()
    (4, [[10.0]])
    """

    count: int
    means: tuple[np.ndarray, np.ndarray]
    squares: tuple[np.ndarray, np.ndarray]
    """Σ (z − z̄)² of every unit."""
    cross: np.ndarray
    """Σ (z⁰ᵢ − z̄⁰ᵢ)(z¹ⱼ − z̄¹ⱼ)."""
    eps: float

    @classmethod
    def of(cls, z0: np.ndarray, z1: np.ndarray) -> "PairMoments":
        """The moments of one batch of units, [units, observations].

        In double precision, since distances are small differences of these sums.
        """
        eps = float(np.finfo(np.result_type(z0, z1, np.float16)).eps)
        z0, z1 = z0.astype(np.float64), z1.astype(np.float64)
        means = (z0.mean(axis=1), z1.mean(axis=1))
        z0, z1 = (z - m[:, None] for z, m in zip((z0, z1), means, strict=True))
        squares = (np.einsum("ij,ij->i", z0, z0), np.einsum("ij,ij->i", z1, z1))
        return cls(z0.shape[1], means, squares, z0 @ z1.T, eps)

    def add(self, other: "PairMoments") -> None:
        """Merge the moments of further observations."""
        total = self.count + other.count
        weight = self.count * other.count / total
        d0, d1 = (b - a for a, b in zip(self.means, other.means, strict=True))
        (a0, a1), (b0, b1) = self.squares, other.squares
        self.squares = (a0 + b0 + weight * d0**2, a1 + b1 + weight * d1**2)
        self.cross += other.cross + weight * np.outer(d0, d1)
        share = other.count / total
        self.means = (self.means[0] + share * d0, self.means[1] + share * d1)
        self.count = total

    def products(self, *, centred: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Σ z⁰ᵢz¹ⱼ, Σ (z⁰ᵢ)² and Σ (z¹ⱼ)², of centred units or of the units as they are.

        The products of a unit that is constant up to rounding are zero once it is centred.
        """
        m0, m1 = self.means
        if not centred:
            a, b = (
                square + self.count * m**2
                for square, m in zip(self.squares, self.means, strict=True)
            )
            return self.cross + self.count * np.outer(m0, m1), a, b
        alive = [
            square > self.count * (4 * self.eps * m) ** 2
            for square, m in zip(self.squares, self.means, strict=True)
        ]
        a, b = (np.where(on, square, 0.0) for on, square in zip(alive, self.squares, strict=True))
        return self.cross * np.outer(*alive), a, b

    def correlations(self) -> np.ndarray:
        """The correlations of all pairs of units; zero for a unit that is constant."""
        return normalised(*self.products(centred=True))[0]


def normalised(
    cross: np.ndarray, a: np.ndarray, b: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Products of units of norm one; a dead unit stays zero."""
    one_over = [np.where(s > 0, 1 / np.sqrt(np.where(s > 0, s, 1)), 0.0) for s in (a, b)]
    return cross * np.outer(*one_over), (a > 0).astype(a.dtype), (b > 0).astype(b.dtype)


class UnitSites:
    """Records the units of one network at their sites, compiled once for every batch size.

    >>> import jax.numpy as jnp
    >>> from onebasin.symmetry import find_symmetry
    >>> def apply(params, x):
    ...     return jnp.tanh(x @ params["w1"] + params["b1"]) @ params["w2"]
    >>> params = {"w1": jnp.ones((2, 3)), "b1": jnp.ones(3), "w2": jnp.ones((3, 1))}
    >>> x = jnp.ones((4, 2))
    >>> sites = UnitSites(apply, (params, None), x, find_symmetry(apply, params, x), "all")
    >>> [(site.group, site.where) for site in sites.found]
    [('w1', 'after'), ('w1', 'before')]
    """

    def __init__(
        self,
        apply: Apply,
        point: Point,
        x: PyTree,
        symmetry: Symmetry,
        which: Which,
        *,
        complete: bool = True,
    ) -> None:
        self.apply, self.point, self.x, self.symmetry = apply, point, x, symmetry
        self.which, self.complete = which, complete
        self._recorders: dict[int, Recorder] = {}
        self._compiled: dict[int, Any] = {}

    @cached_property
    def found(self) -> tuple[UnitSite, ...]:
        """Every site, group by group; refused if a group has none and they are to be complete."""
        return self._found_by(self._recorder(self._batch_size))

    @cached_property
    def unseen(self) -> tuple[str, ...]:
        """The groups without a site."""
        seen = {site.group for site in self.found}
        return tuple(group.name for group in self.symmetry.groups if group.name not in seen)

    @property
    def num_examples(self) -> int:
        return len(jax.tree.leaves(self.x)[0])

    @property
    def _batch_size(self) -> int:
        """Batches are of nearly equal size, so that at most two sizes are compiled."""
        return -(-self.num_examples // -(-self.num_examples // BATCH))

    def moments(self, target: Point, mover: Point) -> Mapping[str, list[PairMoments]]:
        """The moments of every group's units: for each site, or pooled over those after."""
        found: dict[str, list[PairMoments]] = {}
        for batch in self._batches():
            rows = (self._rows(point, batch) for point in (target, mover))
            fresh: dict[str, list[PairMoments]] = {}
            for site, z0, z1 in zip(self.found, *rows, strict=True):
                fresh.setdefault(site.group, []).append(PairMoments.of(z0, z1))
            for name, parts in fresh.items():
                _merge(found.setdefault(name, []), parts, pooled=self.which == "after")
        return found

    def _batches(self) -> Iterator[PyTree]:
        size = self._batch_size
        for start in range(0, self.num_examples, size):
            yield jax.tree.map(lambda leaf: leaf[start : start + size], self.x)  # noqa: B023

    def _rows(self, point: Point, batch: PyTree) -> list[np.ndarray]:
        size = len(jax.tree.leaves(batch)[0])
        if size not in self._compiled:
            recorder = self._recorder(size)
            sites = self._found_by(recorder)

            def run(params: PyTree, x: PyTree, state: PyTree) -> list[jax.Array]:
                arrays = recorder.collect([s.site for s in sites], params, x, state)
                return [recorder.rows(arrays[s.site], s.value, s.group) for s in sites]

            self._compiled[size] = jax.jit(run)
        params, state = point
        return [np.asarray(rows) for rows in self._compiled[size](params, batch, state)]

    def _recorder(self, size: int) -> Recorder:
        if size not in self._recorders:
            params, state = self.point
            x = jax.tree.map(lambda leaf: leaf[:size], self.x)
            self._recorders[size] = Recorder(
                self.apply, params, x, self.symmetry, state, complete=self.complete
            )
        return self._recorders[size]

    def _found_by(self, recorder: Recorder) -> tuple[UnitSite, ...]:
        found: dict[tuple[str, Site], UnitSite] = {}
        for name, values in (recorder.sources() | recorder.factors()).items():
            for site, value in values.items():
                found[name, site] = UnitSite(name, "after", site, value)
        for value, channels in Channels(recorder).results if self.which == "all" else ():
            assert value.site is not None  # only recorded results are listed
            for name in recorder.groups_along(channels):
                made = UnitSite(name, "before", value.site, value)
                found.setdefault((name, value.site), made)
        seen = {name for name, _ in found}
        for group in self.symmetry.groups:
            if self.complete and group.name not in seen:
                raise ValueError(
                    f"the units of group '{group.name}' cannot be recorded: no layer outside a "
                    "loop reads them; align this network by its weights"
                )
        order = {group.name: number for number, group in enumerate(self.symmetry.groups)}
        return tuple(sorted(found.values(), key=lambda site: order[site.group]))


def _merge(known: list[PairMoments], parts: Iterable[PairMoments], *, pooled: bool) -> None:
    """Add the moments of a batch, site by site, or those of all sites to one."""
    for number, part in enumerate(parts):
        index = 0 if pooled else number
        if index < len(known):
            known[index].add(part)
        else:
            known.append(part)
