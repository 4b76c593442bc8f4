"""The best element of each kind for one group, all other groups held fixed.

Rows of the target are a₀ᵢ (units as computed) and b₀ᵢ (as read), those of the mover a₁ⱼ and b₁ⱼ;
what is minimised is the square distance. With N = ‖rows of the mover‖² and C = ⟨target, mover⟩:

- a permutation maximises ΣC (linear assignment);
- a sign s of unit j at place i adds s·A + B, where A is the product over places that it flips and
  B over the others, so the best is |A| + B, and the assignment is exact for both together;
- a scale eᵗ changes the distance by Σₑ e²ᵉᵗ Nₑ − 2 eᵉᵗ Cₑ over the exponents e of its places (with
  e = ±1 a quartic in eᵗ); it is minimised for every pair, so again the assignment is exact;
- an orthogonal matrix maximises ⟨Q, G⟩ with G = Σ a₀ a₁ᵀ: Q = UVᵀ of its singular vectors
  (Procrustes); where it must keep the vector of ones, the same across that vector;
- an invertible matrix minimises ‖A₀ − MA₁‖² + ‖B₀ − M⁻ᵀB₁‖², from the best of some closed forms
  by a quasi-Newton method that never goes up.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize

from onebasin.symmetry.find_kinds import across_ones

WIDEST = 4.0  # |log| of a scale
STEPS = 33  # of the grid on which the scale is looked for before Newton's method
NEWTON = 8


@dataclass(frozen=True)
class Products:
    """Inner products of the rows of a target and a mover, by the exponent of their places.

    `flips` are of places that a sign changes, `stays` of the others, [units, units] each; `norms`
    are the square norms of the mover's rows. Entries of exponent 0 are in all kinds.
    """

    flips: Mapping[int, np.ndarray]
    stays: Mapping[int, np.ndarray]
    norms: Mapping[int, np.ndarray]

    def within(self, rows: slice, columns: slice) -> "Products":
        """Those of some of the units."""
        cut = lambda of: {e: matrix[rows, columns] for e, matrix in of.items()}
        return Products(
            cut(self.flips), cut(self.stays), {e: own[columns] for e, own in self.norms.items()}
        )


def signed_gains(products: Products, *, signed: bool) -> tuple[np.ndarray, np.ndarray]:
    """The best gain of every pair (half the fall of the distance), and the sign that has it."""
    flips = sum(products.flips.values(), start=np.zeros(()))
    stays = sum(products.stays.values(), start=np.zeros(()))
    if not signed:
        return flips + stays, np.ones(np.broadcast_shapes(flips.shape, stays.shape))
    return np.abs(flips) + stays, np.where(flips < 0, -1.0, 1.0) + 0 * stays


def scaled_gains(products: Products, *, signed: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The best gain of every pair over scales (and signs), with the sign and the log of the scale.

    A gain is half the fall of the distance from where the mover's unit is not there at all.
    """
    best: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None
    for sign in (1.0, -1.0) if signed else (1.0,):
        exponents = sorted({*products.flips, *products.stays})
        inner = {
            e: sign * products.flips.get(e, np.zeros(())) + products.stays.get(e, np.zeros(()))
            for e in exponents
        }
        logs = best_logs(inner, products.norms)
        gain = _gain(logs, inner, products.norms)
        if best is None:
            best = gain, np.ones_like(gain), logs
        else:
            better = gain > best[0]
            found = (gain, np.full_like(gain, sign), logs)
            gains, signs, own = (np.where(better, a, b) for a, b in zip(found, best, strict=True))
            best = gains, signs, own
    assert best is not None
    return best


def _gain(
    logs: np.ndarray | float, inner: Mapping[int, np.ndarray], norms: Mapping[int, np.ndarray]
) -> np.ndarray:
    total = np.zeros(())
    for e, own in inner.items():
        power = np.exp(e * np.asarray(logs))
        total = total + power * own - 0.5 * power**2 * norms[e]
    return total


def best_logs(inner: Mapping[int, np.ndarray], norms: Mapping[int, np.ndarray]) -> np.ndarray:
    """The t that maximises Σₑ eᵉᵗ Cₑ − ½ e²ᵉᵗ Nₑ for every pair, by a grid and Newton's method."""
    shape = np.broadcast_shapes(*(own.shape for own in (*inner.values(), *norms.values())))
    moving = {e for e, own in inner.items() if e and (np.any(own) or np.any(norms[e]))}
    if not moving:
        return np.zeros(shape)
    if len(moving) == 1:  # one side only: linear in the scale
        (e,) = moving
        own, size = np.broadcast_to(inner[e], shape), np.broadcast_to(norms[e], shape)
        usable = (own > 0) & (size > 0)
        ratio = np.where(usable, own, 1.0) / np.where(usable, size, 1.0)
        return np.clip(np.log(ratio) / e, -WIDEST, WIDEST)
    best = np.full(shape, -np.inf)
    logs = np.zeros(shape)
    for t in np.linspace(-WIDEST, WIDEST, STEPS):
        value = _gain(float(t), inner, norms)
        better = value > best
        best, logs = np.where(better, value, best), np.where(better, t, logs)
    spacing = 2 * WIDEST / (STEPS - 1)
    for _ in range(NEWTON):
        first, second = np.zeros(shape), np.zeros(shape)
        for e in moving:
            power = np.exp(e * logs)
            first = first + e * (power * inner[e] - power**2 * norms[e])
            second = second + e**2 * (power * inner[e] - 2 * power**2 * norms[e])
        step = np.where(second < 0, -first / np.where(second < 0, second, -1.0), 0.0)
        tried = np.clip(logs + np.clip(step, -spacing, spacing), -WIDEST, WIDEST)
        value = _gain(tried, inner, norms)
        logs = np.where(value >= best, tried, logs)
        best = np.maximum(value, best)
    return logs


def procrustes(products: np.ndarray, *, centred: bool = False) -> np.ndarray:
    """The orthogonal Q with the largest ⟨Q, G⟩; with `centred`, among those with Q·1 = 1."""
    if not centred:
        left, _, right = np.linalg.svd(products)
        return left @ right
    size = len(products)
    across = across_ones(size)
    inner = procrustes(across.T @ products @ across)
    return np.full((size, size), 1 / size) + across @ inner @ across.T


@dataclass(frozen=True)
class Pair:
    """‖A₀ − MA₁‖² + ‖B₀ − M⁻ᵀB₁‖² without its constants, by Gram matrices.

    `a` is A₀A₁ᵀ and `aa` A₁A₁ᵀ; `b` and `bb` are the same for B.
    """

    a: np.ndarray
    aa: np.ndarray
    b: np.ndarray
    bb: np.ndarray

    def value(self, m: np.ndarray) -> float:
        n = np.linalg.inv(m).T
        first = np.sum(m * (m @ self.aa - 2 * self.a))
        return float(first + np.sum(n * (n @ self.bb - 2 * self.b)))

    def slope(self, m: np.ndarray) -> np.ndarray:
        """With N = M⁻ᵀ, dN = −N dMᵀ N."""
        n = np.linalg.inv(m).T
        across = 2 * (n @ self.bb - self.b)
        return 2 * (m @ self.aa - self.a) - n @ across.T @ n

    def start(self) -> tuple[float, np.ndarray]:
        """The best of the identity, a rotation, and least squares from either side."""
        candidates = [np.eye(len(self.a)), procrustes(self.a + self.b)]
        for inner, gram, contragredient in ((self.a, self.aa, False), (self.b, self.bb, True)):
            ridge = 1e-9 * np.trace(gram) / len(gram) * np.eye(len(gram))
            if not np.trace(gram) > 0:
                continue
            found = np.linalg.solve(gram + ridge, inner.T).T
            if np.isfinite(found).all() and np.linalg.cond(found) < 1e6:
                candidates.append(np.linalg.inv(found).T if contragredient else found)
        return min(((self.value(m), m) for m in candidates), key=lambda pair: pair[0])

    def minimum(self, m: np.ndarray, steps: int = 200) -> np.ndarray:
        """Descent from M; never above it."""
        size = len(m)

        def both(flat: np.ndarray) -> tuple[float, np.ndarray]:
            own = flat.reshape(size, size)
            try:
                return self.value(own), self.slope(own).reshape(-1)
            except np.linalg.LinAlgError:
                return np.inf, np.zeros(size * size)

        end = minimize(both, m.reshape(-1), jac=True, method="L-BFGS-B", options={"maxiter": steps})
        found = end.x.reshape(size, size)
        return found if np.isfinite(end.fun) and end.fun < self.value(m) else m
