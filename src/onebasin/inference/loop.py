"""The compiled part of the loop: a chunk of steps of all replicas.

The bounds of a chunk are arguments, so one compiled program serves every chunk, including a shorter
last one. A chunk sums what the steps report, notes the first step with a non-finite loss, and
collects the draws of its steps.
"""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from onebasin.inference.program import Program
from onebasin.inference.replicas import Replicas
from onebasin.trees import PyTree, num_parameters

# Bound on the memory of the draws, which stay on the device until their chunk ends.
DRAW_BUFFER_BYTES = 2**28


class ChunkReport(NamedTuple):
    """The results of a chunk; every leaf has a leading axis of replicas."""

    sums: dict[str, jax.Array]
    first_bad: jax.Array  # the first step with a non-finite loss, or -1
    draws: PyTree | None  # [replicas, slots, ...]


class CompiledLoop(NamedTuple):
    """A compiled chunk: `run(states, keys, data, start, stop)`."""

    run: Callable[..., tuple[PyTree, ChunkReport]]
    compile_seconds: float
    memory: dict[str, int]


def default_chunk(program: Program, replicas: Replicas, shapes: PyTree) -> int:
    """The number of steps that nominally take a second, or whose draws fill the buffer."""
    chunk = max(1, round(1.0 / (program.seconds_per_step * replicas.per_device)))
    if program.draws is not None:
        draw_bytes = 4 * num_parameters(shapes) * replicas.per_device
        slots = max(1, DRAW_BUFFER_BYTES // max(draw_bytes, 1))
        chunk = min(chunk, slots * program.draws.every)
    return min(chunk, program.steps)


def compile_loop(
    program: Program, replicas: Replicas, states: PyTree, keys: jax.Array, data: PyTree, steps: int
) -> CompiledLoop:
    """Compile a chunk of at most `steps` steps."""
    began = time.perf_counter()
    slots = 0 if program.draws is None else steps // program.draws.every + 1
    chunk = replicas.on_devices(_chunk(program, replicas, slots), (0, 0, "data", None, None))
    t = np.int32(0)
    compiled = jax.jit(chunk, donate_argnums=0).lower(states, keys, data, t, t).compile()
    return CompiledLoop(compiled, time.perf_counter() - began, _memory(compiled))


def _chunk(program: Program, replicas: Replicas, slots: int) -> Callable[..., Any]:
    """A chunk of the replicas of one device."""
    step = replicas.on_one_device(program.step, (0, 0, None, None))
    plan = program.draws
    read = replicas.on_one_device(plan.read if plan else lambda _: None, (0,))

    def chunk(
        states: PyTree, keys: jax.Array, data: PyTree, start: jax.Array, stop: jax.Array
    ) -> tuple[PyTree, ChunkReport]:
        count = replicas.per_device
        zeros = jnp.zeros(count)
        sums = dict.fromkeys(program.reports, zeros)
        bad = jnp.full(count, -1, jnp.int32)
        buffer = jax.tree.map(
            lambda leaf: jnp.zeros((count, slots, *leaf.shape[1:]), leaf.dtype),
            jax.eval_shape(read, states),
        )

        def body(t: jax.Array, carry: PyTree) -> PyTree:
            states, sums, bad, buffer, slot = carry
            states, info = step(states, keys, t, data)
            sums = {name: sums[name] + info[name].astype(zeros.dtype) for name in sums}
            bad = jnp.where((bad < 0) & ~jnp.isfinite(info["loss"]), t, bad)
            if plan is not None:
                keep = plan.keeps(t)
                put = lambda b, d: b.at[:, slot].set(d)
                filled = lambda: jax.tree.map(put, buffer, read(states))
                buffer = jax.lax.cond(keep, filled, lambda: buffer)
                slot = slot + keep.astype(jnp.int32)
            return states, sums, bad, buffer, slot

        carry = (states, sums, bad, buffer, jnp.int32(0))
        states, sums, bad, buffer, _ = jax.lax.fori_loop(start, stop, body, carry)
        return states, ChunkReport(sums, bad, buffer)

    return chunk


def _memory(compiled: jax.stages.Compiled) -> dict[str, int]:
    """The memory of the compiled chunk in bytes, by XLA's own account."""
    analysis = compiled.memory_analysis()
    if analysis is None:
        return {}
    return {
        "arguments": analysis.argument_size_in_bytes,
        "outputs": analysis.output_size_in_bytes,
        "temporaries": analysis.temp_size_in_bytes,
        "aliased": analysis.alias_size_in_bytes,
    }
