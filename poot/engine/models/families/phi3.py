"""Phi 3, 3.5 and 4 (arXiv 2404.14219): Llama's shape with query-key-value and gate-up projections stored fused.

The long-context models use LongRoPE (arXiv 2402.13753), whose frequencies change once a sequence outgrows the original
context. Up to there it is exact, so that is where poot ends their context; the long factors are not served yet.
"""

from __future__ import annotations

from poot.engine.checkpoint.types import Checkpoint
from poot.engine.models.families.gguf_metadata import GgufMetadata
from poot.engine.models.families.hub_config import HubConfig
from poot.engine.models.spec import Activation, DecoderSpec


def from_hub(checkpoint: Checkpoint) -> DecoderSpec:
    """The spec of a `Phi3ForCausalLM`."""
    config = HubConfig(checkpoint, "phi3")
    window = config.reader.optional_int("sliding_window", None, minimum=1)
    # Early Phi 3 files call LongRoPE "su" or "yarn" (transformers' Phi3Config).
    rope = config.rope(long_rope_names=("longrope", "su", "yarn"))
    return config.spec(
        config.layers((rope,) * config.num_layers, (window,) * config.num_layers),
        activation=config.activation("hidden_act", "silu"),
        default_norm_eps=1e-5,
        fused_qkv=True,
        fused_gate_up=True,
    )


def from_gguf(checkpoint: Checkpoint) -> DecoderSpec:
    """The spec of GGUF's `phi3`."""
    metadata = GgufMetadata(checkpoint, "phi3", is_interleaved=False)
    windows = (metadata.window_size(None),) * metadata.num_layers
    return metadata.spec(
        metadata.layers((metadata.rope(),) * metadata.num_layers, windows),
        activation=Activation.SILU,
        fused_gate_up=True,
    )
