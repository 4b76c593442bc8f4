"""Generators of a continuous symmetry: against finite elements, and against Jacobians."""

import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from onebasin.symmetry.generators import generators
from onebasin.symmetry.transform import Transform
from onebasin.trees import leaves_by_path
from test_kinds import found

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))
from symmetry_completeness import flattened, jacobian, measured, rank

DIMENSIONS = {
    "MLP, ReLU": 5 + 4,  # one scale for each unit
    "MLP, tanh": 0,
    "MLP, linear": 25 + 16,
    # SO(5) of the stream that keeps the ones, 3 gains of 6, and 2 heads of 3 dimensions, twice
    "GPT, LayerNorm": 10 + 18 + 2 * 2 * 9,
    "GPT, RMSNorm": 15 + 18 + 2 * 2 * 9 + 8,
}


@pytest.mark.parametrize("name", DIMENSIONS)
def test_the_dimension_of_what_was_found(name, x64):
    case, symmetry = found(name)
    params = jax.tree.map(np.asarray, symmetry.canonical(case.params))
    tangents = [flattened(params, t) for _, t in generators(symmetry, leaves_by_path(params))]
    assert len(tangents) == rank(tangents) == DIMENSIONS[name]
    x, step = case.inputs(5), 1e-6
    before = np.asarray(case.apply(params, x))
    for _, tangent in generators(symmetry, leaves_by_path(params)):
        leaves = {
            k: np.asarray(v) + step * tangent.get(k, 0.0) for k, v in leaves_by_path(params).items()
        }
        moved = jax.tree.unflatten(jax.tree.structure(params), list(leaves.values()))
        # Of second order in the step, where any other direction is of first.
        assert np.abs(case.apply(moved, x) - before).max() < 1e-9


def test_a_generator_is_the_derivative_of_its_elements(x64):
    case, symmetry = found("MLP, linear")
    group = symmetry.groups[0]
    params = case.params
    identity = symmetry.as_transform(symmetry.identity())
    tangents = [t for name, t in generators(symmetry, leaves_by_path(params)) if name == group.name]
    numbered = iter(tangents)
    step = 1e-6
    for i in range(group.size):
        for j in range(group.size):
            matrix = np.eye(group.size)
            matrix[i, j] += step
            matrices = {**identity.matrices, group.name: matrix[None]}
            moved = symmetry.act(Transform(identity.permutation, matrices=matrices), params)
            tangent = next(numbered)
            for name, leaf in leaves_by_path(params).items():
                numeric = (leaves_by_path(moved)[name] - leaf) / step
                np.testing.assert_allclose(tangent.get(name, 0.0), numeric, atol=1e-5)


def test_the_jacobian_is_that_of_finite_differences(x64):
    case, _ = found("MLP, tanh")
    params = jax.tree.map(np.asarray, case.params)
    slopes = jacobian(case, params, 0.2)
    rng = np.random.default_rng(0)
    direction = jax.tree.map(lambda a: rng.normal(size=a.shape), params)
    x = case.inputs(len(slopes) // 2)
    both = [
        case.apply(jax.tree.map(lambda a, d, s=sign: a + s * 1e-6 * d, params, direction), x)
        for sign in (1, -1)
    ]
    numeric = np.ravel(both[0] - both[1]) / 2e-6
    flat = flattened(params, leaves_by_path(direction))
    np.testing.assert_allclose(slopes @ flat, numeric, atol=1e-6)


def test_completeness_of_small_networks(x64):
    """All of the null space is found, or named; a generator left out would show."""
    for name in ("MLP, ReLU", "MLP, single units"):
        row = measured(name, 3.0, 3)
        assert row["unexplained"] == 0
        assert row["nullity"] == row["found"] + sum(row["missing"].values())
    assert row["missing"] == {"scales of single experts, blocks or lone units": 1}
