"""Profiles and barriers: closed forms, errors that cover, Jensen, alignment, invariance."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from onebasin.evaluation.measures import accuracy, nll
from onebasin.evaluation.predicting import predictive
from onebasin.evaluation.profiles import profile
from onebasin.likelihoods import Gaussian
from onebasin.paths import geodesic, line, mixture_path
from onebasin.posterior import LowRank, MeanField, Mixture, Samples
from onebasin.problem import Problem
from onebasin.symmetry import Symmetry

KEY = jax.random.key(0)
DIM, NOISE = 5, 0.8


class Linear:
    """y = x·w + noise with w ~ N(m, s²): everything about it is known."""

    rng = np.random.default_rng(3)
    x = rng.normal(size=(40, DIM)).astype(np.float32)
    m = (0.5 * rng.normal(size=DIM), 0.5 * rng.normal(size=DIM))
    s = (np.full(DIM, 0.2), np.full(DIM, 0.1))
    y = (x @ (0.5 * (m[0] + m[1])) + NOISE * rng.normal(size=40)).astype(np.float32)
    likelihood = Gaussian(NOISE)

    @staticmethod
    def apply(params, x):
        return x @ params["w"]

    @classmethod
    def posterior(cls, i):
        leaf = lambda v: {"w": jnp.asarray(v, jnp.float32)}
        return MeanField(leaf(cls.m[i]), leaf(cls.s[i]))

    @classmethod
    def nll(cls, t):
        """Predictive N(x·m_t, noise² + x²·s_t²), in closed form."""
        m, s = ((1 - t) * v[0] + t * v[1] for v in (cls.m, cls.s))
        variance = NOISE**2 + cls.x**2 @ s**2
        residual = cls.y - cls.x @ m
        return np.mean(0.5 * (residual**2 / variance + np.log(2 * math.pi * variance)))

    @classmethod
    def excess(cls, t):
        return cls.nll(t) - (1 - t) * cls.nll(0.0) - t * cls.nll(1.0)

    @classmethod
    def profile(cls, path=None, **options):
        path = geodesic(cls.posterior(0), cls.posterior(1)) if path is None else path
        return profile(path, cls.apply, (cls.x, cls.y), likelihood=cls.likelihood, **options)


@pytest.mark.fast
def test_profile_of_a_linear_gaussian_problem_is_the_closed_form():
    found = Linear.profile(key=KEY, points=5, num_samples=2000)
    exact = np.array([Linear.nll(t) for t in found.t])
    excess = np.array([Linear.excess(t) for t in found.t])
    assert np.all(np.abs(found.nll_corrected - exact) < 4 * found.nll_stderr)
    # The ends' excess is zero by definition and has no error.
    assert np.all(np.abs(found.excess - excess)[1:-1] < 4 * found.excess_stderr[1:-1])
    assert found.excess[0] == found.excess[-1] == 0 == found.excess_stderr[0]
    # The paths of this problem dip: means average towards the truth.
    assert found.barrier == 0
    assert found.largest_excess < 0


@pytest.mark.fast
def test_the_likelihood_is_that_of_the_problem():
    """No likelihood is named: a Gaussian problem is evaluated with its own noise."""
    data = (Linear.x, Linear.y)
    problem = Problem(
        Linear.apply, lambda key: {"w": jax.random.normal(key, (DIM,))}, data, Gaussian(NOISE)
    )
    path = geodesic(Linear.posterior(0), Linear.posterior(1))
    found = profile(path, problem, data, key=KEY, points=5, num_samples=2000)
    exact = np.array([Linear.nll(t) for t in found.t])
    assert np.all(np.abs(found.nll_corrected - exact) < 4 * found.nll_stderr)
    # Another noise has another loss, by far more than the error.
    other = profile(path, problem, data, key=KEY, points=3, likelihood=Gaussian(3 * NOISE))
    assert np.all(other.nll - exact[::2] > 10 * found.nll_stderr[::2])


def test_a_barrier_with_a_known_height():
    """Outputs (4t)³ against the targets 0 and 64 at the ends: the loss between is a polynomial."""
    params = [{"w": jnp.full(1, value)} for value in (0.0, 4.0)]
    x, y = np.ones((2, 1), np.float32), np.asarray([0.0, 64.0], np.float32)

    def cubed(params, x):
        return (x @ params["w"]) ** 3

    found = profile(line(*params), cubed, (x, y), key=KEY, points=9, likelihood="gaussian")
    loss = lambda t: 0.25 * ((4 * t) ** 6 + ((4 * t) ** 3 - 64) ** 2) + 0.5 * np.log(2 * math.pi)
    chord = np.array([loss(t) - (1 - t) * loss(0) - t * loss(1) for t in found.t])
    np.testing.assert_allclose(found.nll, [loss(t) for t in found.t], rtol=1e-5)
    np.testing.assert_allclose(found.excess, chord, rtol=1e-4, atol=1e-3)
    assert found.barrier == max(0.0, found.largest_excess)
    assert np.all(found.nll_stderr == 0)


def test_a_gaussian_barrier_is_the_closed_form():
    """One weight, output w, target 0: L(t) = ½ [m_t²/v_t + log 2πv_t] with v_t = noise² + s_t².

    From a narrow q0 on the target to a wide q1 beside it, m_t leaves before s_t has grown.
    """
    target, noise = 0.0, 0.5
    ends = [(0.0, 0.05), (3.0, 3.0)]
    q0, q1 = (MeanField({"w": jnp.full(1, m)}, {"w": jnp.full(1, s)}) for m, s in ends)
    x, y = np.ones((1, 1), np.float32), np.full(1, target, np.float32)

    def loss(t):
        m, s = ((1 - t) * a + t * b for a, b in zip(*ends, strict=True))
        variance = noise**2 + s**2
        return 0.5 * ((target - m) ** 2 / variance + math.log(2 * math.pi * variance))

    found = profile(
        geodesic(q0, q1),
        lambda p, x: x @ p["w"],
        (x, y),
        key=KEY,
        points=9,
        num_samples=4000,
        likelihood=Gaussian(noise),
    )
    excess = np.array([loss(t) - (1 - t) * loss(0) - t * loss(1) for t in found.t])
    assert found.barrier > 0.1
    assert abs(found.barrier - excess.max()) < 4 * found.barrier_stderr
    assert found.barrier_t == found.t[excess.argmax()]


def test_intervals_cover_at_the_nominal_rate():
    """Of 200 repeats, 95 % intervals for the loss at fixed t hold it in 90 to 99 %."""
    truth = np.array([Linear.nll(t) for t in (0.0, 0.5, 1.0)])
    middle = Linear.excess(0.5)
    hits, plain, chord = [], [], []
    for repeat in range(200):
        found = Linear.profile(key=jax.random.key(repeat), points=3, num_samples=64)
        hits.append(np.abs(found.nll_corrected - truth) < 1.96 * found.nll_stderr)
        plain.append(np.abs(found.nll - truth) < 1.96 * found.nll_stderr)
        corrected = found.excess[1] - found.excess_bias[1]
        chord.append(abs(corrected - middle) < 1.96 * found.excess_stderr[1])
    for covered in (*np.mean(hits, axis=0), *np.mean(plain, axis=0), np.mean(chord)):
        assert 0.90 <= covered <= 0.99


def test_the_bias_of_the_log_of_a_mean_is_estimated():
    """Averaged over repeats with few samples the loss is too large by what is reported."""
    runs = [Linear.profile(key=jax.random.key(r), points=3, num_samples=8) for r in range(100)]
    truth = np.array([Linear.nll(t) for t in (0.0, 0.5, 1.0)])
    bias = np.mean([run.nll for run in runs], axis=0) - truth
    reported = np.mean([run.nll_bias for run in runs], axis=0)
    error = np.std([run.nll for run in runs], axis=0) / 10
    assert np.all(bias > 2 * error)
    # The estimate is of the leading order in 1/8; what it leaves is of the next.
    assert np.all(np.abs(bias - reported) < 0.35 * bias + 3 * error)


@pytest.mark.fast
def test_common_random_numbers_make_the_excess_exact_where_nothing_moves():
    q = Linear.posterior(0)
    found = Linear.profile(geodesic(q, q), key=KEY, points=4, num_samples=16)
    np.testing.assert_allclose(found.excess, 0, atol=1e-6)
    np.testing.assert_allclose(found.excess_stderr, 0, atol=1e-6)
    assert np.all(found.nll_stderr > 1e-3)


@pytest.mark.parametrize("seed", [0, 1])
def test_a_mixture_path_has_no_barrier(seed):
    """Draws serve every t with exact weights, so Jensen's inequality holds to rounding."""
    q0, q1 = Linear.posterior(0), Linear.posterior(1)
    found = Linear.profile(mixture_path(q0, q1), key=jax.random.key(seed), points=9, num_samples=20)
    assert found.barrier <= 1e-6
    assert np.all(found.excess <= 1e-6)
    # and the loss at t is that of the two ends' predictives mixed, within error
    half = [
        Linear.profile(mixture_path(q, q), key=jax.random.key(seed + 5), points=3, num_samples=800)
        for q in (q0, q1)
    ]
    for i, end in enumerate(half):
        gap = found.nll[-i] - end.nll[0]
        assert abs(gap) < 4 * np.hypot(found.nll_stderr[-i], end.nll_stderr[0])


def test_mixture_errors_are_calibrated():
    """The std of the mixture's loss over repeats is the standard error that is reported."""
    path = mixture_path(Linear.posterior(0), Linear.posterior(1))
    runs = [
        Linear.profile(path, key=jax.random.key(r), points=3, num_samples=64) for r in range(60)
    ]
    std = np.std([run.nll for run in runs], axis=0, ddof=1)
    reported = np.mean([run.nll_stderr for run in runs], axis=0)
    # A standard deviation from 60 repeats has a relative error of 9 %; three of those.
    np.testing.assert_allclose(reported, std, rtol=0.28)


# A network with hidden units, trained, on which permutations matter.


def network(params, x):
    return jax.nn.relu(jax.nn.relu(x @ params["w1"] + params["b1"]) @ params["w2"]) @ params["w3"]


@pytest.fixture(scope="module")
def trained():
    """A small network fitted to spirals: posterior, data, and its symmetry."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 240)
    r = rng.uniform(0.2, 1.0, 240)
    angle = 2.5 * r + 2 * math.pi * y / 3 + 0.1 * rng.normal(size=240)
    x = np.stack([r * np.cos(angle), r * np.sin(angle)], 1).astype(np.float32)
    shapes = {"w1": (2, 24), "b1": (24,), "w2": (24, 16), "w3": (16, 3)}
    params = {
        k: jnp.asarray(rng.normal(size=s) / math.sqrt(s[0]), jnp.float32) for k, s in shapes.items()
    }
    adam = optax.adam(0.02)

    def loss(p):
        return -jnp.take_along_axis(jax.nn.log_softmax(network(p, x)), y[:, None], 1).mean()

    @jax.jit
    def train(p):
        def step(carry, _):
            p, state = carry
            updates, state = adam.update(jax.grad(loss)(p), state)
            return (optax.apply_updates(p, updates), state), None

        return jax.lax.scan(step, (p, adam.init(p)), None, 400)[0][0]

    params = train(params)
    symmetry = Symmetry.by_hand(
        params,
        {"first": [("w1", 1), ("b1", 0), ("w2", 0)], "second": [("w2", 1), ("w3", 0)]},
    )
    std = jax.tree.map(lambda leaf: jnp.full(leaf.shape, 0.02), params)
    return MeanField(params, std), (x, y), symmetry


def test_a_permuted_copy_has_a_barrier_until_it_is_aligned(trained):
    q, data, symmetry = trained
    p = symmetry.random(key=jax.random.key(4))
    moved = symmetry.act(p, q)
    options = {"key": KEY, "points": 5, "num_samples": 64}
    apart = profile(geodesic(q, moved), network, data, **options)
    assert apart.barrier > 0.5
    assert apart.barrier > 50 * apart.barrier_stderr
    back = symmetry.act(symmetry.inverse(p), moved)
    together = profile(geodesic(q, back), network, data, **options)
    assert together.barrier <= 3 * together.barrier_stderr + 1e-6
    assert apart.mean_barrier > 0.5
    assert together.mean_barrier < 1e-5
    assert apart.draw_barriers is not None
    assert apart.draw_barriers.shape == (64,)
    assert apart.draw_barriers.min() > 0.3


def draws(q, seed, count=5):
    """Draws of a posterior, made without compiling anything."""
    rng = np.random.default_rng(seed)
    leaf = lambda m, s: jnp.asarray(m + s * rng.normal(size=(count, *m.shape)), jnp.float32)
    return Samples(jax.tree.map(lambda m, s: leaf(np.asarray(m), np.asarray(s)), q.mean, q.std))


def test_a_common_permutation_changes_nothing(trained):
    q, data, symmetry = trained
    p = symmetry.random(key=jax.random.key(5))
    ends = draws(q, 0), symmetry.act(symmetry.random(key=jax.random.key(6)), draws(q, 1))
    before, after = (
        profile(geodesic(*pair), network, data, key=KEY, points=3)
        for pair in (ends, [symmetry.act(p, end) for end in ends])
    )
    # The same networks with sums in another order.
    np.testing.assert_allclose(after.nll, before.nll, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(after.accuracy, before.accuracy)
    np.testing.assert_allclose(after.barrier, before.barrier, rtol=1e-3, atol=1e-5)
    # A Gaussian's noise does not move with the units: equal within Monte Carlo error.
    plain, moved = (
        profile(geodesic(a, a), network, data, key=KEY, points=3, num_samples=200)
        for a in (q, symmetry.act(p, q))
    )
    gap = abs(plain.nll[0] - moved.nll[0])
    assert gap < 4 * np.hypot(plain.nll_stderr[0], moved.nll_stderr[0])


NUMBERS = ("nll", "nll_stderr", "nll_bias", "excess_stderr", "accuracy", "mean_nll")


def ranked(q: MeanField) -> LowRank:
    factors = jax.tree.map(lambda m: 0.02 * jnp.stack([m, jnp.ones_like(m)]), q.mean)
    return LowRank(q.mean, q.std, factors)


@pytest.mark.parametrize("kind", ["mean-field", "low-rank", "samples", "line"])
def test_profile_agrees_with_the_predictive_at_every_point(trained, kind):
    """The loss at t is that of path(t)'s own predictive with the same key."""
    q, (x, y), symmetry = trained
    other = symmetry.act(symmetry.random(key=KEY), q)
    path = {
        "mean-field": lambda: geodesic(q, other),
        "low-rank": lambda: geodesic(ranked(q), ranked(other)),
        "samples": lambda: geodesic(draws(q, 0), draws(other, 1)),
        "line": lambda: line(q.mean, other.mean),
    }[kind]()
    found = profile(path, network, (x, y), key=KEY, points=3, num_samples=12, batch_size=50)
    for i, t in enumerate(found.t):
        direct = predictive(path(t), network, x, key=KEY, num_samples=12)
        # log p of a sure prediction is known to float32 rounding of 1, not of itself.
        np.testing.assert_allclose(found.nll[i], nll(direct, y), rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(found.accuracy[i], accuracy(direct, y), atol=1e-6)


@pytest.mark.parametrize("kind", ["mean-field", "low-rank", "samples", "mixture"])
def test_a_function_of_t_has_the_profile_of_the_path_it_returns(trained, kind):
    """Its posteriors are evaluated one by one, with the draws of the path itself."""
    q, data, symmetry = trained
    other = symmetry.act(symmetry.random(key=KEY), q)
    known = {
        "mean-field": lambda: geodesic(q, other),
        "low-rank": lambda: geodesic(ranked(q), ranked(other)),
        "samples": lambda: geodesic(draws(q, 0), draws(other, 1)),
        "mixture": lambda: mixture_path(q, other),
    }[kind]()

    def mine(t):
        return known(t)

    options = {"key": KEY, "points": 5, "num_samples": 12, "refine": 1}
    found, expected = (profile(path, network, data, **options) for path in (mine, known))
    np.testing.assert_array_equal(found.t, expected.t)
    for name in NUMBERS:
        # A draw of the interpolated posterior is the interpolated draw up to float32 rounding,
        # which the network and the logarithm of a confident prediction amplify.
        np.testing.assert_allclose(
            getattr(found, name), getattr(expected, name), rtol=2e-4, atol=1e-5, err_msg=name
        )
    assert found.path == "mine"
    if expected.draw_nll is None or found.draw_nll is None:
        assert kind == "mixture"
    else:
        np.testing.assert_allclose(found.draw_nll, expected.draw_nll, rtol=1e-4, atol=1e-5)


def test_a_curve_that_is_no_displacement_has_its_closed_form():
    """Means on a parabola between the ends: the loss at t is that of the Gaussian at t."""
    (m0, m1), (s0, _) = Linear.m, Linear.s
    leaf = lambda v: {"w": jnp.asarray(v, jnp.float32)}
    mean = lambda t: (1 - t) * m0 + t * m1 + t * (1 - t)

    def bent(t):
        return MeanField(leaf(mean(t)), leaf(s0))

    found = Linear.profile(bent, key=KEY, points=5, num_samples=1000)
    variance = NOISE**2 + Linear.x**2 @ s0**2
    exact = [
        np.mean(0.5 * ((Linear.y - Linear.x @ mean(t)) ** 2 / variance))
        + 0.5 * np.mean(np.log(2 * math.pi * variance))
        for t in found.t
    ]
    assert np.all(np.abs(found.nll_corrected - exact) < 4 * found.nll_stderr)


def test_posteriors_that_do_not_belong_to_one_path_are_refused(trained):
    q, data, _ = trained

    def over_other_params(t):
        return q if t < 0.5 else MeanField({"w": jnp.ones(3)}, {"w": jnp.ones(3)})

    with pytest.raises(ValueError, match=r"t = 0\.5 is over other params .* leaf"):
        profile(over_other_params, network, data, key=KEY, points=3)
    with pytest.raises(ValueError, match=r"t = 0 and t = 1 have different numbers of draws"):
        profile(lambda t: draws(q, 0, 5 if t < 1 else 4), network, data, key=KEY, points=3)
    with pytest.raises(ValueError, match=r"returns a dict at t = 0; return a posterior"):
        profile(lambda t: q.mean, network, data, key=KEY, points=3)


def test_blocks_of_data_change_nothing(trained, monkeypatch):
    q, data, symmetry = trained
    path = geodesic(q, symmetry.act(symmetry.random(key=KEY), q))
    whole = profile(path, network, data, key=KEY, points=5, num_samples=8)
    monkeypatch.setattr("onebasin.evaluation.streaming.BLOCK_BYTES", 30_000)
    parts = profile(path, network, data, key=KEY, points=5, num_samples=8)
    for name in NUMBERS:
        np.testing.assert_allclose(getattr(parts, name), getattr(whole, name), rtol=1e-4)


def test_refining_adds_points_at_the_top(trained):
    q, data, symmetry = trained
    path = geodesic(q, symmetry.act(symmetry.random(key=KEY), q))
    coarse = profile(path, network, data, key=KEY, points=5, num_samples=8)
    fine = profile(path, network, data, key=KEY, points=5, num_samples=8, refine=3)
    assert len(fine.t) == 11
    assert np.all(np.diff(fine.t) > 0)
    assert fine.barrier >= coarse.barrier
    assert np.isin(coarse.t, fine.t).all()
    np.testing.assert_allclose(fine.nll[np.isin(fine.t, coarse.t)], coarse.nll, rtol=1e-5)


def test_nested_mixtures_are_evaluated_by_their_exact_weights(trained):
    q, (x, y), symmetry = trained
    other = symmetry.act(symmetry.random(key=KEY), q)
    point = lambda r: Samples(jax.tree.map(lambda a: a[None], r.mean))
    inner = Mixture((point(q), point(other)), jnp.asarray([0.5, 0.5]))
    found = profile(
        mixture_path(inner, point(q)), network, (x, y), key=KEY, points=3, num_samples=4
    )
    np.testing.assert_allclose(
        found.nll[-1], nll(predictive(point(q), network, x, key=KEY), y), rtol=1e-5
    )
    np.testing.assert_allclose(found.nll_stderr, 0)


def test_the_summary_is_plain_numbers(trained):
    import json

    q, data, _ = trained
    found = profile(geodesic(q, q), network, data, key=KEY, points=3, num_samples=4)
    again = json.loads(json.dumps(found.summary()))
    assert again["barrier"] == found.barrier
    assert "barrier" in str(found)


def test_bad_input_is_named(trained):
    q, (x, y), _ = trained
    path = geodesic(q, q)
    with pytest.raises(ValueError, match="labels range from 1 to 7, but there are 3 outputs"):
        profile(path, network, (x, np.where(y == 0, 7, y) % 8), key=KEY)
    with pytest.raises(ValueError, match="one integer label per example"):
        profile(path, network, (x, y.astype(float)), key=KEY)
    with pytest.raises(ValueError, match="give one target per example"):
        profile(path, network, (x, y[:-1]), key=KEY)
    with pytest.raises(ValueError, match="at least 1"):
        profile(path, network, (x, y), key=KEY, num_samples=0)
    with pytest.raises(ValueError, match="at least 3 points"):
        profile(path, network, (x, y), key=KEY, points=2)
    with pytest.raises(ValueError, match="a MeanField is not a path"):
        profile(q, network, (x, y), key=KEY)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="no likelihood"):
        profile(path, network, (x, y), key=KEY, likelihood="cauchy")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="one output per target"):
        profile(path, network, (x, x), key=KEY, likelihood="gaussian")
    broken = lambda params, x: network(params, x) * jnp.nan
    with pytest.raises(ValueError, match="not finite at t = 0;"):
        profile(path, broken, (x, y), key=KEY, points=3)
