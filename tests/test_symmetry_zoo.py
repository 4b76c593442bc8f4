"""Symmetries found in many kinds of networks, compared with groups written by hand."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import zoo
from onebasin.alignment.objective import OBJECTIVES
from onebasin.alignment.scores import ScoreTable
from onebasin.symmetry import NoRuleWarning, NotASymmetry, Symmetry, find_symmetry

QUICK = {"mlp", "transformer_encoder", "equinox_gru_with_fused_gates", "densely_connected"}


def found_groups(symmetry: Symmetry) -> set:
    return {
        (
            group.size,
            frozenset(
                (
                    "state:" * (place.where == "state") + place.leaf,
                    place.axis,
                    tuple(map(tuple, place.positions)),
                )
                for place in group.places
            ),
        )
        for group in symmetry.groups
    }


def expected_groups(entry: zoo.Entry) -> set:
    return {
        (
            size,
            frozenset((p.leaf, p.axis, tuple(map(tuple, p.positions(size)))) for p in places),
        )
        for size, places in entry.groups
    }


@pytest.mark.parametrize(
    "entry",
    [
        pytest.param(e, id=e.name, marks=pytest.mark.fast if e.name in QUICK else ())
        for e in zoo.ZOO
    ],
)
def test_finds_exactly_the_groups_written_by_hand(entry):
    network, x = entry.build()
    symmetry = find_symmetry(network.apply, network.params, x, state=network.state)
    assert found_groups(symmetry) == expected_groups(entry), f"found\n{symmetry}"
    if symmetry.groups:
        # find_symmetry has checked it; this check has another key and tests the report.
        report = symmetry.check(
            network.apply, network.params, x, state=network.state, key=jax.random.key(7)
        )
        assert max(report.alone.values()) <= report.tolerance
        assert set(report.left_out) == {
            place for g in symmetry.groups if len(g.places) > 1 for place in g.places
        }
        # Every place matters, except those that cannot.
        assert {place.leaf for place in report.inert} == entry.inert


@pytest.mark.parametrize("entry", [pytest.param(e, id=e.name) for e in zoo.ZOO if e.groups])
def test_acting_leaves_the_function_unchanged_in_double_precision(entry):
    network, x = entry.build()
    symmetry = find_symmetry(network.apply, network.params, x, state=network.state, check=False)
    one_cycle = {group.name: group.size - 1 for group in symmetry.groups}
    permutation = symmetry.random(key=jax.random.key(3), transpositions=one_cycle)

    def double(tree):
        return jax.tree.map(
            lambda a: a.astype(jnp.float64) if jnp.issubdtype(a.dtype, jnp.floating) else a, tree
        )

    # Flax's recurrent cells require a carry in single precision.
    single = entry.name == "linen_gru_by_scan"
    with jax.enable_x64(not single):
        params = network.params if single else double(network.params)
        data = x if single else double(x)
        rest = () if network.state is None else (double(network.state),)
        run = jax.jit(network.apply)
        before = run(params, data, *rest)
        moved = symmetry.act(permutation, params)
        moved_rest = tuple(symmetry.act_on_state(permutation, s) for s in rest)
        after = run(moved, data, *moved_rest)
    # Sums in another order: rounding of a few hundred units in the last place.
    np.testing.assert_allclose(after, before, rtol=0, atol=1e-4 if single else 1e-11)
    changed = jax.tree.map(lambda a, b: bool((a != b).any()), params, moved)
    assert any(jax.tree.leaves(changed)), "the random permutation moved nothing"


def test_resnet20_has_three_streams_and_nine_inner_groups():
    network, x = zoo.build_resnet20()
    symmetry = find_symmetry(network.apply, network.params, x)
    sizes = sorted(group.size for group in symmetry.groups)
    assert sizes == [4, 4, 4, 4, 8, 8, 8, 8, 16, 16, 16, 16]
    kernels = {
        group.name: sum(place.leaf.endswith("kernel") for place in group.places)
        for group in symmetry.groups
    }
    # An inner group has places in the kernels before and after it. A stream of three blocks is
    # read and written by each of them, and by the layers before and after the stage.
    assert sorted(kernels.values())[:9] == [2] * 9
    assert all(count > 2 for count in sorted(kernels.values())[9:])


def test_lenet_ties_the_last_channels_to_the_right_factor_of_the_dense_kernel():
    network, x = zoo.build_lenet()
    symmetry = find_symmetry(network.apply, network.params, x)
    flattened = [
        (group, place)
        for group in symmetry.groups
        for place in group.places
        if place.positions.shape[1] > 1
    ]
    assert len(flattened) == 1
    group, place = flattened[0]
    rows = network.params
    for key in place.leaf.split("/"):
        rows = rows[key]
    assert place.axis == 0
    pixels = rows.shape[0] // group.size
    # After flattening [rows, columns, channels], channel c of pixel p is at p·channels + c.
    expected = np.arange(pixels)[None, :] * group.size + np.arange(group.size)[:, None]
    np.testing.assert_array_equal(place.positions, expected)


def test_a_primitive_without_a_rule_is_named_once_and_costs_only_symmetry():
    params = {
        "w": zoo.normal((3, 4)),
        "v": zoo.normal((4, 4), 1),
        "u": zoo.normal((4, 5), 2),
        "out": zoo.normal((5, 2), 3),
    }

    def apply(params, x):
        h = jnp.tanh(x @ params["w"])
        gram = jnp.eye(4) + params["v"] @ params["v"].T
        h = jnp.linalg.solve(gram, h.T).T
        h = jnp.linalg.solve(gram, h.T).T
        return jnp.tanh(h @ params["u"]) @ params["out"]

    with pytest.warns(NoRuleWarning, match="no tracing rule for") as caught:
        symmetry = find_symmetry(apply, params, zoo.normal((4, 3)))
    assert len(caught) == 1
    # Found are the hidden layer after the solve and the contracted axis of the Gram matrix.
    assert sorted(group.size for group in symmetry.groups) == [4, 5]


def test_primitives_without_a_rule_on_fixed_axes_give_no_warning():
    params = {"w": zoo.normal((3, 4)), "out": zoo.normal((4, 2), 1)}

    def apply(params, x):
        return jnp.tanh(jnp.linalg.inv(x.T @ x) @ params["w"]) @ params["out"]

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        symmetry = find_symmetry(apply, params, zoo.normal((4, 3)))
    assert [group.size for group in symmetry.groups] == [4]


def test_unused_parameters_are_named():
    network, x = zoo.dead_parameters()
    symmetry = find_symmetry(network.apply, network.params, x)
    assert symmetry.unused == ("dead",)
    assert "unused, the output does not depend on: dead" in symmetry.table()


class TestTheCheckCanFail:
    def network(self):
        network, x = zoo.plain_function_on_lists()
        return network, x, find_symmetry(network.apply, network.params, x)

    def by_hand(self, params, **changed):
        groups = {
            "first": [("0/w", 1), ("0/b", 0), ("1/w", 0)],
            "second": [("1/w", 1), ("1/b", 0), ("2/w", 0)],
        }
        return Symmetry.by_hand(params, groups | changed)

    @pytest.mark.fast
    def test_a_symmetry_written_by_hand_passes(self):
        network, x, traced = self.network()
        by_hand = self.by_hand(network.params)
        by_hand.check(network.apply, network.params, x, key=jax.random.key(0))
        assert found_groups(by_hand) == found_groups(traced)

    @pytest.mark.parametrize("missing", range(3))
    def test_a_place_left_out_is_caught_even_where_it_is_zero_now(self, missing):
        network, x, _ = self.network()
        params = jax.tree.map(lambda leaf: leaf if leaf.ndim > 1 else 0 * leaf, network.params)
        places = [("0/w", 1), ("0/b", 0), ("1/w", 0)]
        wrong = self.by_hand(params, first=places[:missing] + places[missing + 1 :])
        with pytest.raises(NotASymmetry, match="'first'"):
            wrong.check(network.apply, params, x, key=jax.random.key(0))

    def test_an_axis_of_the_output_is_caught(self):
        network, x, _ = self.network()
        wrong = Symmetry.by_hand(network.params, {"out": [("2/w", 1), ("2/b", 0)]})
        with pytest.raises(NotASymmetry, match="'out'"):
            wrong.check(network.apply, network.params, x, key=jax.random.key(0))

    def test_the_wrong_factor_of_a_flattened_axis_is_caught(self):
        network, x = zoo.build_lenet()
        symmetry = find_symmetry(network.apply, network.params, x)
        group = next(g for g in symmetry.groups if any("×" in p.layout for p in g.places))
        places = []
        for place in group.places:
            m = place.positions.shape[1]
            places.append((place.leaf, place.axis, (1, m) if m > 1 else (1, 1)))
        wrong = Symmetry.by_hand(network.params, {"channels": places})
        with pytest.raises(NotASymmetry, match="channels"):
            wrong.check(network.apply, network.params, x, key=jax.random.key(0))

    def test_state_left_behind_is_caught(self):
        network, x = zoo.batch_norm_running()
        symmetry = find_symmetry(network.apply, network.params, x, state=network.state)
        without_state = Symmetry(symmetry.layouts)
        with pytest.raises(NotASymmetry):
            without_state.check(
                network.apply,
                network.params,
                x,
                state=network.state,
                key=jax.random.key(0),
            )

    def test_uninformative_outputs_are_refused(self):
        network, x, symmetry = self.network()
        with pytest.raises(NotASymmetry, match="cannot run"):
            symmetry.check(
                lambda p, x: 0 * network.apply(p, x), network.params, x, key=jax.random.key(0)
            )


@pytest.mark.fast
def test_batch_size_changes_nothing():
    network, _ = zoo.linen_dense_all_sizes_equal()
    tables = {
        str(find_symmetry(network.apply, network.params, zoo.normal((n, 8)))) for n in (1, 2, 8, 16)
    }
    assert len(tables) == 1


def test_the_shape_of_a_batch_is_enough():
    network, x = zoo.equinox_mlp()
    abstract = jax.ShapeDtypeStruct(x.shape, x.dtype)
    assert len(find_symmetry(network.apply, network.params, abstract).groups) == 2


def test_running_statistics_move_with_their_posterior():
    from onebasin.posterior import MeanField

    network, x = zoo.batch_norm_running()
    symmetry = find_symmetry(network.apply, network.params, x, state=network.state)
    random = jax.tree.map(lambda s: jnp.abs(zoo.normal(s.shape, 5)), network.state)
    std = jax.tree.map(jnp.ones_like, network.params)
    q = MeanField(network.params, std, random)
    moved = symmetry.act(symmetry.random(key=jax.random.key(1)), q)
    before = network.apply(q.mean, x, q.state)
    np.testing.assert_allclose(network.apply(moved.mean, x, moved.state), before, atol=1e-5)
    assert np.abs(network.apply(moved.mean, x, q.state) - before).max() > 1e-2


def test_a_symmetry_shows_as_its_table():
    symmetry = Symmetry.by_hand({"a<b": jnp.ones((2, 3))}, {"h&": [("a<b", 1)]})
    assert repr(symmetry) == str(symmetry) == symmetry.table()
    assert "<td>h&amp;</td><td>3</td><td>a&lt;b[1]</td>" in symmetry._repr_html_()
    assert repr(Symmetry({})) == "no permutation symmetry"


def test_equal_symmetries_have_equal_hashes():
    params = {"w1": jnp.ones((2, 3)), "w2": jnp.ones((3, 1))}
    one, same = (Symmetry.by_hand(params, {"h": [("w1", 1), ("w2", 0)]}) for _ in range(2))
    other = Symmetry.by_hand(params, {"h": [("w1", 1)]})
    assert one == same
    assert hash(one) == hash(same)
    assert one != other
    assert {one: "found"}[same] == "found"
    assert other not in {one}


def test_score_tables_visit_groups_in_the_order_of_their_own_symmetry():
    """Equal symmetries share a plan, but not the order in which they list their groups."""
    params = {"a": jnp.ones((2, 3)), "b": jnp.ones((3, 4)), "c": jnp.ones((4, 1))}
    groups = {"g": [("a", 1), ("b", 0)], "h": [("b", 1), ("c", 0)]}
    one = Symmetry.by_hand(params, groups)
    reversed_ = Symmetry(dict(reversed(list(one.layouts.items()))))
    assert one == reversed_
    for symmetry in (one, reversed_):
        table = ScoreTable(OBJECTIVES["l2"].features(params, params, symmetry), symmetry.identity())
        assert list(table.groups) == [group.name for group in symmetry.groups]
    assert [g.name for g in one.groups] != [g.name for g in reversed_.groups]
