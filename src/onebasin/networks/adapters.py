"""Adapters: Flax Linen, Flax NNX and Equinox modules as a `Network`.

Params and state become nested dictionaries of arrays, so that files, posteriors and permutations
name the leaves of all libraries in the same way.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from onebasin.networks.network import Network
from onebasin.networks.running import (
    RunningStatistics,
    batch_moments,
    check_updated,
    sibling_pairs,
    training_arguments,
)
from onebasin.trees import PyTree, leaves_by_path, with_leaves

MANY_UPDATES = 2**30
TRAINING_REMEDY = "give training=, the keyword arguments of a call that does"


def from_linen(
    module: Any,
    variables: Mapping[str, Any],
    *,
    training: Mapping[str, Any] | None = None,
    **call_kwargs: Any,
) -> Network:
    """A `Network` from a Flax Linen module and the variables that `module.init` returns.

    Args:
      module: the module.
      variables: their collection "params" becomes `params`; all others (such as batch_stats)
        become `state`.
      training: the arguments of a call that updates running statistics, such as
        `{"train": True}`; by default `train`, `training`, `is_training` and
        `use_running_average` are set so, where the module has them.
      call_kwargs: passed to every other call, e.g. `train=False`. Updates of collections named by
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
    name = type(module).__name__

    def run(params: PyTree, x: jax.Array, state: PyTree | None, arguments: dict[str, Any]) -> Any:
        try:
            return module.apply({"params": params, **(state or {})}, x, **arguments)
        except InvalidRngError as error:
            raise ValueError(
                f"{name} draws random numbers when it is called; switch that off, "
                f"for example with deterministic=True or train=False"
            ) from error
        except ModifyScopeVariableError as error:
            raise ValueError(
                f"{name} updates its running statistics when it is called; switch "
                f"that off, for example with train=False or use_running_average=True"
            ) from error

    def call(params: PyTree, x: jax.Array, state: PyTree | None) -> jax.Array:
        out = run(params, x, state, call_kwargs)
        return out[0] if call_kwargs.get("mutable") else out

    def mutated(
        params: PyTree, x: jax.Array, state: PyTree, arguments: Mapping[str, Any]
    ) -> tuple[jax.Array, PyTree]:
        out, changes = run(params, x, state, {**arguments, "mutable": list(collections)})
        return out, {**state, **_plain(nn.unbox(changes))}

    accepted = inspect.signature(type(module).__call__).parameters
    train_kwargs = training_arguments(call_kwargs, accepted, training)

    def update(params: PyTree, x: jax.Array, state: PyTree) -> tuple[jax.Array, PyTree]:
        out, after = mutated(params, x, state, train_kwargs)
        check_updated(name, state, after, TRAINING_REMEDY)
        return out, after

    def observe(params: PyTree, x: jax.Array, state: PyTree) -> PyTree:
        written = []

        def measure(
            function: Callable[..., Any],
            args: Any,
            kwargs: Any,
            context: nn.module.InterceptorContext,
        ) -> Any:
            layer = context.module
            if not isinstance(layer, nn.BatchNorm) or context.method_name != "__call__":
                return function(*args, **kwargs)
            old = layer.get_variable("batch_stats", "mean")
            _check_plain(name, kwargs.get("mask"), any(old is mean for mean in written))
            outputs = function(*args, **kwargs)
            mean, var = batch_moments(args[0], layer.axis)
            layer.put_variable("batch_stats", "mean", mean)
            layer.put_variable("batch_stats", "var", var)
            written.append(mean)
            return outputs

        with nn.intercept_methods(measure):
            return mutated(params, x, state, call_kwargs)[1]

    def restore(params: PyTree, state: PyTree | None) -> dict[str, Any]:
        return {"params": params, **(state or {})}

    running = RunningStatistics(update, observe, tuple(sibling_pairs(collections)))
    return _network(call, params, collections or None, restore, running)


def from_nnx(
    model: Any, *, training: Mapping[str, Any] | None = None, **call_kwargs: Any
) -> Network:
    """A `Network` from a Flax NNX model, called in inference mode: call `model.eval()` first.

    The `nnx.Param` variables become `params`, all others (such as `nnx.BatchStat`) `state`, except
    random number generators, which a call must not use. List indices become string keys. A fit
    that updates running statistics sets `use_running_average=False` on its own copy of the model.

    Args:
      model: the model.
      training: the arguments of a call that updates running statistics, if it must be told so by
        others than `train`, `training`, `is_training` or `use_running_average`.
      call_kwargs: passed to every other call.

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

    name = type(model).__name__
    running = _plain(nnx.to_pure_dict(rest))
    accepted = inspect.signature(type(model).__call__).parameters
    train_kwargs = training_arguments(call_kwargs, accepted, training)

    def run(called: Any, x: jax.Array, arguments: Mapping[str, Any]) -> tuple[jax.Array, PyTree]:
        """The outputs and the other variables after the call."""
        before = jax.tree.leaves(nnx.state(called, nnx.RngCount))
        out = called(x, **arguments)
        after = jax.tree.leaves(nnx.state(called, nnx.RngCount))
        # A generator replaces its counter when it is used.
        if any(new is not old for new, old in zip(after, before, strict=True)):
            raise ValueError(
                f"{name} draws random numbers when it is called; switch that off "
                f"with model.eval() before adapting the model"
            )
        left = _plain(
            nnx.to_pure_dict(nnx.state(called, nnx.Not(nnx.Any(nnx.Param, nnx.RngState))))
        )
        kept = leaves_by_path(left)
        return out, with_leaves(running, {path: kept[path] for path in leaves_by_path(running)})

    def call(params: PyTree, x: jax.Array, state: PyTree | None) -> jax.Array:
        out, after = run(restore(params, state), x, call_kwargs)
        given = jax.tree.leaves(running if state is None else state)
        # So does a statistic when it is updated.
        if any(new is not old for new, old in zip(jax.tree.leaves(after), given, strict=True)):
            raise ValueError(
                f"{name} updates its running statistics when it is called; switch that off with "
                f"model.eval() before adapting the model"
            )
        return out

    def update(params: PyTree, x: jax.Array, state: PyTree) -> tuple[jax.Array, PyTree]:
        called = restore(params, state)
        called.set_attributes(use_running_average=False, raise_if_not_found=False)
        out, after = run(called, x, train_kwargs)
        check_updated(name, state, after, TRAINING_REMEDY)
        return out, after

    class Measured(nnx.BatchNorm):
        """A normalisation layer that keeps the statistics of its last batch."""

        def __call__(
            self, x: jax.Array, use_running_average: bool | None = None, *, mask: Any = None
        ) -> jax.Array:
            _check_plain(name, mask, hasattr(self, "measured"))
            self.measured = True
            outputs = super().__call__(x, use_running_average)
            mean, var = batch_moments(x, self.axis)
            self.mean[...], self.var[...] = mean, var
            return outputs

    def observe(params: PyTree, x: jax.Array, state: PyTree) -> PyTree:
        called = restore(params, state)
        for _, layer in nnx.iter_modules(called):
            if type(layer) is nnx.BatchNorm:
                layer.__class__ = Measured
        return run(called, x, call_kwargs)[1]

    statistics = RunningStatistics(update, observe, tuple(sibling_pairs(running)))
    params = _plain(nnx.to_pure_dict(weights))
    return _network(call, params, running or None, restore, statistics)


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

    name = type(model).__name__
    if state is None and _parts(model, eqx.nn.StateIndex):
        raise ValueError(
            f"{name} keeps running statistics: make it with "
            f"equinox.nn.make_with_state and pass its state as state="
        )
    layers = _parts(model, eqx.nn.BatchNorm)
    if state is not None:
        state = _without_counters(state, layers)
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
                f"{name} computes statistics over the batch when it is called; "
                f"switch that off with equinox.nn.inference_mode(model)"
            ) from error

    axes = {layer.axis_name for layer in layers}

    def changed(
        params: PyTree, x: jax.Array, state: PyTree, layer: Callable[[Any], Any]
    ) -> tuple[jax.Array, PyTree]:
        """The outputs and the state of the model with another layer for every normalisation."""
        if len(axes) != 1:
            raise ValueError(f"the layers of {name} have the batch axes {axes}; give them one")
        called, full = restore(params, state)
        is_layer = lambda node: isinstance(node, eqx.nn.BatchNorm)
        called = jax.tree.map(lambda n: layer(n) if is_layer(n) else n, called, is_leaf=is_layer)
        one = lambda x, full: called(x, full, **call_kwargs)
        if not batched:
            one = jax.vmap(one, in_axes=(0, None), out_axes=(0, None), axis_name=axes.copy().pop())
        out, full = one(x, full)
        return out, _nested(eqx.partition(full, eqx.is_inexact_array)[0])

    def update(params: PyTree, x: jax.Array, state: PyTree) -> tuple[jax.Array, PyTree]:
        if any(layer.mode != "batch" for layer in layers):
            raise ValueError(
                f"{name} has a BatchNorm of mode 'ema', which trains with statistics that are not "
                f"those of the batch; make it with mode='batch'"
            )
        out, after = changed(params, x, state, lambda layer: eqx.tree_at(_inference, layer, False))
        check_updated(name, state, after, "its BatchNorm layers are not called")
        return out, after

    class Measured(eqx.Module):
        """A normalisation layer that keeps the statistics of its last batch."""

        layer: eqx.nn.BatchNorm

        def __call__(
            self, x: jax.Array, state: Any, *, key: Any = None, inference: bool | None = None
        ) -> tuple[jax.Array, Any]:
            del key, inference
            outputs, state = self.layer(x, state, inference=True)
            flat = x.reshape(len(x), -1)
            mean = jax.lax.pmean(flat.mean(1), self.layer.axis_name)
            distance = jnp.square(flat - mean[:, None]).mean(1)
            var = jax.lax.pmean(distance, self.layer.axis_name)
            return outputs, state.set(_index(self.layer), (mean, var))

    def observe(params: PyTree, x: jax.Array, state: PyTree) -> PyTree:
        return changed(params, x, state, Measured)[1]

    if state is None:
        return _network(call, _nested(weights), None, restore, None)
    names = {id(leaf): path for path, leaf in leaves_by_path(running).items()}
    pairs = [tuple(names[id(leaf)] for leaf in state.get(_index(layer))) for layer in layers]
    statistics = RunningStatistics(update, observe, tuple((mean, var) for mean, var in pairs))
    return _network(call, _nested(weights), _nested(running) or None, restore, statistics)


def _parts(model: Any, kind: type) -> list[Any]:
    """The nodes of a kind in an Equinox module."""
    is_part = lambda node: isinstance(node, kind)
    return [node for node in jax.tree.leaves(model, is_leaf=is_part) if is_part(node)]


def _index(layer: Any) -> Any:
    """Where an Equinox BatchNorm keeps its mean and variance."""
    return layer.batch_state_index if layer.mode == "batch" else layer.ema_state_index


def _inference(layer: Any) -> Any:
    return layer.inference


def _without_counters(state: Any, layers: list[Any]) -> Any:
    """An Equinox state whose running statistics need no correction for how often they were updated.

    After k updates `BatchNorm(mode="batch")` divides them by 1 − momentumᵏ. They are divided here,
    and k is set so high that the layer divides by 1: then the arrays alone are the statistics.
    """
    state = jax.tree.map(lambda leaf: leaf, state)  # a state can be changed only once
    for layer in layers:
        if layer.mode == "batch":
            count = state.get(layer.batch_counter)
            scale = jnp.where(count == 0, 1, 1 - layer.momentum**count)
            corrected = tuple(leaf / scale for leaf in state.get(layer.batch_state_index))
            state = state.set(layer.batch_state_index, corrected)
            state = state.set(layer.batch_counter, jnp.full_like(count, MANY_UPDATES))
    return state


def _check_plain(name: str, mask: Any, again: bool) -> None:
    """Refuse uses of a normalisation layer whose statistics are not those of one whole batch."""
    if mask is not None or again:
        how = "with a mask" if mask is not None else "more than once"
        raise ValueError(
            f"{name} calls a normalisation layer {how}, and its statistics cannot be measured; "
            f"update them by training instead"
        )


def _network(
    call: Callable[[PyTree, jax.Array, PyTree | None], jax.Array],
    params: PyTree,
    state: PyTree | None,
    restore: Callable[[PyTree, PyTree | None], Any],
    running: RunningStatistics | None,
) -> Network:
    """The network of `call`, which takes a state only if there is one."""
    if state is None:
        return Network(lambda params, x: call(params, x, None), params, None, restore)
    return Network(call, params, state, restore, running=running)


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
