"""A model file, opened: what every reader of one gets, whichever format it came in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from poot.devices.base import Weight
from poot.engine.checkpoint.sentence_modules import SentenceModules

# Of one file. The largest known checkpoints have some ten thousand, with every expert on its own; a hostile table of
# millions would only cost minutes.
MAX_TENSORS = 131072


class FileFormat(Enum):
    GGUF = "gguf"
    SAFETENSORS = "safetensors"


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A checked model file.

    Attributes:
        path: the directory or file as given.
        file_format: which names and conventions `config` and `tensors` follow.
        architecture: GGUF's general.architecture, or the first of config.json's architectures.
        config: GGUF: every metadata key and value (arrays as lists), tokenizer keys included; safetensors: config.json.
        tensors: every tensor by its name in the file, viewing the mapped file; the mapping lives as long as this.
        generation_config: generation_config.json, or {} where there is none.
        tokenizer_json: the text of tokenizer.json, or None.
        tokenizer_config: tokenizer_config.json, or {}.
        chat_template: the model's own jinja source (chat_template.jinja, tokenizer_config.json's chat_template or
            its entry named "default", or tokenizer.chat_template), or None.
        chat_templates: further named templates, such as "tool_use".
        sentence: what sentence-transformers wrote beside the model, or None.
        card_title: the first heading of README.md, the model card, or None.
    """

    path: Path
    file_format: FileFormat
    architecture: str
    config: Mapping[str, Any]
    tensors: Mapping[str, Weight]
    generation_config: Mapping[str, Any] = field(default_factory=dict)
    tokenizer_json: str | None = None
    tokenizer_config: Mapping[str, Any] = field(default_factory=dict)
    chat_template: str | None = None
    chat_templates: Mapping[str, str] = field(default_factory=dict)
    sentence: SentenceModules | None = None
    card_title: str | None = None
