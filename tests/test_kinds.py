"""Signs, scales, rotations and invertible maps: found where they are, and exact."""

import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onebasin import LowRank, MeanField, Samples, Symmetry, find_symmetry
from onebasin.symmetry import NotASymmetry, Permutation, Transform
from onebasin.symmetry.kinds import Mixing, Pattern
from onebasin.symmetry.written import SymmetryFileError
from onebasin.trees import leaves_by_path

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))
from mixing_networks import CASES, Case, mlp

FOUND = {
    "MLP, ReLU": ["scaled"] * 2,
    "MLP, tanh": ["signed"] * 2,
    "MLP, linear": ["invertible"] * 2,
    "CNN, GroupNorm": ["permutation", "scaled", "permutation", "scaled"],
    "GPT, LayerNorm": ["orthogonal", "permutation", "invertible", "invertible", "permutation"],
    "GPT, RMSNorm": ["orthogonal", "permutation", "invertible", "invertible", "monomial"],
    "GPT, RMSNorm, tied": ["monomial", "permutation", "invertible", "invertible", "monomial"],
    "mixture of experts": ["signed", "scaled", "scaled", "invertible"],
    "GRU": ["signed"],
}


@cache
def found(name: str) -> tuple[Case, Symmetry]:
    case = CASES[name]()
    return case, find_symmetry(case.apply, case.params, case.inputs(4), kinds="all")


def kinds_of(symmetry):
    """The kinds of all groups but those of whole blocks, which have no places of their own."""
    return [group.kind for group in symmetry.groups]


def flat(tree):
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])


def spread_like(params):
    rng = np.random.default_rng(0)
    return jax.tree.map(lambda a: 0.1 + rng.uniform(size=a.shape), params)


@pytest.mark.parametrize("name", FOUND)
def test_kinds_are_found_and_elements_leave_the_function(name, x64):
    case, symmetry = found(name)
    listed = [kind for kind in FOUND[name] if kind != "permutation"]
    assert [kind for kind in kinds_of(symmetry) if kind != "permutation"] == listed
    x = case.inputs(6)
    before = np.asarray(case.apply(case.params, x))
    params = symmetry.canonical(case.params)
    np.testing.assert_allclose(case.apply(params, x), before, rtol=1e-10, atol=1e-10)
    again = symmetry.canonical(params)
    np.testing.assert_allclose(flat(again), flat(params), rtol=1e-12)
    for seed in range(3):
        transform = symmetry.random_transform(key=jax.random.key(seed))
        moved = symmetry.act(transform, params)
        assert np.abs(flat(moved) - flat(params)).max() > 0.1
        # Rounding through a few layers and the inverses of matrices, in double precision.
        np.testing.assert_allclose(case.apply(moved, x), before, rtol=1e-8, atol=1e-9)


@given(seeds=st.tuples(*[st.integers(0, 10**6)] * 3))
@pytest.mark.parametrize("name", ["GPT, RMSNorm", "MLP, ReLU", "MLP, tanh", "GPT, RMSNorm, tied"])
def test_transforms_form_a_group_that_acts(name, seeds):
    case, symmetry = found(name)
    p, q, r = (symmetry.random_transform(key=jax.random.key(seed)) for seed in seeds)
    one = symmetry.as_transform(symmetry.identity())
    compose, inverse = symmetry.compose, symmetry.inverse
    assert compose(p, inverse(p)).close_to(one)
    assert compose(inverse(p), p).close_to(one)
    assert compose(p, one) == p
    assert compose(compose(p, q), r).close_to(compose(p, compose(q, r)))
    assert inverse(inverse(p)).close_to(p)
    params = symmetry.canonical(case.params)
    both, each = symmetry.act(compose(p, q), params), symmetry.act(p, symmetry.act(q, params))
    np.testing.assert_allclose(flat(both), flat(each), rtol=1e-9, atol=1e-9)
    for group in symmetry.groups:
        product = p.matrix(group.name) @ q.matrix(group.name)
        np.testing.assert_allclose(compose(p, q).matrix(group.name), product, atol=1e-9)


def test_a_permutation_is_a_transform():
    case, symmetry = found("GPT, RMSNorm")
    params = symmetry.canonical(case.params)
    p = symmetry.random(key=jax.random.key(1))
    whole = symmetry.as_transform(p)
    np.testing.assert_allclose(flat(symmetry.act(whole, params)), flat(symmetry.act(p, params)))
    for name in p:
        np.testing.assert_array_equal(whole.matrix(name), np.eye(len(p[name]))[p[name]])


def test_the_default_finds_permutations_only():
    case, symmetry = found("MLP, tanh")
    plain = find_symmetry(case.apply, case.params, case.inputs(4))
    assert plain == symmetry.permutations
    assert kinds_of(plain) == ["permutation"] * 2
    some = find_symmetry(case.apply, case.params, case.inputs(4), kinds=["scaled", "invertible"])
    assert kinds_of(some) == ["permutation"] * 2
    linear, _ = found("MLP, linear")
    some = find_symmetry(linear.apply, linear.params, linear.inputs(4), kinds="scaled")
    assert kinds_of(some) == ["scaled"] * 2
    with pytest.raises(ValueError, match="there is no kind 'unitary'"):
        find_symmetry(case.apply, case.params, case.inputs(4), kinds=["unitary"])  # pyright: ignore
    with pytest.raises(ValueError, match="check=False"):
        find_symmetry(case.apply, case.params, case.inputs(4), kinds="all", check=False)


@pytest.mark.parametrize(
    ("activation", "kind", "outgoing"),
    [
        (lambda z: jax.nn.relu(z) ** 2, "scaled", -2),
        (lambda z: z**3, "monomial", -3),
        (jnp.cos, "signed", 0),  # even: the sign of a unit's inputs does not matter
        (jnp.sin, "signed", -1),
        (jax.lax.erf, "signed", -1),
        (jax.nn.leaky_relu, "scaled", -1),
        (jax.nn.gelu, "permutation", None),
        (jax.nn.sigmoid, "permutation", None),
        (lambda z: jnp.tanh(z) + 0.1, "permutation", None),
    ],
)
def test_the_exponent_of_what_reads_a_unit(activation, kind, outgoing):
    case = mlp(activation, (3, 5, 2))
    symmetry = find_symmetry(case.apply, case.params, case.inputs(4), kinds="all")
    (group,) = symmetry.groups
    assert group.kind == kind
    if outgoing is not None:
        mixing = symmetry.mixings[group.name]
        pattern = mixing.scales[0] if mixing.scales else mixing.signs
        assert pattern is not None
        assert pattern["0/kernel", 1, 0] == pattern["0/bias", 0, 0] == 1
        assert pattern["1/kernel", 0, 0] == outgoing


def test_units_that_are_active_at_all_params_nearby_are_not_linear():
    """Biases so large that no ReLU is off near these params."""
    case = mlp(jax.nn.relu, (3, 4, 2))
    params = [{**layer, "bias": layer["bias"] + 30.0} for layer in case.params]
    symmetry = find_symmetry(case.apply, params, case.inputs(4), kinds="all")
    assert kinds_of(symmetry) == ["scaled"]


def test_check_covers_kinds():
    case, symmetry = found("GPT, RMSNorm")
    report = symmetry.check(case.apply, case.params, case.inputs(4), key=jax.random.key(3))
    assert report.mixed.keys() == symmetry.mixings.keys()
    assert max(report.mixed.values()) <= report.tolerance
    wrong = dict(symmetry.mixings)
    name = symmetry.groups[0].name
    wrong[name] = Mixing(matrices=symmetry.mixings[name].matrices)  # not only orthogonal
    false = replace(symmetry, mixings=wrong)
    with pytest.raises(NotASymmetry, match="is not invertible"):
        false.check(case.apply, case.params, case.inputs(4), key=jax.random.key(3))
    tanh, signed = found("MLP, tanh")
    signs = signed.mixings["0"].signs
    assert signs is not None
    less = Pattern(tuple(e for e in signs.entries if e[0][0] != "0/bias"))
    false = replace(signed, mixings={"0": Mixing(signs=less)})
    with pytest.raises(NotASymmetry, match="group '0' is not signed"):
        false.check(tanh.apply, tanh.params, tanh.inputs(4), key=jax.random.key(3))


def test_rotations_need_folded_gains():
    case, symmetry = found("GPT, RMSNorm")
    transform = symmetry.random_transform(key=jax.random.key(0))
    with pytest.raises(ValueError, match="fold it first with symmetry"):
        symmetry.act(transform, case.params)
    zero = {**case.params, "norm": {"gain": 0 * case.params["norm"]["gain"]}}
    with pytest.raises(ValueError, match="a gain is zero"):
        symmetry.canonical(zero)
    gains = leaves_by_path(symmetry.canonical(case.params))
    assert all(np.allclose(gains[name], 1) for name in gains if name.endswith("gain"))


def test_samples_move_exactly_and_gaussians_as_said(x64):
    case, symmetry = found("GPT, RMSNorm")
    rng = np.random.default_rng(0)
    trees = [
        jax.tree.map(lambda a: a + 0.1 * rng.normal(size=a.shape), case.params) for _ in range(3)
    ]
    draws = Samples(jax.tree.map(lambda *leaves: np.stack(leaves), *trees))
    transform = symmetry.random_transform(key=jax.random.key(4))
    moved = symmetry.act(transform, symmetry.canonical(draws))
    x = case.inputs(4)
    for i in range(3):
        np.testing.assert_allclose(
            case.apply(moved.draw(i), x), case.apply(trees[i], x), rtol=1e-8, atol=1e-9
        )
    # The covariance of independent weights after a matrix A along their axis is A diag(σ²) Aᵀ.
    mean = symmetry.canonical(case.params)
    std = jax.tree.map(lambda a: 0.1 + rng.uniform(size=a.shape), mean)
    q = symmetry.act(transform, MeanField(mean, std))
    name = symmetry.groups[0].name
    a = transform.matrix(name)
    np.testing.assert_allclose(q.mean["embedding"], mean["embedding"] @ a.T, atol=1e-12)
    variance = [np.diag(a @ np.diag(row**2) @ a.T) for row in std["embedding"]]
    np.testing.assert_allclose(np.square(q.std["embedding"]), variance, atol=1e-12)
    factors = jax.tree.map(lambda leaf: rng.normal(size=(2, *leaf.shape)), mean)
    low = symmetry.act(transform, LowRank(mean, std, factors))
    np.testing.assert_allclose(low.factors["embedding"], factors["embedding"] @ a.T, atol=1e-12)


def test_signs_and_scales_move_a_mean_field_exactly(x64):
    for name in ("MLP, ReLU", "MLP, tanh"):
        case, symmetry = found(name)
        q = MeanField(case.params, spread_like(case.params))
        transform = symmetry.random_transform(key=jax.random.key(4))
        moved = symmetry.act(transform, q)
        draw = jax.tree.map(lambda m, s: m + s, q.mean, q.std)
        # Of each weight the factor is the same for mean and σ, but σ is never negative.
        factor = flat(symmetry.act(transform, draw)) / flat(
            symmetry.act(transform.permutation, draw)
        )
        own = symmetry.act(transform.permutation, q)
        np.testing.assert_allclose(flat(moved.mean), factor * flat(own.mean), rtol=1e-9)
        np.testing.assert_allclose(flat(moved.std), np.abs(factor) * flat(own.std), rtol=1e-9)


def test_wrong_transforms_are_refused():
    case, symmetry = found("MLP, tanh")
    _, other = found("MLP, ReLU")
    transform = other.random_transform(key=jax.random.key(0))
    with pytest.raises(ValueError, match="whose group '0' is signed"):
        symmetry.act(transform, case.params)
    with pytest.raises(ValueError, match="one permutation, not a stack"):
        Transform(Permutation({"0": np.zeros((2, 1), int)}))


@pytest.mark.parametrize("name", ["GPT, RMSNorm", "MLP, tanh", "CNN, GroupNorm"])
def test_kinds_are_kept_in_the_file(name, tmp_path):
    _, symmetry = found(name)
    path = symmetry.save(tmp_path / "symmetry.json")
    loaded = Symmetry.load(path)
    assert loaded == symmetry
    assert kinds_of(loaded) == kinds_of(symmetry)
    text = path.read_text()
    for wrong in ('"none": {}', '"0": {"signs": 3}', '"0": {"signs": [["0/kernel", 7, 0, 1]]}'):
        start = text.index('"kinds": {')
        broken = text[:start] + '"kinds": {' + wrong + text[text.index("\n  }", start) :]
        (tmp_path / "broken.json").write_text(broken)
        with pytest.raises(SymmetryFileError, match="kinds"):
            Symmetry.load(tmp_path / "broken.json")
