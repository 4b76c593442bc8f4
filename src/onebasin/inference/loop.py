"""The compiled part of the one loop: a chunk of steps for all lanes.

One program serves every chunk, also a shorter last one, because the bounds are arguments: it is
traced and compiled once. A chunk sums what the steps report, remembers the first step whose loss
was not finite, and gathers the draws that fell due.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from onebasin.inference.lanes import Lanes
from onebasin.inference.program import Program
from onebasin.trees import PyTree

# Draws wait on the device until their chunk ends; this bounds what they take there.
DRAW_BUFFER_BYTES = 2**28


class ChunkReport(NamedTuple):
    """What a chunk hands to the host; leaves have a leading axis of lanes."""

    sums: dict[str, jax.Array]
    first_bad: jax.Array  # the first step with a loss that is not finite, or -1
    draws: PyTree  # [lanes, slots, ...], or None


@dataclass(frozen=True)
class CompiledLoop:
    """The compiled program and how long a chunk of it is."""

    run: Callable[..., tuple[Any, ChunkReport]]
    chunk_steps: int
    compile_seconds: float
    memory: dict[str, int]


def default_chunk(program: Program, lanes: Lanes, state_bytes: int) -> int:
    """Steps that take about a second, from the configuration alone (see `seconds_per_step`)."""
    chunk = max(1, round(1.0 / (program.seconds_per_step * lanes.per_device)))
    if program.draws is not None:
        slots = max(1, DRAW_BUFFER_BYTES // max(state_bytes, 1))
        chunk = min(chunk, slots * program.draws.every)
    return min(chunk, program.steps)


def compile_loop(
    program: Program, lanes: Lanes, states: Any, keys: jax.Array, data: PyTree, chunk_steps: int
) -> CompiledLoop:
    began = time.perf_counter()
    slots = 0 if program.draws is None else chunk_steps // program.draws.every + 1
    local = _local_chunk(program, lanes, slots)
    chunk = lanes.on_devices(local, split=(True, True, False, False, False))
    t = np.int32(0)
    compiled = jax.jit(chunk, donate_argnums=0).lower(states, keys, data, t, t).compile()
    return CompiledLoop(compiled, chunk_steps, time.perf_counter() - began, _memory(compiled))


def _local_chunk(program: Program, lanes: Lanes, slots: int) -> Callable[..., Any]:
    """The chunk on one device."""
    step = lanes.each(program.step, (0, 0, None, None))
    plan = program.draws
    read: Any = None if plan is None else lanes.each(plan.read, (0,))

    def local(states: Any, keys: jax.Array, data: PyTree, start: jax.Array, stop: jax.Array):
        count = lanes.per_device
        zeros = jnp.zeros(count)
        sums = dict.fromkeys(program.reports, zeros)
        bad = jnp.full(count, -1, jnp.int32)
        buffer = None
        if read is not None:
            shapes = jax.eval_shape(read, states)
            buffer = jax.tree.map(
                lambda leaf: jnp.zeros((count, slots, *leaf.shape[1:]), leaf.dtype), shapes
            )

        def body(t: jax.Array, carry: Any) -> Any:
            states, sums, bad, buffer, slot = carry
            states, info = step(states, keys, t, data)
            sums = {name: sums[name] + info[name].astype(zeros.dtype) for name in sums}
            bad = jnp.where((bad < 0) & ~jnp.isfinite(info["loss"]), t, bad)
            if plan is not None:
                keep = plan.keeps(t)
                filled = lambda: _put(buffer, read(states), slot)
                buffer = jax.lax.cond(keep, filled, lambda: buffer)
                slot = slot + keep.astype(jnp.int32)
            return states, sums, bad, buffer, slot

        carry = (states, sums, bad, buffer, jnp.int32(0))
        states, sums, bad, buffer, _ = jax.lax.fori_loop(start, stop, body, carry)
        return states, ChunkReport(sums, bad, buffer)

    return local


def _put(buffer: PyTree, draw: PyTree, slot: jax.Array) -> PyTree:
    return jax.tree.map(lambda b, d: b.at[:, slot].set(d), buffer, draw)


def _memory(compiled: Any) -> dict[str, int]:
    """XLA's own account of the compiled chunk, in bytes."""
    analysis = compiled.memory_analysis()
    if analysis is None:
        return {}
    return {
        "arguments": analysis.argument_size_in_bytes,
        "outputs": analysis.output_size_in_bytes,
        "temporaries": analysis.temp_size_in_bytes,
        "aliased": analysis.alias_size_in_bytes,
    }
