"""LSTM, GRU and plain recurrent layers, as loops over time."""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jax import lax

from onebasin.networks.pytorch.operators_linear import linear
from onebasin.networks.pytorch.registry import operator

Carry = tuple[jax.Array, ...]
Step = Callable[[Carry, jax.Array, jax.Array, jax.Array | None], Carry]


def _layers(
    step: Step,
    x: jax.Array,
    first: Carry,
    weights: Sequence[jax.Array],
    biases: bool,
    count: int,
    train: bool,
    dropout: float,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[jax.Array, ...]:
    """All layers over a sequence [time, batch, features]; the outputs and the last states.

    `step(carry, gates, w_hh, b_hh)` gives the next carry, whose first entry is the output.
    """
    if train and dropout:
        raise ValueError("a recurrent layer drops units at random; call module.eval() first")
    x = jnp.swapaxes(x, 0, 1) if batch_first else x
    ways = 2 if bidirectional else 1
    arrays = len(weights) // (count * ways)
    last: list[Carry] = []
    for layer in range(count):
        outputs = []
        for way in range(ways):
            k = layer * ways + way
            w_ih, w_hh, *more = weights[k * arrays : (k + 1) * arrays]
            b_ih, b_hh = more[:2] if biases else (None, None)
            projects = more[-1] if arrays % 2 else None  # after the biases, if there are any

            def body(
                carry: Carry,
                gates: jax.Array,
                w: jax.Array = w_hh,
                bias: jax.Array | None = b_hh,
                projection: jax.Array | None = projects,
            ) -> tuple[Carry, jax.Array]:
                carry = step(carry, gates, w, bias)
                if projection is not None:
                    carry = (linear(carry[0], projection), *carry[1:])
                return carry, carry[0]

            start = tuple(state[k] for state in first)
            carry, out = lax.scan(body, start, linear(x, w_ih, b_ih), reverse=way == 1)
            outputs.append(out)
            last.append(carry)
        x = jnp.concatenate(outputs, -1) if ways == 2 else outputs[0]
    states = tuple(jnp.stack(states) for states in zip(*last, strict=True))
    return (jnp.swapaxes(x, 0, 1) if batch_first else x, *states)


def _lstm(carry: Carry, gates: jax.Array, w: jax.Array, b: jax.Array | None) -> Carry:
    h, c = carry
    i, f, g, o = jnp.split(gates + linear(h, w, b), 4, -1)
    c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
    return jax.nn.sigmoid(o) * jnp.tanh(c), c


def _gru(carry: Carry, gates: jax.Array, w: jax.Array, b: jax.Array | None) -> Carry:
    (h,) = carry
    r, z, n = jnp.split(gates, 3, -1)
    r_h, z_h, n_h = jnp.split(linear(h, w, b), 3, -1)
    z = jax.nn.sigmoid(z + z_h)
    return ((1 - z) * jnp.tanh(n + jax.nn.sigmoid(r + r_h) * n_h) + z * h,)


def _plain(activation: Callable[[jax.Array], jax.Array]) -> Step:
    def step(carry: Carry, gates: jax.Array, w: jax.Array, b: jax.Array | None) -> Carry:
        return (activation(gates + linear(carry[0], w, b)),)

    return step


@operator("lstm.input", keep=True)
def lstm(
    x: jax.Array,
    first: Sequence[jax.Array],
    weights: Sequence[jax.Array],
    biases: bool,
    count: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[jax.Array, ...]:
    return _layers(
        _lstm, x, tuple(first), weights, biases, count, train, dropout, bidirectional, batch_first
    )


def _single(step: Step) -> Callable[..., tuple[jax.Array, ...]]:
    """A layer whose carry is its output alone."""

    def layer(
        x: jax.Array,
        first: jax.Array,
        weights: Sequence[jax.Array],
        biases: bool,
        count: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
        batch_first: bool,
    ) -> tuple[jax.Array, ...]:
        return _layers(
            step, x, (first,), weights, biases, count, train, dropout, bidirectional, batch_first
        )

    return layer


operator("gru.input", keep=True)(_single(_gru))
operator("rnn_tanh.input", keep=True)(_single(_plain(jnp.tanh)))
operator("rnn_relu.input", keep=True)(_single(_plain(jax.nn.relu)))
