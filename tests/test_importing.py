"""Draws of other packages: their own objects go in, are aligned, and go back."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import onebasin as ob

KEY = jax.random.key(0)


def apply(params, x):
    return jnp.tanh(x @ params["w1"]) @ params["w2"]


LIKE = {"w1": jnp.zeros((2, 3)), "w2": jnp.zeros((3, 1))}
X = jax.random.normal(jax.random.key(9), (5, 2))


def normal(key, lead):
    keys = jax.random.split(key, len(LIKE))
    return {
        name: jax.random.normal(own, (*lead, *leaf.shape))
        for own, (name, leaf) in zip(keys, LIKE.items(), strict=True)
    }


def aligned(samples):
    """The draws in one basin; the function of every draw is what it was."""
    symmetry = ob.find_symmetry(apply, LIKE, X)
    moved = ob.align_many(samples, symmetry=symmetry, objective="l2", progress="silent").posteriors
    each = jax.vmap(apply, (0, None))
    # The units are summed in another order: a rounding in single precision.
    np.testing.assert_allclose(each(moved.draws, X), each(samples.draws, X), rtol=1e-4, atol=1e-5)
    assert np.array_equal(moved.chain, samples.chain)
    return moved


@pytest.mark.fast
def test_chains_are_laid_one_after_another():
    draws = normal(KEY, (2, 4))
    samples = ob.Samples.from_chains(draws)
    assert samples.chain.tolist() == [0] * 4 + [1] * 4
    assert np.array_equal(samples.draw(5)["w1"], draws["w1"][1, 1])
    named = {"net.w1": draws["w1"], "net/w2": draws["w2"], "noise": jnp.ones((2, 4))}
    chosen = ob.Samples.from_chains(named, like={"net": LIKE})
    assert np.array_equal(chosen.draw(5)["net"]["w2"], draws["w2"][1, 1])
    with pytest.raises(ValueError, match="leaf 'w1' is missing; the draws hold w2"):
        ob.Samples.from_chains({"w2": draws["w2"]}, like=LIKE)
    with pytest.raises(ValueError, match="begins with the same numbers of chains and draws"):
        ob.Samples.from_chains({"a": jnp.ones((2, 4)), "b": jnp.ones((2, 5))})


@pytest.mark.fast
def test_members_of_a_list_are_a_chain_each():
    members = [normal(key, ()) for key in jax.random.split(KEY, 3)]
    samples = ob.Samples.from_list(members)
    assert samples.chain.tolist() == [0, 1, 2]
    assert np.array_equal(samples.draw(2)["w2"], members[2]["w2"])
    with pytest.raises(ValueError, match="member 1 differs from the first: leaf 'w2' is missing"):
        ob.Samples.from_list([members[0], {"w1": members[1]["w1"]}])


@pytest.mark.fast
def test_chains_taken_for_draws_are_refused():
    draws = normal(KEY, (2, 40))
    with pytest.raises(ValueError, match=r"looks like 2 chains of 40 draws; use Samples.from_ch"):
        ob.Samples(draws)
    assert ob.Samples(draws, jnp.arange(2)).num_draws == 2, "unless one says what they are"
    assert ob.Samples(normal(KEY, (4,))).num_draws == 4


def test_blackjax():
    blackjax = pytest.importorskip("blackjax")
    density = lambda p: -0.5 * sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(p))
    sampler = blackjax.hmc(density, 0.2, jnp.ones(9), 3)
    starts = jax.vmap(sampler.init)(normal(KEY, (2,)))

    def step(states, key):
        states, _ = jax.vmap(sampler.step)(jax.random.split(key, 2), states)
        return states, states

    _, states = jax.lax.scan(step, starts, jax.random.split(KEY, 6))  # [draws, chains]
    samples = ob.Samples.from_blackjax(states, chain_axis=1)
    assert samples.chain.tolist() == [0] * 6 + [1] * 6
    assert np.array_equal(samples.draw(7)["w1"], states.position["w1"][1, 1])
    one = ob.Samples.from_blackjax(jax.tree.map(lambda leaf: leaf[:, 0], states))
    assert np.array_equal(one.draws["w2"], states.position["w2"][:, 0])
    moved = aligned(samples)
    back = sampler.init(moved.draw(3))  # a state of BlackJAX again, of the same density
    assert back.logdensity == pytest.approx(float(states.logdensity[3, 0]), rel=1e-5)
    with pytest.raises(ValueError, match=r"HMCState of BlackJAX .*; use Samples.from_blackjax"):
        ob.Samples(states)
    with pytest.raises(ValueError, match=r"two leading axes \(6, 2\); say which"):
        ob.Samples.from_blackjax(states)


def test_numpyro():
    numpyro = pytest.importorskip("numpyro")
    from numpyro import distributions as dist
    from numpyro.infer import HMC, MCMC, log_likelihood

    y = np.ones(5, np.float32)

    def model(y=None):
        params = {
            name: numpyro.sample(name, dist.Normal(0, 1).expand(leaf.shape).to_event(2))
            for name, leaf in LIKE.items()
        }
        noise = numpyro.sample("noise", dist.LogNormal(0, 1))
        mean = numpyro.deterministic("mean", apply(params, X)[:, 0])
        numpyro.sample("y", dist.Normal(mean, noise), obs=y)

    mcmc = MCMC(
        HMC(model, num_steps=2, trajectory_length=None),  # pyright: ignore[reportArgumentType]
        num_warmup=2,
        num_samples=5,
        num_chains=2,
        chain_method="vectorized",
        progress_bar=False,
    )
    mcmc.run(KEY, y)
    every = ob.Samples.from_numpyro(mcmc)
    assert set(every.draws) == {"w1", "w2", "noise"}, "deterministic sites are no parameters"
    samples = ob.Samples.from_numpyro(mcmc, like=LIKE)
    given = mcmc.get_samples(group_by_chain=True)
    assert np.array_equal(samples.draw(6)["w1"], given["w1"][1, 1])
    moved = aligned(samples)
    back = {**moved.draws, "noise": mcmc.get_samples()["noise"]}
    before = log_likelihood(model, mcmc.get_samples(), y)["y"]
    np.testing.assert_allclose(log_likelihood(model, back, y)["y"], before, rtol=1e-3, atol=1e-4)
    with pytest.raises(ValueError, match=r"use Samples\.from_numpyro"):
        ob.Samples(mcmc)


def test_arviz_there_and_back():
    arviz = pytest.importorskip("arviz")
    xarray = pytest.importorskip("xarray")
    draws = {f"net.{name}": np.asarray(leaf) for name, leaf in normal(KEY, (2, 4)).items()}
    data = arviz.from_dict(posterior=draws)
    samples = ob.Samples.from_arviz(data, like={"net": LIKE})
    assert np.array_equal(samples.draw(5)["net"]["w1"], draws["net.w1"][1, 1])
    tree = xarray.DataTree.from_dict({"posterior": data.posterior})
    assert np.array_equal(
        ob.Samples.from_arviz(tree).draws["net"]["w2"], samples.draws["net"]["w2"]
    )
    inner = ob.Samples(samples.draws["net"], samples.chain)
    moved = aligned(inner)
    back = ob.Samples.from_arviz(ob.to_arviz(moved))
    assert jax.tree.all(jax.tree.map(np.array_equal, back.draws, moved.draws))
    assert np.array_equal(back.chain, moved.chain)
    for given in (data, tree):
        with pytest.raises(ValueError, match=r"use Samples\.from_arviz"):
            ob.Samples(given)
    with pytest.raises(ValueError, match="has no group 'prior'"):
        ob.Samples.from_arviz(data, group="prior")


def test_arviz_has_the_log_likelihood_and_predictions():
    pytest.importorskip("arviz")
    y = np.linspace(-1, 1, 5).astype(np.float32)
    likelihood = ob.likelihoods.Gaussian(noise_std=0.5)
    problem = ob.Problem(apply, lambda key: LIKE, (np.asarray(X), y), likelihood)
    samples = ob.Samples.from_chains(normal(KEY, (2, 3)))
    data = ob.to_arviz(samples, problem, key=KEY)
    assert data.log_likelihood["y"].shape == (2, 3, 5)
    residual = (y - np.asarray(apply(samples.draw(4), X))[:, 0]) / 0.5
    expected = -0.5 * residual**2 - np.log(0.5) - 0.5 * np.log(2 * np.pi)
    np.testing.assert_allclose(data.log_likelihood["y"].values[1, 1], expected, rtol=1e-4)
    assert data.posterior_predictive["y"].shape == (2, 3, 5)
    assert np.array_equal(data.observed_data["y"], y)
    q = ob.MeanField(LIKE, jax.tree.map(jnp.ones_like, LIKE))
    drawn = ob.to_arviz(q, key=KEY, num_samples=400)
    # Standard normal: the mean of 400 draws is within 5 standard errors.
    assert np.abs(drawn.posterior["w1"].values.mean((0, 1))).max() < 5 / np.sqrt(400)
    with pytest.raises(ValueError, match="exporting a MeanField draws random numbers; give key="):
        ob.to_arviz(q)


@pytest.mark.parametrize("name", ["draw.msgpack", "draw.safetensors", "draw"])
def test_params_files_there_and_back(name, tmp_path):
    params = {"net": normal(KEY, ())}
    if name == "draw":
        pytest.importorskip("orbax.checkpoint")
    path = ob.write_params(tmp_path / name, params)
    back = ob.read_params(path, like=params)
    assert jax.tree.all(jax.tree.map(np.array_equal, back, params))
    renamed = ob.read_params(path, names={"net/w1": "w1", "net/w2": "w2"}, like=LIKE)
    np.testing.assert_array_equal(apply(renamed, X), apply(params["net"], X))
    only = ob.read_params(path, names=lambda n: "w" if n.endswith("w2") else None)
    assert list(only) == ["w"]
    with pytest.raises(ValueError, match="has no array 'w9'; it has net/w1, net/w2"):
        ob.read_params(path, names={"w9": "w1"})
    with pytest.raises((ValueError, OSError), match="exists"):
        ob.write_params(path, params)


def test_files_that_the_packages_write_themselves(tmp_path):
    from flax import serialization

    params = normal(KEY, ())
    (tmp_path / "run.msgpack").write_bytes(serialization.to_bytes({"params": params, "step": 3}))
    found = ob.read_params(tmp_path / "run.msgpack", names={"params/w1": "w1", "params/w2": "w2"})
    np.testing.assert_array_equal(apply(found, X), apply(params, X))
    # No msgpack at all, and a name that has become a number.
    for content in (b"\xc1 no msgpack", b"\x82\xa1a\x01\x05\x02"):
        (tmp_path / "broken.msgpack").write_bytes(content)
        with pytest.raises(ValueError, match=r"broken\.msgpack is not a whole msgpack file"):
            ob.read_params(tmp_path / "broken.msgpack")
    checkpoint = pytest.importorskip("orbax.checkpoint")
    with checkpoint.StandardCheckpointer() as writer:
        writer.save(tmp_path / "run", {"params": params, "step": np.array(3)})
    found = ob.read_params(tmp_path / "run", names={"params/w1": "w1", "params/w2": "w2"})
    np.testing.assert_array_equal(apply(found, X), apply(params, X))
    members = [params, *(normal(key, ()) for key in jax.random.split(jax.random.key(5)))]
    moved = aligned(ob.Samples.from_list(members))
    ob.write_params(tmp_path / "back", moved.draw(2))
    with checkpoint.StandardCheckpointer() as reader:  # Orbax itself reads what goes back
        back = reader.restore(tmp_path / "back")
    np.testing.assert_allclose(apply(back, X), apply(members[2], X), rtol=1e-4, atol=1e-5)
