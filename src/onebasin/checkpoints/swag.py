"""SWAG (the moments of an SGD trajectory) as PyTorch packages keep it, and back.

For every parameter they keep the mean, the mean of squares and the last deviations from the mean.
A draw is (Maddox et al. 2019)

    θ = mean + √½ · std · ε + D z / √(2 (K − 1)),    std² = mean of squares − mean²

with K deviations in D, ε and z standard normal: a Gaussian of diagonal plus low-rank covariance.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np

from onebasin.checkpoints.posteriors import StateDict, arrays_of, check_shapes, parts_of, shapes_of
from onebasin.networks import Network
from onebasin.posterior import LowRank

LEAST = 1e-30  # of a variance: below it the packages clamp as well


def swag_from_state_dict(
    state_dict: StateDict,
    network: Network,
    *,
    mean: str = "{path}{leaf}_mean",
    square: str = "{path}{leaf}_sq_mean",
    deviations: str = "{path}{leaf}_cov_mat_sqrt",
) -> LowRank:
    """A SWAG posterior from a state_dict.

    Args:
      state_dict: tensors or arrays by name.
      network: the network of the plain module.
      mean: how the name of a mean is formed from the path and the leaf of a parameter, `fc1.` and
        `weight` for `fc1.weight`. Where the module is wrapped: `"base.{path}{leaf}_mean"`.
      square: how the name of the mean of squares is formed.
      deviations: how the name of the deviations [K, numbers] is formed.

    >>> import onebasin as ob
    >>> network = ob.Network(lambda p, x: x @ p["fc.w"], {"fc.w": np.ones((2, 1), np.float32)})
    >>> saved = {"fc.w_mean": np.ones((2, 1)), "fc.w_sq_mean": np.full((2, 1), 3.0),
    ...          "fc.w_cov_mat_sqrt": np.ones((3, 2))}
    >>> q = swag_from_state_dict(saved, network)
    >>> q, q.std["fc.w"].ravel().tolist(), q.factors["fc.w"][0].ravel().tolist()
    (LowRank(2 parameters, rank 3), [1.0, 1.0], [0.5, 0.5])
    """
    own, shapes = arrays_of(state_dict), shapes_of(network.params)
    trees: tuple[dict[str, np.ndarray], ...] = ({}, {}, {})
    for name, shape in shapes.items():
        rules = [rule.format(**parts_of(name)) for rule in (mean, square, deviations)]
        missing = [rule for rule in rules if rule not in own]
        if missing:
            raise ValueError(
                f"the state_dict has no '{missing[0]}' for '{name}'; say with mean=, square= and "
                "deviations= how its names are formed"
            )
        centre, squares, columns = (own[rule] for rule in rules)
        kept = len(columns)
        if kept < 2:
            raise ValueError(f"'{rules[2]}' holds {kept} deviations; SWAG needs at least two")
        dtype = network.params[name].dtype
        variance = np.maximum(squares.astype(np.float64) - centre.astype(np.float64) ** 2, LEAST)
        parts = (centre, np.sqrt(variance / 2), columns / np.sqrt(2 * (kept - 1)))
        trees[0][name], trees[1][name] = (np.asarray(p, dtype) for p in parts[:2])
        trees[2][name] = np.asarray(parts[2], dtype).reshape(kept, *shape)
    check_shapes(trees[0], shapes, "the means")
    state = {name: own[name] for name in shapes_of(network.state) if name in own}
    return LowRank(*trees, state or network.state)


def swag_state_dict(
    posterior: LowRank,
    *,
    mean: str = "{path}{leaf}_mean",
    square: str = "{path}{leaf}_sq_mean",
    deviations: str = "{path}{leaf}_cov_mat_sqrt",
) -> dict[str, Any]:
    """The entries of a SWAG state_dict for a posterior, such as an aligned one, as arrays.

    >>> import onebasin as ob
    >>> one = {"fc.w": np.ones(2)}
    >>> entries = swag_state_dict(ob.LowRank(one, one, {"fc.w": np.ones((3, 2))}))
    >>> sorted(entries), entries["fc.w_sq_mean"].tolist()
    (['fc.w_cov_mat_sqrt', 'fc.w_mean', 'fc.w_sq_mean'], [3.0, 3.0])
    """
    made: dict[str, Any] = {}
    scale = np.sqrt(2 * (posterior.rank - 1))
    for name, centre in posterior.mean.items():
        std, factors = np.asarray(posterior.std[name]), posterior.factors[name]
        parts = parts_of(name)
        made[mean.format(**parts)] = np.asarray(centre)
        made[square.format(**parts)] = np.asarray(jnp.square(centre)) + 2 * std**2
        made[deviations.format(**parts)] = np.reshape(factors, (len(factors), -1)) * scale
    return made
