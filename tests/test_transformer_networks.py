"""The transformers against formulas in NumPy, their groups by hand, and the text they learn."""

import hashlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from network_cases import count_of, random_params, shapes_of
from onebasin.data import load_dataset, pydoc
from onebasin.networks import GPT, ViT, from_config, network_named, to_config
from onebasin.networks.described import DescribedNetwork
from onebasin.symmetry import find_symmetry
from onebasin.symmetry.recording import Recorder

# --- formulas --------------------------------------------------------------------------------


def norm_by_formula(p, x, norm):
    if norm == "rms":
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * p["scale"]
    centred = x - x.mean(-1, keepdims=True)
    y = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-6) * p["scale"]
    return y + p.get("bias", 0)


def dense(p, x):
    return x @ p["kernel"] + p.get("bias", 0)


def attend_by_formula(p, x, heads, causal):
    """One head and one query at a time."""
    _, length, width = x.shape
    size = width // heads
    q, k, v = (dense(p[name], x) for name in ("query", "key", "value"))
    mixed = np.zeros_like(q)
    for h in range(heads):
        own = slice(h * size, (h + 1) * size)
        for i in range(length):
            seen = slice(0, i + 1 if causal else length)
            scores = np.einsum("nd,nkd->nk", q[:, i, own], k[:, seen, own]) / np.sqrt(size)
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            weights /= weights.sum(-1, keepdims=True)
            mixed[:, i, own] = np.einsum("nk,nkd->nd", weights, v[:, seen, own])
    return dense(p["out"], mixed)


def gelu(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def blocks_by_formula(p, x, net, causal):
    for i in range(net.depth):
        b = p[f"block{i + 1}"]
        y = norm_by_formula(b["norm1"], x, net.norm)
        x = x + attend_by_formula(b["attention"], y, net.heads, causal)
        y = norm_by_formula(b["norm2"], x, net.norm)
        x = x + dense(b["down"], gelu(dense(b["up"], y)))
    return norm_by_formula(p["norm"], x, net.norm)


VARIANTS = [("layer", True), ("layer", False), ("rms", True), ("rms", False)]


@pytest.mark.parametrize(("norm", "use_bias"), VARIANTS)
def test_vit_by_formula(norm, use_bias):
    net = ViT(
        patch=2, width=6, depth=2, heads=3, hidden=5, num_classes=4, norm=norm, use_bias=use_bias
    )
    params = random_params(net, (1, 4, 6, 2))
    p = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
    x = np.random.default_rng(0).uniform(size=(3, 4, 6, 2))
    tokens = [
        (2 * x[:, i : i + 2, j : j + 2] - 1).reshape(3, -1) for i in (0, 2) for j in (0, 2, 4)
    ]
    h = dense(p["embedding"], np.stack(tokens, axis=1)) + p["positions"]
    h = blocks_by_formula(p, h, net, causal=False)
    expected = dense(p["head"], h.mean(axis=1))
    found = jax.jit(net.apply)({"params": params}, x.astype(np.float32))
    # float32 through two blocks against float64.
    np.testing.assert_allclose(found, expected, rtol=2e-4, atol=2e-4)
    assert ("bias" in p["embedding"]) == use_bias


@pytest.mark.parametrize(("norm", "use_bias"), VARIANTS)
def test_gpt_by_formula(norm, use_bias):
    net = GPT(
        context=7, width=6, depth=2, heads=2, hidden=5, num_classes=9, norm=norm, use_bias=use_bias
    )
    params = random_params(net, (1, 7))
    p = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
    x = np.random.default_rng(0).integers(0, 9, (3, 5))  # shorter than the context
    h = p["characters"][x] + p["positions"][:5]
    h = blocks_by_formula(p, h, net, causal=True)
    found = jax.jit(net.apply)({"params": params}, x)
    np.testing.assert_allclose(found, h @ p["head"]["kernel"], rtol=2e-4, atol=2e-4)
    np.testing.assert_array_equal(found, jax.jit(net.apply)({"params": params}, x.astype(float)))


@pytest.mark.fast
def test_counts_of_parameters_by_hand():
    vit = shapes_of(ViT(), (1, 32, 32, 3))
    block = 4 * (192 * 192 + 192) + 2 * 2 * 192 + (192 * 768 + 768) + (768 * 192 + 192)
    expected = (48 * 192 + 192) + 64 * 192 + 6 * block + 2 * 192 + (192 * 10 + 10)
    assert count_of(vit) == expected
    gpt = shapes_of(GPT(norm="rms", use_bias=False), (1, 64))
    block = 4 * 128 * 128 + 2 * 128 + 2 * 128 * 512
    assert count_of(gpt) == 2 * 96 * 128 + 64 * 128 + 4 * block + 128


# --- groups ----------------------------------------------------------------------------------


def groups_of_block(name, heads, size, hidden):
    return {
        f"{name}/attention/query": heads,
        f"{name}/attention/query.2": size,
        f"{name}/attention/value": size,
        f"{name}/up": hidden,
    }


def network_on(net, shape):
    return DescribedNetwork.of_module(net, shape)


@pytest.mark.parametrize("norm", ["layer", "rms"])
@pytest.mark.parametrize("kind", ["vit", "gpt"])
def test_groups_are_those_by_hand(kind, norm):
    given = {"width": 12, "depth": 2, "heads": 3, "hidden": 10, "norm": norm}
    if kind == "vit":
        network, stream = network_on(ViT(patch=2, **given), (4, 4, 1)), "embedding"
    else:
        network, stream = network_on(GPT(context=5, num_classes=7, **given), (5,)), "characters"
    found = find_symmetry(network, network.shapes, network.x)
    expected = {stream: 12}
    for i in (1, 2):
        expected |= groups_of_block(f"block{i}", 3, 4, 10)
    assert {group.name: group.size for group in found.groups} == expected
    assert found.unused == ()
    own = find_symmetry(network, network.shapes, network.x, own_orders=True)
    sizes = {group.name: group.size for group in own.groups}
    # Heads and the dimensions inside them are 12 units in blocks of 4, for queries and for values.
    assert sizes["block1/attention/query.2"] == sizes["block2/attention/value"] == 12
    assert "block1/attention/query" not in sizes


def test_units_of_queries_and_keys_are_recorded_as_factors():
    network = network_on(ViT(patch=2, width=8, depth=1, heads=2), (4, 4, 1))
    params = network.init(jax.random.key(0))
    found = find_symmetry(network, params, network.x)
    recorder = Recorder(network.apply, params, network.x, found)
    assert recorder.unseen == ("block1/attention/query.2",)
    (sites,) = recorder.factors().values()
    assert len(sites) == 2  # those of queries and those of keys


# --- what is refused -------------------------------------------------------------------------


@pytest.mark.fast
@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: ViT(width=10, heads=4), "ViT: width 10 does not divide into 4 heads"),
        (lambda: GPT(norm="batch"), "GPT: norm must be one of layer, rms, got 'batch'"),
        (lambda: GPT(use_bias=1), "GPT: use_bias must be true or false, got 1"),  # pyright: ignore[reportArgumentType]
        (lambda: ViT(patch=0), "ViT: patch must be a positive integer"),
        (lambda: GPT(hidden=0), "GPT: hidden must be a positive integer"),
        (lambda: ViT(activation="sine"), "ViT: activation must be one of"),
        (lambda: shapes_of(ViT(patch=3), (1, 8, 8, 1)), "8×8 pixels do not divide into patches"),
        (lambda: shapes_of(ViT(), (1, 64)), "ViT takes images"),
        (lambda: shapes_of(GPT(context=4), (1, 5)), "5 positions are more than its context of 4"),
        (lambda: shapes_of(GPT(), (1, 5, 2)), r"GPT takes characters \[n, positions\]"),
    ],
)
def test_wrong_fields_and_inputs(make, says):
    with pytest.raises(ValueError, match=says):
        make()


@pytest.mark.fast
def test_names_and_configs():
    assert network_named("vit") == ViT()
    assert network_named("gpt") == GPT() == from_config({"kind": "GPT"})
    assert network_named("gpt", width=8, depth=1, input_shape=(16,)).context == 16  # pyright: ignore[reportAttributeAccessIssue]
    net = ViT(width=8, hidden=5, norm="rms", use_bias=False)
    assert from_config(to_config(net, (8, 8, 1))) == net


# --- text ------------------------------------------------------------------------------------


@pytest.mark.fast
def test_pydoc_is_the_reference_with_the_next_character_as_target():
    data = load_dataset("pydoc")
    text = pydoc.reference()
    numbers = [max(pydoc.ALPHABET.find(c), 0) for c in text[:100]]
    np.testing.assert_array_equal(data.train.x[0], numbers[:64])
    np.testing.assert_array_equal(data.train.y[0], numbers[1:65])
    np.testing.assert_array_equal(data.train.x[1], data.train.y[0][63:].tolist() + numbers[65:100]
                                  + data.train.x[1][36:].tolist())  # fmt: skip
    assert (len(data.train), len(data.test)) == pydoc.counts() == data.available
    assert data.train.x.dtype == np.int32
    assert data.num_classes == data.num_outputs == len(pydoc.ALPHABET) == len(set(pydoc.ALPHABET))
    whole = np.concatenate([data.train.x, data.test.x])
    assert whole.min() >= 0
    assert whole.max() < 96
    # Nothing beyond the alphabet but a handful of letters: the table of plain characters suffices.
    assert np.mean([c in pydoc.ALPHABET for c in text]) > 0.999


@pytest.mark.fast
def test_pydoc_holds_out_whole_stretches():
    data = load_dataset("pydoc")
    count = sum(pydoc.counts())
    stretches = np.arange(count) // 16
    assert len(data.test) == (stretches % 10 == 9).sum()
    first = "".join(pydoc.ALPHABET[c] for c in data.test.x[0])
    at = 9 * 16 * 64
    plain = "".join(c if c in pydoc.ALPHABET else "?" for c in pydoc.reference())
    assert plain[at : at + 64] == first


@pytest.mark.fast
def test_pydoc_records_its_version():
    record = load_dataset("pydoc").record
    assert record is not None
    digest = hashlib.sha256(pydoc.reference().encode()).hexdigest()
    assert digest.startswith(record["version"].partition("sha256:")[2])
    assert len(record["version"].partition("sha256:")[2]) == 16


def test_gpt_does_not_see_later_characters():
    net = GPT(context=6, width=8, depth=2, heads=2, num_classes=5)
    params = random_params(net, (1, 6))
    x = np.zeros((1, 6), int)
    changed = x.copy()
    changed[0, 4] = 3
    before, after = (np.asarray(net.apply({"params": params}, each)) for each in (x, changed))
    np.testing.assert_array_equal(before[:, :4], after[:, :4])
    assert not np.allclose(before[:, 4:], after[:, 4:])
    assert jnp.all(jnp.isfinite(after))
