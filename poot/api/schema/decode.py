"""Bytes of a request body -> a typed request, strictly, or a `BadRequest` that names the field.

JSON is RFC 8259 and nothing beyond it: UTF-8 without a BOM, no NaN or Infinity, no number outside an f64, no lone
surrogate, at most `MAX_DEPTH` arrays and objects inside each other. Integers are written as integers. Of a repeated
key the last wins. msgspec enforces all of that but the depth, which is measured first.
"""

from __future__ import annotations

import re
from typing import TypeVar

import msgspec
import numpy as np

from poot.errors import BadRequest

MAX_DEPTH = 128
"""Deep enough for any JSON schema a person writes; shallow enough for every recursive reader behind it."""

_MAX_NAMED_CHARS = 100  # of a field name that came from the client, in an answer

# Unrolled and possessive: linear in the body, however it is made.
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
_NOT_BRACKETS = bytes(byte for byte in range(256) if byte not in b"[]{}")
_STEP_OF_BRACKET = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")

_UNKNOWN_FIELD = re.compile(r"Object contains unknown field `(?P<name>.*?)`(?: - at `\$(?P<path>[^`]*)`)?", re.DOTALL)
_MISSING_FIELD = re.compile(r"Object missing required field `(?P<name>[^`]*)`(?: - at `\$(?P<path>[^`]*)`)?")
_AT = re.compile(r"(?P<problem>.*?) - at (?:`key` in )?`\$(?P<path>[^`]*)`", re.DOTALL)

T = TypeVar("T")


def decode(body: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    """The request in `body`.

    Raises:
        BadRequest: not UTF-8, not JSON, not an object, nested too deep, an unknown field, a wrong type, out of range.
            `param` is the field's path for the last three.
    """
    try:
        body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadRequest(f"the body is not UTF-8 (at byte {error.start})") from error
    if measure_depth(body) > MAX_DEPTH:
        raise BadRequest(f"the body nests arrays and objects more than {MAX_DEPTH} deep")
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise _invalid_field(str(error)) from error
    except msgspec.DecodeError as error:
        raise BadRequest(f"the body is not valid JSON: {_lower_first(str(error))}") from error
    except RecursionError as error:  # an unclosed nest, whose depth cannot be told from its brackets
        raise BadRequest(f"the body nests arrays and objects more than {MAX_DEPTH} deep") from error


def measure_depth(body: bytes) -> int:
    """How deep arrays and objects of a JSON text lie inside each other; brackets in strings do not count.

    A text that is not JSON gets some number; its reader refuses it.
    """
    num_openers = body.count(b"[") + body.count(b"{")
    if num_openers <= MAX_DEPTH:
        return num_openers  # an upper bound is enough, and this is every usual request
    brackets = _STRING.sub(b"", body).translate(_STEP_OF_BRACKET, _NOT_BRACKETS)
    steps = np.frombuffer(brackets, dtype=np.int8)
    return int(steps.cumsum(dtype=np.int32).max(initial=0))


def _invalid_field(message: str) -> BadRequest:
    """msgspec's message with a path such as `$.messages[0].content` as our message and `param`."""
    unknown = _UNKNOWN_FIELD.fullmatch(message)
    if unknown is not None:
        name = unknown["name"][:_MAX_NAMED_CHARS]
        path = f"{unknown['path'] or ''}.{name}".lstrip(".")
        return BadRequest(f"unknown field: {path}", param=path)
    missing = _MISSING_FIELD.fullmatch(message)
    if missing is not None:
        path = f"{missing['path'] or ''}.{missing['name']}".lstrip(".")
        return BadRequest(f"{path} is required", param=path)
    located = _AT.fullmatch(message)
    path = located["path"].lstrip(".") if located is not None else ""
    if located is None or not path:
        return BadRequest(f"the body is not what this route takes: {_lower_first(message)}")
    problem = located["problem"]
    if problem.startswith("Invalid enum value"):
        problem = "none of the values that this field takes"  # msgspec quotes the client
    return BadRequest(f"{path}: {_lower_first(problem)}", param=path)


def _lower_first(text: str) -> str:
    return text[:1].lower() + text[1:] if not text.startswith("JSON") else text
