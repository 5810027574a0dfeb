"""Granite 3 (IBM): Llama with four multipliers, on embeddings, attention scores, residual branches and logits."""

from __future__ import annotations

from poot.engine.checkpoint.types import Checkpoint
from poot.engine.models.families.gguf_metadata import GgufMetadata
from poot.engine.models.families.hub_config import HubConfig
from poot.engine.models.spec import Activation, DecoderSpec


def from_hub(checkpoint: Checkpoint) -> DecoderSpec:
    """The spec of a `GraniteForCausalLM`."""
    config = HubConfig(checkpoint, "granite")
    has_bias = config.reader.optional_bool("attention_bias", False)
    return config.spec(
        config.layers((config.rope(),) * config.num_layers),
        activation=config.activation("hidden_act", "silu"),
        attention_scale=config.multiplier("attention_multiplier", 1.0),
        embedding_multiplier=config.multiplier("embedding_multiplier", 1.0),
        residual_multiplier=config.multiplier("residual_multiplier", 1.0),
        logits_multiplier=1.0 / config.multiplier("logits_scaling", 1.0),
        attention_bias=has_bias,
        output_bias=has_bias,
        mlp_bias=config.reader.optional_bool("mlp_bias", False),
    )


def from_gguf(checkpoint: Checkpoint) -> DecoderSpec:
    """The spec of GGUF's `granite`, whose query and key rows are permuted as llama's are."""
    metadata = GgufMetadata(checkpoint, "granite", is_interleaved=True)
    # Granite's files use this key as the switch for rope; absent means on.
    has_rope = metadata.reader.optional_bool("rope.scaling.finetuned", True)
    return metadata.spec(
        metadata.layers((metadata.rope() if has_rope else None,) * metadata.num_layers),
        activation=Activation.SILU,
        attention_scale=metadata.multiplier("attention.scale", metadata.head_dim**-0.5),
        embedding_multiplier=metadata.multiplier("embedding_scale", 1.0),
        residual_multiplier=metadata.multiplier("residual_scale", 1.0),
        logits_multiplier=1.0 / metadata.multiplier("logit_scale", 1.0),
    )
