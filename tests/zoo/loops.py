"""Recurrence, tied weights, branches and special cases."""

from typing import cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from onebasin.networks import Network, from_equinox
from zoo.entries import at, entry, linen, normal

# Recurrence.


class Recurrent(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(2)(cast(jax.Array, nn.RNN(nn.GRUCell(6))(x))[:, -1])


@entry(
    [
        (
            6,
            [
                *(at(f"GRUCell_0/i{g}/kernel", 1) for g in "rzn"),
                *(at(f"GRUCell_0/i{g}/bias", 0) for g in "rzn"),
                *(at(f"GRUCell_0/h{g}/kernel", axis) for g in "rzn" for axis in (0, 1)),
                at("GRUCell_0/hn/bias", 0),
                at("Dense_0/kernel", 0),
            ],
        )
    ]
)
def linen_gru_by_scan():
    return linen(Recurrent(), normal((2, 5, 3)))


@entry(
    [
        (
            4,
            [
                *(at("cell/weight_ih", 0, start=4 * i) for i in range(3)),
                *(at("cell/weight_hh", 0, start=4 * i) for i in range(3)),
                at("cell/weight_hh", 1),
                *(at("cell/bias", 0, start=4 * i) for i in range(3)),
                at("cell/bias_n", 0),
                at("out/weight", 1),
            ],
        )
    ]
)
def equinox_gru_with_fused_gates():
    class Model(eqx.Module):
        cell: eqx.nn.GRUCell
        out: eqx.nn.Linear

        def __call__(self, x):
            step = lambda h, x: (self.cell(x, h), None)
            h, _ = jax.lax.scan(step, jnp.zeros(4), x)
            return self.out(h)

    keys = jax.random.split(jax.random.key(0))
    model = Model(eqx.nn.GRUCell(3, 4, key=keys[0]), eqx.nn.Linear(4, 2, key=keys[1]))
    return from_equinox(model), normal((3, 5, 3))


@entry([(4, [at("w", 1), at("u", 0), at("u", 1)]), (4, [at("v", 1), at("t", 0), at("t", 1)])])
def two_recurrences_from_one_zero_carry():
    """Both loops start from the same array of zeros, which must not tie their units."""
    params = {"w": normal((3, 4)), "u": normal((4, 4), 1), "v": normal((3, 4), 2)}
    params["t"] = normal((4, 4), 3)

    def apply(params, x):
        zeros = jnp.zeros((x.shape[0], 4))

        def loop(kernel, recurrent):
            step = lambda h, x: (jnp.tanh(x @ kernel + h @ recurrent), None)
            return jax.lax.scan(step, zeros, x.swapaxes(0, 1))[0].sum(-1)

        return jnp.stack([loop(params["w"], params["u"]), loop(params["v"], params["t"])], -1)

    return Network(apply, params), normal((4, 5, 3))


@entry(
    [
        (6, [at("embed", 1), at("layers/w1", 1), at("layers/w2", 2), at("out", 0)]),
        (7, [at("layers/w1", 2), at("layers/b1", 1), at("layers/w2", 1)]),
    ]
)
def layers_stacked_for_scan():
    """Layers stacked in one array must share their permutation."""
    params = {
        "embed": normal((3, 6)),
        "layers": {"w1": normal((4, 6, 7)), "b1": normal((4, 7)), "w2": normal((4, 7, 6))},
        "out": normal((6, 2)),
    }

    @jax.checkpoint
    def block(x, layer):
        return x + jax.nn.relu(x @ layer["w1"] + layer["b1"]) @ layer["w2"], None

    def apply(params, x):
        x, _ = jax.lax.scan(block, x @ params["embed"], params["layers"])
        return x @ params["out"]

    return Network(apply, params), normal((6, 3))


@entry([(5, [at("w", 1), at("u", 0), at("u", 1), at("out", 0)])])
def weights_tied_across_iterations():
    params = {"w": normal((3, 5)), "u": normal((5, 5), 1) / 4, "out": normal((5, 2), 2)}

    def apply(params, x):
        body = lambda _, h: jnp.tanh(h @ params["u"])
        return jax.lax.fori_loop(0, 3, body, x @ params["w"]) @ params["out"]

    return Network(apply, params), normal((5, 3))


# Tied weights, branches and special cases.


@entry([(5, [at("w", 1), at("b", 0)])])
def autoencoder_with_tied_weights():
    params = {"w": normal((4, 5)), "b": normal((5,), 1), "c": normal((4,), 2)}

    def apply(params, x):
        return jnp.tanh(x @ params["w"] + params["b"]) @ params["w"].T + params["c"]

    return Network(apply, params), normal((5, 4))


@entry([(6, [at("embedding", 1), at("w", 0), at("w", 1)])])
def embedding_tied_to_the_output():
    params = {"embedding": normal((9, 6)), "w": normal((6, 6), 1)}

    def apply(params, tokens):
        h = params["embedding"][tokens]
        h = h + jnp.tanh(h @ params["w"])
        return h.mean(1) @ params["embedding"].T

    return Network(apply, params), jnp.arange(6).reshape(2, 3)


@entry(
    [(4, [at("w", 1), at("a", 0), at("c", 0), at("out", 0)])],
    inert="c",  # in the branch that these data do not take
)
def branches_chosen_by_the_data():
    params = {"w": normal((3, 4)), "a": normal((4,), 1), "c": normal((4,), 2)}
    params["out"] = normal((4, 2), 3)

    def apply(params, x):
        h = x @ params["w"]
        choose = (lambda h: jnp.tanh(h + params["a"]), lambda h: jax.nn.relu(h * params["c"]))
        return jax.lax.cond(x.sum() > 0, *choose, h) @ params["out"]

    return Network(apply, params), normal((4, 3))


@entry([(4, [at("w", 1), at("out", 0)]), (4, [at("v", 1), at("t", 0)])])
def uniform_values_tie_nothing():
    """An array of equal entries, a broadcast scalar, a scalar parameter."""
    params = {"w": normal((3, 4)), "out": normal((4, 2), 1), "v": normal((3, 4), 2)}
    params |= {"t": normal((4, 2), 3), "scale": jnp.ones(())}
    ones = np.full((5, 4), 0.5, np.float32)

    def apply(params, x):
        shared = jnp.broadcast_to(params["scale"], (5, 4)) * ones
        first = jnp.tanh(x @ params["w"] + shared) @ params["out"]
        return first + jnp.tanh(x @ params["v"] * shared) @ params["t"]

    return Network(apply, params), normal((5, 3))


@entry([])
def nothing_to_permute():
    params = {"w": normal((3, 2)), "b": normal((2,))}
    return Network(lambda p, x: x @ p["w"] + p["b"], params), normal((4, 3))


@entry([])
def order_of_the_units_matters():
    """A cumulative sum and a reversal depend on the order of the hidden units."""
    params = {"w": normal((3, 4)), "out": normal((4, 2), 1)}

    def apply(params, x):
        h = jnp.cumsum(jnp.tanh(x @ params["w"]), axis=-1)
        return h[:, ::-1] @ params["out"]

    return Network(apply, params), normal((4, 3))


@entry([(2, [at("w", 1, after=3), at("out", 0, after=3)])])
def order_within_a_product_matters():
    """6 = 2 × 3, where the three are read in order: only the two may be permuted."""
    params = {"w": normal((4, 6)), "out": normal((6, 2), 1)}

    def apply(params, x):
        h = jnp.cumsum(jnp.tanh(x @ params["w"]).reshape(-1, 2, 3), axis=-1)
        return h.reshape(-1, 6) @ params["out"]

    return Network(apply, params), normal((4, 4))


@entry([(4, [at("w", 1), at("out", 0)])])
def dead_parameters():
    params = {"w": normal((3, 4)), "out": normal((4, 2), 1), "dead": normal((4, 4), 2)}

    def apply(params, x):
        h = jax.jit(lambda h, d: (jnp.tanh(h), h @ d))(x @ params["w"], params["dead"])[0]
        return h @ params["out"]

    return Network(apply, params), normal((4, 3))
