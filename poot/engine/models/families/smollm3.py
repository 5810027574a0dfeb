"""SmolLM3: Llama with no positions at all in every fourth layer (NoPE, Yang et al. 2025, arXiv 2501.18795)."""

from __future__ import annotations

from poot.engine.checkpoint.types import Checkpoint
from poot.engine.models.families.gguf_metadata import GgufMetadata
from poot.engine.models.families.hub_config import HubConfig
from poot.engine.models.spec import Activation, DecoderSpec

# transformers' default, and fixed for GGUF, whose metadata has no key for it.
NO_ROPE_INTERVAL = 4


def from_hub(checkpoint: Checkpoint) -> DecoderSpec:
    """The spec of a `SmolLM3ForCausalLM`."""
    config = HubConfig(checkpoint, "smollm3", default_num_kv_heads=4)
    reader = config.reader
    interval = reader.optional_int("no_rope_layer_interval", NO_ROPE_INTERVAL, minimum=1)
    # Despite its name, no_rope_layers holds 1 for the layers that do have rope.
    has_rope = [(index + 1) % interval != 0 for index in range(config.num_layers)]
    if reader.has("no_rope_layers"):
        has_rope = [bool(flag) for flag in reader.int_list("no_rope_layers", length=config.num_layers, maximum=1)]
    is_sliding = reader.optional_bool("use_sliding_window", False) and reader.has("sliding_window")
    rope = config.rope(default_theta=2000000.0)
    has_bias = reader.optional_bool("attention_bias", False)
    return config.spec(
        config.layers(
            [rope if rotates else None for rotates in has_rope],
            config.windows([is_sliding and not rotates for rotates in has_rope]),
        ),
        activation=config.activation("hidden_act", "silu"),
        is_tied_by_default=True,
        attention_bias=has_bias,
        output_bias=has_bias,
        mlp_bias=reader.optional_bool("mlp_bias", False),
    )


def from_gguf(checkpoint: Checkpoint) -> DecoderSpec:
    """The spec of GGUF's `smollm3`, whose query and key rows are permuted as llama's are."""
    metadata = GgufMetadata(checkpoint, "smollm3", is_interleaved=True)
    rope = metadata.rope()
    return metadata.spec(
        metadata.layers([rope if (index + 1) % NO_ROPE_INTERVAL else None for index in range(metadata.num_layers)]),
        activation=Activation.SILU,
    )
