"""Compaction by outputs: contributions of units, and noise scaled to predict as the draws do."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from alignment_cases import mlp_shapes, random_like, relu_mlp
from compact_cases import flat
from onebasin.compaction import calibrate, compact
from onebasin.networks import LeNet
from onebasin.posterior import LowRank, MeanField, Samples
from onebasin.symmetry import find_scales, find_symmetry, stack
from onebasin.symmetry.recording import Recorder
from onebasin.trees import stack_trees

SHAPES = mlp_shapes((9, 7))


def network():
    params = random_like(SHAPES, 0)
    x = np.random.default_rng(1).normal(size=(30, 5))
    return params, x, find_symmetry(relu_mlp, params, x)


def test_contributions_of_a_network_written_out(x64):
    params, x, symmetry = network()
    one = x[3:4]
    found = Recorder(relu_mlp, params, one, symmetry).contributions(params, one)
    first, second, last = (params[f"Dense_{i}"] for i in range(3))
    before = one @ first["kernel"] + first["bias"]
    z1 = np.maximum(before, 0)
    before = z1 @ second["kernel"] + second["bias"]
    z2 = np.maximum(before, 0)
    np.testing.assert_allclose(found["Dense_1"], z2[0][:, None] * last["kernel"], rtol=1e-12)
    np.testing.assert_allclose(
        found["Dense_1"].sum(0) + last["bias"], relu_mlp(params, one)[0], rtol=1e-12
    )
    slope = (second["kernel"] * (before[0] > 0)) @ last["kernel"]
    np.testing.assert_allclose(found["Dense_0"], z1[0][:, None] * slope, rtol=1e-12, atol=1e-14)


def test_contributions_ignore_scales_and_the_order_of_units(x64):
    net = LeNet(width=2, num_classes=3)
    x = np.random.default_rng(0).normal(size=(1, 8, 8, 1))
    shapes = jax.eval_shape(net.init, jax.random.key(0), x.astype(np.float32))["params"]
    params = random_like(jax.tree.map(lambda s: s.shape, shapes), 0, scale=0.4)

    def apply(p, x) -> jax.Array:
        outputs = net.apply({"params": p}, x)
        assert isinstance(outputs, jax.Array)
        return outputs

    symmetry = find_symmetry(apply, params, x)
    recorder = Recorder(apply, params, x, symmetry)
    plain = recorder.contributions(params, x)
    scales = find_scales(apply, params, x, symmetry=symmetry)
    balanced = recorder.contributions(scales.act(scales.balance(params), params), x)
    p = symmetry.random(key=jax.random.key(1))
    moved = recorder.contributions(symmetry.act(p, params), x)
    for name, values in plain.items():
        assert values.shape == (symmetry[name].size, 3)
        np.testing.assert_allclose(balanced[name], values, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(moved[name], values[p[name]], rtol=1e-9, atol=1e-12)


def test_draws_are_aligned_by_the_contributions_of_their_units(x64):
    """Weights that no input reaches are noise: contributions ignore them, weights do not."""
    params, x, _ = network()
    rng = np.random.default_rng(0)
    shapes = mlp_shapes((9,), inputs=60)
    params = random_like(shapes, 0)
    x = np.concatenate([x, np.zeros((30, 55))], axis=1)  # the other 55 inputs are always zero
    symmetry = find_symmetry(relu_mlp, params, x)
    planted, members = [], []
    for i in range(14):
        kernel = np.array(params["Dense_0"]["kernel"])
        kernel[:5] += 0.1 * rng.normal(size=(5, 9))
        kernel[5:] = 3 * rng.normal(size=(55, 9))
        scale = np.exp(rng.normal(size=9))
        draw = {
            "Dense_0": {"kernel": kernel * scale, "bias": params["Dense_0"]["bias"] * scale},
            "Dense_1": {
                "kernel": params["Dense_1"]["kernel"] / scale[:, None],
                "bias": params["Dense_1"]["bias"],
            },
        }
        planted.append(symmetry.random(key=jax.random.key(i)))
        members.append(symmetry.act(planted[-1], draw))
    samples = Samples(stack_trees(members))

    def together(**options):
        found = compact(samples, symmetry=symmetry, **options)
        frames = symmetry.compose(found.permutations, stack(planted))["Dense_0"]
        return (frames == frames[0]).mean()

    assert together(rebase="contributions", network=relu_mlp, x=x) == 1
    assert together(rebase="barycentre") < 0.7
    with pytest.raises(ValueError, match="needs network and x"):
        together(rebase="contributions")


def test_noise_is_scaled_to_predict_as_the_draws_do(x64):
    """The draws come from a Gaussian with a tenth of the diagonal variance and 0.8 F."""
    params, x, _ = network()
    std = jax.tree.map(lambda a: 0.8 + 0 * a, params)
    columns = [random_like(SHAPES, 3 + r, scale=0.3) for r in range(2)]
    wide = LowRank(params, std, stack_trees(columns))
    truth = LowRank(
        params,
        jax.tree.map(lambda s: s * 0.1**0.5, std),
        jax.tree.map(lambda f: 0.8 * f, wide.factors),
    )
    draws = Samples(truth.sample(150, key=jax.random.key(0)))
    calibrated = partial(
        calibrate,
        to=draws,
        network=relu_mlp,
        x=x,
        key=jax.random.key(1),
        num_samples=150,
        diagonal=(1.0, 0.1, 0.01),
        factors=(1.0, 0.8, 0.5),
    )
    found = calibrated(wide)
    assert isinstance(found.posterior, LowRank)
    assert found.diagonal == 0.1
    assert found.divergence == min(found.tried.values())
    assert found.divergence < 0.3 * found.tried[1.0, 1.0]
    np.testing.assert_allclose(
        flat(found.posterior.std), found.diagonal**0.5 * flat(wide.std), rtol=1e-12
    )
    np.testing.assert_allclose(
        flat(found.posterior.factors, 1), found.factors * flat(wide.factors, 1), rtol=1e-12
    )
    alone = calibrated(MeanField(params, std))
    assert alone.factors == 1
    assert alone.divergence == min(alone.tried.values())


@pytest.mark.parametrize("rank", [2, 9])
def test_factors_that_carry_the_variance_of_the_outputs(x64, rank):
    """Similar draws, in which the network is linear: the total variance of the outputs is kept."""
    params, x, symmetry = network()
    rng = np.random.default_rng(0)
    near = [jax.tree.map(lambda a: a + 1e-5 * rng.normal(size=a.shape), params) for _ in range(10)]
    samples = Samples(stack_trees(near))
    options = {"rebase": "none", "fit": "outputs", "network": relu_mlp, "x": x}
    found = compact(samples, symmetry=symmetry, rank=rank, **options)
    assert isinstance(found.posterior, LowRank)
    outputs = jax.vmap(lambda p: relu_mlp(p, x))(samples.draws)
    _, slopes = jax.vmap(lambda f: jax.jvp(lambda p: relu_mlp(p, x), (params,), (f,)))(
        found.posterior.factors
    )
    # Second-order terms are 1e-5 of the first; the diagonal is at its floor of 1e-3.
    assert jnp.sum(slopes**2) == pytest.approx(float(jnp.sum(jnp.var(outputs, axis=0))), rel=1e-3)
    mean, std = samples.moments()
    np.testing.assert_allclose(flat(found.posterior.mean), flat(mean), rtol=1e-12)
    assert flat(found.posterior.std).max() < 0.05 * flat(std).max()
    if rank == 9:  # all there is: the covariance of the draws themselves
        x_ = flat(samples.draws, 1) - flat(mean)
        factors = flat(found.posterior.factors, 1)
        np.testing.assert_allclose(factors.T @ factors, x_.T @ x_ / 10, atol=1e-14)
    density = [float(found.posterior.log_prob(samples.draw(i))) for i in range(10)]
    assert found.log_likelihood == pytest.approx(np.mean(density), rel=1e-9)
    with pytest.raises(ValueError, match="give a rank above 0"):
        compact(samples, symmetry=symmetry, **options)
