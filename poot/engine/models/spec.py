"""What a decoder is, as data. A family file reads a config into a `DecoderSpec`; `decoder.py` runs any of them.

Names of tensors follow one scheme inside poot (`poot.engine.models.tensors`), whatever the file calls them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Activation(Enum):
    """The gate of a gated MLP: act(gate) * up."""

    SILU = "silu"
    GELU_TANH = "gelu_tanh"


class QkNorm(Enum):
    """RMSNorm of queries and keys before rope."""

    NONE = "none"
    PER_HEAD = "per_head"  # weight [head_dim] (Qwen3, Gemma 3)
    FULL = "full"  # weight [num_heads * head_dim] over the whole projection (OLMo 2)


@dataclass(frozen=True, kw_only=True)
class RopeSpec:
    """Rotary embedding of one kind of layer.

    Attributes:
        inverse_frequencies: rotary_dim / 2 values, scaling already applied.
        rotary_dim: how many leading dimensions of a head rotate.
        attention_factor: multiplies cosines and sines (YaRN's mscale); 1 otherwise.
        interleaved: rotate pairs (2i, 2i+1), as GGUF's llama tensors are permuted for, instead of the two halves.
    """

    inverse_frequencies: tuple[float, ...]
    rotary_dim: int
    attention_factor: float = 1.0
    interleaved: bool = False


@dataclass(frozen=True, kw_only=True)
class LayerSpec:
    """One decoder layer.

    Attributes:
        rope: None for a layer without positions (SmolLM3's NoPE layers).
        window: sliding window in positions, None for full attention.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    rope: RopeSpec | None
    window: int | None = None


@dataclass(frozen=True, kw_only=True)
class DecoderSpec:
    """A dense decoder.

    Attributes:
        family: the architecture's name, for logs.
        attention_scale: factor on query-key products.
        attention_softcap, final_softcap: cap * tanh(x / cap) on scores and on logits.
        pre_norms: whether a norm stands before attention and before the MLP.
        post_norms: whether a norm stands after attention and after the MLP, before the residual addition.
        norm_weight_offset: added to stored norm weights (Gemma's safetensors store weight - 1; its GGUF does not).
        embedding_multiplier, residual_multiplier, logits_multiplier: Granite's and Gemma's factors.
        attention_bias: whether the query, key and value projections have biases.
        output_bias: whether the projection after attention has one.
        mlp_bias: whether the MLP's projections have them.
        fused_qkv, fused_gate_up: whether the file stores these projections as one tensor (Phi 3).
    """

    family: str
    vocab_size: int
    hidden_size: int
    max_positions: int
    layers: tuple[LayerSpec, ...]
    norm_eps: float
    activation: Activation
    attention_scale: float
    qk_norm: QkNorm = QkNorm.NONE
    pre_norms: bool = True
    post_norms: bool = False
    norm_weight_offset: float = 0.0
    attention_softcap: float | None = None
    final_softcap: float | None = None
    embedding_multiplier: float = 1.0
    residual_multiplier: float = 1.0
    logits_multiplier: float = 1.0
    tied_embeddings: bool = False
    attention_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    fused_qkv: bool = False
    fused_gate_up: bool = False
