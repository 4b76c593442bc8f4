"""Networks that choose among units: experts behind top-k, codes, lookups of a position."""

import jax
import jax.numpy as jnp

from onebasin.networks import Network
from zoo.entries import at, entry, normal


@entry(
    [
        (4, [at("router", 1), at("up", 0), at("down", 0)]),
        (6, [at("up", 2), at("down", 1)]),
    ]
)
def experts_behind_top_k():
    """A mixture of experts: each token goes to the two experts with the largest gates."""
    params = {"router": normal((3, 4)), "up": normal((4, 3, 6), 1), "down": normal((4, 6, 2), 2)}

    def apply(params, x):
        gates, chosen = jax.lax.top_k(jax.nn.softmax(x @ params["router"]), 2)
        weights = (jax.nn.one_hot(chosen, 4) * gates[..., None]).sum(-2)
        hidden = jax.nn.relu(jnp.einsum("bi,eih->beh", x, params["up"]))
        return jnp.einsum("beh,eho,be->bo", hidden, params["down"], weights)

    return Network(apply, params), normal((6, 3))


@entry(
    [
        (4, [at("router", 1), at("up", 0), at("down", 0)]),
        (6, [at("up", 2), at("down", 1)]),
    ]
)
def experts_looked_up():
    """One expert for each token, whose kernels are gathered."""
    params = {"router": normal((3, 4)), "up": normal((4, 3, 6), 1), "down": normal((4, 6, 2), 2)}

    def apply(params, x):
        chosen = jnp.argmax(x @ params["router"], axis=-1)
        hidden = jnp.tanh(jnp.einsum("bi,bih->bh", x, params["up"][chosen]))
        return jnp.einsum("bh,bho->bo", hidden, jnp.take(params["down"], chosen, axis=0))

    return Network(apply, params), normal((6, 3))


@entry([(5, [at("in", 1), at("codes", 1), at("out", 0)]), (8, [at("codes", 0)])])
def vector_quantisation():
    """Each input is replaced by the nearest code, with gradients passed straight through."""
    params = {"in": normal((3, 5)), "codes": normal((8, 5), 1), "out": normal((5, 2), 2)}

    def apply(params, x):
        z = x @ params["in"]
        nearest = jnp.argmin(((z[:, None] - params["codes"]) ** 2).sum(-1), axis=-1)
        q = z + jax.lax.stop_gradient(params["codes"][nearest] - z)
        return q @ params["out"]

    return Network(apply, params), normal((6, 3))


@entry([(6, [at("w", 1), at("u", 0)])])
def positions_used_as_numbers():
    """Which unit is the largest is an output, so the order of these four matters."""
    params = {"w": normal((3, 6)), "u": normal((6, 4), 1)}

    def apply(params, x):
        return jnp.argmax(jnp.tanh(x @ params["w"]) @ params["u"], -1)[:, None] + x[:, :1]

    return Network(apply, params), normal((8, 3))


@entry([])
def largest_of_rectified_units():
    """Where no unit is active the first wins, so which one is first matters."""
    params = {"w": normal((3, 4)), "codes": normal((4, 2), 1)}

    def apply(params, x):
        return params["codes"][jnp.argmax(jax.nn.relu(x @ params["w"] - 1), -1)]

    return Network(apply, params), normal((8, 3))


@entry([])
def position_carried_through_a_loop():
    params = {"w": normal((3, 4)), "codes": normal((4, 2), 1)}

    def apply(params, x):
        step = lambda _, row: (jnp.argmax(row @ params["w"]), None)
        last, _ = jax.lax.scan(step, jnp.argmax(x[0] @ params["w"]), x)
        return x[:, :2] + params["codes"][last]

    return Network(apply, params), normal((8, 3))
