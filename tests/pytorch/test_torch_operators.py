"""Every operator against PyTorch's own, on its options and edge cases."""

import math

import jax.numpy as jnp
import numpy as np
import pytest
import torch

from onebasin.networks.pytorch.layouts import apply, plain
from onebasin.networks.pytorch.registry import OPERATORS, counterpart
from onebasin.pytorch_tensors import to_array, to_jax

INF = math.inf


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def positive(*shape: int) -> torch.Tensor:
    return normal(*shape).abs() + 0.1


def integers(low: int, high: int, *shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(seed))


X = normal(3, 4)
Y = normal(3, 4, seed=1)
UNIT = X / X.abs().max()
B = X > 0
C = Y > 0
IMAGE = normal(2, 4, 7, 6)
SEQUENCE = normal(5, 3, 4)  # time, batch, features


class Call:
    """The arguments of one call."""

    def __init__(self, *args, **kwargs):
        self.args, self.kwargs = args, kwargs


def gates(count: int, layers: int, ways: int, biases: bool = True) -> list[torch.Tensor]:
    """Weights of a recurrent layer of 5 units on 4 features."""
    arrays = []
    for layer in range(layers):
        inputs = 4 if layer == 0 else 5 * ways
        for _ in range(ways):
            shapes = [(5 * count, inputs), (5 * count, 5)] + [(5 * count,)] * (2 * biases)
            arrays += [normal(*s, seed=len(arrays) + i) * 0.5 for i, s in enumerate(shapes)]
    return arrays


def recurrent(count: int, carries: int) -> list[Call]:
    def call(layers, both, batch_first, biases=True):
        x = SEQUENCE.swapaxes(0, 1) if batch_first else SEQUENCE
        states = [normal(layers * (1 + both), 3, 5, seed=i) for i in range(carries)]
        first = states if count == 4 else states[0]
        weights = gates(count, layers, 1 + both, biases)
        return Call(x, first, weights, biases, layers, 0.0, False, both, batch_first)

    return [call(1, False, False), call(2, True, True), call(1, False, True, biases=False)]


def projected(biases: bool) -> Call:
    """An LSTM whose outputs are projected from 5 numbers to 2."""
    shapes = [(20, 4), (20, 2), *[(20,)] * (2 * biases), (2, 5)]
    weights = [normal(*shape, seed=i) * 0.5 for i, shape in enumerate(shapes)]
    first = [normal(1, 3, 2), normal(1, 3, 5)]
    return Call(SEQUENCE, first, weights, biases, 1, 0.0, False, False, False)


Q, K, V = (normal(2, 4, n, 3, seed=n) for n in (5, 6, 7))
V = V[:, :, :6]
MASK = integers(0, 2, 5, 6, seed=3).bool()
MASK[0] = False  # a row that attends to nothing

SAME = [Call(X)]
CASES: dict[str, list[Call]] = {
    **{
        f"{name}.default": [Call(X)]
        for name in [
            "abs",
            "atan",
            "asinh",
            "ceil",
            "cos",
            "cosh",
            "erf",
            "exp",
            "expm1",
            "floor",
            "isfinite",
            "isinf",
            "isnan",
            "neg",
            "relu",
            "sigmoid",
            "sign",
            "silu",
            "sin",
            "sinh",
            "tan",
            "tanh",
            "trunc",
            "mish",
        ]
    },
    **{
        f"{name}.default": [Call(positive(3, 4))]
        for name in ["log", "log10", "log1p", "log2", "reciprocal", "rsqrt", "sqrt"]
    },
    **{f"{name}.default": [Call(UNIT * 0.9)] for name in ["acos", "asin", "atanh"]},
    "acosh.default": [Call(1 + positive(3))],
    **{f"{name}.default": [Call(4 * X)] for name in ["hardsigmoid", "hardswish"]},
    **{
        f"{name}.Tensor": [Call(integers(0, 4, 3, 4), integers(0, 4, 3, 4, seed=1))]
        for name in ["eq", "ge", "gt", "le", "lt", "ne", "bitwise_and", "bitwise_or", "bitwise_xor"]
    },
    **{
        f"{name}.Scalar": [Call(integers(0, 4, 3, 4), 2)]
        for name in ["eq", "ge", "gt", "le", "lt", "ne"]
    },
    **{f"logical_{name}.default": [Call(B, C), Call(X, Y)] for name in ["and", "or", "xor"]},
    "logical_not.default": [Call(B), Call(X)],
    "bitwise_not.default": [Call(B), Call(integers(0, 4, 3))],
    "atan2.default": [Call(X, Y)],
    "maximum.default": [Call(X, Y)],
    "minimum.default": [Call(X, Y)],
    "mul.Tensor": [Call(X, Y), Call(X, 3), Call(integers(0, 5, 3), 0.5)],
    "add.Tensor": [Call(X, Y), Call(X, Y, alpha=2), Call(X, Y[0])],
    "add.Scalar": [Call(X, 2)],
    "sub.Tensor": [Call(X, Y), Call(X, Y, alpha=2)],
    "rsub.Scalar": [Call(X, 2), Call(X, 2, 3)],
    "div.Tensor": [Call(X, Y), Call(integers(0, 9, 4), 2)],
    "div.Tensor_mode": [
        Call(4 * X, Y, rounding_mode="floor"),
        Call(4 * X, Y, rounding_mode="trunc"),
    ],
    "fmod.Tensor": [Call(4 * X, Y)],
    "remainder.Tensor": [Call(4 * X, Y)],
    "remainder.Scalar": [Call(integers(-9, 9, 5), 4)],
    "pow.Tensor_Scalar": [Call(X, 2), Call(X, 3.0), Call(positive(3), 0.5), Call(positive(3), -2)],
    "pow.Tensor_Tensor": [Call(positive(3, 4), Y)],
    "pow.Scalar": [Call(2.0, X)],
    "clamp.default": [Call(X, -0.5, 0.5), Call(X, None, 0.5), Call(X, 0)],
    "clamp.Tensor": [Call(X, Y - 1, Y + 0.2)],
    "hardtanh.default": [Call(X, -1.0, 1.0), Call(4 * X, 0.0, 6.0)],
    "gelu.default": [Call(X), Call(X, approximate="tanh")],
    "leaky_relu.default": [Call(X), Call(X, 0.3)],
    "elu.default": [Call(X), Call(200 * X, 0.7), Call(X, 1.67, 1.05)],
    "softplus.default": [Call(X), Call(30 * X), Call(X, 2.0, 1.0)],
    "_prelu_kernel.default": [Call(X, torch.tensor([0.1, 0.2, 0.3, 0.4]))],
    "where.self": [Call(B, X, Y)],
    "where.ScalarSelf": [Call(B, 2.0, X)],
    "where.ScalarOther": [Call(B, X, 0)],
    "round.default": [Call(4 * X), Call(torch.tensor([0.5, 1.5, -2.5]))],
    "rrelu_with_noise_functional.default": [Call(X, torch.zeros(3, 4), 0.1, 0.3), Call(X, X)],
    **{f"__{name}__.Tensor": [Call(B, C)] for name in ["and", "or", "xor"]},
    "copy.default": [Call(X, Y), Call(X, torch.tensor(2))],
    # complex numbers
    "complex.default": [Call(X, Y)],
    "polar.default": [Call(positive(3, 4), Y)],
    "real.default": [Call(torch.complex(X, Y))],
    "imag.default": [Call(torch.complex(X, Y))],
    "view_as_complex.default": [Call(normal(3, 4, 2))],
    "view_as_real.default": [Call(torch.complex(X, Y))],
    "_fft_r2c.default": [Call(X, [1], kind, one) for kind in range(3) for one in (True, False)],
    "_fft_c2c.default": [
        Call(torch.complex(X, Y), [0, 1], kind, forward)
        for kind in range(3)
        for forward in (True, False)
    ],
    "_fft_c2r.default": [Call(torch.fft.rfft(X), [1], kind, 4) for kind in range(3)],
    "_to_copy.default": [Call(X, dtype=torch.int32), Call(B, dtype=torch.float32), Call(X)],
    "clone.default": SAME,
    "alias.default": SAME,
    "detach.default": SAME,
    "lift_fresh_copy.default": SAME,
    "dropout.default": [Call(X, 0.5, False), Call(X, 0.0, True)],
    # shape
    "view.default": [Call(X, [2, 6]), Call(X, [-1, 2])],
    "reshape.default": [Call(X, [12])],
    "_unsafe_view.default": [Call(X, [4, 3])],
    "permute.default": [Call(IMAGE, [0, -1, 1, 2])],
    "transpose.int": [Call(IMAGE, 1, -1)],
    "t.default": [Call(X), Call(X[0])],
    "expand.default": [Call(X[:1], [3, 4]), Call(X[0], [2, 5, -1])],
    "unsqueeze.default": [Call(X, 0), Call(X, -1)],
    "squeeze.default": [Call(X[None, :1])],
    "squeeze.dims": [Call(X[None, :, None], [0, 2, 1])],
    "select.int": [Call(X, 1, -1)],
    "slice.Tensor": [
        Call(X, 1, 1, 3),
        Call(X, 0, 0, 9223372036854775807),
        Call(X, -1, -3, -1),
        Call(X, 1, 0, 4, 2),
        Call(X, 1, 3, 1),
    ],
    "split_with_sizes.default": [Call(X, [1, 3], -1)],
    "split.Tensor": [Call(X, 2), Call(X, 3, 1)],
    "unbind.int": [Call(X), Call(X, -1)],
    "cat.default": [Call([X, Y], -1), Call([torch.zeros(0), X])],
    "stack.default": [Call([X, Y]), Call([X, Y], -1)],
    "flip.default": [Call(X, [-1])],
    "repeat.default": [Call(X, [2, 1, 3])],
    "roll.default": [Call(X, [1, -2], [0, 1]), Call(X, [2])],
    "constant_pad_nd.default": [Call(IMAGE, [1, 2, 0, 3], 0.5), Call(X, [-1, 1])],
    "tril.default": [Call(X), Call(X, -1)],
    "triu.default": [Call(X), Call(X, 1)],
    "diagonal.default": [Call(X), Call(IMAGE, 1, 2, 3)],
    # indexing
    "index.Tensor": [
        Call(X, [integers(0, 3, 5)]),
        Call(IMAGE, [None, integers(0, 4, 2), None, integers(0, 6, 2)]),
        Call(IMAGE, [integers(0, 2, 2), None, integers(0, 6, 2)]),
    ],
    "_unsafe_index.Tensor": [Call(X, [None, integers(0, 4, 3)])],
    "index_put.default": [
        Call(X, [torch.tensor([0, 2])], Y[:2]),
        Call(X, [torch.tensor([0, 0])], Y[:2], True),
        Call(X, [B], torch.tensor(2.0)),
        Call(X, [B[:, 0]], torch.tensor(2.0), True),
    ],
    "_unsafe_index_put.default": [Call(X, [None, torch.tensor([1])], torch.tensor(2.0))],
    "index_select.default": [Call(X, 1, integers(0, 4, 3))],
    "gather.default": [
        Call(X, 1, integers(0, 4, 3, 6)),
        Call(X, 0, integers(0, 3, 5, 2)),  # fewer indices than columns
    ],
    "scatter.src": [
        Call(X, 1, integers(0, 1, 3, 1), Y),
        Call(X, 0, integers(0, 1, 1, 4) + 1, Y[:2]),
    ],
    "scatter.value": [Call(X, 1, integers(0, 4, 3, 2), 3.0)],
    "scatter_add.default": [Call(X, 1, integers(0, 4, 2, 6), normal(3, 6, seed=2))],
    "bucketize.Tensor": [
        Call(X, torch.tensor([-1.0, 0.0, 1.0])),
        Call(torch.tensor([0.0, 1.0]), torch.tensor([-1.0, 0.0, 1.0]), right=True),
    ],
    "median.dim": [Call(X, 1), Call(X, 0, True)],
    "embedding.default": [Call(X, integers(0, 3, 2, 5)), Call(X, integers(0, 3, 2), 0)],
    "topk.default": [Call(X, 2), Call(X, 2, 0, False)],
    "sort.default": [Call(X), Call(X, 0, True), Call(torch.tensor(1.5))],
    "sort.stable": [Call(integers(0, 3, 8), stable=True)],
    # reductions
    "sum.default": [Call(X), Call(B)],
    "sum.dim_IntList": [Call(IMAGE, [1, -1]), Call(X, [0], True), Call(X, None)],
    "mean.default": SAME,
    "mean.dim": [Call(IMAGE, [2, 3], True), Call(X, [-1])],
    "var.correction": [Call(X, [1]), Call(X, [0, 1], correction=0), Call(X, [1], keepdim=True)],
    "prod.default": SAME,
    "prod.dim_int": [Call(X, 1, True)],
    "any.default": [Call(B)],
    "any.dim": [Call(B, 1), Call(X, 0, True)],
    "all.default": [Call(B)],
    "all.dim": [Call(B, 1)],
    "amax.default": [Call(IMAGE, [2, 3]), Call(X)],
    "amin.default": [Call(X, [0], True)],
    "max.dim": [Call(X, 1), Call(X, 0, True)],
    "min.dim": [Call(X, 1)],
    "argmax.default": [Call(X), Call(X, 1, True)],
    "argmin.default": [Call(X, 0)],
    "cumsum.default": [Call(X, 1), Call(B, 0)],
    "_softmax.default": [Call(X, -1, False)],
    "_log_softmax.default": [Call(X, 0, False)],
    "_safe_softmax.default": [Call(torch.where(MASK, Q.sum(-1).sum((0, 1))[:, None], -INF), -1)],
    "linalg_vector_norm.default": [
        Call(X),
        Call(X, 1, [1]),
        Call(X, INF, [0], True),
        Call(X, -INF),
        Call(X, 3.0, [0]),
        Call(X * B, 0, [0]),
    ],
    # creation
    "full.default": [Call([2, 3], 1.5), Call([2], 3)],
    "full_like.default": [Call(X, 2.0), Call(X, 2, dtype=torch.int32)],
    "zeros.default": [Call([2, 3])],
    "ones.default": [Call([2], dtype=torch.bool)],
    "zeros_like.default": SAME,
    "ones_like.default": SAME,
    "new_zeros.default": [Call(X, [2])],
    "new_ones.default": [Call(X, [2])],
    "new_full.default": [Call(X, [2], 7.0)],
    "arange.default": [Call(5), Call(4.0)],
    "arange.start": [Call(1, 5)],
    "arange.start_step": [Call(0, 10, 3), Call(5, 0, -2)],
    "scalar_tensor.default": [Call(2.5), Call(1, dtype=torch.bool)],
    # products
    "mm.default": [Call(X, Y.T)],
    "bmm.default": [Call(IMAGE[0], IMAGE[1].mT)],
    "mv.default": [Call(X, Y[0])],
    "dot.default": [Call(X[0], Y[0])],
    "matmul.default": [Call(IMAGE, IMAGE.mT), Call(X[0], Y[0])],
    "addmm.default": [
        Call(Y[:, 0], X, Y.T),
        Call(Y @ Y.T, X, Y.T, beta=2, alpha=3),
        Call(torch.full((3, 3), math.nan), X, Y.T, beta=0),
    ],
    "baddbmm.default": [Call(normal(4, 7, 7), IMAGE[0], IMAGE[1].mT, beta=0.5)],
    "linalg_householder_product.default": [Call(normal(4, 3), normal(3, seed=1))],
    "bilinear.default": [Call(X, normal(3, 5), normal(2, 4, 5), normal(2))],
    "_cdist_forward.default": [Call(X, Y[:2], 2.0, None), Call(IMAGE, IMAGE, 1.0, None)],
    "einsum.default": [Call("bi,bj->ij", [X, Y]), Call("...i,...i->...", [IMAGE, IMAGE])],
    "linear.default": [Call(IMAGE, normal(5, 6), normal(5)), Call(X, normal(2, 4))],
    "convolution.default": [
        Call(IMAGE, normal(6, 4, 3, 3), normal(6), [1], [1], [1], False, [0], 1),
        Call(IMAGE, normal(6, 2, 3, 2), None, [2, 1], [0, 1], [1, 2], False, [0, 0], 2),
        Call(IMAGE, normal(4, 1, 3, 3), normal(4), [1, 1], [1, 1], [1, 1], False, [0, 0], 4),
        Call(IMAGE[:, :, 0], normal(3, 4, 2), normal(3), [2], [1], [1], False, [0], 1),
        Call(normal(1, 2, 4, 4, 4), normal(3, 2, 2, 2, 2), None, [1], [0], [1], False, [0], 1),
        # Windows that do not overlap, with a rest at the edges.
        Call(normal(2, 4, 7, 8), normal(6, 4, 2, 3), normal(6), [2, 3], [0], [1], False, [0], 1),
        Call(IMAGE, normal(6, 4, 1, 1), None, [2, 1], [0], [1], False, [0], 1),
        Call(IMAGE, normal(3, 4, 1, 2), normal(3), [3, 2], [0], [1], False, [0], 1),
        Call(IMAGE, normal(3, 4, 2, 2), None, [2, 2], [0], [1, 2], False, [0], 1),
        Call(IMAGE, normal(4, 5, 2, 2), normal(5), [2, 2], [0, 0], [1, 1], True, [0, 0], 1),
        Call(IMAGE, normal(4, 3, 3, 3), None, [2, 1], [1, 0], [1, 2], True, [1, 0], 2),
    ],
    "scaled_dot_product_attention.default": [
        Call(Q, K, V),
        Call(Q, K, V, MASK),
        Call(Q, K, V, normal(2, 1, 5, 6)),
        Call(Q, K[:, :, :5], V[:, :, :5], None, 0.0, True, scale=0.3),
        Call(Q, K[:, :2], V[:, :2], normal(1, 1, 5, 6), enable_gqa=True),
        Call(Q, K[:, :2], V[:, :2], normal(2, 4, 5, 6), enable_gqa=True),
        Call(Q, K[:, :2], V[:, :2], MASK, enable_gqa=True),
    ],
    # norms
    "_native_batch_norm_legit_no_training.default": [
        Call(IMAGE, normal(4), normal(4, seed=1), normal(4, seed=2), positive(4), 0.1, 1e-5),
        Call(X, None, None, normal(4), positive(4), 0.1, 1e-3),
    ],
    "_native_batch_norm_legit.no_stats": [
        Call(IMAGE, normal(4), normal(4), True, 0.1, 1e-5),
    ],
    "native_layer_norm.default": [
        Call(IMAGE, [6], normal(6), normal(6, seed=1), 1e-5),
        Call(IMAGE, [7, 6], None, None, 1e-5),
    ],
    "native_group_norm.default": [
        Call(IMAGE, normal(4), normal(4, seed=1), 2, 4, 42, 2, 1e-5),
        Call(IMAGE, None, None, 2, 4, 42, 4, 1e-5),
    ],
    "rms_norm.default": [Call(IMAGE, [6], normal(6), 1e-6), Call(X, [4])],
    # windows
    "max_pool2d_with_indices.default": [
        Call(IMAGE, [2, 2]),
        Call(IMAGE, [3, 2], [2, 2], [1, 0]),
        Call(IMAGE, [2, 2], [2, 2], [0, 0], [2, 2], True),
        Call(integers(0, 9, 1, 2, 6, 6), [3, 3], [3, 3], [1, 1], [1, 1], True),
    ],
    "max_pool3d_with_indices.default": [Call(normal(1, 2, 4, 5, 6), [2, 2, 2])],
    "avg_pool1d.default": [Call(IMAGE[0], [3], [2], [1])],
    "avg_pool2d.default": [
        Call(IMAGE, [2, 2]),
        Call(IMAGE, [3, 2], [2, 2], [1, 1]),
        Call(IMAGE, [3, 2], [2, 2], [1, 1], False, False),
        Call(IMAGE, [3, 4], [2, 3], [1, 1], True),
        Call(IMAGE, [3, 4], [2, 3], [1, 1], True, False),
        Call(IMAGE, [2, 2], [2, 2], [0, 0], False, True, 3),
    ],
    "avg_pool3d.default": [Call(normal(1, 2, 4, 5, 6), [2, 2, 2])],
    "adaptive_avg_pool1d.default": [Call(IMAGE[0], [3])],
    "adaptive_avg_pool2d.default": [Call(IMAGE, [1, 1]), Call(IMAGE, [3, 4]), Call(IMAGE, [7, 2])],
    "_adaptive_avg_pool2d.default": [Call(IMAGE, [2, 3])],
    "_adaptive_avg_pool3d.default": [Call(normal(1, 2, 4, 5, 6), [2, 2, 3])],
    "adaptive_max_pool2d.default": [Call(IMAGE, [3, 4])],
    "adaptive_max_pool3d.default": [Call(normal(1, 2, 4, 5, 6), [2, 2, 3])],
    # recurrent
    "lstm.input": [*recurrent(4, 2), projected(True), projected(False)],
    "gru.input": recurrent(3, 1),
    "rnn_tanh.input": recurrent(1, 1),
    "rnn_relu.input": recurrent(1, 1),
}

SHAPES_ONLY = {"empty.memory_format": [2, 3], "empty_like.default": X, "new_empty.default": X}
NOT_COMPUTED = {"sym_size.int", "sym_numel.default"}
ASSERTIONS = {
    "_assert_tensor_metadata",
    "_assert_scalar",
    "_assert_async",
    "sym_constrain_range",
    "sym_constrain_range_for_size",
}


def in_jax(value):
    """An argument as an exported graph holds it."""
    if isinstance(value, torch.Tensor):
        return to_jax(value)
    if isinstance(value, torch.dtype):
        return np.dtype(str(value).removeprefix("torch."))
    return [in_jax(v) for v in value] if isinstance(value, list) else value


def outputs_of(result):
    return list(result) if isinstance(result, tuple | list) else [result]


def resolve(name: str):
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload)


@pytest.mark.parametrize("name", CASES)
def test_operator_is_that_of_pytorch(name: str) -> None:
    function = counterpart(f"aten.{name}")
    assert function is not None
    for call in CASES[name]:
        expected = outputs_of(resolve(name)(*call.args, **call.kwargs))
        kwargs = {key: in_jax(value) for key, value in call.kwargs.items()}
        result = apply(function, list(map(in_jax, call.args)), kwargs)
        found = list(map(plain, outputs_of(result)))
        assert len(found) == len(expected)
        for mine, theirs in zip(found, expected, strict=True):
            if mine is None:  # what no module reads: indices of a pool, saved statistics
                continue
            assert mine.shape == tuple(theirs.shape)
            if theirs.is_complex():
                np.testing.assert_allclose(mine, to_array(theirs), rtol=2e-5, atol=2e-6)
            elif theirs.is_floating_point() == jnp.issubdtype(mine.dtype, jnp.floating):
                # Sums in another order: a few units in the last place of single precision.
                np.testing.assert_allclose(mine, to_array(theirs), rtol=2e-5, atol=2e-6)
            else:  # the graph says the data type; the interpreter casts to it
                np.testing.assert_allclose(np.asarray(mine, float), theirs.double().numpy())


def test_every_operator_is_tested() -> None:
    tested = {counterpart_name(name) for name in [*CASES, *SHAPES_ONLY, *NOT_COMPUTED]}
    assert tested | ASSERTIONS == set(OPERATORS)


def counterpart_name(name: str) -> str:
    return name if name in OPERATORS else name.rpartition(".")[0]


def test_arrays_without_values_have_their_shape() -> None:
    for name, value in SHAPES_ONLY.items():
        function = counterpart(f"aten.{name}")
        assert function is not None
        args = (in_jax(value), [5]) if name.startswith("new") else (in_jax(value),)
        expected = value if isinstance(value, list) else list(value.shape)
        assert list(function(*args).shape) == ([5] if name.startswith("new") else expected)


def test_sizes() -> None:
    size, count = counterpart("aten.sym_size.int"), counterpart("aten.sym_numel.default")
    assert size is not None
    assert count is not None
    assert (size(in_jax(X), 1), count(in_jax(X))) == (4, 12)


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("dropout.default", (X, 0.5, True)),
        ("scaled_dot_product_attention.default", (Q, K, V, None, 0.1)),
    ],
)
def test_random_numbers_are_refused(name: str, args: tuple) -> None:
    function = counterpart(f"aten.{name}")
    assert function is not None
    with pytest.raises(ValueError, match="at random"):
        function(*map(in_jax, args))


@pytest.mark.parametrize("name", ["lstm.input", "gru.input"])
def test_dropout_between_recurrent_layers_is_refused(name: str) -> None:
    function = counterpart(f"aten.{name}")
    assert function is not None
    call = CASES[name][0]
    x, first, weights, biases, count, _, _, both, batch_first = map(in_jax, call.args)
    with pytest.raises(ValueError, match=r"module\.eval"):
        function(x, first, weights, biases, count, 0.3, True, both, batch_first)
