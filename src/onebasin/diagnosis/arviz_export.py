"""Draws for ArviZ: one variable per leaf, with chains and draws as dimensions."""

from typing import Any

import numpy as np

from onebasin.inference.diagnostics import by_chain
from onebasin.posterior import Samples
from onebasin.trees import leaves_by_path


def to_arviz(samples: Samples) -> Any:
    """The draws as `InferenceData` of ArviZ (a `DataTree` from ArviZ 1.0 on).

    Align the draws first: ArviZ compares chains weight by weight. Key paths become names with
    dots, because a slash in a NetCDF file opens a group. This needs the extra `onebasin[arviz]`.

    >>> import jax.numpy as jnp, onebasin as ob
    >>> samples = ob.Samples({"dense": {"w": jnp.zeros((6, 2))}}, jnp.repeat(jnp.arange(2), 3))
    >>> data = ob.to_arviz(samples)  # doctest: +SKIP
    >>> data.posterior["dense.w"].shape  # doctest: +SKIP
    (2, 3, 2)
    """
    try:
        import arviz  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise ImportError(
            "exporting to ArviZ needs ArviZ; install it with: pip install 'onebasin[arviz]'"
        ) from None
    posterior = {
        name.replace("/", "."): by_chain(np.asarray(leaf), samples.chain)
        for name, leaf in leaves_by_path(samples.draws).items()
    }
    if int(arviz.__version__.split(".")[0]) >= 1:
        return arviz.from_dict({"posterior": posterior})
    return arviz.from_dict(posterior=posterior)
