"""MPNet (Song et al. 2020): RoBERTa's positions without token types, and T5's bias by distance in every layer."""

from __future__ import annotations

from poot.devices.base import Activation
from poot.engine.checkpoint.types import Checkpoint
from poot.engine.models.encoder_families.bert import WORDS
from poot.engine.models.encoder_families.hub import HubEncoder
from poot.engine.models.encoder_spec import (
    Blueprint,
    ClassifierSpec,
    DistanceBiasSpec,
    EncoderLayerNames,
    EncoderLayerSpec,
    EncoderNames,
    EncoderSpec,
)

# Fixed in the model's code, as the padding token's row of the position table is.
MAX_DISTANCE = 128
PADDING_ROW = 1


def from_hub(checkpoint: Checkpoint) -> Blueprint:
    """An `MPNet...` checkpoint."""
    config = HubEncoder(checkpoint, "mpnet")
    prefix = config.prefix(("mpnet.",), WORDS)
    num_buckets = config.reader.optional_int("relative_attention_num_buckets", 32, minimum=4, maximum=65536)
    if num_buckets != 32:  # the model's code buckets by 32 whatever the table's length is
        raise config.reader.refuse("relative_attention_num_buckets", "32")
    spec = EncoderSpec(
        family=config.family,
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_heads=config.num_heads,
        max_positions=config.num_positions - PADDING_ROW - 1,
        num_position_rows=config.num_positions,
        position_offset=PADDING_ROW + 1,
        layers=(EncoderLayerSpec(),) * config.num_layers,
        norm_eps=config.norm_eps("layer_norm_eps", 1e-12),
        activation=config.activation("hidden_act", "gelu"),
        distance_bias=DistanceBiasSpec(num_buckets=num_buckets, max_distance=MAX_DISTANCE),
        classifier=ClassifierSpec(has_dense=True, activation=Activation.TANH) if config.has_classifier else None,
    )
    if spec.max_positions < 1:
        raise config.reader.refuse("max_position_embeddings", f"above {PADDING_ROW + 1}")
    config.refuse_unread()

    def layer(index: int) -> EncoderLayerNames:
        block = f"{prefix}encoder.layer.{index}"
        return EncoderLayerNames(
            qkv=tuple(f"{block}.attention.attn.{part}" for part in "qkv"),
            output=f"{block}.attention.attn.o",
            attention_norm=f"{block}.attention.LayerNorm",
            up=(f"{block}.intermediate.dense",),
            down=f"{block}.output.dense",
            mlp_norm=f"{block}.output.LayerNorm",
        )

    names = EncoderNames(
        token_embedding=f"{prefix}embeddings.word_embeddings",
        position_embedding=f"{prefix}embeddings.position_embeddings",
        type_embedding=None,
        embedding_norm=f"{prefix}embeddings.LayerNorm",
        layers=tuple(layer(index) for index in range(config.num_layers)),
        distance_bias=f"{prefix}encoder.relative_attention_bias",
        classifier_dense="classifier.dense",
        classifier_output="classifier.out_proj",
        unused=("lm_head.", f"{prefix}pooler.", f"{prefix}embeddings.position_ids"),
    )
    return Blueprint(spec=spec, names=names)
