"""Paths on which gains and shifts are tuned."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import onebasin as ob

KEY = jax.random.key(0)


def apply(p, x):
    return jnp.maximum(x @ p["w1"] * p["gain"] + p["b1"], 0) @ p["w2"]


def draw(seed):
    rng = np.random.default_rng(seed)
    shapes = {"w1": (4, 8), "gain": (8,), "b1": (8,), "w2": (8, 3)}
    return {k: jnp.asarray(rng.normal(size=s) + len(s) % 2, jnp.float32) for k, s in shapes.items()}


@pytest.fixture(scope="module")
def task():
    x = np.random.default_rng(0).normal(size=(200, 4)).astype(np.float32)
    y = np.asarray(apply(draw(0), x)).argmax(axis=1)
    problem = ob.Problem(apply, lambda key: draw(0), (x, y))
    std = jax.tree.map(lambda leaf: jnp.full(leaf.shape, 0.05), draw(0))
    return problem, ob.MeanField(draw(0), std), ob.MeanField(draw(1), std)


def test_only_gains_and_shifts_move_and_only_between_the_ends(task):
    problem, q0, q1 = task
    plain = ob.geodesic(q0, q1)
    path = ob.tune(plain, problem, key=KEY, steps=3)
    assert set(path.tuned) == {"gain", "b1"}
    for t in (0.0, 0.5, 1.0):
        found, before = path(t), plain(t)
        for name in ("w1", "w2", "gain", "b1"):
            same = np.array_equal(found.mean[name], before.mean[name])
            assert same == (name in ("w1", "w2") or t != 0.5)
            np.testing.assert_array_equal(found.std[name], before.std[name])


@pytest.mark.parametrize("kind", ["geodesic", "repaired", "line"])
def test_the_training_loss_falls_and_the_plain_path_is_shown(task, kind):
    problem, q0, q1 = task
    base = {
        "geodesic": lambda: ob.geodesic(q0, q1),
        "repaired": lambda: ob.repair(ob.geodesic(q0, q1), problem, problem.x),
        "line": lambda: ob.line(q0.mean, q1.mean),
    }[kind]()
    path = ob.tune(base, problem, key=KEY, steps=40, learning_rate=0.05)
    assert path.kind == f"tuned {base.kind}"
    options = {"key": KEY, "points": 3, "num_samples": 4, "progress": "silent"}
    data = (problem.x, problem.y)
    found = ob.profile(path, problem, data, **options)
    assert found.plain is not None
    assert found.nll[1] < found.plain.nll[1] - 0.1
    np.testing.assert_allclose(found.nll[[0, 2]], found.plain.nll[[0, 2]], rtol=1e-6)
    # The corrections of the draws give the posteriors of the path, with the same noise.
    one_by_one = ob.profile(lambda t: path(t), problem, data, **options)
    np.testing.assert_allclose(found.nll, one_by_one.nll, rtol=1e-4)


def test_mistakes_are_refused(task):
    problem, q0, q1 = task
    with pytest.raises(ValueError, match="a function cannot be tuned"):
        ob.tune(lambda t: q0, problem, key=KEY)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="give one, not a network"):
        ob.tune(ob.geodesic(q0, q1), apply, key=KEY)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="give positive numbers"):
        ob.tune(ob.geodesic(q0, q1), problem, key=KEY, steps=0)
    bare = ob.Problem(
        lambda p, x: jnp.tanh(x @ p["w1"]) @ p["w2"],
        lambda key: {"w1": jnp.ones((4, 2)), "w2": jnp.ones((2, 3))},
        (problem.x, problem.y),
    )
    line = ob.line(*(bare.init(KEY) for _ in range(2)))
    with pytest.raises(ValueError, match="nothing can be tuned"):
        ob.tune(line, bare, key=KEY)
