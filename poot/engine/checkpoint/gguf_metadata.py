"""The first half of a GGUF file: the cursor that bounds every read, and the metadata keys and values.

Layout after ggml's docs/gguf.md (version 3; version 2 is the same but for byte order): integers are little-endian, a
string is a u64 length and UTF-8 bytes, a value is a u32 type and the bytes of that type, an array is a u32 element
type, a u64 count and the elements.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

from poot.engine.checkpoint.fields import quote
from poot.errors import CheckpointError

# The format's own limit on a key.
MAX_KEY_BYTES = 65535

# Models carry some fifty keys. The format sets no limit; this one keeps a hostile file from filling memory with them.
MAX_KEYS = 65536

# Elements of all arrays together. A vocabulary of 262,144 tokens takes 1.3 million (tokens, scores, types, merges).
MAX_ARRAY_ELEMENTS = 2**23

# Bytes of all strings together: keys, values, elements and names. A vocabulary of 262,144 tokens has 3 MB of them, and
# a file may carry its whole tokenizer.json, 35 MB. Without a limit a string could be as long as the weights.
MAX_STRING_BYTES = 2**28

# The format allows arrays of arrays; llama.cpp reads none and no known writer makes any. Three levels is generous.
MAX_ARRAY_DEPTH = 3

# An array within an array counts as this many elements, which is what it costs to read.
ELEMENTS_OF_NESTED_ARRAY = 16

# A key's length, one byte of it, the type and the smallest value.
MIN_KEY_BYTES = 8 + 1 + 4 + 1

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")

_BOOL = 7
_STRING = 8
_ARRAY = 9

# Value type -> numpy's name for it.
_NUMBERS: dict[int, np.dtype[Any]] = {
    0: np.dtype("<u1"),
    1: np.dtype("<i1"),
    2: np.dtype("<u2"),
    3: np.dtype("<i2"),
    4: np.dtype("<u4"),
    5: np.dtype("<i4"),
    6: np.dtype("<f4"),
    _BOOL: np.dtype("<u1"),
    10: np.dtype("<u8"),
    11: np.dtype("<i8"),
    12: np.dtype("<f8"),
}


class Cursor:
    """A position in the file's bytes. Every read is checked against the end first, and moves the position.

    Raises CheckpointError, with the offset, from every method.
    """

    def __init__(self, buffer: memoryview, path: str) -> None:
        self.buffer = buffer
        self.path = path
        self.position = 0
        self.num_string_bytes_left = MAX_STRING_BYTES

    def error(self, message: str, offset: int | None = None) -> CheckpointError:
        """The error for what stands at `offset`, by default at the position."""
        return CheckpointError(message, path=self.path, offset=self.position if offset is None else offset)

    def need(self, num_bytes: int, what: str) -> None:
        """Checks that `num_bytes` are left. Call it before anything is allocated for them."""
        left = len(self.buffer) - self.position
        if num_bytes > left:
            raise self.error(f"the file ends inside {what}: {num_bytes} bytes needed, {left} left")

    def u32(self, what: str) -> int:
        self.need(4, what)
        value: int = _U32.unpack_from(self.buffer, self.position)[0]
        self.position += 4
        return value

    def u64(self, what: str) -> int:
        self.need(8, what)
        value: int = _U64.unpack_from(self.buffer, self.position)[0]
        self.position += 8
        return value

    def string(self, what: str, max_bytes: int | None = None) -> str:
        """A string of 1 to `max_bytes` bytes where that is given, of any length that fits otherwise."""
        start = self.position
        length = self.u64(f"the length of {what}")
        if max_bytes is not None and not 1 <= length <= max_bytes:
            raise self.error(f"{what} has {length} bytes; 1 to {max_bytes} are allowed", start)
        self.need(length, what)
        if length > self.num_string_bytes_left:
            raise self.error(f"strings take more than {MAX_STRING_BYTES} bytes at {what}", start)
        self.num_string_bytes_left -= length
        try:
            value = str(self.buffer[self.position : self.position + length], "utf-8")
        except UnicodeDecodeError as error:
            raise self.error(f"{what} is not UTF-8", self.position + error.start) from error
        self.position += length
        return value


def read_metadata(cursor: Cursor, num_keys: int) -> dict[str, Any]:
    """`num_keys` keys and values, in file order: int, float, bool, str, or lists of those.

    Raises:
        CheckpointError: anything in them is malformed, repeated or over a limit.
    """
    if num_keys > MAX_KEYS:
        raise cursor.error(f"{num_keys} metadata keys; at most {MAX_KEYS} are allowed")
    cursor.need(num_keys * MIN_KEY_BYTES, f"{num_keys} metadata keys")
    reader = _ValueReader(cursor)
    metadata: dict[str, Any] = {}
    for index in range(num_keys):
        start = cursor.position
        key = cursor.string(f"metadata key {index}", MAX_KEY_BYTES)
        if key in metadata:
            raise cursor.error(f"metadata key {quote(key)} is there twice", start)
        metadata[key] = reader.value(key)
    return metadata


class _ValueReader:
    def __init__(self, cursor: Cursor) -> None:
        self.cursor = cursor
        self.num_elements_left = MAX_ARRAY_ELEMENTS

    def value(self, key: str) -> Any:
        cursor = self.cursor
        start = cursor.position
        name = quote(key)
        kind = cursor.u32(f"the type of {name}")
        if kind == _STRING:
            return cursor.string(name)
        if kind == _ARRAY:
            return self.array(name, depth=1)
        if kind not in _NUMBERS:
            raise cursor.error(f"{name} has the unknown value type {kind}", start)
        return self.numbers(name, kind, 1)[0]

    def array(self, name: str, depth: int) -> list[Any]:
        cursor = self.cursor
        start = cursor.position
        if depth > MAX_ARRAY_DEPTH:
            raise cursor.error(f"{name} nests arrays deeper than {MAX_ARRAY_DEPTH}")
        kind = cursor.u32(f"the element type of {name}")
        count = cursor.u64(f"the length of {name}")
        if kind not in _NUMBERS and kind not in (_STRING, _ARRAY):
            raise cursor.error(f"{name} has the unknown element type {kind}", start)
        if kind in _NUMBERS:
            cursor.need(count * _NUMBERS[kind].itemsize, name)
        else:
            # The least that is left of each: a string's length, or an array's type and length.
            cursor.need(count * (8 if kind == _STRING else 12), name)
        num_elements = count * ELEMENTS_OF_NESTED_ARRAY if kind == _ARRAY else count
        if num_elements > self.num_elements_left:
            raise cursor.error(f"metadata arrays hold more than {MAX_ARRAY_ELEMENTS} elements at {name}", start)
        self.num_elements_left -= num_elements
        if kind == _STRING:
            return self.strings(name, count)
        if kind == _ARRAY:
            return [self.array(f"{name}[{index}]", depth + 1) for index in range(count)]
        return self.numbers(name, kind, count)

    def numbers(self, name: str, kind: int, count: int) -> list[Any]:
        cursor = self.cursor
        dtype = _NUMBERS[kind]
        cursor.need(count * dtype.itemsize, name)
        # An empty array may stand at the very end, which frombuffer takes for an offset out of range.
        values = np.frombuffer(cursor.buffer, dtype, count, cursor.position) if count else np.empty(0, dtype)
        if kind == _BOOL:
            wrong = np.flatnonzero(values > 1)
            if len(wrong):
                raise cursor.error(f"{name} holds a boolean that is neither 0 nor 1", cursor.position + int(wrong[0]))
            values = values.astype(np.bool_)
        cursor.position += count * dtype.itemsize
        result: list[Any] = values.tolist()
        return result

    def strings(self, name: str, count: int) -> list[str]:
        # `Cursor.string` written out: a vocabulary has hundreds of thousands, and this is most of the opening time.
        cursor = self.cursor
        buffer = cursor.buffer
        position = cursor.position
        end = len(buffer)
        # What the strings and their lengths may take.
        limit = position + cursor.num_string_bytes_left + 8 * count
        unpack_length = _U64.unpack_from
        values: list[str] = []
        append = values.append
        try:
            for _ in range(count):
                start = position + 8
                position = start + unpack_length(buffer, position)[0]
                if position > end:
                    raise cursor.error(f"the file ends inside {name}[{len(values)}]", start - 8)
                if position > limit:
                    raise cursor.error(f"strings take more than {MAX_STRING_BYTES} bytes at {name}", start - 8)
                append(str(buffer[start:position], "utf-8"))
        except struct.error as error:
            raise cursor.error(f"the file ends inside the length of {name}[{len(values)}]", position) from error
        except UnicodeDecodeError as error:
            raise cursor.error(f"{name}[{len(values)}] is not UTF-8", start + error.start) from error
        cursor.num_string_bytes_left -= position - cursor.position - 8 * count
        cursor.position = position
        return values
