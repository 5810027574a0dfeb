"""JSON and text files that stand beside a model: bounded, UTF-8, and one kind of error whatever is in them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from poot.engine.checkpoint.fields import quote
from poot.engine.checkpoint.mapped_file import display_path
from poot.errors import CheckpointError

# config.json, tokenizer_config.json, generation_config.json and templates: the largest known have a few MB, of added
# tokens or label names.
MAX_CONFIG_BYTES = 16 * 2**20

# Commas outside and inside strings. Bounds the values that a file can unfold into at some 100 bytes each.
MAX_COMMAS = 2**21


def read_text(path: Path, max_bytes: int = MAX_CONFIG_BYTES) -> str:
    """The text of the UTF-8 file at `path`.

    Raises:
        CheckpointError: the file cannot be read, is not a regular file, is larger than `max_bytes`, or is not UTF-8.
    """
    where = display_path(path)
    try:
        if not path.is_file():  # asked before opening: to open a pipe would wait for its writer
            raise CheckpointError("not a file" if path.exists() else "there is no such file", path=where)
        with path.open("rb") as file:
            raw = file.read(max_bytes + 1)
    except OSError as error:
        raise CheckpointError(f"cannot be read: {error.strerror or error}", path=where) from error
    if len(raw) > max_bytes:
        raise CheckpointError(f"the file is larger than {max_bytes} bytes", path=where)
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise CheckpointError("not UTF-8", path=where, offset=error.start) from error


def read_json_object(path: Path, max_bytes: int = MAX_CONFIG_BYTES) -> dict[str, Any]:
    """The JSON object in the file at `path`.

    Of a repeated key the last wins, and NaN and Infinity are read, as Python's writers put them in some configurations;
    `ConfigReader` refuses them where a number is asked for.

    Raises:
        CheckpointError: as `read_text`, or the text is not a JSON object.
    """
    return parse_json_object(read_text(path, max_bytes), display_path(path))


def parse_json_object(text: str, where: str, *, is_repeated_key_refused: bool = False) -> dict[str, Any]:
    """The JSON object that `text` is.

    Args:
        where: the file, for error messages.
        is_repeated_key_refused: whether an object with the same key twice, at any depth, is refused.

    Raises:
        CheckpointError: the text is not JSON, not an object, nested too deeply, or has too many values.
    """

    def distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in pairs:
            if key in found:
                raise CheckpointError(f"the JSON key {quote(key)} is there twice", path=where)
            found[key] = value
        return found

    if text.count(",") > MAX_COMMAS:
        raise CheckpointError(f"the JSON has more than {MAX_COMMAS} values", path=where)
    try:
        value = json.loads(text, object_pairs_hook=distinct if is_repeated_key_refused else None)
    except json.JSONDecodeError as error:
        raise CheckpointError(
            f"not JSON: {error.msg} in line {error.lineno}, column {error.colno}", path=where
        ) from error
    except RecursionError as error:
        raise CheckpointError("the JSON is nested too deeply", path=where) from error
    except ValueError as error:  # an integer with more digits than Python converts
        raise CheckpointError(f"not JSON that can be read: {error}", path=where) from error
    if not isinstance(value, dict):
        raise CheckpointError("not a JSON object", path=where)
    return value
