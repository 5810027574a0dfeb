"""Qwen 2 and 2.5 (biases on queries, keys and values) and Qwen 3 (a norm on each query and key head instead).

Reports: Yang et al. 2024 (arXiv 2407.10671) and 2025 (arXiv 2505.09388).
"""

from __future__ import annotations

from poot.engine.checkpoint.types import Checkpoint
from poot.engine.models.families.gguf_metadata import GgufMetadata
from poot.engine.models.families.hub_config import HubConfig
from poot.engine.models.spec import Activation, DecoderSpec, QkNorm


def qwen2_from_hub(checkpoint: Checkpoint) -> DecoderSpec:
    """The spec of a `Qwen2ForCausalLM`."""
    config = HubConfig(checkpoint, "qwen2", default_num_kv_heads=32)
    return config.spec(
        config.layers((config.rope(),) * config.num_layers, _windows(config)),
        activation=config.activation("hidden_act", "silu"),
        attention_bias=True,
    )


def qwen3_from_hub(checkpoint: Checkpoint) -> DecoderSpec:
    """The spec of a `Qwen3ForCausalLM`."""
    config = HubConfig(checkpoint, "qwen3", default_head_dim=128, default_num_kv_heads=32)
    has_bias = config.reader.optional_bool("attention_bias", False)
    return config.spec(
        config.layers((config.rope(),) * config.num_layers, _windows(config)),
        activation=config.activation("hidden_act", "silu"),
        qk_norm=QkNorm.PER_HEAD,
        attention_bias=has_bias,
        output_bias=has_bias,
    )


def _windows(config: HubConfig) -> tuple[int | None, ...]:
    """Layers from `max_window_layers` on slide, if `use_sliding_window` is set."""
    reader = config.reader
    first_sliding = reader.optional_int("max_window_layers", 28)
    has_window = "sliding_window" not in reader.mapping or reader.has("sliding_window")
    is_sliding = reader.optional_bool("use_sliding_window", False) and has_window
    windows = config.windows(
        [is_sliding and index >= first_sliding for index in range(config.num_layers)], default_size=4096
    )
    if any(windows) and not is_sliding:
        raise reader.refuse("use_sliding_window", "true where layer_types has sliding_attention")
    return windows


def qwen2_from_gguf(checkpoint: Checkpoint) -> DecoderSpec:
    """The spec of GGUF's `qwen2`."""
    metadata = GgufMetadata(checkpoint, "qwen2", is_interleaved=False)
    return metadata.spec(
        metadata.layers((metadata.rope(),) * metadata.num_layers), activation=Activation.SILU, attention_bias=True
    )


def qwen3_from_gguf(checkpoint: Checkpoint) -> DecoderSpec:
    """The spec of GGUF's `qwen3`."""
    metadata = GgufMetadata(checkpoint, "qwen3", is_interleaved=False)
    return metadata.spec(
        metadata.layers((metadata.rope(),) * metadata.num_layers),
        activation=Activation.SILU,
        qk_norm=QkNorm.PER_HEAD,
    )
