"""One safetensors file from its bytes: a JSON table of tensors and the data they cover.

Layout after the format section of safetensors' README: a u64 little-endian header length, a JSON object that maps each
name to dtype, shape and data_offsets [begin, end) into the bytes that follow, and those bytes, which the tensors cover
without holes or overlaps. `__metadata__` maps strings to strings.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import Any

from poot.devices.base import Weight
from poot.devices.formats import Format
from poot.engine.checkpoint.fields import LARGEST_INTEGER, quote
from poot.engine.checkpoint.json_file import parse_json_object
from poot.engine.checkpoint.mapped_file import DENSE_DTYPES, byte_tensor
from poot.engine.checkpoint.types import MAX_TENSORS
from poot.errors import CheckpointError

# The reference implementation's own limit.
MAX_HEADER_BYTES = 100_000_000

# Weights have at most four dimensions (convolutions, fused experts); more would only cost memory.
MAX_DIMENSIONS = 8

METADATA_KEY = "__metadata__"

_FORMATS = {"F32": Format.F32, "F16": Format.F16, "BF16": Format.BF16}

# Every other dtype of the format, so that a refusal can tell a dtype not served from one that does not exist.
_OTHER_DTYPES = frozenset(
    (
        "BOOL",
        "U8",
        "I8",
        "I16",
        "U16",
        "I32",
        "U32",
        "I64",
        "U64",
        "F64",
        "C64",
        "F4",
        "F6_E2M3",
        "F6_E3M2",
        "F8_E8M0",
        "F8_E4M3",
        "F8_E5M2",
        "F8_E4M3FNUZ",
        "F8_E5M2FNUZ",
    )
)


@dataclass(frozen=True, kw_only=True, slots=True)
class SafetensorsContents:
    """What a safetensors file holds.

    Attributes:
        tensors: every weight by name, viewing the buffer.
        skipped: names of position_ids buffers.
    """

    tensors: dict[str, Weight]
    skipped: frozenset[str]


@dataclass(frozen=True, slots=True)
class _Entry:
    """One checked line of the header. `begin` and `end` count from the start of the data; no format is a skip."""

    name: str
    format: Format | None
    shape: tuple[int, ...]
    begin: int
    end: int


def parse_safetensors(buffer: memoryview, path: str) -> SafetensorsContents:
    """The tensors of a safetensors file from its bytes, all of it checked before use.

    Tensors named `position_ids` (alone or after a dot) of dtype I64 are skipped: older versions of transformers saved
    that buffer, which only counts 0, 1, 2, ..., beside the weights.

    Where a file's header is not padded to the width of its dtypes, as some writers leave it, the tensors that stand on
    odd bytes are copied into memory, because no kernel may read them in place.

    Args:
        buffer: the whole file; it is viewed and kept alive by the tensors.
        path: the file's name in error messages.

    Raises:
        CheckpointError: the bytes are not a safetensors file that poot reads. Nothing else, whatever the bytes.
    """
    if len(buffer) < 8:
        raise CheckpointError(f"the file ends inside the header's length: it has {len(buffer)} bytes", path=path)
    header_bytes: int = struct.unpack_from("<Q", buffer)[0]
    if header_bytes > MAX_HEADER_BYTES:
        raise CheckpointError(
            f"the header has {header_bytes} bytes; at most {MAX_HEADER_BYTES} are allowed", path=path, offset=0
        )
    data_start = 8 + header_bytes
    if data_start > len(buffer):
        raise CheckpointError(
            f"the file ends inside the header: {header_bytes} bytes needed, {len(buffer) - 8} left", path=path, offset=8
        )
    try:
        text = str(buffer[8:data_start], "utf-8")
    except UnicodeDecodeError as error:
        raise CheckpointError("the header is not UTF-8", path=path, offset=8 + error.start) from error
    if not text.startswith("{"):
        raise CheckpointError("the header does not begin with '{'", path=path, offset=8)
    header = parse_json_object(text, path, is_repeated_key_refused=True)
    _check_metadata(header.pop(METADATA_KEY, {}), path)
    if len(header) > MAX_TENSORS:
        raise CheckpointError(f"{len(header)} tensors; at most {MAX_TENSORS} are allowed", path=path)
    entries = [_read_entry(name, value, path) for name, value in header.items()]
    _check_layout(entries, len(buffer) - data_start, path)

    everything = byte_tensor(buffer)
    tensors: dict[str, Weight] = {}
    for entry in entries:
        if entry.format is None:
            continue
        data = everything[data_start + entry.begin : data_start + entry.end]
        dtype = DENSE_DTYPES[entry.format]
        if data.storage_offset() % dtype.itemsize:
            data = data.clone()
        tensors[entry.name] = Weight(entry.name, entry.shape, entry.format, data.view(dtype).view(entry.shape))
    return SafetensorsContents(
        tensors=tensors, skipped=frozenset(entry.name for entry in entries if entry.format is None)
    )


def _check_metadata(value: object, path: str) -> None:
    if not isinstance(value, dict) or not all(isinstance(entry, str) for entry in value.values()):
        raise CheckpointError(f"{METADATA_KEY} in the header must map strings to strings", path=path)


def _read_entry(name: str, value: Any, path: str) -> _Entry:
    what = f"tensor {quote(name)}"
    if not isinstance(value, dict) or value.keys() != {"dtype", "shape", "data_offsets"}:
        raise CheckpointError(f"{what} must have dtype, shape and data_offsets in the header, nothing else", path=path)
    dtype, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    format_: Format | None = None
    if isinstance(dtype, str) and dtype in _FORMATS:
        format_ = _FORMATS[dtype]
        item_bytes = format_.block_bytes
    elif dtype == "I64" and name.rpartition(".")[2] == "position_ids":
        item_bytes = 8
    elif isinstance(dtype, str) and dtype in _OTHER_DTYPES:
        raise CheckpointError(f"{what} has dtype {dtype}, which is not supported; F32, F16 and BF16 are", path=path)
    else:
        raise CheckpointError(f"{what} has the unknown dtype {quote(dtype)}", path=path)
    if not _is_sizes(shape) or len(shape) > MAX_DIMENSIONS:
        raise CheckpointError(
            f"{what} must have a shape of at most {MAX_DIMENSIONS} integers of at least 0, not {quote(shape)}",
            path=path,
        )
    if not _is_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise CheckpointError(f"{what} must have data_offsets of the form [begin, end]", path=path)
    num_bytes = math.prod(shape) * item_bytes
    if num_bytes != offsets[1] - offsets[0]:
        raise CheckpointError(
            f"{what} has data_offsets {offsets[0]} to {offsets[1]}, {offsets[1] - offsets[0]} bytes, "
            f"but its shape and dtype make {quote(num_bytes)}",
            path=path,
        )
    return _Entry(name, format_, tuple(shape), offsets[0], offsets[1])


def _is_sizes(value: object) -> bool:
    return isinstance(value, list) and all(type(size) is int and 0 <= size <= LARGEST_INTEGER for size in value)


def _check_layout(entries: list[_Entry], data_bytes: int, path: str) -> None:
    """The tensors cover the data exactly, as the format demands."""
    position = 0
    for entry in sorted(entries, key=lambda entry: (entry.begin, entry.end)):
        what = f"tensor {quote(entry.name)}"
        if entry.end > data_bytes:
            raise CheckpointError(
                f"{what} ends at byte {entry.end} of the data, but the file holds {data_bytes}: "
                f"it is truncated or its header is wrong",
                path=path,
            )
        if entry.begin < position:
            raise CheckpointError(f"{what} overlaps the tensor before it at byte {entry.begin} of the data", path=path)
        if entry.begin > position:
            raise CheckpointError(f"{entry.begin - position} bytes before {what} belong to no tensor", path=path)
        position = entry.end
    if position != data_bytes:
        raise CheckpointError(f"{data_bytes - position} bytes at the end of the data belong to no tensor", path=path)
