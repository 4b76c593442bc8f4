"""Networks of one's own, named by the place of a function: found, made, recorded, found again."""

import json
import os
import re
import sys
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from onebasin.cli import main as cli
from onebasin.inference.fitting import fit
from onebasin.inference.methods import MAP
from onebasin.networks import to_config
from onebasin.networks.described import ChangedSourceWarning, DescribedNetwork
from onebasin.networks.own import OwnNetworkError, Place
from onebasin.posterior import MeanField, load, read_header, save
from onebasin.problem import Problem
from onebasin.symmetry import Symmetry, find_symmetry

EQUINOX = """
import equinox as eqx, jax

class Net(eqx.Module):
    enter: eqx.nn.Linear
    leave: eqx.nn.Linear

    def __init__(self, key):
        first, second = jax.random.split(key)
        self.enter = eqx.nn.Linear(3, 4, key=first)
        self.leave = eqx.nn.Linear(4, 1, key=second)

    def __call__(self, x):
        return self.leave(jax.nn.tanh(self.enter(x)))

def make_network(key):
    return Net(key)
"""
LINEN = """
from flax import linen as nn

def make_network():
    return nn.Sequential([nn.Dense(4), nn.tanh, nn.Dense(1)])
"""
NNX = """
from flax import nnx

def make_network(key, example):
    rngs = nnx.Rngs(key)
    return nnx.Sequential(
        nnx.Linear(example.shape[-1], 4, rngs=rngs), nnx.tanh, nnx.Linear(4, 1, rngs=rngs)
    )
"""
PLAIN = """
import jax.numpy as jnp, onebasin as ob

def make_network():
    params = {"w1": jnp.ones((3, 4)), "w2": jnp.ones((4, 1))}
    return ob.Network(lambda p, x: jnp.tanh(x @ p["w1"]) @ p["w2"], params)
"""
NOISY = """
import equinox as eqx

def make_network(key):
    return eqx.nn.Sequential([eqx.nn.Linear(3, 1, key=key), eqx.nn.Dropout(0.5)])
"""
KINDS = {"equinox": EQUINOX, "linen": LINEN, "nnx": NNX, "plain": PLAIN}
SMALL = ["--prior-variance", "1", "--epochs", "2", "--progress", "silent"]


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A working directory with a network of every kind, and data."""
    monkeypatch.chdir(tmp_path)
    for kind, source in KINDS.items():
        (tmp_path / f"{kind}_net.py").write_text(source)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(30, 3))
    np.savez("data.npz", x=x, y=x @ [1.0, -1.0, 0.5])
    return tmp_path


@pytest.mark.parametrize("kind", KINDS)
def test_networks_of_every_library(kind, here):
    network = DescribedNetwork.own(f"./{kind}_net.py:make_network", (3,))
    params = network.init(jax.random.key(1))
    assert network.apply(params, jnp.ones((5, 3))).shape == (5, 1)
    symmetry = find_symmetry(network, network.shapes, network.x)
    assert [group.size for group in symmetry.groups] == [4]
    other = network.init(jax.random.key(2))
    same = [
        bool((a == b).all()) for a, b in zip(*map(jax.tree.leaves, (params, other)), strict=True)
    ]
    assert network.fixed == (kind == "plain")
    assert all(same) == network.fixed
    assert network.config["source"] == f"{kind}_net.py:make_network"


def test_a_module_is_found_from_here_and_its_digest_is_that_of_its_source(here, monkeypatch):
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p not in ("", str(here))])
    place, file = Place.of("linen_net:make_network"), Place.of("linen_net.py:make_network")
    assert place.digest() == file.digest()
    assert place.make((3,)).network.params.keys() == file.make((3,)).network.params.keys()


LINEN_THAT_FAILS = """
import jax.numpy as jnp
from flax import linen as nn

class Net(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(4)(x) @ jnp.ones((3, 2))

def make():
    return Net()
"""


@pytest.mark.fast
@pytest.mark.parametrize(
    ("name", "source", "message"),
    [
        ("net", "", "'net' names no network; give ./file.py:function"),
        ("no such.thing:make", "", "neither a .py file nor a module"),
        ("./nowhere.py:make", "", "is not a file in"),
        ("nowhere_at_all:make", "", "there is no module nowhere_at_all"),
        ("./net.py:make", "x = 1", "has no function make"),
        ("./net.py:make", "def make(:", "net.py:make fails with SyntaxError"),
        ("./net.py:make", "1/0", "net.py:make fails with ZeroDivisionError: division by zero"),
        ("./net.py:make", "def make(width): ...", "needs an argument width"),
        ("./net.py:make", "def make(): return 3", "returns a int; return a Flax, Equinox"),
        ("./net.py:make", "def make(): raise KeyError('w')", "fails with KeyError: 'w'"),
        ("./net.py:make", "import sys; sys.exit(3)", "fails with SystemExit: 3"),
        ("./net.py:make", LINEN_THAT_FAILS, "fails on inputs of shape (1, 3) with TypeError: dot_"),
    ],
)
def test_a_wrong_network_is_one_sentence(name, source, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(source)
    with pytest.raises(OwnNetworkError, match=re.escape(message)):
        Place.of(name).make((3,))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("./equinox_net.py:make_network --data wide.npz", "fails on inputs of shape (2, 5) with"),
        ("./noisy.py:make_network --data data.npz", "fails on inputs of shape (2, 3) with Runtime"),
        ("./three.py:make_network --data data.npz", "returns 3 outputs for 1 target(s)"),
        ("./equinox_net.py:make_network --data labels.npz", "of 3 classes; give it one output per"),
        ("./equinox_net.py:make_network --data data.npz --width 8", "--width is a size of mlp"),
        ("lenet --data data.npz --depth 2", "--depth is a size of mlp, vit, gpt; drop it"),
        (
            "./equinox_net.py:make_network --data data.npz --limit 0",
            "--limit is 0; data.npz",
        ),
    ],
)
def test_a_network_that_does_not_fit_its_data_is_one_sentence(arguments, message, here, capsys):
    (here / "noisy.py").write_text(NOISY)
    (here / "three.py").write_text(EQUINOX.replace("(4, 1, key", "(4, 3, key"))
    np.savez("wide.npz", x=np.ones((10, 5)), y=np.ones(10))
    np.savez("labels.npz", x=np.ones((9, 3)), y=np.arange(9) % 3)
    with pytest.raises(SystemExit) as stop:
        cli.main(["fit", "map", "--out", "q.st", "--network", *arguments.split(), *SMALL])
    told = capsys.readouterr().err
    assert stop.value.code == 2
    assert message in told
    assert told.count("\n") == 1


def test_a_likelihood_that_the_params_are_not_of_is_refused(here, capsys):
    own = ["--network", "./equinox_net.py:make_network", "--data", "data.npz"]
    cli.main(["fit", "vi", *own, *SMALL, "--out", "q.st", "--likelihood", "gaussian"])
    cli.main(["fit", "vi", *own, *SMALL, "--out", "r.st"])
    for name, likelihood, message in [
        ("q.st", "learned-noise", "q.st has no parameter 'log_noise', and the learned-noise"),
        ("r.st", "gaussian", "r.st has a parameter 'log_noise', and the gaussian likelihood has"),
    ]:
        with pytest.raises(SystemExit) as stop:
            cli.main(["barrier", name, name, "--likelihood", likelihood])
        assert stop.value.code == 2
        assert message in capsys.readouterr().err


def test_a_fit_in_the_shell_and_all_that_follows(here, capsys):
    """Every command on posteriors of one's own network; no option is repeated after the fit."""
    own = ["--network", "./equinox_net.py:make_network", "--data", "data.npz"]
    cli.main(["fit", "vi", *own, *SMALL, "--runs", "2", "--out", "q.st"])
    cli.main(["fit", "ensemble", *own, *SMALL, "--members", "3", "--out", "e.st"])
    header = read_header("q-0.st")
    assert header.network == to_config("equinox_net.py:make_network", (3,))
    assert b"pickle" not in (here / "q-0.st").read_bytes()
    assert header.provenance["data"]["name"] == "data.npz"
    few = ["--num-samples", "4", "--points", "3"]
    cli.main(["symmetry", "q-0.st", "--out", "symmetry.json"])
    cli.main(["align", "q-1.st", "--to", "q-0.st", "--out", "moved.st"])
    cli.main(["align", "e.st", "--out", "together.st", "--objective", "l2"])
    cli.main(["barrier", "q-0.st", "q-1.st", "--align", "w2", *few, "--json"])
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["data"] == "data.npz"
    cli.main(["landscape", "q-0.st", "q-1.st", "--points", "3"])
    cli.main(["prune", "q-0.st", "--out", "pruned.st"])
    cli.main(["compact", "e.st", "--out", "compact.st"])
    symmetry = Symmetry.load("symmetry.json")
    aligned, q = load("moved.st"), load("q-1.st")
    assert sorted(np.ravel(aligned.mean["enter"]["bias"])) == sorted(
        np.ravel(q.mean["enter"]["bias"])
    )
    symmetry.check_shapes(q.mean)


def test_files_without_a_network_need_none_where_none_is_used(here, capsys):
    network = DescribedNetwork.own("./plain_net.py:make_network", (3,))
    symmetry = find_symmetry(network, network.shapes, network.x)
    key = jax.random.key(0)
    mean = jax.tree.map(lambda s: jax.random.normal(key, s.shape), network.shapes)
    q = MeanField(mean, jax.tree.map(lambda m: 0.1 + 0 * m, mean))
    moved = symmetry.act(symmetry.random(key=key), q)
    save("q0.st", q)
    save("q1.st", moved)
    symmetry.save("symmetry.json")
    cli.main(["prune", "q0.st", "--out", "p.st"])
    cli.main(
        ["compare", "q0.st", "q1.st", "--align", "w2", "--symmetry", "symmetry.json", "--json"]
    )
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["w2"] > 0.1
    assert found["alignment"]["distance_after"] == pytest.approx(0, abs=1e-6)
    cli.main(["align", "q1.st", "--to", "q0.st", "--out", "a.st", "--symmetry", "symmetry.json"])
    assert np.array_equal(load("a.st").mean["w1"], q.mean["w1"])
    with pytest.raises(SystemExit) as stop:
        cli.main(["align", "q1.st", "--to", "q0.st", "--out", "b.st"])
    assert stop.value.code == 2
    told = capsys.readouterr().err
    assert "does not name its network; give --network ./file.py:function" in told
    named = ["--network", "plain_net.py:make_network"]
    with pytest.raises(SystemExit):
        cli.main(["align", "q1.st", "--to", "q0.st", "--out", "b.st", *named])
    assert (
        "does not give the input shape of its network; give --input-shape"
        in capsys.readouterr().err
    )
    cli.main(["align", "q1.st", "--to", "q0.st", "--out", "b.st", *named, "--input-shape", "3"])
    assert np.array_equal(load("b.st").mean["w2"], q.mean["w2"])


def test_a_source_that_changed_is_named_and_another_network_refused(here):
    config = to_config("./plain_net.py:make_network", (3,))
    shapes = {"w1": (3, 4), "w2": (4, 1)}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        DescribedNetwork.from_config(config, "q.st", shapes)
    (here / "plain_net.py").write_text(PLAIN.replace("tanh", "sin"))
    with pytest.warns(ChangedSourceWarning, match="plain_net.py is not the source with which q.st"):
        changed = DescribedNetwork.from_config(config, "q.st", shapes)
    assert changed.apply({"w1": jnp.ones((3, 4)), "w2": jnp.ones((4, 1))}, jnp.ones((1, 3))) < 1
    (here / "plain_net.py").write_text(PLAIN.replace("(3, 4)", "(3, 5)"))
    with (
        pytest.warns(ChangedSourceWarning),
        pytest.raises(ValueError, match="not of the network that it names: leaf 'w1'"),
    ):
        DescribedNetwork.from_config(config, "q.st", shapes)
    elsewhere = {**config, "source": "gone.py:make_network"}
    with pytest.raises(OwnNetworkError, match=r"gone.py is not a file in .*network='./file.py:"):
        DescribedNetwork.from_config(elsewhere, "q.st", shapes)
    os.rename("linen_net.py", "moved_net.py")
    (here / "moved_net.py").write_text(PLAIN)
    found = DescribedNetwork.from_config(
        elsewhere, "q.st", shapes, name="moved_net.py:make_network"
    )
    assert found.input_shape == (3,)


@pytest.mark.usefixtures("here")
def test_a_problem_in_python_is_that_of_the_shell():
    """The same place in both: what Python fits, a command opens."""
    x = np.linspace(-1, 1, 60).reshape(20, 3).astype(np.float32)
    data = (x, x.sum(1, keepdims=True))
    place = "./equinox_net.py:make_network"
    problem = Problem.from_network(place, data, likelihood="learned-noise")
    first, second = (jax.tree.leaves(problem.init(jax.random.key(seed))) for seed in (0, 1))
    assert not np.array_equal(np.ravel(first[0]), np.ravel(second[0])), "a start for every key"
    fit(problem, MAP(epochs=2), key=jax.random.key(0), out="q.safetensors", progress="silent")
    assert read_header("q.safetensors").network == to_config(place, (3,))
    cli.main(["symmetry", "q.safetensors"])
