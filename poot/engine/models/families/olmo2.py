"""OLMo 2 (arXiv 2501.00656): norms after attention and MLP only, and over the whole query and key projections."""

from __future__ import annotations

from poot.engine.checkpoint.types import Checkpoint
from poot.engine.models.families.gguf_metadata import GgufMetadata
from poot.engine.models.families.hub_config import HubConfig
from poot.engine.models.spec import Activation, DecoderSpec, QkNorm


def from_hub(checkpoint: Checkpoint) -> DecoderSpec:
    """The spec of an `Olmo2ForCausalLM`."""
    config = HubConfig(checkpoint, "olmo2")
    has_bias = config.reader.optional_bool("attention_bias", False)
    return config.spec(
        config.layers((config.rope(),) * config.num_layers),
        activation=config.activation("hidden_act", "silu"),
        default_norm_eps=1e-5,
        qk_norm=QkNorm.FULL,
        pre_norms=False,
        post_norms=True,
        attention_bias=has_bias,
        output_bias=has_bias,
    )


def from_gguf(checkpoint: Checkpoint) -> DecoderSpec:
    """The spec of GGUF's `olmo2`. OLMo 3 files share the name and add a sliding window, which is refused."""
    metadata = GgufMetadata(checkpoint, "olmo2", is_interleaved=False)
    return metadata.spec(
        metadata.layers((metadata.rope(),) * metadata.num_layers),
        activation=Activation.SILU,
        qk_norm=QkNorm.FULL,
        pre_norms=False,
        post_norms=True,
    )
