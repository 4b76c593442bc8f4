"""Laplace approximations of the package laplace-torch, from what its `state_dict` holds, and back.

It keeps the parameters as one vector, in the order of the module's own parameters, and the
curvature H of the data. The precision is h·H + P₀ with the prior's precision P₀ and
h = 1 / (noise² · temperature). H is a vector (diagonal), a pair of eigenvectors and eigenvalues
(low rank), a matrix (full), or for every parameter a list of one or two Kronecker factors, whose
product is the block of that parameter: those of the outputs and, for a matrix, of the inputs.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from onebasin.checkpoints.posteriors import StateDict, as_array, shapes_of
from onebasin.networks import Network
from onebasin.posterior import Kronecker, LowRankPrecision, MeanField, Samples

DIAGONAL, LOW_RANK, KRONECKER = "DiagLaplace", "LowRankLaplace", "KronLaplace"


def laplace_from_state_dict(
    state_dict: StateDict, network: Network
) -> MeanField | LowRankPrecision | Kronecker:
    """A diagonal, low-rank or Kronecker-factored approximation of laplace-torch as a posterior.

    Args:
      state_dict: `la.state_dict()` of a `DiagLaplace`, `LowRankLaplace` or `KronLaplace` of all
        weights.
      network: the network of the module, made by `networks.from_torch`.

    >>> import onebasin as ob
    >>> network = ob.Network(lambda p, x: x @ p["w"], {"w": np.ones((2, 1), np.float32)})
    >>> saved = {"cls_name": "DiagLaplace", "mean": np.ones(2), "H": np.array([3.0, 15.0]),
    ...          "prior_precision": 1.0, "sigma_noise": 1.0, "temperature": 1.0}
    >>> laplace_from_state_dict(saved, network).std["w"].ravel().tolist()
    [0.5, 0.25]
    """
    kind = state_dict.get("cls_name")
    if kind not in (DIAGONAL, LOW_RANK, KRONECKER):
        raise ValueError(
            f"a {kind} has no posterior kind here, only DiagLaplace, LowRankLaplace and "
            "KronLaplace have; draw from it and use samples_from_vectors, as in "
            "samples_from_vectors(la.sample(100), network)"
        )
    shapes = shapes_of(network.params)
    count = sum(int(np.prod(shape)) for shape in shapes.values())
    mean = as_array(state_dict["mean"])
    if mean.shape != (count,):
        raise ValueError(
            f"the mean has {mean.size} numbers and the network {count} parameters; give the "
            "state_dict of an approximation of all weights of this module"
        )
    factor = _factor(state_dict)
    prior = _prior(state_dict, shapes)
    centre = _tree(mean, network)
    if kind == DIAGONAL:
        precision = factor * as_array(state_dict["H"]).astype(np.float64) + prior
        return MeanField(centre, _tree(precision**-0.5, network), network.state)
    if kind == KRONECKER:
        return _kronecker(state_dict["H"], factor, _tree(prior, network), centre, network)
    vectors, values = (as_array(part).astype(np.float64) for part in state_dict["H"])
    columns = vectors * np.sqrt(factor * np.maximum(values, 0))
    factors = [_tree(column, network) for column in columns.T]
    stacked = {name: jnp.stack([one[name] for one in factors]) for name in shapes}
    return LowRankPrecision(centre, _tree(prior**-0.5, network), stacked, network.state)


def laplace_state_dict(
    posterior: MeanField | LowRankPrecision | Kronecker, like: StateDict, network: Network
) -> dict[str, Any]:
    """The state_dict for `la.load_state_dict`, with what a posterior that was moved has.

    Args:
      posterior: of the kind that `laplace_from_state_dict` gives for `like`.
      like: the state_dict that it came from. Its prior is kept, and must not tell units apart.
      network: the network of the module, made by `networks.from_torch`.

    >>> import onebasin as ob
    >>> network = ob.Network(lambda p, x: x @ p["w"], {"w": np.ones((2, 1), np.float32)})
    >>> saved = {"cls_name": "DiagLaplace", "mean": np.ones(2), "H": np.array([3.0, 15.0]),
    ...          "prior_precision": 1.0, "sigma_noise": 1.0, "temperature": 1.0}
    >>> q = laplace_from_state_dict(saved, network)
    >>> laplace_state_dict(q, saved, network)["H"].tolist()
    [3.0, 15.0]
    """
    names = list(network.params)  # JAX sorts the names of a tree that it makes
    factor, prior = _factor(like), _prior(like, shapes_of(network.params))
    changed: dict[str, Any] = {"mean": _vector(posterior.mean, names)}
    if isinstance(posterior, MeanField):
        precision = _vector(posterior.std, names).astype(np.float64) ** -2
        changed["H"] = (precision - prior) / factor
    elif isinstance(posterior, Kronecker):
        priors = _tree(prior, network)
        changed["H"] = [
            _factors_of(posterior, name, priors[name], factor, len(own))
            for name, own in zip(names, like["H"], strict=True)
        ]
    else:
        ranks = range(posterior.rank)
        rows = [_vector({n: posterior.factors[n][i] for n in names}, names) for i in ranks]
        columns = np.stack(rows, -1).astype(np.float64)
        values = np.sum(columns**2, 0)
        changed["H"] = columns / np.sqrt(np.where(values > 0, values, 1)), values / factor
    return {**like, **{name: _like(value, like[name]) for name, value in changed.items()}}


def samples_from_vectors(vectors: ArrayLike | Any, network: Network) -> Samples:
    """Draws that are vectors of all parameters, in the order of the module, as `Samples`.

    Args:
      vectors: [draws, parameters], a tensor or an array; `la.sample(100)` of laplace-torch, or
        stacked results of `torch.nn.utils.parameters_to_vector`.
      network: the network of the module, made by `networks.from_torch`.

    >>> import onebasin as ob
    >>> network = ob.Network(lambda p, x: x @ p["w"], {"w": np.ones((2, 1), np.float32)})
    >>> samples_from_vectors(np.ones((3, 2)), network)
    Samples(2 parameters, 3 draws)
    """
    rows = as_array(vectors)
    count = sum(int(np.prod(shape)) for shape in shapes_of(network.params).values())
    if rows.ndim != 2 or rows.shape[1] != count:
        raise ValueError(
            f"the vectors have shape {rows.shape}; give [draws, {count}], all parameters of the "
            "network in the order of the module"
        )
    trees = [_tree(row, network) for row in rows]
    draws = {name: np.stack([tree[name] for tree in trees]) for name in network.params}
    state = network.state and {
        name: np.repeat(np.asarray(leaf)[None], len(rows), 0)
        for name, leaf in network.state.items()
    }
    return Samples(draws, state=state)


def _kronecker(
    factors: Sequence[Sequence[Any]],
    scale: float,
    priors: Mapping[str, np.ndarray],
    mean: Mapping[str, np.ndarray],
    network: Network,
) -> Kronecker:
    std, left, right = {}, {}, {}
    for (name, leaf), own in zip(mean.items(), factors, strict=True):
        prior = priors[name]
        if not np.all(prior == prior.flat[0]):
            raise ValueError(
                f"the prior of '{name}' differs from number to number, which its Kronecker "
                "factors do not; give one precision for all parameters or one for each"
            )
        pairs = [np.linalg.eigh(as_array(one).astype(np.float64)) for one in own]
        if len(pairs) == 1:
            pairs = [*pairs, (np.ones(1), np.ones((1, 1)))]
        (outer, left[name]), (inner, right[name]) = pairs
        values = np.outer(np.maximum(outer, 0), np.maximum(inner, 0))
        std[name] = ((scale * values + prior.flat[0]) ** -0.5).reshape(leaf.shape)
    in_dtype = lambda part: {n: jnp.asarray(part[n], leaf.dtype) for n, leaf in mean.items()}
    return Kronecker(mean, in_dtype(std), in_dtype(left), in_dtype(right), network.state)


def _factors_of(
    posterior: Kronecker, name: str, prior: np.ndarray, scale: float, count: int
) -> list[np.ndarray]:
    """The factors of one parameter, the second scaled like the first: their product counts."""
    left, right = (np.asarray(t[name], np.float64) for t in (posterior.left, posterior.right))
    std = np.asarray(posterior.std[name], np.float64)
    values = np.maximum((std**-2 - prior) / scale, 0).reshape(len(left), len(right))
    outer, inner = values.sum(1), values.sum(0)
    if count == 1:
        return [(left * outer) @ left.T]
    unit = np.sqrt(values.sum()) or 1.0
    return [(left * (outer / unit)) @ left.T, (right * (inner / unit)) @ right.T]


def _factor(state_dict: StateDict) -> float:
    noise, temperature = (float(as_array(state_dict[n])) for n in ("sigma_noise", "temperature"))
    return 1 / (noise**2 * temperature)


def _prior(state_dict: StateDict, shapes: Mapping[str, Sequence[int]]) -> np.ndarray:
    """The prior's precision of every parameter: one number, one per array, or all of them."""
    given = np.atleast_1d(as_array(state_dict["prior_precision"]).astype(np.float64))
    sizes = [int(np.prod(shape)) for shape in shapes.values()]
    if given.size == 1:
        return np.full(sum(sizes), given[0])
    if given.size == len(sizes):
        return np.repeat(given, sizes)
    if given.size != sum(sizes):
        raise ValueError(
            f"the prior has {given.size} precisions for {len(sizes)} parameters; give one, one "
            "for each parameter or one for each number"
        )
    return given


def _tree(vector: np.ndarray, network: Network) -> dict[str, np.ndarray]:
    """The parts of a vector, by name and in the data types of the params."""
    found, start = {}, 0
    for name, leaf in network.params.items():
        part = vector[start : start + leaf.size]
        found[name] = np.asarray(part, leaf.dtype).reshape(leaf.shape)
        start += leaf.size
    return found


def _vector(tree: Mapping[str, Any], names: Sequence[str]) -> np.ndarray:
    return np.concatenate([np.ravel(tree[name]) for name in names])


def _like(value: Any, old: Any) -> Any:
    """An array as a tensor, if it stands for one."""
    if isinstance(value, tuple | list):
        return type(value)(_like(v, o) for v, o in zip(value, old, strict=True))
    if hasattr(old, "detach"):
        from onebasin.pytorch_tensors import to_tensor

        return to_tensor(value, old.dtype)
    return np.asarray(value, np.asarray(old).dtype)
