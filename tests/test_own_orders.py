"""Own orders inside heads and groups: units that move in blocks."""

import warnings
from itertools import permutations, product

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from alignment_cases import same_tree
from onebasin import Activations, FrankWolfe, Samples, Symmetry, align, align_many, find_symmetry
from onebasin.alignment.blocks import solve_family
from onebasin.symmetry import Permutation
from onebasin.symmetry.blocks import Blocks, joined
from onebasin.symmetry.check import UncheckedWarning
from onebasin.symmetry.written import SymmetryFileError
from test_alignment_nests import Encoder, noisy, transformer, transformer_params
from zoo import linen, normal

TOKENS = jnp.arange(12).reshape(2, 6) % 9


@pytest.fixture(scope="module")
def heads():
    """A transformer of two blocks, 4 heads of 4 dimensions each."""
    params = transformer_params()
    return params, find_symmetry(transformer, params, TOKENS, own_orders=True)


def doubles(tree):
    return jax.tree.map(lambda a: np.asarray(a, np.float64), tree)


def test_every_head_has_its_own_orders_and_heads_move_as_before(heads):
    params, symmetry = heads
    assert [(g.size, len(g.places)) for g in symmetry.groups] == [
        (16, 14),  # the residual stream
        (16, 2),  # queries and keys of the first block, 4 heads of 4
        (16, 2),  # values and outputs
        (32, 2),
        (16, 2),
        (16, 2),
        (32, 2),
    ]
    assert {own.count for own in symmetry.blocks.values()} == {4}
    assert len({own.family for own in symmetry.blocks.values()}) == 2
    assert len(symmetry.blocks) == 4
    assert "4 blocks of 'blocks/0" in symmetry.table()
    report = symmetry.check(transformer, params, TOKENS, key=jax.random.key(5))
    assert max(report.alone.values()) <= report.tolerance
    assert report.inert == ()


def test_acting_leaves_the_function_unchanged(heads, x64):
    params, symmetry = heads
    before = transformer(doubles(params), TOKENS)
    p, q = (symmetry.random(key=jax.random.key(i)) for i in range(2))
    moved = symmetry.act(p, doubles(params))
    np.testing.assert_allclose(transformer(moved, TOKENS), before, atol=1e-11)
    both = symmetry.act(symmetry.compose(p, q), doubles(params))
    assert same_tree(both, symmetry.act(p, symmetry.act(q, doubles(params))))
    assert symmetry.compose(p, symmetry.inverse(p)) == symmetry.identity()
    plain = find_symmetry(transformer, params, TOKENS)
    assert [g.size for g in plain.groups] == [16, 4, 4, 4, 32, 4, 4, 4, 32]
    assert plain.blocks == {}


def test_permutations_outside_the_group_are_refused(heads):
    params, symmetry = heads
    queries, values = list(symmetry.blocks)[:2]
    identity = dict(symmetry.identity().indices)
    rng = np.random.default_rng(0)
    with pytest.raises(ValueError, match="out of their blocks"):
        symmetry.act(Permutation(identity | {queries: rng.permutation(16)}), params)
    swapped = joined(np.array([1, 0, 2, 3]), np.tile(np.arange(4), (4, 1)))
    with pytest.raises(ValueError, match="differently"):
        symmetry.act(Permutation(identity | {queries: swapped}), params)
    symmetry.act(Permutation(identity | {queries: swapped, values: swapped}), params)
    with pytest.raises(ValueError, match="leave transpositions out"):
        symmetry.random(key=jax.random.key(0), transpositions=3)


@pytest.mark.parametrize("search", [None, FrankWolfe(steps=4)], ids=["descent", "frank-wolfe"])
def test_planted_copies_with_noise_are_recovered_always(heads, search):
    params, symmetry = heads
    for seed in range(10 if search is None else 2):
        planted = symmetry.random(key=jax.random.key(seed))
        copy = symmetry.act(planted, noisy(params, seed))
        found = align(copy, to=params, symmetry=symmetry, objective="l2", search=search)
        assert found.permutation == symmetry.inverse(planted)
        assert found.converged


def test_one_order_for_all_heads_is_too_few(heads):
    params, symmetry = heads
    copy = symmetry.act(symmetry.random(key=jax.random.key(0)), noisy(params, 0))
    plain = find_symmetry(transformer, params, TOKENS)
    apart, alike = (align(copy, to=params, symmetry=s, objective="l2") for s in (symmetry, plain))
    assert alike.distance_after > 5 * apart.distance_after


def test_many_draws_are_aligned_with_own_orders(heads):
    params, symmetry = heads
    moved = [symmetry.act(symmetry.random(key=jax.random.key(i)), params) for i in range(3)]
    draws = Samples(jax.tree.map(lambda *leaves: np.stack(leaves), *moved))
    aligned = align_many(draws, symmetry=symmetry, objective="l2").posteriors
    assert isinstance(aligned, Samples)
    for leaf in jax.tree.leaves(aligned.draws):
        assert (np.asarray(leaf) == np.asarray(leaf)[:1]).all()


def test_a_family_is_assigned_exactly():
    """Against every order of the blocks and every order inside them."""
    blocks = {"q": Blocks("heads", 2), "v": Blocks("heads", 2), "gain": Blocks("heads", 2)}
    rng = np.random.default_rng(0)
    for _ in range(10):
        matrices = {"q": rng.normal(size=(4, 4)), "v": rng.normal(size=(6, 6))}
        matrices["gain"] = rng.normal(size=(2, 2))

        def score(found, matrices=matrices):
            return sum(m[np.arange(len(m)), found[name]].sum() for name, m in matrices.items())

        best = max(
            score(
                {
                    "q": joined(np.array(outer), np.array(q)),
                    "v": joined(np.array(outer), np.array(v)),
                    "gain": np.array(outer),
                }
            )
            for outer in permutations(range(2))
            for q in product(permutations(range(2)), repeat=2)
            for v in product(permutations(range(3)), repeat=2)
        )
        found = solve_family(matrices, blocks, tuple(blocks))
        assert score(found) == pytest.approx(best, rel=1e-12)


def test_channels_inside_the_groups_of_a_group_norm_have_own_orders():
    traced, x = linen(Encoder(), normal((2, 6, 6, 2)))
    plain = find_symmetry(traced.apply, traced.params, x)
    symmetry = find_symmetry(traced.apply, traced.params, x, own_orders=True)
    assert [g.size for g in plain.groups] == [4, 4, 4, 6]
    assert [(g.size, symmetry.blocks[g.name].count) for g in symmetry.groups] == [(16, 4), (24, 4)]


def attention_with(kind):
    """Attention in which all heads share something of each dimension of queries and keys."""
    params = transformer_params()["blocks"][0] | {"in": normal((3, 16), 8), "g": normal((4,), 9)}

    def apply(params, x):
        x = x @ params["in"]
        q, k, v = ((x @ params[n]).reshape(*x.shape[:-1], 4, 4) for n in "qkv")
        if kind == "gain":
            q = q * params["g"]
        else:  # what rotary embeddings do: positions and a number for each dimension
            angle = jnp.arange(x.shape[1])[:, None, None] * jnp.array([1.0, 0.3, 0.1, 0.03])
            q, k = q * jnp.cos(angle), k * jnp.cos(angle)
        weights = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k), -1)
        return jnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(x.shape)[..., :] @ params["o"]

    return apply, params, normal((2, 5, 3))


@pytest.mark.parametrize("kind", ["gain", "positions"])
def test_what_all_heads_share_keeps_one_order(kind):
    apply, params, x = attention_with(kind)
    symmetry = find_symmetry(apply, params, x, own_orders=True)
    sizes = {g.name: g.size for g in symmetry.groups}
    in_blocks = [sizes[name] for name, own in symmetry.blocks.items() if sizes[name] > own.count]
    assert in_blocks == [16]  # values and outputs only
    assert sum(size == 4 for size in sizes.values()) == (2 if kind == "gain" else 1)
    planted = symmetry.random(key=jax.random.key(0))
    found = align(symmetry.act(planted, params), to=params, symmetry=symmetry, objective="l2")
    assert found.permutation == symmetry.inverse(planted)


def test_blocks_are_kept_in_the_file_and_checked_when_read(heads, tmp_path):
    _, symmetry = heads
    path = symmetry.save(tmp_path / "symmetry.json")
    assert Symmetry.load(path) == symmetry
    name = next(iter(symmetry.blocks))
    for wrong in (f'"{name}": ["h", 3]', f'"{name}": 4', '"none": ["h", 4]'):
        text = path.read_text()
        start = text.index('"blocks": {')
        broken = text[:start] + '"blocks": {' + wrong + text[text.index("\n  }", start) :]
        (tmp_path / "broken.json").write_text(broken)
        with pytest.raises(SymmetryFileError, match="blocks"):
            Symmetry.load(tmp_path / "broken.json")


def test_what_needs_single_units_says_so(heads):
    params, symmetry = heads
    with pytest.raises(ValueError, match="own_orders=False"):
        align(params, to=params, symmetry=symmetry, objective=Activations(transformer, TOKENS))
    key = jax.random.key(0)
    with pytest.raises(ValueError, match="'random' starts"):
        align(params, to=params, symmetry=symmetry, starts=("auto", "shaken"), key=key)
    with pytest.raises(ValueError, match="check=False"):
        find_symmetry(transformer, params, TOKENS, check=False, own_orders=True)


@pytest.mark.parametrize("closed", [False, True])
def test_an_order_that_could_not_be_checked_is_not_accepted(closed):
    """Heads that attend to each other share one order; behind a closed gate that cannot be seen."""

    def network(params, x):
        heads = (x @ params["in"]).reshape(len(x), 3, 2)
        scores = jax.nn.softmax(jnp.einsum("bhd,bgd->bhg", heads, heads))
        mixed = jnp.einsum("bhg,bgd->bhd", scores, heads).reshape(len(x), 6)
        gate = jnp.sum(x**2) > (1e9 if closed else -1)
        return gate * (mixed @ params["out"]) + x @ params["skip"]

    params = {"in": normal((5, 6), 0), "out": normal((6, 4), 1), "skip": normal((5, 4), 2)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UncheckedWarning)  # about the traced groups
        found = find_symmetry(network, params, jnp.ones((3, 5)), own_orders=True)
    assert not found.blocks
    assert {group.size for group in found.groups} == {2, 3}
