"""The second half of a GGUF file: the table of tensors, checked against the bytes that are there.

A tensor's entry is its name, a u32 number of dimensions, that many u64 sizes with the fastest first, a u32 type and a
u64 offset into the data section, which begins at the next multiple of the alignment after the table.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from poot.devices.base import Weight
from poot.devices.formats import Format
from poot.engine.checkpoint.fields import quote
from poot.engine.checkpoint.gguf_metadata import Cursor
from poot.engine.checkpoint.mapped_file import DENSE_DTYPES, byte_tensor
from poot.engine.checkpoint.types import MAX_TENSORS

# The format's own limits.
MAX_NAME_BYTES = 64
MAX_DIMENSIONS = 4

# An entry with a name of one byte and one dimension.
MIN_ENTRY_BYTES = 8 + 1 + 4 + 8 + 4 + 8

# ggml's type numbers (enum ggml_type in ggml.h), those that were given up included, so that a refusal can name them.
TYPE_NAMES = {
    0: "F32",
    1: "F16",
    2: "Q4_0",
    3: "Q4_1",
    4: "Q4_2",
    5: "Q4_3",
    6: "Q5_0",
    7: "Q5_1",
    8: "Q8_0",
    9: "Q8_1",
    10: "Q2_K",
    11: "Q3_K",
    12: "Q4_K",
    13: "Q5_K",
    14: "Q6_K",
    15: "Q8_K",
    16: "IQ2_XXS",
    17: "IQ2_XS",
    18: "IQ3_XXS",
    19: "IQ1_S",
    20: "IQ4_NL",
    21: "IQ3_S",
    22: "IQ2_S",
    23: "IQ4_XS",
    24: "I8",
    25: "I16",
    26: "I32",
    27: "I64",
    28: "F64",
    29: "IQ1_M",
    30: "BF16",
    31: "Q4_0_4_4",
    32: "Q4_0_4_8",
    33: "Q4_0_8_8",
    34: "TQ1_0",
    35: "TQ2_0",
    36: "IQ4_NL_4_4",
    37: "IQ4_NL_4_8",
    38: "IQ4_NL_8_8",
    39: "MXFP4",
    40: "NVFP4",
    41: "Q1_0",
}

_FORMATS = {type_id: Format[name] for type_id, name in TYPE_NAMES.items() if name in Format.__members__}


@dataclass(frozen=True, slots=True)
class _Entry:
    """One line of the table. `shape` is row-major; `offset` counts from the start of the data section."""

    name: str
    shape: tuple[int, ...]
    format: Format
    num_bytes: int
    offset: int
    position: int  # of the entry in the file


def read_tensors(cursor: Cursor, num_tensors: int, alignment: int) -> dict[str, Weight]:
    """The table at the cursor as weights over the buffer, in file order.

    Args:
        alignment: a power of two of at least 8, so that every dense type may be read in place.

    Raises:
        CheckpointError: an entry is malformed, repeated, of a type poot does not serve, misaligned, outside the file,
            or overlaps another.
    """
    if num_tensors > MAX_TENSORS:
        raise cursor.error(f"{num_tensors} tensors; at most {MAX_TENSORS} are allowed")
    cursor.need(num_tensors * MIN_ENTRY_BYTES, f"{num_tensors} tensor entries")
    entries: dict[str, _Entry] = {}
    for index in range(num_tensors):
        entry = _read_entry(cursor, index, alignment)
        if entry.name in entries:
            raise cursor.error(f"tensor {quote(entry.name)} is there twice", entry.position)
        entries[entry.name] = entry

    data_start = (cursor.position + alignment - 1) // alignment * alignment
    _check_layout(cursor, entries, data_start)
    everything = byte_tensor(cursor.buffer)
    weights: dict[str, Weight] = {}
    for entry in entries.values():
        start = data_start + entry.offset
        data = everything[start : start + entry.num_bytes]
        if entry.format.is_dense:
            data = data.view(DENSE_DTYPES[entry.format]).view(entry.shape)
        else:
            data = data.view(-1, entry.format.row_bytes(entry.shape[-1]))
        weights[entry.name] = Weight(entry.name, entry.shape, entry.format, data)
    return weights


def _read_entry(cursor: Cursor, index: int, alignment: int) -> _Entry:
    position = cursor.position
    name = cursor.string(f"the name of tensor {index}", MAX_NAME_BYTES)
    what = f"tensor {quote(name)}"
    num_dimensions = cursor.u32(f"the number of dimensions of {what}")
    if not 1 <= num_dimensions <= MAX_DIMENSIONS:
        raise cursor.error(f"{what} has {num_dimensions} dimensions; 1 to {MAX_DIMENSIONS} are allowed", position)
    shape = tuple(reversed([cursor.u64(f"the shape of {what}") for _ in range(num_dimensions)]))
    if 0 in shape:
        raise cursor.error(f"{what} has a dimension of size 0", position)
    type_id = cursor.u32(f"the type of {what}")
    offset = cursor.u64(f"the offset of {what}")
    if type_id not in TYPE_NAMES:
        raise cursor.error(f"{what} has the unknown type {type_id}", position)
    if type_id not in _FORMATS:
        raise cursor.error(f"{what} has type {TYPE_NAMES[type_id]}, which is not supported", position)
    format_ = _FORMATS[type_id]
    if shape[-1] % format_.block_weights:
        raise cursor.error(
            f"{what} has rows of {shape[-1]}, not a multiple of {format_.label}'s block of {format_.block_weights}",
            position,
        )
    num_bytes = math.prod(shape[:-1]) * format_.row_bytes(shape[-1])
    if num_bytes >= 2**63:
        raise cursor.error(f"{what} has more than 2^63 bytes", position)
    if offset % alignment:
        raise cursor.error(f"{what} has offset {offset}, not a multiple of the alignment {alignment}", position)
    return _Entry(name, shape, format_, num_bytes, offset, position)


def _check_layout(cursor: Cursor, entries: dict[str, _Entry], data_start: int) -> None:
    """Every tensor inside the file and apart from the others. Gaps are harmless, and some writers leave them."""
    data_bytes = max(0, len(cursor.buffer) - data_start)
    before: _Entry | None = None
    for entry in sorted(entries.values(), key=lambda entry: entry.offset):
        if before is not None and entry.offset < before.offset + before.num_bytes:
            raise cursor.error(f"tensors {quote(before.name)} and {quote(entry.name)} overlap", entry.position)
        if entry.offset + entry.num_bytes > data_bytes:
            raise cursor.error(
                f"tensor {quote(entry.name)} ends at byte {entry.offset + entry.num_bytes} of the data, "
                f"but the file holds {data_bytes}: it is truncated or its table is wrong",
                entry.position,
            )
        before = entry
