"""Models of the transformers library, of one layer, with random weights."""

import torch
import transformers

from torch_zoo.entries import attention, entry, image, tokens

WORDS = {"input_ids": tokens(20)}
ENCODER = {
    "vocab_size": 20, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2,
    "intermediate_size": 10, "max_position_embeddings": 12, "initializer_range": 0.3,
}  # fmt: skip
DECODER = {
    **ENCODER, "num_key_value_heads": 1, "use_cache": False, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2,
}  # fmt: skip
VISION = {
    "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 10,
    "image_size": 8, "patch_size": 4, "num_labels": 3, "initializer_range": 0.3,
}  # fmt: skip


def bert_groups(at: str = "") -> tuple[tuple[int, str], ...]:
    """The groups of BERT and its relatives that share its names."""
    e, layer = f"{at}embeddings.", f"{at}encoder.layer.0."
    own = f"{layer}attention.self."
    q, k, v, out = f"{own}query", f"{own}key", f"{own}value", f"{layer}attention.output.dense"
    return (
        *attention(2, 4, q, k, v, out),
        (10, f"{layer}intermediate.dense >{layer}output.dense"),
        (8, f"{e}word_embeddings.weight[1] {e}position_embeddings.weight[1] "
            f"{e}token_type_embeddings.weight[1] {e}LayerNorm >{q} >{k} >{v} {out} "
            f"{layer}attention.output.LayerNorm >{layer}intermediate.dense {layer}output.dense "
            f"{layer}output.LayerNorm"),
    )  # fmt: skip


def with_stream(groups: tuple[tuple[int, str], ...], more: str) -> tuple[tuple[int, str], ...]:
    """The groups with more places of the last one, the residual stream."""
    *inner, (size, words) = groups
    return (*inner, (size, f"{words} {more}"))


@entry(*with_stream(bert_groups(), ">pooler.dense"), output="pooler_output")
def bert():
    return transformers.BertModel(transformers.BertConfig(**ENCODER)), WORDS


@entry(
    *with_stream(bert_groups("roberta."), ">classifier.dense"),
    (8, "classifier.dense >classifier.out_proj"),
    output="logits",
)
def roberta():
    config = transformers.RobertaConfig(**ENCODER, num_labels=3)
    return transformers.RobertaForSequenceClassification(config), WORDS


@entry(
    *with_stream(bert_groups("electra."), ">classifier.dense"),
    (8, "classifier.dense >classifier.out_proj"),
    output="logits",
)
def electra():
    config = transformers.ElectraConfig(**ENCODER, embedding_size=8, num_labels=3)
    return transformers.ElectraForSequenceClassification(config), WORDS


DISTIL = "distilbert.transformer.layer.0."


@entry(
    *attention(2, 4, *(f"{DISTIL}attention.{n}_lin" for n in ("q", "k", "v", "out"))),
    (10, f"{DISTIL}ffn.lin1 >{DISTIL}ffn.lin2"),
    (8, "distilbert.embeddings.word_embeddings.weight[1] distilbert.embeddings.LayerNorm "
        "distilbert.embeddings.position_embeddings.weight[1] "
        f">{DISTIL}attention.q_lin >{DISTIL}attention.k_lin >{DISTIL}attention.v_lin "
        f"{DISTIL}attention.out_lin {DISTIL}sa_layer_norm >{DISTIL}ffn.lin1 {DISTIL}ffn.lin2 "
        f"{DISTIL}output_layer_norm >pre_classifier"),
    (8, "pre_classifier >classifier"),
    output="logits",
)  # fmt: skip
def distilbert():
    config = transformers.DistilBertConfig(
        vocab_size=20, dim=8, hidden_dim=10, n_layers=1, n_heads=2, max_position_embeddings=12,
        num_labels=3, initializer_range=0.3,
    )  # fmt: skip
    return transformers.DistilBertForSequenceClassification(config), WORDS


GPT2 = "transformer.h.0."


@entry(
    # Conv1D keeps its weight as [in, out].
    (2, f"{GPT2}attn.c_attn.weight[1] {GPT2}attn.c_attn.bias[0] {GPT2}attn.c_proj.weight[0]"),
    (4, f"{GPT2}attn.c_attn.weight[1] {GPT2}attn.c_attn.bias[0]"),
    (4, f"{GPT2}attn.c_attn.weight[1] {GPT2}attn.c_attn.bias[0] {GPT2}attn.c_proj.weight[0]"),
    (10, f"{GPT2}mlp.c_fc.weight[1] {GPT2}mlp.c_fc.bias[0] {GPT2}mlp.c_proj.weight[0]"),
    (8, f"transformer.wte.weight[1] transformer.wpe.weight[1] {GPT2}ln_1 {GPT2}ln_2 "
        f"{GPT2}attn.c_attn.weight[0] {GPT2}attn.c_proj.weight[1] {GPT2}attn.c_proj.bias[0] "
        f"{GPT2}mlp.c_fc.weight[0] {GPT2}mlp.c_proj.weight[1] {GPT2}mlp.c_proj.bias[0] "
        "transformer.ln_f"),
    output="logits",
)  # fmt: skip
def gpt2():
    """The embedding is also the output layer: one parameter under two names."""
    config = transformers.GPT2Config(
        vocab_size=20, n_positions=12, n_embd=8, n_layer=1, n_head=2, n_inner=10, use_cache=False,
        initializer_range=0.3, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config), WORDS


def llama_groups(stream: str = "") -> tuple[tuple[int, str], ...]:
    """One layer of Llama and its relatives: two heads of queries share one of keys and values.

    Rotary positions keep the dimensions of queries and keys in order; which of the two heads is
    first does not matter, and neither do the dimensions of the values.
    """
    at = "model.layers.0."
    q, k, v, o = (f"{at}self_attn.{name}_proj" for name in "qkvo")
    return (
        (2, f"{q} >{o}"),
        (4, f"{v} >{o}"),
        (10, f"{at}mlp.gate_proj {at}mlp.up_proj >{at}mlp.down_proj"),
        (8, f"model.embed_tokens.weight[1] >{q} >{k} >{v} {o} >{at}mlp.gate_proj "
            f">{at}mlp.up_proj {at}mlp.down_proj {at}input_layernorm "
            f"{at}post_attention_layernorm model.norm {stream}"),
    )  # fmt: skip


@entry(*llama_groups(">lm_head"), output="logits", single=True)
def llama():
    config = transformers.LlamaConfig(**DECODER)
    return transformers.LlamaForCausalLM(config), WORDS


@entry(*llama_groups(">lm_head"), output="logits", single=True)
def mistral():
    return transformers.MistralForCausalLM(transformers.MistralConfig(**DECODER)), WORDS


@entry(*llama_groups(), output="logits", single=True)
def qwen2():
    config = transformers.Qwen2Config(**DECODER, tie_word_embeddings=True)
    return transformers.Qwen2ForCausalLM(config), WORDS


GEMMA = "model.layers.0."


@entry(
    *with_stream(llama_groups(), f"{GEMMA}pre_feedforward_layernorm "
                                 f"{GEMMA}post_feedforward_layernorm"),
    output="logits", single=True,
)  # fmt: skip
def gemma2():
    config = transformers.Gemma2Config(**DECODER, head_dim=4)
    return transformers.Gemma2ForCausalLM(config), WORDS


PHI = "model.layers.0."


@entry(
    (2, f"{PHI}self_attn.qkv_proj >{PHI}self_attn.o_proj"),
    (4, f"{PHI}self_attn.qkv_proj >{PHI}self_attn.o_proj"),
    (10, f"{PHI}mlp.gate_up_proj >{PHI}mlp.down_proj"),
    (8, f"model.embed_tokens.weight[1] >{PHI}self_attn.qkv_proj {PHI}self_attn.o_proj "
        f">{PHI}mlp.gate_up_proj {PHI}mlp.down_proj {PHI}input_layernorm "
        f"{PHI}post_attention_layernorm model.norm >lm_head"),
    output="logits", single=True,
)  # fmt: skip
def phi3():
    return transformers.Phi3ForCausalLM(transformers.Phi3Config(**DECODER)), WORDS


OPT = "model.decoder.layers.0."


@entry(
    *attention(2, 4, *(f"{OPT}self_attn.{n}_proj" for n in ("q", "k", "v", "out"))),
    (10, f"{OPT}fc1 >{OPT}fc2"),
    (8, "model.decoder.embed_tokens.weight[1] model.decoder.embed_positions.weight[1] "
        f">{OPT}self_attn.q_proj >{OPT}self_attn.k_proj >{OPT}self_attn.v_proj "
        f"{OPT}self_attn.out_proj {OPT}self_attn_layer_norm >{OPT}fc1 {OPT}fc2 "
        f"{OPT}final_layer_norm model.decoder.final_layer_norm"),
    output="logits",
)  # fmt: skip
def opt():
    config = transformers.OPTConfig(
        vocab_size=20, hidden_size=8, num_hidden_layers=1, ffn_dim=10, num_attention_heads=2,
        max_position_embeddings=12, word_embed_proj_dim=8, init_std=0.3, pad_token_id=0,
        bos_token_id=1, eos_token_id=2, use_cache=False,
    )  # fmt: skip
    return transformers.OPTForCausalLM(config), WORDS


T5 = "encoder.block.0.layer."


@entry(
    (2, f"{T5}0.SelfAttention.q {T5}0.SelfAttention.k {T5}0.SelfAttention.v "
        f">{T5}0.SelfAttention.o {T5}0.SelfAttention.relative_attention_bias.weight[1]"),
    (4, f"{T5}0.SelfAttention.q {T5}0.SelfAttention.k"),
    (4, f"{T5}0.SelfAttention.v >{T5}0.SelfAttention.o"),
    (10, f"{T5}1.DenseReluDense.wi >{T5}1.DenseReluDense.wo"),
    output="last_hidden_state", single=True,
)  # fmt: skip
def t5_encoder():
    """The stream is the output, so it stays in order."""
    config = transformers.T5Config(
        vocab_size=20, d_model=8, d_kv=4, d_ff=10, num_layers=1, num_heads=2, use_cache=False
    )
    return transformers.T5EncoderModel(config), WORDS


def pixels(side: int) -> dict[str, torch.Tensor]:
    return {"pixel_values": image(3, side)}


VIT = "vit.layers.0."
Q, K, V, OUT = (f"{VIT}attention.{name}_proj" for name in "qkvo")


@entry(
    *attention(2, 4, Q, K, V, OUT),
    (10, f"{VIT}mlp.fc1 >{VIT}mlp.fc2"),
    (8, "vit.embeddings.cls_token[2] vit.embeddings.position_embeddings[2] "
        "vit.embeddings.patch_embeddings.projection vit.layernorm >classifier "
        f"{VIT}layernorm_before >{Q} >{K} >{V} {OUT} {VIT}layernorm_after >{VIT}mlp.fc1 "
        f"{VIT}mlp.fc2"),
    output="logits",
)  # fmt: skip
def vit():
    return transformers.ViTForImageClassification(transformers.ViTConfig(**VISION)), pixels(8)


DINO = "dinov2.encoder.layer.0."
DQ, DK, DV, DO = (f"{DINO}attention.{name}_proj" for name in "qkvo")


@entry(
    *attention(2, 4, DQ, DK, DV, DO),
    (32, f"{DINO}mlp.fc1 >{DINO}mlp.fc2"),
    (8, "dinov2.embeddings.cls_token[2] dinov2.embeddings.position_embeddings[2] "
        "dinov2.embeddings.patch_embeddings.projection dinov2.layernorm >classifier "
        f"{DINO}norm1 >{DQ} >{DK} >{DV} {DO} {DINO}layer_scale1.lambda1[0] {DINO}norm2 "
        f">{DINO}mlp.fc1 {DINO}mlp.fc2 {DINO}layer_scale2.lambda1[0]"),
    output="logits",
)  # fmt: skip
def dinov2():
    """The head reads the class token and the mean of the patches, one after the other."""
    config = {k: v for k, v in VISION.items() if k != "intermediate_size"}
    return transformers.Dinov2ForImageClassification(transformers.Dinov2Config(**config)), pixels(8)


CLIP = "encoder.layers.0."


@entry(
    *attention(2, 4, *(f"{CLIP}self_attn.{name}_proj" for name in ("q", "k", "v", "out"))),
    (10, f"{CLIP}mlp.fc1 >{CLIP}mlp.fc2"),
    output="pooler_output",
)
def clip_vision():
    """The stream is the output, so it stays in order."""
    config = {k: v for k, v in VISION.items() if k != "num_labels"}
    return transformers.CLIPVisionModel(transformers.CLIPVisionConfig(**config)), pixels(8)


def convnext_stage(stage: int) -> str:
    """The places of the stream inside the layer of a stage."""
    at = f"convnext.encoder.stages.{stage}.layers.0."
    return f"{at}layer_scale_parameter[0] {at}dwconv {at}layernorm >{at}pwconv1 {at}pwconv2"


STAGES = "convnext.encoder.stages."


@entry(
    (4, "convnext.embeddings.patch_embeddings convnext.embeddings.layernorm "
        f"{convnext_stage(0)} {STAGES}1.downsampling_layer.0 >{STAGES}1.downsampling_layer.1"),
    (16, f"{STAGES}0.layers.0.pwconv1 >{STAGES}0.layers.0.pwconv2"),
    (6, f"{STAGES}1.downsampling_layer.1 {convnext_stage(1)} convnext.layernorm >classifier"),
    (24, f"{STAGES}1.layers.0.pwconv1 >{STAGES}1.layers.0.pwconv2"),
    output="logits",
)  # fmt: skip
def convnext():
    config = transformers.ConvNextConfig(
        num_channels=3, patch_size=2, num_stages=2, hidden_sizes=[4, 6], depths=[1, 1],
        image_size=8, num_labels=3, initializer_range=0.3, layer_scale_init_value=0.5,
    )  # fmt: skip
    return transformers.ConvNextForImageClassification(config), pixels(8)


def swin_stage(stage: int, size: int) -> tuple[tuple[tuple[int, str], ...], str]:
    """The groups inside the block of a stage, and the places of its stream."""
    at = f"swin.encoder.layers.{stage}.blocks.0."
    q, k, v, o = (f"{at}attention.{name}_proj" for name in "qkvo")
    table = f"{at}attention.relative_position_bias.relative_position_bias_table[1]"
    (heads, words), *rest = attention(2, size // 2, q, k, v, o)
    hidden = (4 * size, f"{at}mlp.fc1 >{at}mlp.fc2")
    stream = f"{at}layernorm_before >{q} >{k} >{v} {o} {at}layernorm_after >{at}mlp.fc1 {at}mlp.fc2"
    return ((heads, f"{words} {table}"), *rest, hidden), stream


SWIN = "swin.encoder.layers.0.downsample."


@entry(
    *swin_stage(0, 4)[0],
    # Four neighbouring patches become one of four times the channels.
    (4, "swin.embeddings.patch_embeddings.projection swin.embeddings.norm "
        f"{swin_stage(0, 4)[1]} {SWIN}norm >{SWIN}reduction"),
    *swin_stage(1, 8)[0],
    (8, f"{SWIN}reduction {swin_stage(1, 8)[1]} swin.layernorm >classifier"),
    output="logits",
)  # fmt: skip
def swin():
    config = transformers.SwinConfig(
        image_size=8, patch_size=2, embed_dim=4, depths=[1, 1], num_heads=[2, 2], window_size=2,
        num_labels=3,
    )  # fmt: skip
    return transformers.SwinForImageClassification(config), pixels(8)


MIXER = "backbone.layers.0.mixer."


@entry(
    (12, f"{MIXER}in_proj {MIXER}conv1d {MIXER}A_log[0] {MIXER}D[0] >{MIXER}x_proj "
         f"{MIXER}dt_proj >{MIXER}out_proj"),
    (3, f"{MIXER}x_proj {MIXER}A_log[1]"),
    (6, f"backbone.embeddings.weight[1] backbone.layers.0.norm >{MIXER}in_proj {MIXER}out_proj "
        "backbone.norm_f"),
    output="logits", single=True,
)  # fmt: skip
def mamba():
    """A state-space model: channels, the states of each, and the stream."""
    config = transformers.MambaConfig(
        vocab_size=20, hidden_size=6, state_size=3, num_hidden_layers=1, use_cache=False
    )
    return transformers.MambaForCausalLM(config), WORDS


DEBERTA = "encoder.layer.0."
OWN = f"{DEBERTA}attention.self."
POSITIONS = f"{OWN}pos_key_proj {OWN}pos_query_proj"


@entry(
    (2, f"{OWN}query_proj {OWN}key_proj {OWN}value_proj {POSITIONS} "
        f">{DEBERTA}attention.output.dense"),
    (4, f"{OWN}query_proj {OWN}key_proj {POSITIONS}"),
    (4, f"{OWN}value_proj >{DEBERTA}attention.output.dense"),
    (8, f"encoder.rel_embeddings.weight[1] >{OWN}pos_key_proj >{OWN}pos_query_proj"),
    (10, f"{DEBERTA}intermediate.dense >{DEBERTA}output.dense"),
    output="last_hidden_state", single=True,
)  # fmt: skip
def deberta():
    """Content and positions have projections of their own; the scale is a float32 tensor."""
    config = transformers.DebertaV2Config(
        **ENCODER, relative_attention=True, pos_att_type=["c2p", "p2c"]
    )
    return transformers.DebertaV2Model(config), WORDS


ALBERT = "encoder.albert_layer_groups.0.albert_layers.0."


@entry(
    (6, "embeddings.word_embeddings.weight[1] embeddings.position_embeddings.weight[1] "
        "embeddings.token_type_embeddings.weight[1] embeddings.LayerNorm "
        ">encoder.embedding_hidden_mapping_in"),
    *attention(2, 4, *(f"{ALBERT}attention.{n}" for n in ("query", "key", "value", "dense"))),
    (10, f"{ALBERT}ffn >{ALBERT}ffn_output"),
    output="last_hidden_state",
)  # fmt: skip
def albert():
    """The embedding has units of its own; the stream is the output."""
    config = transformers.AlbertConfig(**ENCODER, embedding_size=6)
    return transformers.AlbertModel(config), WORDS
