"""Linear assignment: the permutation x that maximises Σ_i S[i, x[i]], exactly.

A solve returns *prices* v. With profits u_i = max_j (S_ij − v_j), weak duality says that no
assignment of any matrix S scores above Σu + Σv, so

    gap = Σ_i u_i + Σ_j v_j − Σ_i S[i, x_i] ≥ 0

bounds what a new solve could gain, and gap = 0 certifies that x is optimal. The prices also make
the next solve cheap: subtracting u and v changes no optimum, and if the matrix has changed little,
the solver finishes most rows of the reduced costs in its first pass.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite
from typing import TypeVar

import lap
import numpy as np

from onebasin.threads import pool

T = TypeVar("T")

SMALL = 128  # units up to which a cold solve is cheaper than keeping prices
ROUNDS = 12  # of price updates unless a certificate is asked for
BLOCK_ENTRIES = 1 << 17  # float64 entries of one block of rows: fits the second-level cache
THREADED_ENTRIES = 1 << 20  # smaller matrices are not worth the cost of threads


@dataclass(frozen=True)
class Assignment:
    """The column of every row, and the prices that certify it (None if they were not computed)."""

    columns: np.ndarray
    prices: np.ndarray | None


def solve(
    scores: np.ndarray,
    *,
    prices: np.ndarray | None = None,
    certify: bool | None = None,
    name: str = "scores",
) -> Assignment:
    """The optimal assignment; `prices` of an earlier solve of a similar matrix save most work.

    Prices are computed if the matrix is large enough for them to pay; `certify=True` asks for
    exact ones in any case.
    """
    if len(scores) == 0:
        return Assignment(np.zeros(0, np.int64), np.zeros(0))
    wanted = len(scores) > SMALL if certify is None else certify
    if prices is None and not wanted:
        # Reducing costs does not pay here; the sum of squares tells whether all are finite.
        costs = np.negative(scores, dtype=np.float64)
        if isfinite(np.vdot(costs, costs)):
            return Assignment(lap.lapjvr(costs, return_cost=False)[1], None)
    if prices is None:
        prices = np.zeros(len(scores))
    costs = reduced_costs(scores, prices, name)
    columns = lap.lapjvr(costs, return_cost=False)[1]
    if not wanted:
        return Assignment(columns, None)
    rounds = len(scores) if certify else ROUNDS
    return Assignment(columns, _new_prices(costs, columns, prices, rounds))


def gap(scores: np.ndarray, columns: np.ndarray, prices: np.ndarray) -> float:
    """An upper bound on what any assignment gains over `columns`; 0 certifies that none does.

    >>> scores = np.array([[3.0, 1.0], [1.0, 2.0]])
    >>> found = solve(scores, certify=True)
    >>> found.columns.tolist(), gap(scores, found.columns, found.prices)
    ([0, 1], 0.0)
    """
    profits = np.empty(len(scores))

    def block(rows: slice) -> None:
        profits[rows] = (scores[rows] - prices).max(axis=1)

    _over_rows(block, scores.shape)
    # A sum of differences keeps the digits that a difference of sums would cancel.
    return float(np.sum(profits + prices[columns] - scores[np.arange(len(scores)), columns]))


def reduced_costs(scores: np.ndarray, prices: np.ndarray, name: str) -> np.ndarray:
    """Costs u_i + v_j − S_ij ≥ 0 in float64; each row has a zero."""
    costs = np.empty(scores.shape, np.float64)

    def block(rows: slice) -> bool:
        part = costs[rows]
        np.subtract(prices, scores[rows], out=part)
        part -= part.min(axis=1, keepdims=True)
        return bool(np.isfinite(part.sum()))

    with np.errstate(invalid="ignore", over="ignore"):
        finite = all(_over_rows(block, scores.shape))
    if not finite:
        bad = ~np.isfinite(costs).all(axis=1)
        raise ValueError(
            f"the scores of group '{name}' hold NaN or infinity (first at unit "
            f"{int(np.argmax(bad))}); check its leaves for huge values or zero standard deviations"
        )
    return costs


def _new_prices(
    costs: np.ndarray, columns: np.ndarray, prices: np.ndarray, rounds: int
) -> np.ndarray:
    """Prices at which `columns` is optimal for the matrix whose reduced costs are given.

    Optimality needs d_j ≤ C_ij − C[i, x_i] + d[x_i] for all i, j, where −d is what is added to
    the prices: shortest paths in the graph of exchanges, which has no negative cycle because x is
    optimal. They are found by Bellman and Ford's relaxation. Only rows whose own column has just
    become dearer can lower another, and a warm start leaves few of them. Prices that are not
    converged after some rounds still bound the gain and still warm-start the next solve.
    """
    n = len(costs)
    own = costs[np.arange(n), columns]
    change = np.zeros(n)
    noise = 1e-13 * max(float(own.max(initial=0.0)), np.finfo(np.float64).tiny)
    row_of = np.empty(n, np.int64)
    row_of[columns] = np.arange(n)
    active = np.flatnonzero(own > noise)
    for _ in range(rounds):
        if len(active) == 0:
            break
        reach = _lowest(costs, active, change[columns[active]] - own[active])
        lower = reach < change - noise
        change[lower] = reach[lower]
        active = row_of[np.flatnonzero(lower)]
    return prices - change


def _lowest(costs: np.ndarray, rows: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """The minimum of costs[row] + offset over the given rows, a block at a time."""
    step = max(1, BLOCK_ENTRIES // costs.shape[1])
    low = np.full(costs.shape[1], np.inf)
    for start in range(0, len(rows), step):
        part = costs[rows[start : start + step]]
        part += offsets[start : start + step, None]
        np.minimum(low, part.min(axis=0), out=low)
    return low


def _over_rows(block: Callable[[slice], T], shape: tuple[int, ...]) -> list[T]:
    """Run `block` on slices of rows; large matrices use all cores (NumPy releases the GIL)."""
    if shape[0] * shape[1] <= BLOCK_ENTRIES:
        return [block(slice(None))]
    step = max(1, BLOCK_ENTRIES // max(shape[1], 1))
    slices = [slice(start, start + step) for start in range(0, shape[0], step)]
    if shape[0] * shape[1] < THREADED_ENTRIES:
        return [block(rows) for rows in slices]
    return list(pool().map(block, slices))
