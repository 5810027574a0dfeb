"""What a checkpoint is for: read from its files, never asked of the operator.

1. Says so itself: sentence-transformers' modules (Pooling embeds, a CrossEncoder or LogitScore reranks), or a GGUF's
   pooling type (RANK reranks, any other embeds).
2. A sequence classifier with one label reranks; with more it is not served.
3. Qwen3-Reranker's files name a plain Qwen3ForCausalLM. It is told as llama.cpp's converter tells it
   (convert_hf_to_gguf.py, Qwen3Model): by vLLM's settings in config.json, or by the names in directory and model card.
4. An encoder embeds, and so does a decoder that was saved without its head.
5. Any other decoder generates, and embeds beside.
"""

from __future__ import annotations

import re
from enum import Enum

from poot.engine.checkpoint.fields import ConfigReader
from poot.engine.checkpoint.mapped_file import display_path
from poot.engine.checkpoint.types import Checkpoint, FileFormat
from poot.engine.models.causal import is_decoder, is_headless
from poot.errors import CheckpointError


class Task(Enum):
    """What the endpoints may ask of a model, as /v1/models shows it."""

    GENERATE = "generate"
    EMBED = "embed"
    RERANK = "rerank"


class GgufPooling(Enum):
    """{arch}.pooling_type (gguf-py's PoolingType)."""

    NONE = 0
    MEAN = 1
    CLS = 2
    LAST = 3
    RANK = 4


CLASSIFIER_SUFFIX = "ForSequenceClassification"


def read_task(checkpoint: Checkpoint) -> Task:
    """The task of `checkpoint`.

    Raises:
        CheckpointError: a sequence classifier with more labels than one, or a setting that is malformed.
    """
    if checkpoint.sentence is not None:
        if checkpoint.sentence.is_cross_encoder:
            refuse_labels(checkpoint)
            return Task.RERANK
        return Task.EMBED
    if checkpoint.file_format is FileFormat.GGUF:
        return _gguf_task(checkpoint)
    if checkpoint.architecture.endswith(CLASSIFIER_SUFFIX):
        refuse_labels(checkpoint)
        return Task.RERANK
    if is_qwen3_reranker(checkpoint):
        return Task.RERANK
    if is_decoder(checkpoint) and not is_headless(checkpoint):
        return Task.GENERATE
    return Task.EMBED


def _gguf_task(checkpoint: Checkpoint) -> Task:
    pooling = read_gguf_pooling(checkpoint)
    if pooling is GgufPooling.RANK or is_qwen3_reranker(checkpoint):
        return Task.RERANK
    if pooling in (None, GgufPooling.NONE) and is_decoder(checkpoint):
        return Task.GENERATE
    return Task.EMBED


def read_gguf_pooling(checkpoint: Checkpoint) -> GgufPooling | None:
    """A GGUF's pooling type, None where it names none (or the checkpoint is none).

    Raises:
        CheckpointError: a number that stands for no pooling type.
    """
    if checkpoint.file_format is not FileFormat.GGUF:
        return None
    reader = ConfigReader(checkpoint.config, where=display_path(checkpoint.path))
    key = f"{checkpoint.architecture}.pooling_type"
    value = reader.optional_int(key, None)
    if value is None:
        return None
    try:
        return GgufPooling(value)
    except ValueError:
        raise reader.refuse(key, "0 to 4 (none, mean, cls, last, rank)") from None


def refuse_labels(checkpoint: Checkpoint) -> None:
    """Refuses a sequence classifier that gives anything but one score.

    Raises:
        CheckpointError: it has more labels, or none.
    """
    if not checkpoint.architecture.endswith(CLASSIFIER_SUFFIX):
        return
    reader = ConfigReader(checkpoint.config, where=f"{display_path(checkpoint.path)}: config.json")
    labels = reader.optional_section("id2label")
    # transformers writes id2label wherever the number is not its default, 2.
    num_labels = len(labels.mapping) if labels is not None else reader.optional_int("num_labels", 2)
    if num_labels != 1:
        raise CheckpointError(
            f"a classifier with {num_labels} labels is not served; a reranker has one", path=reader.where
        )


def is_qwen3_reranker(checkpoint: Checkpoint) -> bool:
    """Whether `checkpoint` is a Qwen3-Reranker with its whole language-model head."""
    return checkpoint.architecture in ("Qwen3ForCausalLM", "qwen3") and names_qwen3_reranker(checkpoint)


def names_qwen3_reranker(checkpoint: Checkpoint) -> bool:
    """Whether the files of a Qwen3, whatever head it has, say that it is a Qwen3-Reranker."""
    config, path = checkpoint.config, checkpoint.path
    if checkpoint.file_format is FileFormat.GGUF:
        return checkpoint.architecture == "qwen3" and any(map(_names_it, (config.get("general.name"), path.name)))
    if checkpoint.architecture not in ("Qwen3ForCausalLM", f"Qwen3{CLASSIFIER_SUFFIX}"):
        return False
    if config.get("is_original_qwen3_reranker") is True or config.get("classifier_from_token") == ["no", "yes"]:
        return True
    return any(map(_names_it, (path.resolve().name, config.get("_name_or_path"), checkpoint.card_title)))


def _names_it(text: object) -> bool:
    return isinstance(text, str) and "qwen3-reranker" in re.sub(r"[\s_]+", "-", text.lower())
