"""A GGUF file as a checked model: one mapped file with metadata, tokenizer and tensors (ggml's docs/gguf.md)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from poot.devices.base import Weight
from poot.engine.checkpoint.fields import ConfigReader
from poot.engine.checkpoint.gguf_metadata import Cursor, read_metadata
from poot.engine.checkpoint.gguf_tensors import read_tensors
from poot.engine.checkpoint.mapped_file import display_path, map_file
from poot.engine.checkpoint.types import Checkpoint, FileFormat
from poot.errors import CheckpointError

MAGIC = b"GGUF"

# What else is found under a model's name, by its first bytes.
_OTHER_MAGICS = {
    b"lmgg": "a GGML file from before GGUF",
    b"fmgg": "a GGML file (ggmf) from before GGUF",
    b"tjgg": "a GGML file (ggjt) from before GGUF",
    b"algg": "a GGML adapter from before GGUF",
    b"vers": "perhaps a Git LFS pointer; fetch the file itself",
    b"PK\x03\x04": "a zip archive, perhaps a PyTorch file",
}

DEFAULT_ALIGNMENT = 32

# What general.alignment may be: docs/gguf.md asks for a multiple of 8, ggml for a power of two.
_MAX_ALIGNMENT = 2**30

# The block layouts of `Format` are ggml's second (since May 2023); GGUF files with the first were never written.
_QUANTIZATION_VERSION = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class GgufContents:
    """What a GGUF file holds.

    Attributes:
        version: 2 or 3.
        metadata: every key and value.
        tensors: every tensor by name, viewing the buffer.
    """

    version: int
    metadata: Mapping[str, Any]
    tensors: Mapping[str, Weight]


def parse_gguf(buffer: memoryview, path: str) -> GgufContents:
    """The contents of a GGUF file from its bytes, all of it checked before use.

    Args:
        buffer: the whole file; it is viewed, never copied, and kept alive by the tensors.
        path: the file's name in error messages.

    Raises:
        CheckpointError: the bytes are not a GGUF file that poot reads. Nothing else is raised, whatever the bytes.
    """
    cursor = Cursor(buffer, path)
    magic = bytes(buffer[:4])
    if magic != MAGIC:
        hint = _OTHER_MAGICS.get(magic)
        raise cursor.error("not a GGUF file" + (f" ({hint})" if hint else "") + f": it begins with {magic!r}")
    cursor.position = len(MAGIC)
    version = cursor.u32("the version")
    if version not in (2, 3):
        if version & 0xFFFF == 0:
            raise cursor.error("a big-endian GGUF file; only little-endian ones are supported", len(MAGIC))
        raise cursor.error(f"GGUF version {version}; versions 2 and 3 are supported", len(MAGIC))
    num_tensors = cursor.u64("the number of tensors")
    num_keys = cursor.u64("the number of metadata keys")
    metadata = read_metadata(cursor, num_keys)
    reader = ConfigReader(metadata, where=path)
    num_parts = reader.optional_int("split.count", 0)
    if num_parts > 1:
        part = reader.optional_int("split.no", 0) + 1
        raise CheckpointError(
            f"part {part} of a model split in {num_parts} files; merge them first (llama-gguf-split --merge)", path=path
        )
    alignment = reader.optional_int("general.alignment", DEFAULT_ALIGNMENT)
    if not 8 <= alignment <= _MAX_ALIGNMENT or alignment & (alignment - 1):
        raise reader.refuse("general.alignment", "a power of two of at least 8")
    tensors = read_tensors(cursor, num_tensors, alignment)
    if any(not weight.format.is_dense for weight in tensors.values()):
        version_of_blocks = reader.optional_int("general.quantization_version", _QUANTIZATION_VERSION)
        if version_of_blocks != _QUANTIZATION_VERSION:
            raise reader.refuse("general.quantization_version", str(_QUANTIZATION_VERSION))
    return GgufContents(version=version, metadata=metadata, tensors=tensors)


def open_gguf(path: Path) -> Checkpoint:
    """The model in the GGUF file at `path`.

    Raises:
        CheckpointError: the file cannot be read, is malformed, or is not a whole model.
    """
    where = display_path(path)
    contents = parse_gguf(map_file(path), where)
    reader = ConfigReader(contents.metadata, where=where)
    reader.optional_str("general.type", "model", choices=["model"])
    architecture = reader.require_str("general.architecture")
    if not contents.tensors:
        raise CheckpointError("holds no tensors, perhaps a vocabulary only", path=where)
    prefix = "tokenizer.chat_template."
    templates = {
        key.removeprefix(prefix): reader.require_str(key) for key in contents.metadata if key.startswith(prefix)
    }
    return Checkpoint(
        path=path,
        file_format=FileFormat.GGUF,
        architecture=architecture,
        config=contents.metadata,
        tensors=contents.tensors,
        chat_template=reader.optional_str("tokenizer.chat_template", templates.pop("default", None)),
        chat_templates=templates,
    )
