"""What decides the choices of a network: numbers on which its outputs depend by jumps.

Between its jumps the output of a choice, such as the code nearest to a vector or the first k
experts, is constant. A few trials can miss them all, and a map that is no symmetry then looks like
one. The numbers that decide are continuous, so a change of them shows in every trial.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core

from onebasin.networks import Apply
from onebasin.symmetry.evaluating import evaluate
from onebasin.symmetry.rules_control import body_of

AMONG = ("argmin", "argmax", "top_k", "sort")
ROUNDED = ("round", "floor", "ceil")
COMPARED = ("gt", "ge", "lt", "le")


def deciding(apply: Apply, *operands: Any) -> list[jax.Array]:
    """The numbers that decide the choices of a network, each an output of its own."""
    jaxpr = jax.make_jaxpr(apply)(*operands)
    if not any(_decides(eqn) for eqn in _equations(jaxpr, inside_loops=False)):
        return []
    found: list[jax.Array] = []

    def see(eqn: core.JaxprEqn, inputs: Sequence[Any]) -> None:
        if _decides(eqn):
            found.extend(x for x in _deciding(eqn, inputs) if jnp.size(x))

    evaluate(jaxpr, jax.tree.leaves(operands), see=see)
    return found


def has_hidden_choices(apply: Apply, *operands: Any) -> bool:
    """Whether choices are made inside loops, where they cannot be seen."""
    jaxpr = jax.make_jaxpr(apply)(*operands)
    seen = sum(_decides(eqn) for eqn in _equations(jaxpr, inside_loops=False))
    return seen < sum(_decides(eqn) for eqn in _equations(jaxpr, inside_loops=True))


def _equations(jaxpr: core.ClosedJaxpr, *, inside_loops: bool) -> Iterator[core.JaxprEqn]:
    for eqn in jaxpr.jaxpr.eqns:
        body = body_of(eqn)
        if body is not None:
            yield from _equations(body, inside_loops=inside_loops)
            continue
        yield eqn
        for inner in core.jaxprs_in_params(eqn.params) if inside_loops else ():
            own = inner if isinstance(inner, core.ClosedJaxpr) else core.ClosedJaxpr(inner, ())
            yield from _equations(own, inside_loops=True)


def _decides(eqn: core.JaxprEqn) -> bool:
    name, operand = eqn.primitive.name, eqn.invars[0] if eqn.invars else None
    if operand is None or not jnp.issubdtype(getattr(operand.aval, "dtype", int), jnp.floating):
        return False
    if name == "sort":
        return len(eqn.invars) > 1  # values that are sorted are continuous; what goes along is not
    if name in COMPARED:
        return _bound(eqn) is not None
    return name in AMONG + ROUNDED


def _bound(eqn: core.JaxprEqn) -> int | None:
    """Which operand of a comparison is a number other than 0, which scales leave where it is."""
    for i, operand in enumerate(eqn.invars):
        if isinstance(operand, core.Literal) and jnp.ndim(operand.val) == 0 and operand.val != 0:
            return i
    return None


def _deciding(eqn: core.JaxprEqn, inputs: Sequence[Any]) -> Sequence[jax.Array]:
    if eqn.primitive.name == "sort":
        return inputs[: eqn.params["num_keys"]]
    if eqn.primitive.name in COMPARED:
        return [inputs[1 - (_bound(eqn) or 0)]]
    return inputs[:1]
