"""Landscapes: geometry of the plane, values on it, and what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from onebasin.evaluation.landscapes import landscape, plane_through, random_plane
from onebasin.likelihoods import Gaussian
from onebasin.posterior import MeanField, Samples
from onebasin.problem import Problem
from onebasin.trees import tree_dot

RNG = np.random.default_rng(0)
X = RNG.normal(size=(30, 3)).astype(np.float32)
Y = RNG.integers(0, 2, 30)


def apply(params, x):
    return x @ params["w"] + params["b"]


def params(seed):
    rng = np.random.default_rng(seed)
    return {
        "w": jnp.asarray(rng.normal(size=(3, 2)), jnp.float32),
        "b": jnp.asarray(rng.normal(size=2), jnp.float32),
    }


def distance(a, b):
    gap = jax.tree.map(jnp.subtract, a, b)
    return float(jnp.sqrt(tree_dot(gap, gap)))


def loss(p):
    return -float(jax.nn.log_softmax(apply(p, X))[np.arange(30), Y].mean())


@pytest.mark.fast
def test_the_plane_goes_through_its_points_at_true_distances():
    points = [params(s) for s in range(3)]
    plane = plane_through(points)
    for point, (a, b) in zip(points, plane.points, strict=True):
        assert distance(plane.at(a, b), point) < 1e-5
    for i in range(3):
        for j in range(i):
            gap = np.linalg.norm(plane.points[i] - plane.points[j])
            np.testing.assert_allclose(gap, distance(points[i], points[j]), rtol=1e-5)
    np.testing.assert_allclose(
        [[float(tree_dot(a, b)) for b in (plane.u, plane.v)] for a in (plane.u, plane.v)],
        np.eye(2),
        atol=1e-6,
    )


def test_values_are_those_of_the_networks_on_the_grid():
    plane = plane_through([params(s) for s in range(3)])
    prior = lambda p: -0.5 * tree_dot(p, p)
    found = landscape(
        plane,
        apply,
        (X, Y),
        points=4,
        log_prior=prior,
        num_train=300,
        likelihood_scale=0.5,
        batch_size=7,
    )
    for i, j in [(0, 0), (2, 1), (3, 3)]:
        at = plane.at(found.a[j], found.b[i])
        np.testing.assert_allclose(found.nll[i, j], loss(at), rtol=1e-5)
        expected = float(prior(at)) - 0.5 * 300 * loss(at)
        assert found.log_posterior is not None
        np.testing.assert_allclose(found.log_posterior[i, j], expected, rtol=1e-4)
    assert found.accuracy.min() >= 0
    assert found.a[0] < 0 < plane.points[:, 0].max() < found.a[-1]
    assert found.summary()["names"] == ["q0", "q1", "aligned q1"]


def test_the_likelihood_is_that_of_the_problem():
    """A Gaussian problem: ½ (residual/noise)² + log(noise √2π), without naming a likelihood."""
    y = RNG.normal(size=(30, 2)).astype(np.float32)
    problem = Problem(apply, lambda key: params(0), (X, y), Gaussian(0.3))
    plane = plane_through([params(s) for s in range(3)])
    found = landscape(plane, problem, (X, y), points=3)
    for i, j in [(0, 0), (2, 1)]:
        residual = np.asarray(apply(plane.at(found.a[j], found.b[i]), X)) - y
        each = 0.5 * (residual / 0.3) ** 2 + np.log(0.3 * np.sqrt(2 * np.pi))
        np.testing.assert_allclose(found.nll[i, j], each.sum(-1).mean(), rtol=1e-5)
    assert np.isnan(found.accuracy).all()


def test_posteriors_are_taken_at_their_mean_or_at_a_draw():
    q = MeanField(params(0), jax.tree.map(jnp.ones_like, params(0)))
    draws = Samples(jax.tree.map(lambda a, b: jnp.stack([a, b]), params(1), params(2)))
    plane = plane_through([q, draws, params(5)], draw=1)
    assert distance(plane.origin, params(0)) < 1e-6
    np.testing.assert_allclose(plane.points[1, 0], distance(params(0), params(2)), rtol=1e-5)


@pytest.mark.parametrize("filter_normalised", [True, False])
def test_random_directions(filter_normalised):
    plane = random_plane(params(0), key=jax.random.key(0), filter_normalised=filter_normalised)
    if filter_normalised:
        norms = [np.linalg.norm(np.asarray(t["w"]), axis=0) for t in (plane.u, plane.origin)]
        np.testing.assert_allclose(*norms, rtol=1e-5)
        assert np.all(np.asarray(plane.u["b"]) == 0)
    else:
        np.testing.assert_allclose(float(tree_dot(plane.u, plane.u)), 1, rtol=1e-5)
        np.testing.assert_allclose(float(tree_dot(plane.u, plane.v)), 0, atol=1e-6)
    found = landscape(plane, apply, (X, Y), points=3, extent=0.5)
    np.testing.assert_allclose(found.nll[1, 1], loss(params(0)), rtol=1e-5)
    assert found.log_posterior is None


@pytest.mark.fast
def test_bad_input_is_named():
    a, b = params(0), params(1)
    with pytest.raises(ValueError, match="three points"):
        plane_through([a, b])
    with pytest.raises(ValueError, match="same point"):
        plane_through([a, a, b])
    middle = jax.tree.map(lambda p, q: (p + q) / 2, a, b)
    with pytest.raises(ValueError, match="on the line"):
        plane_through([a, b, middle])
    with pytest.raises(ValueError, match="leaf 'w'"):
        plane_through([a, b, {**a, "w": jnp.ones((4, 2))}])
    with pytest.raises(ValueError, match="no draw 3"):
        plane_through([Samples(jax.tree.map(lambda p: p[None], a)), a, b], draw=3)
    plane = random_plane(a, key=jax.random.key(0))
    with pytest.raises(TypeError, match=r"takes a plane, such as random_plane"):
        landscape(a, apply, (X, Y))  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="at least 2 points"):
        landscape(plane, apply, (X, Y), points=1)
    with pytest.raises(ValueError, match="labels range"):
        landscape(plane, apply, (X, Y + 5))
