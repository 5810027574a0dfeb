"""Which encoder architectures are served, and by which family."""

from __future__ import annotations

from collections.abc import Callable

from poot.engine.checkpoint.types import Checkpoint, FileFormat
from poot.engine.models.encoder_families import bert, distilbert, gguf, modernbert, mpnet, nomic_bert
from poot.engine.models.encoder_spec import Blueprint

# What stands before the kind of model in a class name of config.json's `architectures`.
HUB_FAMILIES: dict[str, Callable[[Checkpoint], Blueprint]] = {
    "Bert": bert.bert_from_hub,
    "Roberta": bert.roberta_from_hub,
    "XLMRoberta": bert.roberta_from_hub,
    "Camembert": bert.roberta_from_hub,
    "DistilBert": distilbert.from_hub,
    "MPNet": mpnet.from_hub,
    "NomicBert": nomic_bert.from_hub,
    "ModernBert": modernbert.from_hub,
}
HUB_KINDS = ("Model", "ForMaskedLM", "ForSequenceClassification")

GGUF_FAMILIES: dict[str, Callable[[Checkpoint], Blueprint]] = {
    "bert": gguf.bert_from_gguf,
    "nomic-bert": gguf.nomic_bert_from_gguf,
    "modern-bert": gguf.modernbert_from_gguf,
}


def is_encoder(checkpoint: Checkpoint) -> bool:
    """Whether `checkpoint` is an encoder that is served, whatever stands on top of it."""
    return _reader(checkpoint) is not None


def read_blueprint(checkpoint: Checkpoint) -> Blueprint:
    """The blueprint of `checkpoint`, an encoder's.

    Raises:
        CheckpointError: a config that is wrong or not understood.
    """
    reader = _reader(checkpoint)
    assert reader is not None, checkpoint.architecture
    return reader(checkpoint)


def _reader(checkpoint: Checkpoint) -> Callable[[Checkpoint], Blueprint] | None:
    name = checkpoint.architecture
    if checkpoint.file_format is FileFormat.GGUF:
        return GGUF_FAMILIES.get(name)
    for kind in HUB_KINDS:
        if name.endswith(kind):
            return HUB_FAMILIES.get(name.removesuffix(kind))
    return None
