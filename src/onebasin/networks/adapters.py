"""Networks from other hands: Flax Linen, Flax NNX and Equinox modules as `apply(params, x)`.

Each adapter returns a `Network`. Its params (and state) are plain nested dictionaries of arrays,
so that every file, posterior and permutation names their leaves alike.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax

from onebasin.networks.network import Network
from onebasin.trees import PyTree, leaves_by_path, with_leaves


def from_linen(module: Any, variables: Mapping[str, Any], **call_kwargs: Any) -> Network:
    """A Flax Linen module with the variables that `module.init` gave.

    `params` is the collection of that name; all other collections (such as batch_stats) become
    `state`. `call_kwargs` go to the module with every call, e.g. `train=False`. Collections that
    are made mutable by `mutable=` are updated inside a call and dropped after it.
    """
    from flax import linen as nn
    from flax.errors import InvalidRngError, ModifyScopeVariableError

    if "rngs" in call_kwargs:
        raise ValueError(
            "rngs are not supported: a network must be a function of its params and inputs; call "
            "the module as for inference instead (such as train=False or deterministic=True)"
        )
    if "params" not in variables:
        raise ValueError(
            f"variables must be what module.init returns, with a collection 'params'; "
            f"got {', '.join(map(str, variables)) or 'nothing'}"
        )
    plain = _plain(nn.unbox(variables))
    params = plain.pop("params")
    collections = {name: tree for name, tree in plain.items() if jax.tree.leaves(tree)}
    drops_updates = bool(call_kwargs.get("mutable"))

    def call(params: PyTree, x: jax.Array, state: PyTree | None) -> jax.Array:
        try:
            out = module.apply({"params": params, **(state or {})}, x, **call_kwargs)
        except InvalidRngError as error:
            raise ValueError(
                f"{type(module).__name__} draws random numbers when it is called; pass what "
                f"switches that off, such as deterministic=True or train=False"
            ) from error
        except ModifyScopeVariableError as error:
            raise ValueError(
                f"{type(module).__name__} updates its running statistics when it is called; pass "
                f"what switches that off, such as train=False or use_running_average=True"
            ) from error
        return out[0] if drops_updates else out

    return _network(call, params, collections or None)


def from_nnx(model: Any, **call_kwargs: Any) -> Network:
    """A Flax NNX model, called as it is set: use `model.eval()` first where that matters.

    `params` are its `nnx.Param` variables, `state` all others (such as `nnx.BatchStat`) except
    random number generators, which must not be used in a call. List indices become string keys.
    """
    from flax import nnx

    graph, params, generators, rest = nnx.split(model, nnx.Param, nnx.RngState, ...)

    def filled(template: Any, values: PyTree) -> Any:
        copy = jax.tree.map(lambda leaf: leaf, template)
        nnx.replace_by_pure_dict(copy, values)
        return copy

    def call(params_: PyTree, x: jax.Array, state_: PyTree | None) -> jax.Array:
        others = rest if state_ is None else filled(rest, state_)
        fresh = filled(generators, nnx.to_pure_dict(generators))
        called = nnx.merge(graph, filled(params, params_), fresh, others)
        before = jax.tree.leaves(nnx.state(called, nnx.RngCount))
        out = called(x, **call_kwargs)
        after = jax.tree.leaves(nnx.state(called, nnx.RngCount))
        # A generator that was used has replaced its counter.
        if any(new is not old for new, old in zip(after, before, strict=True)):
            raise ValueError(
                f"{type(model).__name__} draws random numbers when it is called; switch that off "
                f"with model.eval() before the model is adapted"
            )
        return out

    state = _plain(nnx.to_pure_dict(rest))
    return _network(call, _plain(nnx.to_pure_dict(params)), state or None)


def from_equinox(
    model: Any, *, state: Any = None, batched: bool = False, **call_kwargs: Any
) -> Network:
    """An Equinox module: its floating-point arrays are the params, the rest stays as it is.

    Equinox modules take one example, so the call is mapped over the batch; `batched=True` is for
    a module that takes a batch itself. Pass `state=` (an `equinox.nn.State`) for a module that
    keeps running statistics, after `equinox.nn.inference_mode`: it is then called as
    `model(x, state)`.
    """
    import equinox as eqx

    if "key" in call_kwargs:
        raise ValueError(
            "key is not supported: a network must be a function of its params and inputs; use "
            "equinox.nn.inference_mode(model) instead"
        )

    def is_index(node: Any) -> bool:
        return isinstance(node, eqx.nn.StateIndex)

    if state is None and any(map(is_index, jax.tree.leaves(model, is_leaf=is_index))):
        raise ValueError(
            f"{type(model).__name__} keeps running statistics: make it with "
            f"equinox.nn.make_with_state and pass the state as state="
        )
    params, fixed_model = eqx.partition(model, eqx.is_inexact_array)
    running, fixed_state = eqx.partition(state, eqx.is_inexact_array)

    def call(params_: PyTree, x: jax.Array, state_: PyTree | None) -> jax.Array:
        called = eqx.combine(with_leaves(params, leaves_by_path(params_)), fixed_model)
        if state is None:
            one = lambda x: called(x, **call_kwargs)
        else:
            inner = running if state_ is None else with_leaves(running, leaves_by_path(state_))
            full = eqx.combine(inner, fixed_state)
            one = lambda x: called(x, full, **call_kwargs)[0]
        try:
            return one(x) if batched else jax.vmap(one)(x)
        except NameError as error:  # a collective over an axis that is not there
            raise ValueError(
                f"{type(model).__name__} computes statistics over the batch when it is called; "
                f"switch that off with equinox.nn.inference_mode(model)"
            ) from error

    return _network(call, _nested(params), _nested(running) or None)


def _network(
    call: Callable[[PyTree, jax.Array, PyTree | None], jax.Array],
    params: PyTree,
    state: PyTree | None,
) -> Network:
    """`call` with the number of arguments that the presence of a state asks for."""

    def apply(params: PyTree, x: jax.Array) -> jax.Array:
        return call(params, x, None)

    def apply_with_state(params: PyTree, x: jax.Array, state: PyTree) -> jax.Array:
        return call(params, x, state)

    return Network(apply if state is None else apply_with_state, params, state)


def _plain(tree: Any) -> Any:
    """Mappings of any kind as dictionaries with string keys."""
    if isinstance(tree, Mapping):
        return {str(key): _plain(value) for key, value in tree.items()}
    return tree


def _nested(tree: PyTree) -> dict[str, Any]:
    """Any pytree as nested dictionaries, one level per part of a leaf's path."""
    nested: dict[str, Any] = {}
    for path, leaf in leaves_by_path(tree).items():
        *parents, last = path.split("/")
        level = nested
        for parent in parents:
            level = level.setdefault(parent, {})
        level[last] = leaf
    return nested
