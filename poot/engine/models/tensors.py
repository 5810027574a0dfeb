"""What a decoder's tensors are called in each file format, by the part they play.

GGUF names follow gguf-py's `TENSOR_NAMES`, safetensors names Hugging Face's modules. Both schemes are regular enough
that a spec decides everything; a family needs no table of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

from poot.engine.checkpoint.types import FileFormat
from poot.engine.models.spec import DecoderSpec, QkNorm


@dataclass(frozen=True, kw_only=True)
class LayerTensors:
    """Names of one layer's tensors. None where the layer has no such tensor.

    `qkv` and `gate_up` hold one name where the file fuses them, else one for each part; the biases likewise.
    """

    attention_norm: str | None
    qkv: tuple[str, ...]
    qkv_bias: tuple[str, ...] | None
    query_norm: str | None
    key_norm: str | None
    output: str
    output_bias: str | None
    attention_post_norm: str | None
    mlp_norm: str | None
    gate_up: tuple[str, ...]
    gate_up_bias: tuple[str, ...] | None
    down: str
    down_bias: str | None
    mlp_post_norm: str | None


@dataclass(frozen=True, kw_only=True)
class DecoderTensors:
    """Names of a decoder's tensors. `output_head` is None where the embedding table is the head."""

    token_embedding: str
    output_norm: str
    output_head: str | None
    layers: tuple[LayerTensors, ...]


def decoder_tensors(spec: DecoderSpec, file_format: FileFormat) -> DecoderTensors:
    """The names that `spec`'s tensors have in a file of `file_format`."""
    if file_format is FileFormat.GGUF:
        head, layer = "output.weight", _gguf_layer
        embedding, norm = "token_embd.weight", "output_norm.weight"
    else:
        head, layer = "lm_head.weight", _safetensors_layer
        embedding, norm = "model.embed_tokens.weight", "model.norm.weight"
    return DecoderTensors(
        token_embedding=embedding,
        output_norm=norm,
        output_head=None if spec.tied_embeddings else head,
        layers=tuple(layer(spec, index) for index in range(len(spec.layers))),
    )


def _gguf_layer(spec: DecoderSpec, index: int) -> LayerTensors:
    block = f"blk.{index}"
    qkv = ("attn_qkv",) if spec.fused_qkv else ("attn_q", "attn_k", "attn_v")
    # Phi 3 keeps its fused gate and up projection, gate first, under the name of the up projection.
    gate_up = ("ffn_up",) if spec.fused_gate_up else ("ffn_gate", "ffn_up")
    return _layer(
        spec,
        prefix=block,
        attention_norm="attn_norm",
        qkv=qkv,
        query_norm="attn_q_norm",
        key_norm="attn_k_norm",
        output="attn_output",
        attention_post_norm="post_attention_norm",
        mlp_norm="ffn_norm",
        gate_up=gate_up,
        down="ffn_down",
        mlp_post_norm="post_ffw_norm",
    )


def _safetensors_layer(spec: DecoderSpec, index: int) -> LayerTensors:
    qkv = ("qkv_proj",) if spec.fused_qkv else ("q_proj", "k_proj", "v_proj")
    gate_up = ("gate_up_proj",) if spec.fused_gate_up else ("gate_proj", "up_proj")
    return _layer(
        spec,
        prefix=f"model.layers.{index}",
        attention_norm="input_layernorm",
        qkv=tuple(f"self_attn.{name}" for name in qkv),
        query_norm="self_attn.q_norm",
        key_norm="self_attn.k_norm",
        output="self_attn.o_proj",
        attention_post_norm="post_attention_layernorm",
        # With norms on both sides this name belongs to the norm after attention; without, to the one before the MLP.
        mlp_norm="pre_feedforward_layernorm" if spec.post_norms else "post_attention_layernorm",
        gate_up=tuple(f"mlp.{name}" for name in gate_up),
        down="mlp.down_proj",
        mlp_post_norm="post_feedforward_layernorm",
    )


def _layer(
    spec: DecoderSpec,
    *,
    prefix: str,
    attention_norm: str,
    qkv: tuple[str, ...],
    query_norm: str,
    key_norm: str,
    output: str,
    attention_post_norm: str,
    mlp_norm: str,
    gate_up: tuple[str, ...],
    down: str,
    mlp_post_norm: str,
) -> LayerTensors:
    def weight(name: str) -> str:
        return f"{prefix}.{name}.weight"

    def bias(name: str) -> str:
        return f"{prefix}.{name}.bias"

    has_qk_norm = spec.qk_norm is not QkNorm.NONE
    return LayerTensors(
        attention_norm=weight(attention_norm) if spec.pre_norms else None,
        qkv=tuple(weight(name) for name in qkv),
        qkv_bias=tuple(bias(name) for name in qkv) if spec.attention_bias else None,
        query_norm=weight(query_norm) if has_qk_norm else None,
        key_norm=weight(key_norm) if has_qk_norm else None,
        output=weight(output),
        output_bias=bias(output) if spec.output_bias else None,
        attention_post_norm=weight(attention_post_norm) if spec.post_norms else None,
        mlp_norm=weight(mlp_norm) if spec.pre_norms else None,
        gate_up=tuple(weight(name) for name in gate_up),
        gate_up_bias=tuple(bias(name) for name in gate_up) if spec.mlp_bias else None,
        down=weight(down),
        down_bias=bias(down) if spec.mlp_bias else None,
        mlp_post_norm=weight(mlp_post_norm) if spec.post_norms else None,
    )
