"""Posteriors of PyTorch tools, which keep them as state_dicts, in the names of a network.

An ensemble, a chain or a trajectory is a list of state_dicts. Variational layers keep two tensors
where a plain layer has one, a mean and a number that makes the standard deviation, under names that
differ between packages: a rule says how they are formed from the plain name.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np

from onebasin.networks import Network
from onebasin.posterior import MeanField, Samples
from onebasin.trees import first_difference

StateDict: TypeAlias = Mapping[str, Any]
Scale: TypeAlias = Literal["softplus", "exp", "std"]


def samples_from_state_dicts(state_dicts: Sequence[StateDict], network: Network) -> Samples:
    """An ensemble, a chain or checkpoints of one run as `Samples`.

    `network.with_params(samples.draw(i))` is a state_dict again.

    Args:
      state_dicts: tensors or arrays by name, one mapping for each draw.
      network: the network that they are of, made by `networks.from_torch`.

    >>> import jax.numpy as jnp, onebasin as ob
    >>> network = ob.Network(lambda p, x: x @ p["w"], {"w": jnp.ones((2, 1))})
    >>> samples_from_state_dicts([{"w": np.ones((2, 1))}, {"w": np.zeros((2, 1))}], network)
    Samples(2 parameters, 2 draws)
    """
    if not state_dicts:
        raise ValueError("there are no state_dicts; give at least one")
    entries = [arrays_of(one) for one in state_dicts]
    params, state = _names(network)
    for number, one in enumerate(entries):
        check_shapes(one, {**params, **state}, f"state_dict {number}")
    draws = {name: np.stack([one[name] for one in entries]) for name in params}
    running = {name: np.stack([one[name] for one in entries]) for name in state}
    return Samples(draws, state=running or None)


def mean_field_from_state_dict(
    state_dict: StateDict,
    network: Network,
    *,
    mean: str = "{path}{leaf}_mu",
    scale: str = "{path}{leaf}_rho",
    kind: Scale = "softplus",
    fixed_std: float = 1e-6,
) -> MeanField:
    """The factorised Gaussian that variational layers keep in a state_dict.

    The param `fc1.weight` has the path `fc1.` and the leaf `weight`. The default rule reads its
    mean from `fc1.weight_mu` and its standard deviation log(1 + exp(ρ)) from `fc1.weight_rho`;
    other packages write `{path}mu_{leaf}` and `{path}rho_{leaf}`, for example.

    Args:
      state_dict: tensors or arrays by name.
      network: the network with plain layers in place of the variational ones.
      mean: how the name of a mean is formed.
      scale: how the name of the number that makes a standard deviation is formed.
      kind: what makes the standard deviation: "softplus" or "exp" of that number, or the number
        itself ("std").
      fixed_std: the standard deviation of params that the state_dict has under their plain names.

    >>> import jax.numpy as jnp, onebasin as ob
    >>> network = ob.Network(lambda p, x: x @ p["fc.weight"], {"fc.weight": jnp.ones((2, 1))})
    >>> layers = {"fc.weight_mu": np.ones((2, 1)), "fc.weight_rho": np.zeros((2, 1))}
    >>> q = mean_field_from_state_dict(layers, network)
    >>> round(float(q.std["fc.weight"][0, 0]), 4)  # log 2
    0.6931
    """
    makers = {"softplus": lambda r: np.logaddexp(0, r), "exp": np.exp, "std": lambda r: r}
    if kind not in makers:
        raise ValueError(f"kind must be one of {', '.join(makers)}, got {kind!r}")
    if not fixed_std > 0:
        raise ValueError(f"fixed_std is {fixed_std}; give a positive number")
    own = arrays_of(state_dict)
    params, state = _names(network)
    means: dict[str, np.ndarray] = {}
    stds: dict[str, np.ndarray] = {}
    for name in params:
        parts = parts_of(name)
        centre, spread = mean.format(**parts), scale.format(**parts)
        if name in own and centre not in own:
            means[name] = own[name]
            stds[name] = np.full_like(own[name], fixed_std)
        elif centre in own and spread in own:
            means[name] = own[centre]
            stds[name] = makers[kind](own[spread]).astype(own[spread].dtype)
        else:
            missing = spread if centre in own else centre
            raise ValueError(
                f"the state_dict has no '{missing}' for '{name}'; say with mean= and scale= how "
                "its names are formed"
            )
    check_shapes(means, params, "the means")
    check_shapes(stds, params, "the standard deviations")
    running = {name: own[name] for name in state if name in own}
    check_shapes(running, state, "the state_dict")
    return MeanField(means, stds, running or None)


def state_dict_from_mean_field(
    posterior: MeanField,
    *,
    mean: str = "{path}{leaf}_mu",
    scale: str = "{path}{leaf}_rho",
    kind: Scale = "softplus",
) -> dict[str, np.ndarray]:
    """The entries of variational layers for a posterior, such as an aligned one, as arrays.

    Args:
      posterior: a `MeanField` over params with names of a state_dict.
      mean, scale, kind: the rule, as in `mean_field_from_state_dict`.

    >>> import onebasin as ob
    >>> q = ob.MeanField({"fc.weight": np.ones(2)}, {"fc.weight": np.full(2, np.log(2))})
    >>> entries = state_dict_from_mean_field(q)
    >>> sorted(entries), bool(np.abs(entries["fc.weight_rho"]).max() < 1e-6)
    (['fc.weight_mu', 'fc.weight_rho'], True)
    """
    makers = {"softplus": lambda s: s + np.log(-np.expm1(-s)), "exp": np.log, "std": lambda s: s}
    if kind not in makers:
        raise ValueError(f"kind must be one of {', '.join(makers)}, got {kind!r}")
    made = {name: np.asarray(leaf) for name, leaf in (posterior.state or {}).items()}
    for name, centre in posterior.mean.items():
        std = np.asarray(posterior.std[name])
        made[mean.format(**parts_of(name))] = np.asarray(centre)
        made[scale.format(**parts_of(name))] = np.asarray(makers[kind](std), std.dtype)
    return made


def _names(
    network: Network,
) -> tuple[dict[str, tuple[int, ...]], dict[str, tuple[int, ...]]]:
    """The shapes of the params and of the running statistics, by the names of the state_dict."""
    return shapes_of(network.params), shapes_of(network.state)


def shapes_of(tree: Any) -> dict[str, tuple[int, ...]]:
    """Shapes by name, in the order of the module; none for no tree."""
    return {name: tuple(np.shape(leaf)) for name, leaf in (tree or {}).items()}


def parts_of(name: str) -> dict[str, str]:
    """The path and the leaf of a name, for rules: `fc1.` and `weight` of `fc1.weight`."""
    path, _, leaf = name.rpartition(".")
    return {"path": f"{path}." if path else "", "leaf": leaf}


def as_array(value: Any) -> np.ndarray:
    """A tensor of PyTorch, or what NumPy takes, as an array."""
    if hasattr(value, "detach"):
        from onebasin.pytorch_tensors import to_array

        return to_array(value)
    return np.asarray(value)


def arrays_of(state_dict: StateDict) -> dict[str, np.ndarray]:
    """All entries as arrays."""
    return {name: as_array(value) for name, value in state_dict.items()}


def check_shapes(
    own: Mapping[str, np.ndarray], expected: Mapping[str, tuple[int, ...]], what: str
) -> None:
    """Refuse arrays that lack a name or have another shape; other entries do not matter."""
    shapes = {name: array.shape for name, array in own.items() if name in expected}
    difference = first_difference(expected, shapes)
    if difference:
        raise ValueError(f"{what} is not of this network: {difference}")
