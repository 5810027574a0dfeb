"""GGUF files written out by hand, byte for byte, so that a test can get any one of them wrong."""

from __future__ import annotations

import struct
from collections.abc import Sequence

# Value types of the format document.
U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)


def u32(value: int) -> bytes:
    return struct.pack("<I", value)


def u64(value: int) -> bytes:
    return struct.pack("<Q", value)


def string(text: str | bytes, *, length: int | None = None) -> bytes:
    """A string; `length` overrides the count in front of it."""
    raw = text.encode() if isinstance(text, str) else text
    return u64(len(raw) if length is None else length) + raw


def key(name: str | bytes, kind: int, raw: bytes) -> bytes:
    """One metadata key with a value of type `kind` whose bytes are `raw`."""
    return string(name) + u32(kind) + raw


def array(name: str, kind: int, elements: Sequence[bytes], *, count: int | None = None) -> bytes:
    """One metadata key with an array; `count` overrides the number of elements."""
    return key(name, ARRAY, u32(kind) + u64(len(elements) if count is None else count) + b"".join(elements))


def entry(name: str | bytes, dimensions: Sequence[int], type_id: int, offset: int) -> bytes:
    """One line of the tensor table; `dimensions` fastest first, as in the file."""
    sizes = b"".join(u64(size) for size in dimensions)
    return string(name) + u32(len(dimensions)) + sizes + u32(type_id) + u64(offset)


def gguf(
    keys: Sequence[bytes] = (),
    entries: Sequence[bytes] = (),
    data: bytes = b"",
    *,
    magic: bytes = b"GGUF",
    version: int = 3,
    num_tensors: int | None = None,
    num_keys: int | None = None,
    alignment: int = 32,
) -> bytes:
    """A whole file: header, keys, table, padding to `alignment`, data. The counts may be overridden."""
    head = magic + u32(version)
    head += u64(len(entries) if num_tensors is None else num_tensors)
    head += u64(len(keys) if num_keys is None else num_keys)
    head += b"".join(keys) + b"".join(entries)
    return head + bytes(-len(head) % alignment) + data


ARCHITECTURE = key("general.architecture", STRING, string("llama"))

# Two tensors: F32 of 2 rows by 3 at offset 0, and Q8_0 of 2 rows by 32 (34 bytes a row) at offset 32.
F32_VALUES = (0.0, 1.0, -2.0, 3.5, 1e-3, -1e30)
TWO_ENTRIES = [entry("a", [3, 2], 0, 0), entry("b", [32, 2], 8, 32)]
TWO_DATA = struct.pack("<6f", *F32_VALUES) + bytes(8) + bytes(range(68))


def valid_gguf(version: int = 3) -> bytes:
    """A small file with a value of every type and both kinds of tensors."""
    keys = [
        ARCHITECTURE,
        key("test.u8", U8, b"\xff"),
        key("test.i8", I8, b"\xff"),
        key("test.u16", U16, struct.pack("<H", 65535)),
        key("test.i16", I16, struct.pack("<h", -2)),
        key("test.u32", U32, u32(2**32 - 1)),
        key("test.i32", I32, struct.pack("<i", -(2**31))),
        key("test.f32", F32, struct.pack("<f", 0.5)),
        key("test.bool", BOOL, b"\x01"),
        key("test.string", STRING, string("grüße 🌍")),
        key("test.u64", U64, u64(2**64 - 1)),
        key("test.i64", I64, struct.pack("<q", -(2**63))),
        key("test.f64", F64, struct.pack("<d", 1e300)),
        key("test.empty", STRING, string("")),
        array("test.numbers", I32, [struct.pack("<i", value) for value in (1, -2, 3)]),
        array("test.flags", BOOL, [b"\x01", b"\x00"]),
        array("test.words", STRING, [string("one"), string(""), string("drei€")]),
        array("test.nested", ARRAY, [u32(U8) + u64(2) + b"\x01\x02", u32(STRING) + u64(1) + string("x")]),
        array("test.none", STRING, []),
    ]
    return gguf(keys, TWO_ENTRIES, TWO_DATA, version=version)


VALID_METADATA = {
    "general.architecture": "llama",
    "test.u8": 255,
    "test.i8": -1,
    "test.u16": 65535,
    "test.i16": -2,
    "test.u32": 2**32 - 1,
    "test.i32": -(2**31),
    "test.f32": 0.5,
    "test.bool": True,
    "test.string": "grüße 🌍",
    "test.u64": 2**64 - 1,
    "test.i64": -(2**63),
    "test.f64": 1e300,
    "test.empty": "",
    "test.numbers": [1, -2, 3],
    "test.flags": [True, False],
    "test.words": ["one", "", "drei€"],
    "test.nested": [[1, 2], ["x"]],
    "test.none": [],
}
