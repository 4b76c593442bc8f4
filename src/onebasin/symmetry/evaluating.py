"""Evaluate a jaxpr once more, and see arrays inside it."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeAlias

from jax.extend import core

from onebasin.symmetry.rules_control import body_of

Site: TypeAlias = tuple[int, ...]  # where an array is computed, see `rules.Value`


def evaluate(
    jaxpr: core.ClosedJaxpr,
    operands: Sequence[Any],
    path: Site = (),
    wanted: set[Site] | None = None,
    found: dict[Any, Any] | None = None,
    added: Mapping[Site, Any] = MappingProxyType({}),
    see: Callable[[core.JaxprEqn, Sequence[Any]], None] | None = None,
) -> list[Any]:
    """Evaluate a jaxpr, entering plain calls, and keep the results at the wanted sites.

    The arrays in `added` are added to the results at their sites before these are used further.
    `see` is called with every equation, other than those calls, and its inputs.
    """
    env: dict[Any, Any] = dict(zip(jaxpr.jaxpr.constvars, jaxpr.consts, strict=True))
    env.update(zip(jaxpr.jaxpr.invars, operands, strict=True))

    def read(atom: Any) -> Any:
        return atom.val if isinstance(atom, core.Literal) else env[atom]

    for index, eqn in enumerate(jaxpr.jaxpr.eqns):
        inputs = [read(atom) for atom in eqn.invars]
        body = body_of(eqn)
        if body is not None:
            outputs = evaluate(body, inputs, (*path, index), wanted, found, added, see)
        else:
            if see is not None:
                see(eqn, inputs)
            outputs = eqn.primitive.bind(*inputs, **eqn.params)
            outputs = outputs if eqn.primitive.multiple_results else [outputs]
        for i, (variable, output) in enumerate(zip(eqn.outvars, outputs, strict=True)):
            site = (*path, index, -1 - i)
            env[variable] = output + added[site] if site in added else output
            if wanted and found is not None and site in wanted:
                found[site] = output
    return [read(atom) for atom in jaxpr.jaxpr.outvars]
