"""A decoder's checkpoint in any of the forms it is saved in, as the plain causal language model that families read.

Embedding models are often saved without their head (`Qwen3Model`, tensors without "model." before their names), and
rerankers with another one (`Qwen3ForSequenceClassification` with `score.weight`, GGUF's `cls.output.weight`). The
layers are the same; what differs is taken off here, and whoever asked for it reads it from the original.
"""

from __future__ import annotations

from dataclasses import replace

from poot.engine.checkpoint.types import Checkpoint, FileFormat
from poot.engine.models.registry import model_families

CAUSAL_SUFFIX = "ForCausalLM"
_OTHER_SUFFIXES = ("TextForSequenceClassification", "ForSequenceClassification", "TextModel", "Model")

# Tensors of heads, the language model's and a classifier's.
_HEAD_TENSORS = frozenset(
    {
        "lm_head.weight",
        "score.weight",
        "output.weight",
        "cls.weight",
        "cls.bias",
        "cls.output.weight",
        "cls.output.bias",
    }
)

# Metadata that says what a GGUF's vectors are for, and nothing of its layers.
_GGUF_TASK_KEYS = ("pooling_type", "classifier.output_labels")


def is_decoder(checkpoint: Checkpoint) -> bool:
    """Whether the layers of `checkpoint` are those of a decoder that is served, whatever stands on top of them."""
    return _family_architecture(checkpoint) is not None


def is_headless(checkpoint: Checkpoint) -> bool:
    """Whether a decoder was saved without a language model's head, so that it can only embed or classify."""
    return checkpoint.file_format is FileFormat.SAFETENSORS and not checkpoint.architecture.endswith(CAUSAL_SUFFIX)


def as_causal(checkpoint: Checkpoint, *, keeps_head: bool) -> Checkpoint:
    """`checkpoint`, a decoder's, as a causal language model.

    Args:
        keeps_head: whether its own head will be used; without it the model counts as tied, which costs no memory.
    """
    architecture = _family_architecture(checkpoint)
    assert architecture is not None, checkpoint.architecture
    config = dict(checkpoint.config)
    tensors = dict(checkpoint.tensors)
    if checkpoint.file_format is FileFormat.GGUF:
        for key in _GGUF_TASK_KEYS:
            config.pop(f"{architecture}.{key}", None)
    elif "embed_tokens.weight" in tensors:
        tensors = {name if name in _HEAD_TENSORS else f"model.{name}": weight for name, weight in tensors.items()}
    if not keeps_head:
        tensors = {name: weight for name, weight in tensors.items() if name not in _HEAD_TENSORS}
        if checkpoint.file_format is FileFormat.SAFETENSORS:
            config["tie_word_embeddings"] = True
    return replace(checkpoint, architecture=architecture, config=config, tensors=tensors)


def _family_architecture(checkpoint: Checkpoint) -> str | None:
    """The name under which a family reads this checkpoint, or None."""
    name = checkpoint.architecture
    if checkpoint.file_format is FileFormat.GGUF:
        return name if any(family.gguf_architecture == name for family in model_families()) else None
    known = {family.hub_architecture for family in model_families()}
    if name in known:
        return name
    for suffix in _OTHER_SUFFIXES:
        causal = name.removesuffix(suffix) + CAUSAL_SUFFIX
        if name.endswith(suffix) and causal in known:
            return causal
    return None
