"""Recurrent layers and attention, of PyTorch itself and written by hand."""

import torch
from torch import nn

from torch_zoo.entries import attention, entry, numbers, tokens


class Recurrent(nn.Module):
    def __init__(self, kind, layers=1, both=False, **options):
        super().__init__()
        self.layer = getattr(nn, kind)(
            4, 5, num_layers=layers, batch_first=True, bidirectional=both, **options
        )
        self.out = nn.Linear(5 * (1 + both), 3)

    def forward(self, x):
        h, _ = self.layer(x)
        return self.out(h[:, -1])


def cell(suffix: str) -> str:
    """Units of a layer: rows of all gates, and columns along which the state is read."""
    names = [f"layer.{name}_{suffix}" for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
    return " ".join([*(f"{name}[0]" for name in names), f"layer.weight_hh_{suffix}[1]"])


@entry((5, cell("l0") + " layer.weight_ih_l1[1]"), (5, cell("l1") + " >out"))
def lstm():
    return Recurrent("LSTM", 2), numbers(3, 4, 4)


@entry((5, cell("l0") + " layer.weight_ih_l1[1]"), (5, cell("l1") + " >out"))
def gru():
    return Recurrent("GRU", 2), numbers(3, 4, 4)


@entry((5, cell("l0") + " >out"))
def plain_recurrent_layer():
    return Recurrent("RNN", nonlinearity="relu"), numbers(3, 4, 4)


@entry((5, cell("l0") + " >out"), (5, cell("l0_reverse") + " >out"))
def bidirectional_lstm():
    return Recurrent("LSTM", both=True), numbers(3, 4, 4)


FUSED = (
    (2, "mha.in_proj_weight[0] mha.in_proj_bias[0] >mha.out_proj"),
    (4, "mha.in_proj_weight[0] mha.in_proj_bias[0]"),
    (4, "mha.in_proj_weight[0] mha.in_proj_bias[0] >mha.out_proj"),
    (8, "inp mha.in_proj_weight[1] mha.out_proj >out"),
)


class SelfAttention(nn.Module):
    def __init__(self, need_weights):
        super().__init__()
        self.inp, self.out = nn.Linear(5, 8), nn.Linear(8, 3)
        self.mha, self.need = nn.MultiheadAttention(8, 2, batch_first=True), need_weights

    def forward(self, x):
        h = self.inp(x)
        return self.out(h + self.mha(h, h, h, need_weights=self.need)[0])


@entry(*FUSED)
def multihead_attention():
    return SelfAttention(False), numbers(3, 4, 5)


@entry(*FUSED)
def multihead_attention_that_returns_weights():
    """Another way through PyTorch."""
    return SelfAttention(True), numbers(3, 4, 5)


@entry(
    (2, "qkv >proj"),
    (4, "qkv"),
    (4, "qkv >proj"),
    (8, "inp >qkv proj >out"),
)
def attention_with_fused_projections():
    """As vision transformers write it: one projection to (3, heads, size)."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.inp, self.out = nn.Linear(5, 8), nn.Linear(8, 3)
            self.qkv, self.proj = nn.Linear(8, 24), nn.Linear(8, 8)

        def forward(self, x):
            x = self.inp(x)
            n, length, width = x.shape
            q, k, v = self.qkv(x).reshape(n, length, 3, 2, 4).permute(2, 0, 3, 1, 4).unbind(0)
            weights = (q @ k.transpose(-2, -1) * 0.5).softmax(-1)
            return self.out(x + self.proj((weights @ v).transpose(1, 2).reshape(n, length, width)))

    return Net(), numbers(3, 4, 5)


@entry(
    *attention(2, 4, "q", "k", "v", "o"),
    (8, "inp >q >k >v o >out"),
)
def causal_attention_with_four_projections():

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.inp, self.out = nn.Linear(5, 8), nn.Linear(8, 3)
            self.q, self.k, self.v, self.o = (nn.Linear(8, 8) for _ in range(4))

        def forward(self, x):
            x = self.inp(x)
            parts = (p(x).unflatten(-1, (2, 4)).transpose(1, 2) for p in (self.q, self.k, self.v))
            h = nn.functional.scaled_dot_product_attention(*parts, is_causal=True)
            return self.out(x + self.o(h.transpose(1, 2).flatten(2)))

    return Net(), numbers(3, 4, 5)


class Encoder(nn.Module):
    """Embedding, learned positions, `nn.TransformerEncoder`, head."""

    def __init__(self, causal=False, **options):
        super().__init__()
        self.embed, self.out = nn.Embedding(12, 8), nn.Linear(8, 3)
        self.positions = nn.Parameter(torch.randn(1, 4, 8) * 0.1)
        layer = nn.TransformerEncoderLayer(8, 2, 10, **options)
        self.enc = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.causal = causal

    def forward(self, x):
        h = self.embed(x) + self.positions
        mask = nn.Transformer.generate_square_subsequent_mask(4) if self.causal else None
        return self.out(self.enc(h, mask=mask, is_causal=self.causal))


AT = "enc.layers.0."
QKV = f"{AT}self_attn.in_proj_weight[0] {AT}self_attn.in_proj_bias[0]"
ENCODER = (
    (2, f"{QKV} >{AT}self_attn.out_proj"),
    (4, QKV),
    (4, f"{QKV} >{AT}self_attn.out_proj"),
    (10, f"{AT}linear1 >{AT}linear2"),
    (8, f"embed.weight[1] positions[2] {AT}self_attn.in_proj_weight[1] {AT}self_attn.out_proj "
        f"{AT}norm1 {AT}norm2 >{AT}linear1 {AT}linear2 >out"),
)  # fmt: skip


@entry(*ENCODER)
def encoder_with_norms_first():
    return Encoder(norm_first=True, activation="gelu", batch_first=True), tokens(12, 3, 4)


@entry(*ENCODER)
def encoder_with_norms_last():
    return Encoder(norm_first=False, batch_first=True), tokens(12, 3, 4)


@entry(*ENCODER)
def causal_encoder():
    return Encoder(causal=True, norm_first=True, batch_first=True), tokens(12, 3, 4)
