"""Posterior files: a round trip is exact, and a damaged file is refused."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import save_file

from onebasin.posterior import (
    Kronecker,
    LowRank,
    LowRankPrecision,
    MeanField,
    Mixture,
    Samples,
    load,
    read_header,
    save,
)
from onebasin.posterior.kronecker import sides
from onebasin.tensor_files import NoChecksumsWarning, TensorFileError, write_tensors


def tree(lead=(), scale=1.0):
    shapes = {
        "Dense_0": {"kernel": (2, 3), "bias": (3,)},
        "layers": [(2,), ((), (4, 1))],
        "none": None,
    }
    rng = np.random.default_rng(0)
    draw = lambda s: jnp.asarray(scale * np.abs(rng.standard_normal(lead + s)), jnp.float32)
    return jax.tree.map(
        draw, shapes, is_leaf=lambda s: isinstance(s, tuple) and all(isinstance(n, int) for n in s)
    )


def posteriors():
    mean_field = MeanField(tree(), tree(), {"stats": jnp.arange(3.0)})
    low_rank = LowRank(tree(), tree(), tree((2,)))
    samples = Samples(tree((4,)), jnp.array([0, 0, 1, 1]), {"stats": jnp.ones((4, 2))})
    mixture = Mixture(
        (mean_field, Mixture((low_rank, samples), jnp.array([0.5, 0.5]))), jnp.array([0.25, 0.75])
    )
    precise = LowRankPrecision(tree(), tree(), tree((2,)))
    found = {"MeanField": mean_field, "LowRank": low_rank, "LowRankPrecision": precise}
    bases = (
        jax.tree.map(lambda m, w=which: jnp.eye(sides(m.shape)[w])[::-1], tree())
        for which in (0, 1)
    )
    found["Kronecker"] = Kronecker(tree(), tree(), *bases)
    return found | {"Samples": samples, "Mixture": mixture}


def assert_same(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert x.dtype == y.dtype
        np.testing.assert_array_equal(x, y)


@pytest.mark.fast
@pytest.mark.parametrize(
    "kind", ["MeanField", "LowRank", "LowRankPrecision", "Kronecker", "Samples", "Mixture"]
)
def test_round_trip(tmp_path, kind):
    q = posteriors()[kind]
    config = {"kind": "mlp", "widths": [3]}
    path = save(tmp_path / "q.safetensors", q, network=config, seed=3, data="digits")
    assert_same(load(path), q)
    header = read_header(path)
    assert header.kind == kind
    assert header.network == config
    assert header.provenance == {"seed": 3, "data": "digits"}
    assert header.params_shapes()["Dense_0/kernel"] == (2, 3)
    assert header.params_shapes()["layers/1/1"] == (4, 1)
    assert os.listdir(tmp_path) == ["q.safetensors"]
    assert repr(header) == f"Header({kind}, {len(header.shapes)} tensors, network mlp)"


@given(
    st.recursive(
        st.tuples(st.integers(1, 3), st.integers(1, 3)).map(lambda s: np.ones(s, np.float32)),
        lambda inner: (
            st.dictionaries(st.text("abc/ ", min_size=1), inner, min_size=1, max_size=3)
            | st.dictionaries(st.integers(0, 20), inner, min_size=1, max_size=3)
            | st.lists(inner, min_size=1, max_size=3)
            | st.tuples(inner, inner)
        ),
        max_leaves=6,
    )
)
@settings(max_examples=40)
def test_round_trip_of_any_plain_tree(tmp_path_factory, params):
    path = tmp_path_factory.mktemp("files") / "q.safetensors"
    std = jax.tree.map(lambda a: 2 * a, params)
    try:
        save(path, MeanField(params, std))
    except ValueError as error:  # {"a": {"b": …}, "a/b": …} has two leaves of one name
        if "same key path" not in str(error):
            raise
        return
    loaded = load(path)
    assert jax.tree.structure(loaded.mean) == jax.tree.structure(params)
    jax.tree.map(np.testing.assert_array_equal, loaded.std, std)


def test_round_trip_of_dtypes(tmp_path):
    params = {"half": jnp.ones(3, jnp.bfloat16), "single": jnp.ones(2)}
    path = save(tmp_path / "q.safetensors", MeanField(params, params))
    assert_same(load(path).mean, params)
    with jax.enable_x64(True):
        double = {"w": jnp.asarray([1 / 3, 2 / 3])}
        path = save(tmp_path / "d.safetensors", MeanField(double, double))
        assert_same(load(path).mean, double)


def test_round_trip_of_other_containers_with_like(tmp_path):
    model = eqx.nn.MLP(2, 1, 3, 1, key=jax.random.key(0))
    params = eqx.filter(model, eqx.is_inexact_array)
    q = MeanField(params, jax.tree.map(jnp.ones_like, params))
    path = save(tmp_path / "q.safetensors", q)
    assert_same(load(path, like=params), q)
    by_path = load(path).mean
    assert set(by_path) == {"layers/0/weight", "layers/0/bias", "layers/1/weight", "layers/1/bias"}
    wrong = eqx.filter(eqx.nn.MLP(2, 1, 4, 1, key=jax.random.key(0)), eqx.is_inexact_array)
    with pytest.raises(TensorFileError, match="leaf 'layers/0/weight' has shape"):
        load(path, like=wrong)
    samples = Samples(jax.tree.map(lambda a: jnp.stack([a, a]), params))
    path = save(tmp_path / "s.safetensors", samples)
    assert_same(load(path, like=params), samples)


@pytest.mark.fast
def test_nothing_is_overwritten_without_a_flag(tmp_path):
    q = posteriors()["MeanField"]
    path = save(tmp_path / "q.safetensors", q)
    before = path.read_bytes()
    with pytest.raises(FileExistsError, match="overwrite=True"):
        save(path, q, seed=4)
    assert path.read_bytes() == before
    save(path, q, overwrite=True, seed=4)
    assert read_header(path).provenance == {"seed": 4}


def bad_files(tmp_path):
    good = save(tmp_path / "good.safetensors", posteriors()["Samples"])
    whole = good.read_bytes()
    foreign = tmp_path / "foreign.safetensors"
    save_file({"w": np.ones(2)}, foreign)
    text = tmp_path / "text.safetensors"
    text.write_text("not a tensor in sight")
    empty = tmp_path / "empty.safetensors"
    empty.write_bytes(b"")
    cut = tmp_path / "cut.safetensors"
    cut.write_bytes(whole[: len(whole) - 7])
    header = tmp_path / "header.safetensors"
    header.write_bytes(whole[:40])
    with safe_open(good, "numpy") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        metadata = file.metadata()

    first = {k: v for k, v in metadata.items() if k != "integrity"} | {"version": "1"}

    def variant(name, tensors=tensors, metadata=first, **changed):
        """By default of the first format version, which has no checksums."""
        path = tmp_path / f"{name}.safetensors"
        save_file(tensors, path, metadata=metadata | changed)
        return path

    changed = {k: v.copy() for k, v in tensors.items()}
    changed["draws/Dense_0/kernel"][1, 0, 2] += 1e-3
    lost = {k: v for k, v in metadata.items() if k != "integrity"}

    nan = {k: v.copy() for k, v in tensors.items()}
    nan["draws/Dense_0/kernel"][1, 0, 2] = np.nan
    infinite = {k: v.copy() for k, v in tensors.items()}
    infinite["state/stats"][:] = np.inf
    missing = {k: v for k, v in tensors.items() if k != "draws/Dense_0/bias"}
    no_chain = {k: v for k, v in tensors.items() if k != "chain"}
    ragged = tensors | {"draws/Dense_0/bias": np.ones((3, 3), np.float32)}
    odd = json.dumps({"kind": "Wishful", "trees": {}})
    return {
        "foreign": (foreign, "not a OneBasin posterior"),
        "text": (text, "foreign or cut short"),
        "empty": (empty, "foreign or cut short"),
        "cut": (cut, "foreign or cut short"),
        "header": (header, "foreign or cut short"),
        "version": (variant("version", version="3"), "format version '3'"),
        "numbers": (variant("numbers", changed, metadata), "numbers of 'draws/Dense_0/kernel'"),
        "words": (variant("words", metadata=metadata, provenance="{}x"), "header has changed"),
        "lost": (variant("lost", metadata=lost), "lost the checksums"),
        "eighth": (variant("eighth", tensors | {"chain": np.ones(7, bool)}), "holds BOOL numbers"),
        "damaged": (variant("damaged", posterior="{"), "damaged header"),
        "no-kind": (variant("no-kind", posterior="{}"), "damaged header"),
        "unknown": (variant("unknown", posterior=odd), "unknown kind 'Wishful'"),
        "nan": (variant("nan", nan), "NaN or infinity in 'draws/Dense_0/kernel'"),
        "infinite": (variant("infinite", infinite), "NaN or infinity in 'state/stats'"),
        "missing": (variant("missing", missing), "lacks an array"),
        "no-chain": (variant("no-chain", no_chain), "lacks an array"),
        "ragged": (variant("ragged", ragged), "leaf 'layers/0' has shape|leaf 'Dense_0/kernel'"),
        "folder": (tmp_path, "is a folder"),
    }


@pytest.mark.filterwarnings("ignore::onebasin.tensor_files.NoChecksumsWarning")
def test_bad_files_get_a_clear_error(tmp_path):
    for name, (path, message) in bad_files(tmp_path).items():
        with pytest.raises(TensorFileError, match=message) as error:
            load(path)
        assert str(path) in str(error.value), name
        assert "\n" not in str(error.value).strip(), name
    with pytest.raises(FileNotFoundError, match=r"no file .*nowhere"):
        load(tmp_path / "nowhere")


@given(st.integers(0, 10**9), st.integers(0, 255))
@settings(max_examples=60)
def test_a_flipped_byte_never_half_loads(tmp_path_factory, where, value):
    """A damaged file is refused, or the byte meant nothing and the posterior is the same."""
    path = tmp_path_factory.mktemp("flip") / "q.safetensors"
    q = posteriors()["MeanField"]
    save(path, q)
    content = bytearray(path.read_bytes())
    content[where % len(content)] = value
    path.write_bytes(content)
    try:
        loaded = load(path)
    except TensorFileError:
        return
    assert isinstance(loaded, MeanField)
    for a, b in zip(jax.tree.leaves(loaded), jax.tree.leaves(q), strict=True):
        np.testing.assert_array_equal(a, b)


def test_files_of_the_first_version_load_with_a_warning(tmp_path):
    q = posteriors()["MeanField"]
    path = save(tmp_path / "q.safetensors", q)
    with safe_open(path, "numpy") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        metadata = {k: v for k, v in file.metadata().items() if k != "integrity"}
    save_file(tensors, path, metadata=metadata | {"version": "1"})
    with pytest.warns(NoChecksumsWarning, match="without checksums"):
        loaded = load(path)
    np.testing.assert_array_equal(loaded.mean["Dense_0"]["kernel"], q.mean["Dense_0"]["kernel"])


def test_invalid_posteriors_are_not_written(tmp_path):
    q = posteriors()["MeanField"]
    path = tmp_path / "q.safetensors"
    for bad, message in [
        (lambda: write_tensors(path, {"w": np.array([np.nan])}, {}), "NaN"),
        (lambda: write_tensors(path, {"w": np.array([1j])}, {}), "'w' has the type complex128"),
        (lambda: save(path, q, note=object()), "provenance cannot be written"),
        (lambda: save(path, q, note=float("nan")), "provenance cannot be written"),
        (
            lambda: save(path, {"w": jnp.ones(2)}),  # pyright: ignore[reportArgumentType]
            "not a posterior",
        ),
    ]:
        with pytest.raises(TensorFileError, match=message):
            bad()
    with pytest.raises(FileNotFoundError, match="folder"):
        save(tmp_path / "nowhere" / "q.safetensors", q)
    assert os.listdir(tmp_path) == []


def test_a_writer_that_is_killed_leaves_the_old_file_whole(tmp_path):
    """A process that saves repeatedly is killed at random times; the file always loads."""
    program = textwrap.dedent("""
        import sys, numpy as np
        from onebasin.posterior import MeanField, save
        path, i = sys.argv[1], 0
        while True:
            tree = {"w": np.full((600, 600), 1.0 + i, np.float32)}
            save(path, MeanField(tree, tree), overwrite=True)
            print(i, flush=True)
            i += 1
    """)
    path = tmp_path / "q.safetensors"
    rng = np.random.default_rng(0)
    for _ in range(3):
        process = subprocess.Popen(
            [sys.executable, "-c", program, str(path)], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(rng.uniform(0, 0.05))
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        loaded = load(path)
        value = np.asarray(loaded.mean["w"])
        assert (value == value[0, 0]).all()
        np.testing.assert_array_equal(loaded.std["w"], value)
