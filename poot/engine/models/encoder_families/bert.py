"""BERT (Devlin et al. 2019), and RoBERTa (Liu et al. 2019) with XLM-RoBERTa and CamemBERT, which differ in positions
and in the classifier's head."""

from __future__ import annotations

from poot.devices.base import Activation
from poot.engine.checkpoint.types import Checkpoint
from poot.engine.models.encoder_families.hub import HubEncoder
from poot.engine.models.encoder_spec import (
    Blueprint,
    ClassifierSpec,
    EncoderLayerNames,
    EncoderLayerSpec,
    EncoderNames,
    EncoderSpec,
)

WORDS = "embeddings.word_embeddings.weight"


def bert_from_hub(checkpoint: Checkpoint) -> Blueprint:
    """A `Bert...` checkpoint."""
    config = HubEncoder(checkpoint, "bert")
    prefix = config.prefix(("bert.",), WORDS)
    has_classifier = config.has_classifier
    unused = ["cls.", f"{prefix}embeddings.position_ids"]
    if not has_classifier:
        unused.append(f"{prefix}pooler.")
    return _blueprint(
        config,
        prefix,
        position_offset=0,
        classifier=ClassifierSpec(has_dense=True, activation=Activation.TANH) if has_classifier else None,
        classifier_dense=f"{prefix}pooler.dense",
        classifier_output="classifier",
        unused=unused,
    )


def roberta_from_hub(checkpoint: Checkpoint) -> Blueprint:
    """A `Roberta...`, `XLMRoberta...` or `Camembert...` checkpoint.

    Positions begin after the padding token's row (fairseq's make_positions), so the table serves that many tokens less.
    """
    config = HubEncoder(checkpoint, "roberta")
    prefix = config.prefix(("roberta.",), WORDS)
    padding_id = config.reader.optional_int("pad_token_id", 1, minimum=0, maximum=config.num_positions - 2)
    return _blueprint(
        config,
        prefix,
        position_offset=padding_id + 1,
        classifier=ClassifierSpec(has_dense=True, activation=Activation.TANH) if config.has_classifier else None,
        classifier_dense="classifier.dense",
        classifier_output="classifier.out_proj",
        unused=[
            "lm_head.",
            f"{prefix}pooler.",
            f"{prefix}embeddings.position_ids",
            f"{prefix}embeddings.token_type_ids",
        ],
    )


def _blueprint(
    config: HubEncoder,
    prefix: str,
    *,
    position_offset: int,
    classifier: ClassifierSpec | None,
    classifier_dense: str,
    classifier_output: str,
    unused: list[str],
) -> Blueprint:
    spec = EncoderSpec(
        family=config.family,
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_heads=config.num_heads,
        max_positions=config.num_positions - position_offset,
        num_position_rows=config.num_positions,
        position_offset=position_offset,
        num_token_types=config.reader.optional_int("type_vocab_size", 2, minimum=0, maximum=65536),
        layers=(EncoderLayerSpec(),) * config.num_layers,
        norm_eps=config.norm_eps("layer_norm_eps", 1e-12),
        activation=config.activation("hidden_act", "gelu"),
        classifier=classifier,
    )
    config.refuse_unread()

    def layer(index: int) -> EncoderLayerNames:
        block = f"{prefix}encoder.layer.{index}"
        return EncoderLayerNames(
            qkv=tuple(f"{block}.attention.self.{part}" for part in ("query", "key", "value")),
            output=f"{block}.attention.output.dense",
            attention_norm=f"{block}.attention.output.LayerNorm",
            up=(f"{block}.intermediate.dense",),
            down=f"{block}.output.dense",
            mlp_norm=f"{block}.output.LayerNorm",
        )

    names = EncoderNames(
        token_embedding=f"{prefix}embeddings.word_embeddings",
        position_embedding=f"{prefix}embeddings.position_embeddings",
        type_embedding=f"{prefix}embeddings.token_type_embeddings",
        embedding_norm=f"{prefix}embeddings.LayerNorm",
        layers=tuple(layer(index) for index in range(config.num_layers)),
        classifier_dense=classifier_dense,
        classifier_output=classifier_output,
        unused=tuple(unused),
    )
    return Blueprint(spec=spec, names=names)
