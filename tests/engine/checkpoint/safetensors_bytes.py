"""safetensors files written out by hand, so that a test can get any part of them wrong."""

from __future__ import annotations

import json
import struct
from typing import Any


def info(dtype: str, shape: list[int], begin: int, end: int) -> dict[str, Any]:
    """One tensor's value in the header."""
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def safetensors(header: Any, data: bytes = b"", *, length: int | None = None, width: int = 8) -> bytes:
    """A whole file from a header (text or bytes as they are, anything else as JSON) padded to `width`."""
    if isinstance(header, bytes):
        raw = header
    else:
        raw = (header if isinstance(header, str) else json.dumps(header)).encode()
        raw += b" " * (-len(raw) % width)
    return struct.pack("<Q", len(raw) if length is None else length) + raw + data


F32_VALUES = (0.5, -1.0, 2.0, 1e30, -0.0, 3.25)
BF16_VALUES = (1.0, -2.0)

VALID_HEADER = {
    "__metadata__": {"format": "pt"},
    "late": info("BF16", [2], 24, 28),
    "early": info("F32", [3, 2], 0, 24),
    "scalar": info("F16", [], 28, 30),
}
VALID_DATA = struct.pack("<6f", *F32_VALUES) + bytes.fromhex("803f 00c0") + struct.pack("<e", 0.25)


def valid_safetensors() -> bytes:
    """A small file of three tensors, its header not in the order of the data."""
    return safetensors(VALID_HEADER, VALID_DATA)
