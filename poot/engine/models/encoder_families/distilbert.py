"""DistilBERT (Sanh et al. 2019): BERT without token types and without a pooler."""

from __future__ import annotations

from poot.devices.base import Activation
from poot.engine.checkpoint.types import Checkpoint
from poot.engine.models.encoder_families.bert import WORDS
from poot.engine.models.encoder_families.hub import HubEncoder, SizeKeys
from poot.engine.models.encoder_spec import (
    Blueprint,
    ClassifierSpec,
    EncoderLayerNames,
    EncoderLayerSpec,
    EncoderNames,
    EncoderSpec,
)

KEYS = SizeKeys(hidden="dim", layers="n_layers", heads="n_heads", intermediate="hidden_dim")


def from_hub(checkpoint: Checkpoint) -> Blueprint:
    """A `DistilBert...` checkpoint."""
    config = HubEncoder(checkpoint, "distilbert", KEYS)
    prefix = config.prefix(("distilbert.",), WORDS)
    spec = EncoderSpec(
        family=config.family,
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_heads=config.num_heads,
        max_positions=config.num_positions,
        num_position_rows=config.num_positions,
        layers=(EncoderLayerSpec(),) * config.num_layers,
        norm_eps=1e-12,  # fixed in the model's code
        activation=config.activation("activation", "gelu"),
        classifier=ClassifierSpec(has_dense=True, activation=Activation.RELU) if config.has_classifier else None,
    )
    config.refuse_unread()

    def layer(index: int) -> EncoderLayerNames:
        block = f"{prefix}transformer.layer.{index}"
        return EncoderLayerNames(
            qkv=tuple(f"{block}.attention.{part}_lin" for part in "qkv"),
            output=f"{block}.attention.out_lin",
            attention_norm=f"{block}.sa_layer_norm",
            up=(f"{block}.ffn.lin1",),
            down=f"{block}.ffn.lin2",
            mlp_norm=f"{block}.output_layer_norm",
        )

    names = EncoderNames(
        token_embedding=f"{prefix}embeddings.word_embeddings",
        position_embedding=f"{prefix}embeddings.position_embeddings",
        type_embedding=None,
        embedding_norm=f"{prefix}embeddings.LayerNorm",
        layers=tuple(layer(index) for index in range(config.num_layers)),
        classifier_dense="pre_classifier",
        classifier_output="classifier",
        unused=("vocab_transform.", "vocab_layer_norm.", "vocab_projector.", f"{prefix}embeddings.position_ids"),
    )
    return Blueprint(spec=spec, names=names)
