"""Scales, rotations and invertible maps learned on the loss of the path."""

from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import onebasin as ob
from alignment_cases import same_tree
from onebasin.alignment.soft_action import matrices_of, single_units, soft_act
from onebasin.alignment.tangents import at_rest, exponential, in_algebra, tangent_act
from onebasin.networks.described import DescribedNetwork
from onebasin.symmetry import Permutation, Transform
from test_kinds import flat, found

RICH = ["GPT, LayerNorm", "GPT, RMSNorm", "MLP, linear", "MLP, ReLU"]


def random_directions(symmetry, seed, amount=1.0):
    rng = np.random.default_rng(seed)
    drawn = {name: amount * rng.normal(size=x.shape) for name, x in at_rest(symmetry).items()}
    return in_algebra(symmetry, drawn)


@pytest.mark.parametrize("name", RICH)
def test_slopes_are_those_of_finite_differences(name, x64):
    """Of a loss of the means and of the marginal σ, along the exponential of a direction."""
    case, symmetry = found(name)
    params = symmetry.canonical(case.params)
    rng = np.random.default_rng(0)
    drawn = lambda: jax.tree.map(lambda a: jnp.asarray(rng.normal(size=np.shape(a))), params)
    weights, spread = drawn(), jax.tree.map(jnp.abs, drawn())
    loss = lambda tree: sum(
        jax.tree.leaves(jax.tree.map(lambda a, w: jnp.sum(w * a**3), tree, weights))
    )
    directions, rest = random_directions(symmetry, 1), at_rest(symmetry)
    rest = {name: jnp.asarray(x, jnp.float64) for name, x in rest.items()}
    q = ob.MeanField(params, spread)
    step = 1e-5
    ends = [
        symmetry.act(exponential(symmetry, {n: s * x for n, x in directions.items()}), q)
        for s in (step, -step)
    ]
    for tree, of_std in ((params, False), (spread, True)):
        slope = jax.grad(
            lambda d, tree=tree, of_std=of_std: loss(tangent_act(symmetry, d, tree, spread=of_std))
        )(rest)
        along = sum(float(jnp.sum(slope[name] * x)) for name, x in directions.items())
        ahead, behind = (loss(end.std if of_std else end.mean) for end in ends)
        assert along == pytest.approx(float(ahead - behind) / (2 * step), rel=1e-6)


@pytest.mark.parametrize("name", RICH)
def test_exponentials_are_elements_of_the_symmetry(name, x64):
    case, symmetry = found(name)
    params, x = symmetry.canonical(case.params), case.inputs(5)
    element = exponential(symmetry, random_directions(symmetry, 2, 0.5))
    moved = symmetry.act(element, params)
    assert not np.allclose(flat(moved), flat(params))
    np.testing.assert_allclose(case.apply(moved, x), case.apply(params, x), rtol=1e-7, atol=1e-9)
    for name, mixing in symmetry.mixings.items():
        if mixing.orthogonal:
            matrix = element.matrix(name)
            np.testing.assert_allclose(matrix @ matrix.T, np.eye(len(matrix)), atol=1e-12)
            if mixing.centred:
                np.testing.assert_allclose(matrix.sum(axis=1), 1, atol=1e-12)


def test_soft_matrices_with_signs_act_as_signed_permutations(x64):
    case, symmetry = found("MLP, tanh")
    element = symmetry.random_transform(key=jax.random.key(0))
    pairs = {name: jnp.asarray(own[:, None] + 0 * own) for name, own in element.signs.items()}
    soft = soft_act(symmetry, matrices_of(element.permutation), case.params, signs=pairs)
    np.testing.assert_allclose(flat(soft), flat(symmetry.act(element, case.params)), rtol=1e-12)


def rms(z):
    return z / jnp.sqrt(jnp.mean(z**2, axis=-1, keepdims=True) + 1e-6)


def network(params, x):
    """A stream that is rotated freely, with a gain; ReLU units; and linear ones."""
    z = x @ params["in"]
    y = rms(z) * params["gain"]
    z = z + jax.nn.relu(y @ params["up"]) @ params["down"]
    return rms(z) @ params["head"] + (rms(z) @ params["a"]) @ params["b"]


SHAPES = {
    "in": (5, 6),
    "gain": (6,),
    "up": (6, 7),
    "down": (7, 6),
    "head": (6, 3),
    "a": (6, 2),
    "b": (2, 3),
}


def drawn(seed):
    rng = np.random.default_rng(seed)
    params = {name: rng.normal(size=shape) for name, shape in SHAPES.items()}
    params["gain"] = np.exp(0.2 * params["gain"])
    return jax.tree.map(lambda a: jnp.asarray(a, jnp.float32), params)


@pytest.fixture(scope="module")
def task():
    """A network that is its own teacher."""
    params = drawn(0)
    x = np.random.default_rng(1).normal(size=(700, 5)).astype(np.float32)
    y = np.asarray(network(params, x)).argmax(axis=1)
    symmetry = ob.find_symmetry(network, params, x[:4], kinds="all")
    assert [g.kind for g in symmetry.groups] == ["orthogonal", "scaled", "invertible"]
    return params, symmetry, (x[:500], y[:500]), (x[500:], y[500:])


def objective(task, **changes):
    options = {"steps": 20, "turns": 60, "exchanges": 10, "judged": 150, "batch_size": 50}
    return ob.PathLoss(network, task[2], progress="silent", **{**options, **changes})


def learn(task: Any, mover: Any, target: Any, *, starts: Any = "auto", **changes):
    return ob.align(
        mover,
        to=target,
        symmetry=task[1],
        objective=objective(task, **changes),
        starts=starts,
        key=jax.random.key(0),
    )


def half_way(q0, q1, data):
    x, y = data
    between = jax.tree.map(lambda a, b: (a + b) / 2, q0, q1)
    log_p = jax.nn.log_softmax(network(between, x))
    return -float(np.mean(np.asarray(log_p)[np.arange(len(y)), y]))


def displaced(symmetry, params, amount, order=None):
    """A copy with the same function: mixed a little, and some units exchanged."""
    element = exponential(symmetry, random_directions(symmetry, 3, amount))
    still = symmetry.identity().indices
    exchange = Permutation({**still, **(order or {})})
    return symmetry.act(symmetry.compose(exchange, element), symmetry.canonical(params))


def test_a_planted_element_is_recovered_from_a_bad_start(task):
    """The identity is the start, where the path has a barrier; the loss alone leads back."""
    params, symmetry, _, test = task
    (units,) = single_units(symmetry)
    mover = displaced(symmetry, params, 0.35, {units: np.array([1, 0, 2, 3, 5, 4, 6])})
    target = symmetry.canonical(params)
    result = learn(task, mover, target, starts="identity", steps=80, turns=150)
    start, end = half_way(mover, target, test), half_way(result.posterior, target, test)
    floor = half_way(target, target, test)
    assert start > floor + 0.2
    assert end < floor + 0.1 * (start - floor)
    x = test[0]
    np.testing.assert_allclose(network(result.posterior, x), network(params, x), atol=2e-3)
    assert result.sweeps == 80 + 150
    assert result.converged


def test_matrices_alone_are_learned_without_steps_on_permutations(task):
    params, symmetry, _, test = task
    target, mover = symmetry.canonical(params), displaced(symmetry, params, 0.2)
    result = learn(task, mover, target, starts="identity", steps=0, exchanges=0, turns=120)
    assert result.permutation == symmetry.identity()
    before, after = (half_way(q, target, test) for q in (mover, result.posterior))
    floor = half_way(target, target, test)
    assert after - floor < 0.2 * (before - floor)


@pytest.mark.parametrize("relaxation", ["soft", "straight-through"])
def test_it_is_never_worse_than_its_start_and_keeps_the_function(task, relaxation):
    params, test, mover = task[0], task[3], drawn(5)
    changes = {"relaxation": relaxation, "starts": ("auto", "random")}
    result = learn(task, mover, params, **changes)
    assert [start.name for start in result.starts] == ["identity", "w2", "random"]
    assert all(a < b for a, b in pairwise(result.trace))
    assert result.trace[0] == max(start.score for start in result.starts)
    assert len(result.trace) > 1
    assert result.score == result.trace[-1]
    # The judged loss is that of the params returned, but for float32 sums in another order.
    assert result.distance_after == pytest.approx(-result.score, rel=1e-5)
    x = test[0]
    np.testing.assert_allclose(network(result.posterior, x), network(mover, x), atol=5e-3)
    # Gains that were folded are those of the target again.
    np.testing.assert_allclose(result.posterior["gain"], params["gain"], rtol=1e-5)


def test_nothing_moves_where_there_is_nothing_to_gain(task):
    params, symmetry, *_ = task
    target = symmetry.canonical(params)
    result = learn(task, target, target, starts="identity")
    assert result.transform == symmetry.as_transform(symmetry.identity())
    assert result.sweeps == result.solves == 0
    still = learn(task, drawn(5), params, starts="identity", steps=0, turns=0, exchanges=0)
    assert still.transform == symmetry.as_transform(symmetry.identity())
    assert still.converged


def test_it_is_deterministic_given_its_key_and_stops_in_time(task):
    params, mover = task[0], drawn(5)
    first, again = (learn(task, mover, params, turns=20) for _ in range(2))
    assert first.transform == again.transform
    assert first.trace == again.trace
    stopped = learn(task, mover, params, time_limit=1e-9)
    assert stopped.sweeps == stopped.solves == 0
    assert not stopped.converged
    assert stopped.score == max(start.score for start in stopped.starts)


@pytest.mark.parametrize("kind", ["mean-field", "samples", "low-rank"])
def test_posteriors_are_learned_as_they_are_moved(task, kind):
    params, symmetry, *_ = task
    std = jax.tree.map(lambda a: jnp.full(a.shape, 0.02), params)
    make = {
        "mean-field": lambda q: ob.MeanField(q, std),
        "samples": lambda q: ob.Samples(jax.tree.map(lambda a: jnp.stack([a, 1.01 * a]), q)),
        "low-rank": lambda q: ob.LowRank(q, std, jax.tree.map(lambda s: s[None] / 2, std)),
    }[kind]
    target, mover = make(symmetry.canonical(params)), make(displaced(symmetry, params, 0.3))
    if kind == "samples":  # with gains of one in all draws
        target, mover = (symmetry.canonical(q) for q in (target, mover))
    result = learn(task, mover, target, starts="identity", exchanges=0)
    assert result.score > result.starts[0].score
    assert isinstance(result.posterior, type(mover))
    assert result.exact == (kind == "samples")
    assert result.distance_after == pytest.approx(-result.score, rel=1e-4)


def test_signs_are_learned_with_the_permutations():
    """Odd units with planted signs and orders, from the identity."""
    apply = lambda p, x: jnp.tanh(x @ p["w"]) @ p["v"]
    rng = np.random.default_rng(0)
    params = {
        name: jnp.asarray(rng.normal(size=shape), jnp.float32)
        for name, shape in (("w", (3, 8)), ("v", (8, 4)))
    }
    x = rng.normal(size=(200, 3)).astype(np.float32)
    y = np.asarray(apply(params, x)).argmax(axis=1)
    symmetry = ob.find_symmetry(apply, params, x[:4], kinds="all")
    assert [g.kind for g in symmetry.groups] == ["signed"]
    planted = symmetry.random_transform(key=jax.random.key(1))
    result = ob.align(
        symmetry.act(planted, params),
        to=params,
        symmetry=symmetry,
        objective=ob.PathLoss(apply, (x, y), steps=2, judged=50, progress="silent"),
        starts="identity",
        key=jax.random.key(0),
    )
    assert result.transform == symmetry.inverse(planted)
    assert same_tree(result.posterior, params)


def test_hidden_units_beside_heads_are_matched_by_their_activations():
    """Dimensions inside heads cannot be recorded; the hidden units are found in one step."""
    net = ob.networks.ViT(patch=2, width=8, depth=1, heads=2, num_classes=3)
    network = DescribedNetwork.of_module(net, (4, 4, 1))
    x = np.random.default_rng(0).normal(size=(60, 4, 4, 1)).astype(np.float32)
    symmetry = ob.find_symmetry(network, network.shapes, x[:2], kinds="all")
    params = network.init(jax.random.key(0))
    # Large enough that the order of hidden units matters to the loss.
    params = symmetry.canonical(jax.tree.map(lambda leaf: 3 * leaf, params))
    y = np.asarray(network.apply(params, x)).argmax(axis=-1)
    still = symmetry.identity()
    (hidden,) = (name for name in single_units(symmetry) if name.endswith("/up"))
    order = np.random.default_rng(1).permutation(len(still[hidden]))
    planted = Permutation({**still.indices, hidden: order})
    result = ob.align(
        symmetry.act(planted, params),
        to=params,
        symmetry=symmetry,
        objective=ob.PathLoss(
            network.apply, (x, y), steps=1, turns=0, exchanges=0, judged=30, progress="silent"
        ),
        starts="identity",
        key=jax.random.key(0),
    )
    assert result.permutation == symmetry.inverse(planted)
    assert result.score > result.starts[0].score


def test_mistakes_are_refused(task):
    params = task[0]
    with pytest.raises(ValueError, match="a shaken start is for permutations"):
        learn(task, params, params, starts=("auto", "shaken"))
    with pytest.raises(ValueError, match="use 'w2' or 'l2'"):
        learn(task, params, params, starts=ob.Activations(network, task[2][0]))
    with pytest.raises(ValueError, match="turning_rate is 0"):
        objective(task, turning_rate=0)
    with pytest.raises(ValueError, match="turns is -1"):
        objective(task, turns=-1)
    with pytest.raises(ValueError, match="the transform does not belong"):
        learn(task, params, params, starts=Transform(task[1].identity()))
