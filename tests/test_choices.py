"""What decides the choices of a network, on networks written out here."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from onebasin.symmetry import find_symmetry
from onebasin.symmetry.choices import deciding, has_hidden_choices

pytestmark = pytest.mark.fast

X = jnp.array([[0.3, -1.2, 2.0], [1.0, 0.1, -0.5]])
W = jnp.array([[1.0, 2.0, 0.5], [0.2, -1.0, 0.0], [0.4, 0.3, -2.0]])


def test_networks_without_choices_have_nothing_that_decides():
    assert deciding(lambda w, x: jax.nn.relu(x @ w).max(1), W, X) == []
    assert deciding(lambda w, x: jnp.sort(x @ w, axis=1), W, X) == []
    assert deciding(lambda w, x: jnp.where(x @ w > 0, x @ w, 0.1 * (x @ w)), W, X) == []


@pytest.mark.parametrize(
    "choice",
    [
        lambda z: jnp.argmax(z, axis=1),
        lambda z: jnp.argmin(z, axis=1),
        lambda z: jax.lax.top_k(z, 2)[1],
        lambda z: jnp.argsort(z, axis=1),
        jax.jit(lambda z: jnp.argmax(z, axis=1)),
        jax.checkpoint(lambda z: jnp.argmax(z, axis=1)),
        *(jnp.floor, jnp.round, jnp.ceil),
        lambda z: z > 0.5,
        lambda z: jnp.less_equal(0.5, z),
    ],
)
def test_the_operand_of_a_choice_decides_it(choice):
    (found,) = deciding(lambda w, x: choice(x @ w), W, X)
    np.testing.assert_array_equal(found, X @ W)


def test_choices_inside_loops_are_noticed():
    def looped(w, x):
        add = lambda c, _: (c + jnp.argmax(x @ w, 1), None)
        return jax.lax.scan(add, jnp.zeros(2, int), None, 3)[0]

    def without(w, x):
        return jax.lax.scan(lambda c, _: (c @ w, None), x, None, 3)[0]

    assert has_hidden_choices(looped, W, X)
    assert not has_hidden_choices(without, W, X)
    assert not has_hidden_choices(lambda w, x: jnp.argmax(x @ w, 1), W, X)


def routed(params, x):
    """A factor that hidden units choose."""
    h = jax.nn.relu(x @ params["in"])
    chosen = jnp.argmax(h @ params["router"], axis=1)
    return (h @ params["out"]) * jnp.where(chosen == 0, 1.0, 2.0)[:, None]


def test_a_router_takes_part_in_the_scaling_of_the_units_that_it_reads():
    rng = np.random.default_rng(0)
    params = {
        "in": rng.normal(size=(3, 4)),
        "router": rng.normal(size=(4, 2)),
        "out": rng.normal(size=(4, 2)),
    }
    symmetry = find_symmetry(routed, params, np.asarray(X, np.float64), kinds="all")
    (group,) = symmetry.groups
    assert group.kind == "scaled"
    with jax.enable_x64(True):
        for seed in range(50):
            moved = symmetry.act(symmetry.random_transform(key=jax.random.key(seed)), params)
            change = routed(moved, X) - routed(params, X)
            assert np.abs(change).max() < 1e-9
