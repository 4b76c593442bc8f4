"""Draws as ArviZ sees them: one variable for each leaf, with chains and draws as dimensions."""

from typing import Any

import numpy as np

from onebasin.inference.diagnostics import by_chain
from onebasin.posterior import Samples
from onebasin.trees import leaves_by_path


def to_arviz(samples: Samples) -> Any:
    """The draws as ArviZ's `InferenceData` (a `DataTree` from ArviZ 1.0 on).

    Give draws that are aligned: ArviZ compares chains weight by weight. Key paths become names
    with dots, because a slash in a NetCDF file opens a group.
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
