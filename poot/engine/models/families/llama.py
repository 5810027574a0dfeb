"""Llama 2, 3 and everything that shares their shape (Touvron et al. 2023; Llama 3 model card), and Mistral 7B.

GGUF has one architecture for both, whose query and key rows are permuted for interleaved rope; Mixtral files call
themselves `llama` too and are told apart by their expert count.
"""

from __future__ import annotations

from poot.engine.checkpoint.types import Checkpoint
from poot.engine.models.families.gguf_metadata import GgufMetadata
from poot.engine.models.families.hub_config import HubConfig
from poot.engine.models.spec import Activation, DecoderSpec


def from_hub(checkpoint: Checkpoint) -> DecoderSpec:
    """The spec of a `LlamaForCausalLM`."""
    config = HubConfig(checkpoint, "llama")
    has_bias = config.reader.optional_bool("attention_bias", False)
    return config.spec(
        config.layers((config.rope(),) * config.num_layers),
        activation=config.activation("hidden_act", "silu"),
        attention_bias=has_bias,
        output_bias=has_bias,
        mlp_bias=config.reader.optional_bool("mlp_bias", False),
    )


def mistral_from_hub(checkpoint: Checkpoint) -> DecoderSpec:
    """The spec of a `MistralForCausalLM`: Llama without biases, all layers with one optional sliding window."""
    config = HubConfig(checkpoint, "mistral", default_num_kv_heads=8)
    # The configuration class slides over 4096 positions unless told otherwise; null is full attention.
    window = config.reader.optional_int("sliding_window", None, minimum=1)
    if "sliding_window" not in config.reader.mapping:
        window = 4096
    return config.spec(
        config.layers((config.rope(),) * config.num_layers, (window,) * config.num_layers),
        activation=config.activation("hidden_act", "silu"),
    )


def from_gguf(checkpoint: Checkpoint) -> DecoderSpec:
    """The spec of GGUF's `llama`, Mistral included."""
    metadata = GgufMetadata(checkpoint, "llama", is_interleaved=True)
    windows = (metadata.window_size(None),) * metadata.num_layers
    return metadata.spec(
        metadata.layers((metadata.rope(),) * metadata.num_layers, windows),
        activation=Activation.SILU,
        attention_scale=metadata.multiplier("attention.scale", metadata.head_dim**-0.5),
    )
