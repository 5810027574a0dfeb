"""Gemma 2 (arXiv 2408.00118) and the text decoder of Gemma 3 (arXiv 2503.19786).

Both scale embeddings by sqrt(hidden_size), put norms on both sides of attention and MLP, store norm weights minus one
in safetensors (GGUF converters add the one), and mix sliding with full layers. Gemma 2 caps scores and logits softly;
Gemma 3 norms queries and keys instead and turns its sliding layers with a rope of their own.
"""

from __future__ import annotations

import math
from typing import Any

from poot.engine.checkpoint.types import Checkpoint
from poot.engine.models.families.gguf_metadata import GgufMetadata
from poot.engine.models.families.hub_config import HubConfig
from poot.engine.models.spec import Activation, DecoderSpec, LayerSpec, QkNorm

GELU_TANH = "gelu_pytorch_tanh"
DEFAULT_HEAD_DIM = 256
DEFAULT_NUM_KV_HEADS = 4
DEFAULT_QUERY_SCALAR = 256

# Gemma 2's caps, and of every `period` layers the last is full. GGUF files need not spell these out.
ATTENTION_SOFTCAP = 50.0
FINAL_SOFTCAP = 30.0
GEMMA2_PERIOD = 2
GEMMA2_WINDOW = 4096
GEMMA3_PERIOD = 6

# The 27B models scale queries by their width per head, not by head_dim. GGUF has no key for it: llama.cpp knows them
# by their number of layers, and so do we.
GEMMA2_27B_LAYERS = 46
GEMMA3_27B_LAYERS = 62

GLOBAL_THETA = 1_000_000.0
LOCAL_THETA = 10_000.0


def gemma2_from_hub(checkpoint: Checkpoint) -> DecoderSpec:
    """The spec of a `Gemma2ForCausalLM`."""
    config = HubConfig(
        checkpoint, "gemma2", default_head_dim=DEFAULT_HEAD_DIM, default_num_kv_heads=DEFAULT_NUM_KV_HEADS
    )
    windows = config.windows(_all_but_last(GEMMA2_PERIOD, config.num_layers), default_size=GEMMA2_WINDOW)
    return _hub_spec(
        config,
        config.layers((config.rope(),) * config.num_layers, windows),
        attention_softcap=config.softcap("attn_logit_softcapping", ATTENTION_SOFTCAP),
        final_softcap=config.softcap("final_logit_softcapping", FINAL_SOFTCAP),
    )


def gemma3_from_hub(checkpoint: Checkpoint) -> DecoderSpec:
    """The spec of a `Gemma3ForCausalLM`."""
    config = HubConfig(
        checkpoint, "gemma3", default_head_dim=DEFAULT_HEAD_DIM, default_num_kv_heads=DEFAULT_NUM_KV_HEADS
    )
    period = config.reader.optional_int("sliding_window_pattern", GEMMA3_PERIOD, minimum=1)
    # Written by transformers 4.5x beside layer_types, which decides where both are there.
    period = config.reader.optional_int("_sliding_window_pattern", period, minimum=1)
    windows = config.windows(_all_but_last(period, config.num_layers), default_size=GEMMA2_WINDOW)
    full = config.rope(layer_type="full_attention", default_theta=GLOBAL_THETA)
    sliding = config.rope(
        layer_type="sliding_attention",
        theta_key="rope_local_base_freq",
        default_theta=LOCAL_THETA,
        is_scaled=False,
    )
    return _hub_spec(
        config,
        config.layers([full if window is None else sliding for window in windows], windows),
        qk_norm=QkNorm.PER_HEAD,
        attention_softcap=config.softcap("attn_logit_softcapping", None),
        final_softcap=config.softcap("final_logit_softcapping", None),
    )


def _hub_spec(config: HubConfig, layers: tuple[LayerSpec, ...], **parts: Any) -> DecoderSpec:
    has_bias = config.reader.optional_bool("attention_bias", False)
    scalar = config.reader.optional_float("query_pre_attn_scalar", DEFAULT_QUERY_SCALAR, minimum=1e-6)
    return config.spec(
        layers,
        activation=config.activation("hidden_activation", GELU_TANH),
        is_tied_by_default=True,
        attention_scale=scalar**-0.5,
        post_norms=True,
        norm_weight_offset=1.0,
        embedding_multiplier=math.sqrt(config.hidden_size),
        attention_bias=has_bias,
        output_bias=has_bias,
        **parts,
    )


def _all_but_last(period: int, num_layers: int) -> list[bool]:
    """Which layers slide: all but the last of every `period`."""
    return [(index + 1) % period != 0 for index in range(num_layers)]


def gemma2_from_gguf(checkpoint: Checkpoint) -> DecoderSpec:
    """The spec of GGUF's `gemma2`."""
    metadata = GgufMetadata(checkpoint, "gemma2", is_interleaved=False)
    windows = metadata.windows(GEMMA2_PERIOD, metadata.window_size(GEMMA2_WINDOW))
    return _gguf_spec(
        metadata,
        metadata.layers((metadata.rope(),) * metadata.num_layers, windows),
        large_model_layers=GEMMA2_27B_LAYERS,
        attention_softcap=metadata.multiplier("attn_logit_softcapping", ATTENTION_SOFTCAP),
        final_softcap=metadata.multiplier("final_logit_softcapping", FINAL_SOFTCAP),
    )


def gemma3_from_gguf(checkpoint: Checkpoint) -> DecoderSpec:
    """The spec of GGUF's `gemma3`."""
    metadata = GgufMetadata(checkpoint, "gemma3", is_interleaved=False)
    windows = metadata.windows(GEMMA3_PERIOD, metadata.window_size(None))
    full = metadata.rope()
    sliding = metadata.rope(theta_key="rope.freq_base_swa", default_theta=LOCAL_THETA, is_scaled=False)
    return _gguf_spec(
        metadata,
        metadata.layers([full if window is None else sliding for window in windows], windows),
        large_model_layers=GEMMA3_27B_LAYERS,
        qk_norm=QkNorm.PER_HEAD,
        final_softcap=metadata.reader.optional_float("final_logit_softcapping", 0.0, minimum=0.0) or None,
    )


def _gguf_spec(
    metadata: GgufMetadata, layers: tuple[LayerSpec, ...], *, large_model_layers: int, **parts: Any
) -> DecoderSpec:
    is_large = metadata.num_layers == large_model_layers
    query_scalar = metadata.hidden_size // metadata.nums_heads[0] if is_large else metadata.head_dim
    return metadata.spec(
        layers,
        activation=Activation.GELU_TANH,
        attention_scale=query_scalar**-0.5,
        post_norms=True,
        embedding_multiplier=math.sqrt(metadata.hidden_size),
        **parts,
    )
