"""SWAG against the moments of the same trajectory, computed in one go."""

import jax
import numpy as np
import pytest

from fit_process import problem
from onebasin.inference.fitting import fit
from onebasin.inference.methods import MAP, SWAG
from onebasin.inference.trajectories import train
from onebasin.keys import subkey
from onebasin.trees import add_axis


@pytest.mark.usefixtures("x64")
def test_the_gaussian_has_the_moments_of_the_trajectory():
    """With one learning rate throughout, the trajectory is that of MAP with the same key."""
    key, options = jax.random.key(3), {"epochs": 6, "batch_size": 100, "optimiser": "sgd"}
    method = SWAG(
        learning_rate=0.02, collect_rate=0.02, start=0.5, collect_per_epoch=2, rank=3, **options
    )
    result = fit(problem(), method, key=key, progress="silent", chunk_steps=7)
    q = result.posterior
    # 5 steps per epoch, collected every 2 from step 15 on: 7 times.
    steps = [17, 19, 21, 23, 25, 27, 29]
    plain = MAP(learning_rate=0.02, schedule="constant", **options)
    start = add_axis(problem().init(subkey(key, "init")))
    trajectory = train(
        problem(), plain, start, keys=key[None], checkpoints=steps, progress="silent"
    )
    for name in ("hidden", "out"):
        weights = np.stack([np.asarray(params[name][0]) for params in trajectory])
        running = np.cumsum(weights, 0) / np.arange(1, 8).reshape(-1, 1, 1)
        np.testing.assert_allclose(q.mean[name], weights.mean(0), rtol=1e-6, atol=1e-9)
        np.testing.assert_allclose(q.std[name] ** 2, weights.var(0) / 2, rtol=1e-4)
        deviations = (weights - running)[-3:]
        ours = np.einsum("rij,rij->ij", q.factors[name], q.factors[name])
        np.testing.assert_allclose(ours, (deviations**2).sum(0) / 4, rtol=1e-4)
        # The factors are the deviations themselves, in turn: 7 of them in 3 rows.
        np.testing.assert_allclose(q.factors[name][0], deviations[2] / 2, rtol=1e-4, atol=1e-9)


def test_too_short_a_trajectory_is_refused():
    with pytest.raises(ValueError, match="collects weights 4 times, fewer than the rank of 20"):
        fit(problem(), SWAG(epochs=8), key=jax.random.key(0))
