"""Small networks with signs, scales, rotations and invertible maps, in plain JAX and Flax.

Each is a `Case`: a function, its params, and inputs. They are as small as their structure allows,
so that the Jacobian of their outputs can be decomposed.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from onebasin.networks import ResNet20

EPSILON = 1e-3  # of normalisations: far from zero, so that no scale is a symmetry by accident


@dataclass(frozen=True)
class Case:
    """A network with params of random values, and a function that draws inputs."""

    apply: Callable[[Any, Any], Any]
    params: Any
    inputs: Callable[[int], Any]


def drawn(shapes: Any, seed: int = 0) -> Any:
    """Random values for a tree of shapes, scaled as initialisations are; gains near one."""
    rng = np.random.default_rng(seed)

    def draw(path: Any, shape: tuple[int, ...]) -> np.ndarray:
        if len(shape) == 1:
            return (path[-1].key in ("gain", "scale")) + 0.3 * rng.normal(size=shape)
        return rng.normal(size=shape) / np.sqrt(np.prod(shape[:-1]))

    is_shape = lambda node: isinstance(node, tuple)
    return jax.tree_util.tree_map_with_path(draw, shapes, is_leaf=is_shape)


def vectors(size: int, count: int) -> np.ndarray:
    return 3 * np.random.default_rng(1).normal(size=(count, size))


def tokens(count: int, length: int = 5, kinds: int = 7) -> np.ndarray:
    return np.random.default_rng(1).integers(0, kinds, size=(count, length))


def layer_norm(x: Any, p: Any) -> Any:
    x = x - x.mean(-1, keepdims=True)
    x = x / jnp.sqrt((x**2).mean(-1, keepdims=True) + EPSILON)
    return x * p["gain"] + p["shift"]


def rms_norm(x: Any, p: Any) -> Any:
    return x / jnp.sqrt((x**2).mean(-1, keepdims=True) + EPSILON) * p["gain"]


def mlp(activation: Callable[[Any], Any], widths: tuple[int, ...]) -> Case:
    shapes = [{"kernel": (a, b), "bias": (b,)} for a, b in itertools.pairwise(widths)]

    def apply(params: Any, x: Any) -> Any:
        for layer in params[:-1]:
            x = activation(x @ layer["kernel"] + layer["bias"])
        return x @ params[-1]["kernel"] + params[-1]["bias"]

    return Case(apply, drawn(shapes), partial(vectors, widths[0]))


def attention(x: Any, p: Any, heads: int, *, causal: bool) -> Any:
    def split(name: str) -> Any:
        y = x @ p[name]["kernel"]
        y = y + p[name]["bias"] if "bias" in p[name] else y
        return y.reshape(*x.shape[:-1], heads, -1)

    q, k, v = map(split, ("query", "key", "value"))
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(q.shape[-1])
    if causal:
        scores = jnp.where(np.tri(x.shape[-2], dtype=bool), scores, -1e9)
    mixed = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v)
    y = mixed.reshape(*x.shape[:-1], -1) @ p["out"]["kernel"]
    return y + p["out"]["bias"] if "bias" in p["out"] else y


def block_shapes(width: int, hidden: int, norm: str, *, biases: bool, gated: bool = False) -> Any:
    def dense(a: int, b: int) -> Any:
        return {"kernel": (a, b), **({"bias": (b,)} if biases else {})}

    gains = {"gain": (width,), **({"shift": (width,)} if norm == "layer" else {})}
    shapes = {name: dense(width, width) for name in ("query", "key", "value", "out")}
    shapes |= {"norm1": gains, "norm2": gains}
    shapes |= {"up": dense(width, hidden), "down": dense(hidden, width)}
    return shapes | ({"gate": dense(width, hidden)} if gated else {})


def block(x: Any, p: Any, norm: Callable[[Any, Any], Any], heads: int, *, causal: bool) -> Any:
    def dense(x: Any, p: Any) -> Any:
        return x @ p["kernel"] + (p.get("bias", 0.0))

    x = x + attention(norm(x, p["norm1"]), p, heads, causal=causal)
    y = norm(x, p["norm2"])
    if "gate" in p:
        y = jax.nn.silu(dense(y, p["gate"])) * dense(y, p["up"])
    else:
        y = jax.nn.gelu(dense(y, p["up"]))
    return x + dense(y, p["down"])


def gpt(norm: str, *, tied: bool = False, width: int = 6, heads: int = 2, blocks: int = 1) -> Case:
    """A causal transformer on tokens; with LayerNorm and biases, or with RMSNorm and gates."""
    layer = norm == "layer"
    shapes: Any = {
        "embedding": (7, width),
        "position": (5, width),
        "blocks": [
            block_shapes(width, width + 2, norm, biases=layer, gated=not layer)
            for _ in range(blocks)
        ],
        "norm": {"gain": (width,), **({"shift": (width,)} if layer else {})},
    }
    if not tied:
        shapes["head"] = (width, 7)
    normalise = layer_norm if layer else rms_norm

    def apply(params: Any, x: Any) -> Any:
        z = params["embedding"][x] + params["position"][: x.shape[-1]]
        for own in params["blocks"]:
            z = block(z, own, normalise, heads, causal=True)
        z = normalise(z, params["norm"])
        return z @ (params["embedding"].T if tied else params["head"])

    return Case(apply, drawn(shapes), tokens)


def vit(width: int = 6, heads: int = 2) -> Case:
    """A vision transformer on 4×4 images of 2 channels: patches of 2×2, a class token.

    Its tokens are averaged: the query of a class token alone is one constant vector.
    """
    shapes: Any = {
        "patch": {"kernel": (8, width), "bias": (width,)},
        "class": (1, width),
        "position": (5, width),
        "blocks": [block_shapes(width, width + 2, "layer", biases=True)],
        "norm": {"gain": (width,), "shift": (width,)},
        "head": {"kernel": (width, width + 1), "bias": (width + 1,)},
    }

    def apply(params: Any, x: Any) -> Any:
        patches = x.reshape(-1, 2, 2, 2, 2, 2).swapaxes(2, 3).reshape(-1, 4, 8)
        z = patches @ params["patch"]["kernel"] + params["patch"]["bias"]
        first = jnp.broadcast_to(params["class"], (len(z), 1, z.shape[-1]))
        z = jnp.concatenate([first, z], axis=1) + params["position"]
        for own in params["blocks"]:
            z = block(z, own, layer_norm, heads, causal=False)
        z = layer_norm(z, params["norm"]).mean(1)
        return z @ params["head"]["kernel"] + params["head"]["bias"]

    def images(count: int) -> np.ndarray:
        return np.random.default_rng(1).normal(size=(count, 4, 4, 2))

    return Case(apply, drawn(shapes), images)


def experts(count: int = 3, width: int = 4, hidden: int = 5) -> Case:
    """A mixture of ReLU experts behind a top-2 router."""
    shapes = {
        "in": {"kernel": (3, width), "bias": (width,)},
        "router": (width, count),
        "up": (count, width, hidden),
        "down": (count, hidden, width),
        "head": (width, width + 1),
    }

    def apply(p: Any, x: Any) -> Any:
        z = jnp.tanh(x @ p["in"]["kernel"] + p["in"]["bias"])
        gates = jax.nn.softmax(z @ p["router"])
        least = jax.lax.top_k(gates, 2)[0][:, 1:]
        gates = jnp.where(gates >= least, gates, 0.0)
        inner = jax.nn.relu(jnp.einsum("ni,eih->neh", z, p["up"]))
        return jnp.einsum("neh,ehi,ne->ni", inner, p["down"], gates) @ p["head"]

    return Case(apply, drawn(shapes), partial(vectors, 3))


def gru(width: int = 4, steps: int = 4) -> Case:
    """A gated recurrent unit over sequences; its candidate is odd, its gates are not."""
    names = ("reset", "update", "candidate")
    shapes: Any = {
        name: {"kernel": (3, width), "recurrent": (width, width), "bias": (width,)}
        for name in names
    }
    shapes["head"] = {"kernel": (width, 3), "bias": (3,)}

    def apply(p: Any, x: Any) -> Any:
        h = jnp.zeros((len(x), width), x.dtype)
        for t in range(steps):
            into = {n: x[:, t] @ p[n]["kernel"] + p[n]["bias"] for n in names}
            r, z = (jax.nn.sigmoid(into[n] + h @ p[n]["recurrent"]) for n in ("reset", "update"))
            new = jnp.tanh(into["candidate"] + (r * h) @ p["candidate"]["recurrent"])
            h = (1 - z) * new + z * h
        return h @ p["head"]["kernel"] + p["head"]["bias"]

    def sequences(count: int) -> np.ndarray:
        return np.random.default_rng(1).normal(size=(count, steps, 3))

    return Case(apply, drawn(shapes), sequences)


def convolution(x: Any, kernel: Any, groups: int = 1) -> Any:
    return jax.lax.conv_general_dilated(
        x,
        kernel,
        (1, 1),
        "SAME",
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        feature_group_count=groups,
    )


def group_normalised(channels: int = 4, groups: int = 2) -> Case:
    """Convolutions, each with GroupNorm and ReLU."""
    shapes: Any = [
        {"kernel": (3, 3, a, channels), "gain": (channels,), "shift": (channels,)}
        for a in (2, channels)
    ]
    shapes.append({"kernel": (channels, 3), "bias": (3,)})

    def apply(params: Any, x: Any) -> Any:
        for p in params[:-1]:
            x = convolution(x, p["kernel"])
            grouped = x.reshape(*x.shape[:-1], groups, -1)
            grouped = grouped - grouped.mean((1, 2, 4), keepdims=True)
            square = (grouped**2).mean((1, 2, 4), keepdims=True)
            x = (grouped / jnp.sqrt(square + EPSILON)).reshape(x.shape)
            x = jax.nn.relu(x * p["gain"] + p["shift"])
        return x.mean((1, 2)) @ params[-1]["kernel"] + params[-1]["bias"]

    return Case(apply, drawn(shapes), images_of(2))


def grouped(channels: int = 4, groups: int = 2) -> Case:
    """A grouped convolution between two plain ones, with ReLU."""
    shapes: Any = [
        {"kernel": (1, 1, 2, channels), "bias": (channels,)},
        {"kernel": (3, 3, channels // groups, channels), "bias": (channels,)},
        {"kernel": (channels, 3), "bias": (3,)},
    ]

    def apply(params: Any, x: Any) -> Any:
        x = jax.nn.relu(convolution(x, params[0]["kernel"]) + params[0]["bias"])
        x = jax.nn.relu(convolution(x, params[1]["kernel"], groups) + params[1]["bias"])
        return x.mean((1, 2)) @ params[2]["kernel"] + params[2]["bias"]

    return Case(apply, drawn(shapes), images_of(2))


def images_of(channels: int, side: int = 4) -> Callable[[int], np.ndarray]:
    return lambda count: np.random.default_rng(1).normal(size=(count, side, side, channels))


def resnet() -> Case:
    """ResNet20 of width 2 with filter response normalisation.

    Its images have 8×8 pixels, so that the last stage has 2×2: normalised over a single pixel, a
    unit would keep no more than its sign. Its 3×3 kernels sum to zero over the pixels, and the
    seed is one for which every unit is above its threshold for some inputs and below for others:
    units that never are have a larger null space of their own.
    """
    module = ResNet20(width=2, num_classes=3)
    x = np.zeros((1, 8, 8, 2), np.float32)
    params = jax.eval_shape(module.init, jax.random.key(0), x)["params"]
    shapes = jax.tree.map(lambda leaf: leaf.shape, params)

    def apply(params: Any, x: Any) -> Any:
        return module.apply({"params": params}, x)

    def centred(leaf: np.ndarray) -> np.ndarray:
        return leaf - leaf.mean((0, 1), keepdims=True) if leaf.shape[:2] == (3, 3) else leaf

    return Case(apply, jax.tree.map(centred, drawn(shapes, seed=48)), images_of(2, side=8))


CASES: dict[str, Callable[[], Case]] = {
    "MLP, ReLU": lambda: mlp(jax.nn.relu, (3, 5, 4, 2)),
    "MLP, tanh": lambda: mlp(jnp.tanh, (3, 5, 4, 2)),
    "MLP, linear": lambda: mlp(lambda z: z, (6, 5, 4, 6)),
    "MLP, single units": lambda: mlp(jax.nn.relu, (2, 1, 2, 1)),
    "CNN, GroupNorm": group_normalised,
    "CNN, grouped": grouped,
    "ResNet20": resnet,
    "ViT, LayerNorm": vit,
    "GPT, LayerNorm": lambda: gpt("layer"),
    "GPT, RMSNorm": lambda: gpt("rms"),
    "GPT, RMSNorm, tied": lambda: gpt("rms", tied=True),
    "mixture of experts": experts,
    "GRU": gru,
}
