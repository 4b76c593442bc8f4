"""Rules for calls, loops and branches, and the evaluation of all rules along a jaxpr."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var

from onebasin.symmetry.axes import Axis, Fixed, Uniform, fix, fixed_shape, join, resolve
from onebasin.symmetry.rules import (
    CALLS,
    Trace,
    Value,
    elementwise,
    fix_all,
    follow,
    output_shape,
    rule,
)


def closed(jaxpr: ClosedJaxpr | Jaxpr) -> ClosedJaxpr:
    """A jaxpr with its constants, in whichever form a primitive keeps it."""
    return jaxpr if isinstance(jaxpr, ClosedJaxpr) else ClosedJaxpr(jaxpr, ())


def body_of(eqn: JaxprEqn) -> ClosedJaxpr | None:
    """The body of a call that runs it once, or None."""
    name = eqn.primitive.name
    return closed(eqn.params[CALLS[name]]) if name in CALLS else None


def run(jaxpr: ClosedJaxpr, values: Sequence[Value], trace: Trace) -> list[Value]:
    """Follow the axes through every equation of a jaxpr."""
    known: dict[Var, Value] = {}

    def read(atom: Var | Literal) -> Value:
        return constant(atom.val) if isinstance(atom, Literal) else known[atom]

    known.update(zip(jaxpr.jaxpr.constvars, map(constant, jaxpr.consts), strict=True))
    known.update(zip(jaxpr.jaxpr.invars, values, strict=True))
    outer = trace.path
    for index, eqn in enumerate(jaxpr.jaxpr.eqns):
        trace.path = None if outer is None else (*outer, index)
        operands = [read(atom) for atom in eqn.invars]
        if eqn.primitive.name not in CALLS:
            for value in operands:
                if value.leaf is not None:
                    trace.first_use.setdefault(value.leaf)
        results = follow(eqn, operands, trace)
        for i, (variable, value) in enumerate(zip(eqn.outvars, results, strict=True)):
            if value.site is None and outer is not None:
                value = replace(value, site=(*outer, index, -1 - i))
            known[variable] = value
    trace.path = outer
    return [read(atom) for atom in jaxpr.jaxpr.outvars]


def constant(array: Any) -> Value:
    """A constant is uniform along the axes along which it does not vary, and otherwise fixed."""
    shape = tuple(np.shape(array))
    if jnp.issubdtype(getattr(array, "dtype", np.float32), jax.dtypes.extended):
        return Value(fixed_shape(shape))
    numbers = np.asarray(array)
    axes: list[Axis] = []
    for i, n in enumerate(shape):
        first = numbers.take([0], axis=i) if n else numbers
        axes.append(Uniform(n) if n == 1 or (n and (numbers == first).all()) else Fixed(n))
    real = numbers.dtype.kind in "biuf" and numbers.size > 0
    number = float(numbers.flat[0]) if real and (numbers == numbers.flat[0]).all() else None
    counting = len(shape) == 1 and shape[0] > 1 and np.array_equal(numbers, np.arange(shape[0]))
    return Value(tuple(axes), number=number, counts=0 if counting else None)


@rule(*CALLS)
def _call(eqn: JaxprEqn, values: list[Value], trace: Trace) -> Sequence[Value]:
    body = body_of(eqn)
    if body is None or len(body.jaxpr.invars) != len(values):
        return fix_all(eqn, values, trace)
    return run(body, values, trace)


def _counted(values: list[Value]) -> list[Value]:
    """Results of a loop or a branch: positions among them are not followed further."""
    for value in values:
        if value.pointer is not None:
            fix(value.pointer.axis)
    return values


def _loop(
    body: ClosedJaxpr, constants: list[Value], carry: list[Value], steps: list[Value], trace: Trace
) -> tuple[list[Value], list[Value]]:
    """Follow a loop's body until the carry is the same before and after.

    A carry that starts uniform (zeros) may carry units after the first step; then the body is
    followed again with this carry. Each round constrains at least one axis or makes one vary.
    """
    outer, trace.path = trace.path, None  # arrays inside a loop cannot be recorded
    carry = [Value(value.axes) for value in carry]
    while True:
        results = _counted(run(body, [*constants, *carry, *steps], trace))
        after = [
            Value(tuple(join(a, b) for a, b in zip(old.axes, new.axes, strict=True)))
            for old, new in zip(carry, results, strict=False)
        ]
        before = [tuple(map(resolve, value.axes)) for value in carry]
        if before == [tuple(map(resolve, value.axes)) for value in after]:
            trace.path = outer
            return after, results[len(carry) :]
        carry = after


@rule("scan")
def _scan(eqn: JaxprEqn, values: list[Value], trace: Trace) -> Sequence[Value]:
    constants, carries = eqn.params["num_consts"], eqn.params["num_carry"]
    start, stacked = values[constants : constants + carries], values[constants + carries :]
    for value in stacked:
        fix(value.axes[0])  # the order of the steps matters
    steps = [Value(v.axes[1:], v.leaf, v.sources[1:] if v.sources else ()) for v in stacked]
    body = closed(eqn.params["jaxpr"])
    carry, results = _loop(body, values[:constants], start, steps, trace)
    length = fixed_shape([eqn.params["length"]])
    return [*carry, *(Value(length + value.axes) for value in results)]


@rule("while")
def _while(eqn: JaxprEqn, values: list[Value], trace: Trace) -> Sequence[Value]:
    in_condition, in_body = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
    condition, rest = values[:in_condition], values[in_condition:]
    carry, _ = _loop(closed(eqn.params["body_jaxpr"]), rest[:in_body], rest[in_body:], [], trace)
    outer, trace.path = trace.path, None
    run(closed(eqn.params["cond_jaxpr"]), [*condition, *carry], trace)
    trace.path = outer
    return carry


@rule("cond")
def _cond(eqn: JaxprEqn, values: list[Value], trace: Trace) -> Sequence[Value]:
    """All branches are followed; a result varies wherever it varies in one of them."""
    outer, trace.path = trace.path, None
    branches = [
        _counted(run(closed(branch), values[1:], trace)) for branch in eqn.params["branches"]
    ]
    trace.path = outer
    return [
        Value(elementwise(output_shape(eqn, i), results))
        for i, results in enumerate(zip(*branches, strict=True))
    ]
