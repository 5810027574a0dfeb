"""A safetensors directory, as Hugging Face lays them out, as a checked model.

config.json                        needed
model.safetensors                  the weights in one file, or
model.safetensors.index.json       the shard of each tensor; the shards stand beside it
tokenizer.json                     the tokenizer; checked by whoever builds it
tokenizer_config.json              with the chat template in older directories
generation_config.json
chat_template.jinja, additional_chat_templates/NAME.jinja
modules.json                       with what sentence-transformers adds (see `sentence_transformers`)
README.md                          the model card: its title alone
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from poot.devices.base import Weight
from poot.engine.checkpoint.fields import ConfigReader, quote
from poot.engine.checkpoint.json_file import read_json_object, read_text
from poot.engine.checkpoint.mapped_file import display_path, map_file
from poot.engine.checkpoint.safetensors import parse_safetensors
from poot.engine.checkpoint.sentence_transformers import read_sentence_modules
from poot.engine.checkpoint.types import Checkpoint, FileFormat
from poot.errors import CheckpointError

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
TEMPLATE_FILE = "chat_template.jinja"
TEMPLATE_DIRECTORY = "additional_chat_templates"
DEFAULT_TEMPLATE = "default"

# The index of the largest known models has 9 MB; Gemma's tokenizer.json, with 262,144 tokens, 33 MB.
MAX_INDEX_BYTES = 64 * 2**20
MAX_TOKENIZER_BYTES = 256 * 2**20


def open_directory(path: Path) -> Checkpoint:
    """The model in the directory `path`.

    Raises:
        CheckpointError: a file is missing or malformed, or the model is of a kind poot does not serve.
    """
    sentence = read_sentence_modules(path)
    root = path
    if sentence is not None and sentence.transformer_path:
        path = path / sentence.transformer_path
    weight_map = _find_weights(path)
    config = read_json_object(path / CONFIG_FILE)
    reader = ConfigReader(config, where=display_path(path / CONFIG_FILE))
    quantization = reader.optional_section("quantization_config")
    if quantization is not None:
        method = quantization.optional_str("quant_method", "no quant_method")
        raise CheckpointError(f"quantization_config ({method}) is not available yet", path=reader.where)
    architectures = reader.string_list("architectures")
    if not architectures:
        raise reader.refuse("architectures", "a list of at least one name")
    tensors = _read_weights(path, weight_map)
    tokenizer_config = _read_optional_object(path / "tokenizer_config.json")
    templates = _read_templates(path, tokenizer_config)
    return Checkpoint(
        path=root,
        file_format=FileFormat.SAFETENSORS,
        architecture=architectures[0],
        config=config,
        tensors=tensors,
        generation_config=_read_optional_object(path / "generation_config.json"),
        tokenizer_json=_read_tokenizer(path / "tokenizer.json"),
        tokenizer_config=tokenizer_config,
        chat_template=templates.pop(DEFAULT_TEMPLATE, None),
        chat_templates=templates,
        sentence=sentence,
        card_title=_read_card_title(root / "README.md"),
    )


def _find_weights(path: Path) -> dict[str, str] | None:
    """The index's map from tensor to shard, or None where `WEIGHTS_FILE` holds everything.

    Some writers leave an index beside a single file too; then it must list that file.
    """
    where = display_path(path)
    has_weights = _is_there(path / WEIGHTS_FILE)
    if not _is_there(path / INDEX_FILE):
        if has_weights:
            return None
        names = sorted(entry.name for entry in path.iterdir())
        gguf = [name for name in names if name.endswith(".gguf")]
        if gguf:
            raise CheckpointError(
                f"the directory holds GGUF files; give one of them, such as {quote(gguf[0])}", path=where
            )
        if any(name.startswith("pytorch_model") for name in names):
            raise CheckpointError(
                f"the directory holds pytorch_model files only; safetensors ({WEIGHTS_FILE}) are needed", path=where
            )
        raise CheckpointError(f"the directory holds neither {WEIGHTS_FILE} nor {INDEX_FILE}", path=where)
    index_where = display_path(path / INDEX_FILE)
    index = ConfigReader(read_json_object(path / INDEX_FILE, MAX_INDEX_BYTES), where=index_where)
    section = index.require_section("weight_map")
    weight_map = {name: section.require_str(name) for name in section.mapping}
    if not weight_map:
        raise index.refuse("weight_map", "an object of at least one tensor")
    for shard in sorted(set(weight_map.values())):
        # A shard stands in the directory itself. (It may be a symbolic link, as in Hugging Face's cache.)
        if not shard.endswith(".safetensors") or "/" in shard or "\\" in shard or "\0" in shard:
            raise CheckpointError(f"weight_map names {quote(shard)}, not a .safetensors file name", path=index_where)
    if has_weights and WEIGHTS_FILE not in weight_map.values():
        raise CheckpointError(f"holds {WEIGHTS_FILE} and an index that does not name it; remove one", path=where)
    return weight_map


def _read_weights(path: Path, weight_map: dict[str, str] | None) -> dict[str, Weight]:
    """Every tensor of the model, each found in exactly the shard that `weight_map` names."""
    if weight_map is None:
        weights_path = path / WEIGHTS_FILE
        tensors = parse_safetensors(map_file(weights_path), display_path(weights_path)).tensors
    else:
        tensors = {}
        found: set[str] = set()
        for shard in sorted(set(weight_map.values())):
            where = display_path(path / shard)
            contents = parse_safetensors(map_file(path / shard), where)
            for name in (*contents.tensors, *contents.skipped):
                if name not in weight_map:
                    raise CheckpointError(f"tensor {quote(name)} is not listed in {INDEX_FILE}", path=where)
                if weight_map[name] != shard:
                    raise CheckpointError(
                        f"tensor {quote(name)} is here, but {INDEX_FILE} lists it in {quote(weight_map[name])}",
                        path=where,
                    )
                found.add(name)
            tensors.update(contents.tensors)
        for name, shard in weight_map.items():
            if name not in found:
                raise CheckpointError(
                    f"tensor {quote(name)} is not in this file, where {INDEX_FILE} lists it",
                    path=display_path(path / shard),
                )
    if not tensors:
        raise CheckpointError("holds no tensors", path=display_path(path))
    return tensors


def _read_templates(path: Path, tokenizer_config: dict[str, Any]) -> dict[str, str]:
    """Chat templates by name. Files win over tokenizer_config.json, as they do in transformers."""
    directory = path / TEMPLATE_DIRECTORY
    files = {entry.stem: entry for entry in sorted(directory.glob("*.jinja"))} if directory.is_dir() else {}
    if _is_there(path / TEMPLATE_FILE):
        files[DEFAULT_TEMPLATE] = path / TEMPLATE_FILE
    if files:
        return {name: read_text(file) for name, file in files.items()}

    reader = ConfigReader(tokenizer_config, where=display_path(path / "tokenizer_config.json"))
    value = tokenizer_config.get("chat_template")
    if value is None:
        return {}
    if isinstance(value, str):
        return {DEFAULT_TEMPLATE: value}
    if not isinstance(value, list):
        raise reader.refuse("chat_template", "a string, or a list of objects with name and template")
    templates: dict[str, str] = {}
    for index, entry in enumerate(value):
        if not isinstance(entry, dict):
            raise reader.refuse("chat_template", "a string, or a list of objects with name and template")
        item = ConfigReader(entry, where=f"{reader.where}: chat_template[{index}]")
        name = item.require_str("name")
        if name in templates:
            raise CheckpointError(f"the template {quote(name)} is there twice", path=item.where)
        templates[name] = item.require_str("template")
    return templates


def _read_tokenizer(path: Path) -> str | None:
    if not _is_there(path):
        return None
    text = read_text(path, MAX_TOKENIZER_BYTES)
    if not text.lstrip().startswith("{"):
        raise CheckpointError("not a JSON object", path=display_path(path))
    return text


def _read_card_title(path: Path) -> str | None:
    """The first heading of a model card. It is prose for people, so one that cannot be read is as good as none."""
    try:
        text = read_text(path) if _is_there(path) else ""
    except CheckpointError:
        return None
    return next((line[2:].strip() for line in text.splitlines() if line.startswith("# ")), None)


def _read_optional_object(path: Path) -> dict[str, Any]:
    return read_json_object(path) if _is_there(path) else {}


def _is_there(path: Path) -> bool:
    """Whether the directory has such an entry. A link to nothing is there, so that reading it is refused."""
    return os.path.lexists(path)
