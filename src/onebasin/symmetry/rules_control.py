"""Rules that enter calls, loops and branches."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

from onebasin.symmetry.axes import Axis, Fixed, Uniform, fix, join, resolve
from onebasin.symmetry.rules import (
    RULES,
    Trace,
    Value,
    common_layer,
    common_statistic,
    elementwise,
    fixed_shape,
    output_shape,
    rule,
    without_rule,
)

# Calls whose body runs once with the call's own operands; where the body is kept.
CALLS = {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "closed_call": "call_jaxpr",
    "core_call": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "custom_vjp_call_jaxpr": "fun_jaxpr",
    "custom_lin": "call_jaxpr",
    "checkpoint": "jaxpr",
    "remat": "jaxpr",
    "remat2": "jaxpr",
}

# Primitives after which a value still is its layer's pre-activation, scaled or shifted.
LINEAR = {
    *("add", "sub", "mul", "div", "neg", "convert_element_type", "broadcast_in_dim"),
    *("reshape", "transpose", "squeeze", "copy"),
}


def closed(jaxpr: Any) -> Any:
    """A jaxpr with its constants, whichever way the primitive keeps it."""
    return jaxpr if isinstance(jaxpr, core.ClosedJaxpr) else core.ClosedJaxpr(jaxpr, ())


def body_of(eqn: Any) -> Any | None:
    """The body of a call that simply runs it, or None."""
    name = eqn.primitive.name
    return closed(eqn.params[CALLS[name]]) if name in CALLS else None


def run(jaxpr: Any, values: Sequence[Value], trace: Trace) -> list[Value]:
    """Follow the axes through every equation of a (closed) jaxpr."""
    known: dict[Any, Value] = {}

    def read(atom: Any) -> Value:
        return constant(atom.val) if isinstance(atom, core.Literal) else known[atom]

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
        results = RULES.get(eqn.primitive.name, without_rule)(eqn, operands, trace)
        if not _fit(results, eqn):
            results = without_rule(eqn, operands, trace)
        for i, (variable, value) in enumerate(zip(eqn.outvars, results, strict=True)):
            if value.site is None and outer is not None:
                value = replace(value, site=(*outer, index, -1 - i))
            known[variable] = _with_lineage(value, eqn.primitive.name, operands)
    trace.path = outer
    return [read(atom) for atom in jaxpr.jaxpr.outvars]


def _fit(results: Sequence[Value], eqn: Any) -> bool:
    """Whether a rule's results have the sizes they must have; a rule that errs is not believed."""
    return all(
        tuple(axis.size for axis in value.axes) == output_shape(eqn, i)
        for i, value in enumerate(results)
    )


def _with_lineage(value: Value, primitive: str, operands: Sequence[Value]) -> Value:
    """Say which layer a value is the pre-activation, or a statistic, of."""
    if value.layer is not None:
        return value
    if primitive in LINEAR and common_layer(operands) is not None:
        return replace(value, layer=common_layer(operands))
    reduced = primitive.startswith("reduce_") or all(v.layer is None for v in operands)
    return replace(value, statistic=common_statistic(operands)) if reduced else value


def constant(array: Any) -> Value:
    """A constant is uniform along the axes along which it does not vary, and fixed along others."""
    shape = tuple(np.shape(array))
    if jnp.issubdtype(getattr(array, "dtype", np.float32), jax.dtypes.extended):
        return Value(fixed_shape(shape))
    numbers = np.asarray(array)
    axes: list[Axis] = []
    for i, n in enumerate(shape):
        first = numbers.take([0], axis=i) if n else numbers
        axes.append(Uniform(n) if n == 1 or (n and (numbers == first).all()) else Fixed(n))
    return Value(tuple(axes))


@rule(*CALLS)
def _call(eqn: Any, values: list[Value], trace: Trace) -> Sequence[Value]:
    body = body_of(eqn)
    if body is None or len(body.jaxpr.invars) != len(values):
        return without_rule(eqn, values, trace)
    return run(body, values, trace)


def _loop(body: Any, constants: list[Value], carry: list[Value], per_step: list[Value], trace):
    """Run a loop's body until the carry is the same before and after.

    A carry that starts uniform (zeros) may take on units in the first step; then the body is
    followed again with what it has become. Each round ties or un-uniforms at least one axis.
    """
    outer, trace.path = trace.path, None  # what happens inside a loop cannot be recorded
    carry = [Value(value.axes) for value in carry]
    while True:
        results = run(body, [*constants, *carry, *per_step], trace)
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
def _scan(eqn: Any, values: list[Value], trace: Trace) -> Sequence[Value]:
    constants, carries = eqn.params["num_consts"], eqn.params["num_carry"]
    steps = values[constants + carries :]
    for value in steps:
        fix(value.axes[0])  # the order of the steps matters
    per_step = [
        Value(value.axes[1:], value.leaf, value.sources[1:] if value.sources else ())
        for value in steps
    ]
    carry, stacked = _loop(
        closed(eqn.params["jaxpr"]),
        values[:constants],
        values[constants : constants + carries],
        per_step,
        trace,
    )
    length = fixed_shape([eqn.params["length"]])
    return [*carry, *(Value(length + value.axes) for value in stacked)]


@rule("while")
def _while(eqn: Any, values: list[Value], trace: Trace) -> Sequence[Value]:
    in_condition, in_body = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
    condition, rest = values[:in_condition], values[in_condition:]
    carry, _ = _loop(closed(eqn.params["body_jaxpr"]), rest[:in_body], rest[in_body:], [], trace)
    outer, trace.path = trace.path, None
    run(closed(eqn.params["cond_jaxpr"]), [*condition, *carry], trace)
    trace.path = outer
    return carry


@rule("cond")
def _cond(eqn: Any, values: list[Value], trace: Trace) -> Sequence[Value]:
    """Every branch is followed; a result varies wherever it does in one of them."""
    outer, trace.path = trace.path, None
    branches = [run(closed(branch), values[1:], trace) for branch in eqn.params["branches"]]
    trace.path = outer
    return [
        Value(elementwise(output_shape(eqn, i), results))
        for i, results in enumerate(zip(*branches, strict=True))
    ]
