"""Adapters: Flax Linen, Flax NNX and Equinox modules as a `Network`.

Params and state become nested dictionaries of arrays, so that files, posteriors and permutations
name the leaves of all libraries in the same way.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax

from onebasin.networks.network import Network
from onebasin.trees import PyTree, leaves_by_path, with_leaves


def from_linen(module: Any, variables: Mapping[str, Any], **call_kwargs: Any) -> Network:
    """A `Network` from a Flax Linen module and the variables that `module.init` returns.

    The collection "params" becomes `params`; all others (such as batch_stats) become `state`.
    `call_kwargs` are passed to every call, e.g. `train=False`. Updates of collections named by
    `mutable=` are discarded after the call.

    >>> import jax, jax.numpy as jnp
    >>> from flax import linen as nn
    >>> module, x = nn.Dense(2), jnp.ones((1, 3))
    >>> from_linen(module, module.init(jax.random.key(0), x))
    Network(8 parameters)
    """
    from flax import linen as nn
    from flax.errors import InvalidRngError, ModifyScopeVariableError

    if "rngs" in call_kwargs:
        raise ValueError(
            "rngs are not supported: a network must be a function of its params and inputs; call "
            "the module in inference mode (such as train=False or deterministic=True)"
        )
    if "params" not in variables:
        raise ValueError(
            f"variables must be the result of module.init, with a collection 'params'; "
            f"got {', '.join(map(str, variables)) or 'nothing'}"
        )
    plain = _plain(nn.unbox(variables))
    params = plain.pop("params")
    collections = {name: tree for name, tree in plain.items() if jax.tree.leaves(tree)}

    def call(params: PyTree, x: jax.Array, state: PyTree | None) -> jax.Array:
        try:
            out = module.apply({"params": params, **(state or {})}, x, **call_kwargs)
        except InvalidRngError as error:
            raise ValueError(
                f"{type(module).__name__} draws random numbers when it is called; switch that off, "
                f"for example with deterministic=True or train=False"
            ) from error
        except ModifyScopeVariableError as error:
            raise ValueError(
                f"{type(module).__name__} updates its running statistics when it is called; switch "
                f"that off, for example with train=False or use_running_average=True"
            ) from error
        return out[0] if call_kwargs.get("mutable") else out

    def restore(params: PyTree, state: PyTree | None) -> dict[str, Any]:
        return {"params": params, **(state or {})}

    return _network(call, params, collections or None, restore)


def from_nnx(model: Any, **call_kwargs: Any) -> Network:
    """A `Network` from a Flax NNX model in its current mode; call `model.eval()` first if needed.

    The `nnx.Param` variables become `params`, all others (such as `nnx.BatchStat`) `state`, except
    random number generators, which a call must not use. List indices become string keys.

    >>> from flax import nnx
    >>> from_nnx(nnx.Linear(3, 2, rngs=nnx.Rngs(0)))
    Network(8 parameters)
    """
    from flax import nnx

    graph, weights, generators, rest = nnx.split(model, nnx.Param, nnx.RngState, ...)

    def filled(template: Any, values: PyTree) -> Any:
        copy = jax.tree.map(lambda leaf: leaf, template)
        nnx.replace_by_pure_dict(copy, values)
        return copy

    def restore(params: PyTree, state: PyTree | None) -> Any:
        others = rest if state is None else filled(rest, state)
        fresh = filled(generators, nnx.to_pure_dict(generators))
        return nnx.merge(graph, filled(weights, params), fresh, others)

    def call(params: PyTree, x: jax.Array, state: PyTree | None) -> jax.Array:
        called = restore(params, state)
        before = jax.tree.leaves(nnx.state(called, nnx.RngCount))
        out = called(x, **call_kwargs)
        after = jax.tree.leaves(nnx.state(called, nnx.RngCount))
        # A generator replaces its counter when it is used.
        if any(new is not old for new, old in zip(after, before, strict=True)):
            raise ValueError(
                f"{type(model).__name__} draws random numbers when it is called; switch that off "
                f"with model.eval() before adapting the model"
            )
        return out

    running = _plain(nnx.to_pure_dict(rest))
    return _network(call, _plain(nnx.to_pure_dict(weights)), running or None, restore)


def from_equinox(
    model: Any, *, state: Any = None, batched: bool = False, **call_kwargs: Any
) -> Network:
    """A `Network` from an Equinox module; its floating-point arrays are the params.

    Args:
      model: the module, in inference mode (`equinox.nn.inference_mode`) where that matters.
      state: the `equinox.nn.State` of a module with running statistics, which is then called as
        `model(x, state)`.
      batched: the module takes a batch; by default it takes one example and is mapped over the
        batch.
      call_kwargs: passed to every call.

    >>> import equinox as eqx, jax
    >>> from_equinox(eqx.nn.Linear(3, 2, key=jax.random.key(0)))
    Network(8 parameters)
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
            f"equinox.nn.make_with_state and pass its state as state="
        )
    weights, fixed_model = eqx.partition(model, eqx.is_inexact_array)
    running, fixed_state = eqx.partition(state, eqx.is_inexact_array)
    stateless = state is None

    def restore(params: PyTree, state: PyTree | None) -> Any:
        filled = eqx.combine(with_leaves(weights, leaves_by_path(params)), fixed_model)
        if stateless:
            return filled
        inner = running if state is None else with_leaves(running, leaves_by_path(state))
        return filled, eqx.combine(inner, fixed_state)

    def call(params: PyTree, x: jax.Array, state: PyTree | None) -> jax.Array:
        if stateless:
            called = restore(params, None)
            one = lambda x: called(x, **call_kwargs)
        else:
            called, full = restore(params, state)
            one = lambda x: called(x, full, **call_kwargs)[0]
        try:
            return one(x) if batched else jax.vmap(one)(x)
        except NameError as error:  # a collective over an unbound axis
            raise ValueError(
                f"{type(model).__name__} computes statistics over the batch when it is called; "
                f"switch that off with equinox.nn.inference_mode(model)"
            ) from error

    return _network(call, _nested(weights), _nested(running) or None, restore)


def _network(
    call: Callable[[PyTree, jax.Array, PyTree | None], jax.Array],
    params: PyTree,
    state: PyTree | None,
    restore: Callable[[PyTree, PyTree | None], Any],
) -> Network:
    """The network of `call`, which takes a state only if there is one."""
    apply = call if state is not None else lambda params, x: call(params, x, None)
    return Network(apply, params, state, restore)


def _plain(tree: Any) -> Any:
    """Nested mappings as dictionaries with string keys."""
    if isinstance(tree, Mapping):
        return {str(key): _plain(value) for key, value in tree.items()}
    return tree


def _nested(tree: PyTree) -> dict[str, Any]:
    """A pytree as nested dictionaries, one level per part of the key path."""
    nested: dict[str, Any] = {}
    for path, leaf in leaves_by_path(tree).items():
        *parents, last = path.split("/")
        level = nested
        for parent in parents:
            level = level.setdefault(parent, {})
        level[last] = leaf
    return nested
