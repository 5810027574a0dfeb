"""GGUF files that are wrong, one malformation each: every one is a CheckpointError that says what and where."""

from __future__ import annotations

import struct
from pathlib import Path

import gguf
import pytest

from poot.devices.formats import Format
from poot.engine.checkpoint import gguf_metadata, open_checkpoint
from poot.engine.checkpoint.gguf import parse_gguf
from poot.errors import CheckpointError
from tests.engine.checkpoint import gguf_bytes as write
from tests.engine.checkpoint.gguf_bytes import (
    ARCHITECTURE,
    ARRAY,
    BOOL,
    F32,
    STRING,
    TWO_DATA,
    TWO_ENTRIES,
    U8,
    U16,
    U32,
    array,
    entry,
    key,
    string,
    u32,
    u64,
)

HUGE = 2**64 - 1


def one_tensor(dimensions: list[int], type_id: int, offset: int = 0, data_bytes: int = 4096) -> bytes:
    return write.gguf([], [entry("t", dimensions, type_id, offset)], bytes(data_bytes))


def nested(depth: int) -> bytes:
    return key("n", ARRAY, (u32(ARRAY) + u64(1)) * (depth - 1) + u32(U8) + u64(1) + b"\x01")


MALFORMED = {
    # The header.
    "empty": (b"", "not a GGUF file"),
    "wrong magic": (write.gguf(magic=b"GGUL"), "not a GGUF file: it begins with b'GGUL' (at byte 0)"),
    "before GGUF": (write.gguf(magic=b"tjgg"), "not a GGUF file (a GGML file (ggjt) from before GGUF)"),
    "LFS pointer": (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS pointer"),
    "zip": (b"PK\x03\x04" + bytes(60), "zip archive"),
    "magic only": (b"GGUF", "ends inside the version: 4 bytes needed, 0 left (at byte 4)"),
    "version 1": (write.gguf(version=1), "GGUF version 1; versions 2 and 3 are supported (at byte 4)"),
    "version 4": (write.gguf(version=4), "GGUF version 4; versions 2 and 3"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "a big-endian GGUF file"),
    "header cut": (b"GGUF" + u32(3) + u64(0) + b"\0\0", "ends inside the number of metadata keys"),
    # The counts.
    "2^64 keys": (write.gguf(num_keys=HUGE), f"{HUGE} metadata keys; at most 65536"),
    "more keys than bytes": (write.gguf([ARCHITECTURE], num_keys=60000), "ends inside 60000 metadata keys"),
    "one key too many": (write.gguf([ARCHITECTURE], TWO_ENTRIES, TWO_DATA, num_keys=2), "the name of tensor 0 has"),
    "2^64 tensors": (write.gguf(num_tensors=HUGE), f"{HUGE} tensors; at most 131072"),
    "more tensors than bytes": (write.gguf(num_tensors=100000), "ends inside 100000 tensor entries"),
    # Keys.
    "key of no bytes": (write.gguf([key("", U8, b"\0")]), "metadata key 0 has 0 bytes; 1 to 65535"),
    "key too long": (write.gguf([key("k" * 65536, U8, b"\0")]), "metadata key 0 has 65536 bytes"),
    "key past the end": (write.gguf([string("k", length=2000) + u32(U8) + b"\0"]), "ends inside metadata key 0"),
    "key of 2^64": (write.gguf([string("k", length=HUGE) + u32(U8) + b"\0"]), f"metadata key 0 has {HUGE} bytes"),
    "key not UTF-8": (write.gguf([key(b"ab\xff", U8, b"\0")]), "metadata key 0 is not UTF-8 (at byte 34)"),
    "key twice": (write.gguf([ARCHITECTURE, ARCHITECTURE]), "metadata key 'general.architecture' is there twice"),
    # Values.
    "unknown type": (write.gguf([key("k", 13, bytes(8))]), "'k' has the unknown value type 13"),
    "number cut": (
        write.gguf([key("k", write.F64, b"\0\0\0")], alignment=1),
        "ends inside 'k': 8 bytes needed, 3 left",
    ),
    "boolean 2": (write.gguf([key("k", BOOL, b"\x02")]), "'k' holds a boolean that is neither 0 nor 1 (at byte 37)"),
    "string past the end": (write.gguf([key("k", STRING, string("v", length=999))]), "ends inside 'k'"),
    "string of 2^64": (write.gguf([key("k", STRING, string("v", length=HUGE))]), f"'k': {HUGE} bytes needed"),
    "string not UTF-8": (write.gguf([key("k", STRING, string(b"\xc3\x28"))]), "'k' is not UTF-8"),
    "surrogate in UTF-8": (write.gguf([key("k", STRING, string(b"\xed\xa0\x80"))]), "'k' is not UTF-8"),
    # Arrays.
    "unknown element type": (write.gguf([array("k", 99, [], count=0)]), "'k' has the unknown element type 99"),
    "2^64 numbers": (write.gguf([array("k", U32, [], count=HUGE)]), f"'k': {HUGE * 4} bytes needed"),
    "2^62 numbers": (write.gguf([array("k", U32, [], count=2**62)]), f"'k': {2**64} bytes needed"),
    "2^64 strings": (write.gguf([array("k", STRING, [], count=HUGE)]), "ends inside 'k'"),
    "2^64 arrays": (write.gguf([array("k", ARRAY, [], count=HUGE)]), "ends inside 'k'"),
    "one number too many": (write.gguf([array("k", F32, [bytes(4)], count=2)], alignment=1), "ends inside 'k'"),
    "boolean 3 in an array": (write.gguf([array("k", BOOL, [b"\0", b"\x03"])]), "neither 0 nor 1 (at byte 50)"),
    "element past the end": (
        write.gguf([array("k", STRING, [string("a"), string("b", length=HUGE)])]),
        "ends inside 'k'[1] (at byte 58)",
    ),
    "element's length cut": (
        write.gguf([array("k", STRING, [string("abcdefghij")], count=2)], alignment=1),
        "ends inside the length of 'k'[1]",
    ),
    "element not UTF-8": (write.gguf([array("k", STRING, [string("a"), string(b"a\xff")])]), "'k'[1] is not UTF-8"),
    "arrays too deep": (write.gguf([nested(4)]), "nests arrays deeper than 3"),
    "arrays far too deep": (write.gguf([nested(5000)]), "nests arrays deeper than 3"),
    # The table of tensors.
    "name of no bytes": (write.gguf([], [entry("", [4], 0, 0)], bytes(64)), "the name of tensor 0 has 0 bytes"),
    "name too long": (write.gguf([], [entry("t" * 65, [4], 0, 0)], bytes(64)), "tensor 0 has 65 bytes; 1 to 64"),
    "name not UTF-8": (write.gguf([], [entry(b"\xff", [4], 0, 0)], bytes(64)), "the name of tensor 0 is not UTF-8"),
    "name twice": (
        write.gguf([], [entry("t", [4], 0, 0), entry("t", [4], 0, 32)], bytes(64)),
        "tensor 't' is there twice",
    ),
    "no dimensions": (one_tensor([], 0), "tensor 't' has 0 dimensions; 1 to 4"),
    "five dimensions": (one_tensor([1] * 5, 0), "tensor 't' has 5 dimensions; 1 to 4"),
    "2^32 dimensions": (
        write.gguf([], [string("t") + u32(2**32 - 1) + bytes(64)]),
        "tensor 't' has 4294967295 dimensions",
    ),
    "size 0": (one_tensor([4, 0], 0), "tensor 't' has a dimension of size 0"),
    "sizes overflow": (one_tensor([2**40, 2**40], 0), "tensor 't' has more than 2^63 bytes"),
    "sizes wrap to little": (one_tensor([2**32, 2**32], 0), "tensor 't' has more than 2^63 bytes"),
    "size 2^64": (one_tensor([HUGE], 0), "tensor 't' has more than 2^63 bytes"),
    "row not whole blocks": (one_tensor([48, 2], 2), "rows of 48, not a multiple of Q4_0's block of 32"),
    "row not whole K blocks": (one_tensor([128], 12), "rows of 128, not a multiple of Q4_K's block of 256"),
    "unknown tensor type": (one_tensor([32], 1000), "tensor 't' has the unknown type 1000"),
    "given-up type": (one_tensor([32], 4), "tensor 't' has type Q4_2, which is not supported"),
    "offset not aligned": (one_tensor([4], 0, offset=8), "offset 8, not a multiple of the alignment 32"),
    "offset past the end": (one_tensor([4], 0, offset=4096), "ends at byte 4112 of the data, but the file holds 4096"),
    "offset 2^64": (one_tensor([4], 0, offset=HUGE - 31), "the file holds 4096"),
    "table cut": (write.gguf([], [entry("t", [4], 0, 0)[:-4]], alignment=1), "ends inside 1 tensor entries"),
    "table cut late": (
        write.gguf([], [entry("t" * 30, [4], 0, 0)[:-4]], alignment=1),
        "ends inside the offset of tensor",
    ),
    "overlap": (
        write.gguf([], [entry("a", [16], 0, 0), entry("b", [4], 0, 32)], bytes(64)),
        "tensors 'a' and 'b' overlap",
    ),
    "same place": (
        write.gguf([], [entry("a", [4], 0, 32), entry("b", [4], 0, 32)], bytes(64)),
        "tensors 'a' and 'b' overlap",
    ),
    "data truncated": (
        write.gguf([], TWO_ENTRIES, TWO_DATA[:-1]),
        "tensor 'b' ends at byte 100 of the data, but the file holds 99: it is truncated",
    ),
    "no data at all": (write.gguf([], TWO_ENTRIES, alignment=1), "but the file holds 0"),
    # Keys that the format gives a meaning.
    "split": (
        write.gguf([key("split.no", U16, b"\2\0"), key("split.count", U16, b"\5\0")]),
        "part 3 of a model split in 5 files; merge them first",
    ),
    "split count is a string": (write.gguf([key("split.count", STRING, string("2"))]), "split.count is '2'"),
    "alignment 0": (write.gguf([key("general.alignment", U32, u32(0))]), "general.alignment is 0; it must be a power"),
    "alignment 4": (write.gguf([key("general.alignment", U32, u32(4))]), "general.alignment is 4"),
    "alignment 24": (write.gguf([key("general.alignment", U32, u32(24))]), "general.alignment is 24"),
    "alignment 2^31": (write.gguf([key("general.alignment", U32, u32(2**31))]), "general.alignment is 2147483648"),
    "alignment of a float": (write.gguf([key("general.alignment", F32, bytes(4))]), "general.alignment is 0.0"),
    "first block layout": (
        write.gguf([key("general.quantization_version", U32, u32(1))], TWO_ENTRIES, TWO_DATA),
        "general.quantization_version is 1; it must be 2",
    ),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed_file_is_refused_saying_why(case: str) -> None:
    raw, message = MALFORMED[case]
    with pytest.raises(CheckpointError) as caught:
        parse_gguf(memoryview(raw), "bad.gguf")
    text = str(caught.value)
    assert message in text
    assert text.startswith("bad.gguf: ")
    assert "\n" not in text
    assert len(text) < 300


def test_valid_pieces_of_the_table_above_do_parse() -> None:
    # Otherwise a case above might be refused for something else that all of them share.
    parse_gguf(memoryview(write.gguf([ARCHITECTURE, nested(3)], TWO_ENTRIES, TWO_DATA)), "f")
    parse_gguf(memoryview(one_tensor([32, 2], 2)), "f")
    parse_gguf(memoryview(one_tensor([1, 1, 1, 1], 0)), "f")
    parse_gguf(memoryview(write.gguf([key("k" * 65535, U8, b"\0")], [entry("t" * 64, [4], 0, 0)], bytes(64))), "f")
    parse_gguf(memoryview(write.gguf([], [entry("a", [16], 0, 0), entry("b", [4], 0, 64)], bytes(80))), "f")


SERVED = {format_.label for format_ in Format}


@pytest.mark.parametrize(
    "quantization", [member for member in gguf.GGMLQuantizationType if member.name not in SERVED], ids=lambda m: m.name
)
def test_type_that_is_not_served_is_refused_by_name(quantization: gguf.GGMLQuantizationType) -> None:
    raw = one_tensor([256], int(quantization))
    with pytest.raises(CheckpointError, match=f"tensor 't' has type {quantization.name}, which is not supported"):
        parse_gguf(memoryview(raw), "bad.gguf")


def test_file_cut_anywhere_is_refused() -> None:
    whole = memoryview(write.valid_gguf())
    for length in range(len(whole)):
        with pytest.raises(CheckpointError):
            parse_gguf(whole[:length], "cut.gguf")


def test_array_elements_are_bounded_over_all_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gguf_metadata, "MAX_ARRAY_ELEMENTS", 10)
    six = [b"\x01"] * 6
    parse_gguf(memoryview(write.gguf([array("a", U8, six), array("b", U8, six[:4])])), "f")
    with pytest.raises(CheckpointError, match="metadata arrays hold more than 10 elements at 'b'"):
        parse_gguf(memoryview(write.gguf([array("a", U8, six), array("b", U8, six)])), "f")
    monkeypatch.setattr(gguf_metadata, "MAX_ARRAY_ELEMENTS", 36)
    inner = u32(U8) + u64(4) + bytes(4)  # an array counts as 16 elements beside its own
    parse_gguf(memoryview(write.gguf([array("a", ARRAY, [inner]), array("b", U8, [b"\x01"] * 16)])), "f")
    with pytest.raises(CheckpointError, match="metadata arrays hold more than 36 elements at 'b'"):
        parse_gguf(memoryview(write.gguf([array("a", ARRAY, [inner]), array("b", U8, [b"\x01"] * 17)])), "f")


@pytest.mark.parametrize(
    ("keys", "num_string_bytes", "what"),
    [
        ([key("a", STRING, string("x" * 20)), key("b", STRING, string("x" * 20))], 42, "'b'"),
        ([key("a", STRING, string("x" * 20)), key("b" * 40, U8, b"\0")], 61, "metadata key 1"),
        ([key("a", STRING, string("x" * 20)), array("b", STRING, [string("x" * 8)] * 3)], 46, "'b'"),
        ([array("a", STRING, [string("x" * 8)] * 3), key("b", STRING, string("x" * 20))], 46, "'b'"),
    ],
)
def test_string_bytes_are_bounded_over_all_strings(
    monkeypatch: pytest.MonkeyPatch, keys: list[bytes], num_string_bytes: int, what: str
) -> None:
    raw = memoryview(write.gguf(keys))
    monkeypatch.setattr(gguf_metadata, "MAX_STRING_BYTES", num_string_bytes)
    parse_gguf(raw, "f")
    monkeypatch.setattr(gguf_metadata, "MAX_STRING_BYTES", num_string_bytes - 1)
    with pytest.raises(CheckpointError, match=f"strings take more than {num_string_bytes - 1} bytes at {what}"):
        parse_gguf(raw, "f")


MODEL_REFUSALS = {
    "no architecture": (write.gguf([], TWO_ENTRIES, TWO_DATA), "general.architecture is missing"),
    "architecture a number": (
        write.gguf([key("general.architecture", U32, u32(7))], TWO_ENTRIES, TWO_DATA),
        "general.architecture is 7; it must be a string",
    ),
    "an adapter": (
        write.gguf([ARCHITECTURE, key("general.type", STRING, string("adapter"))], TWO_ENTRIES, TWO_DATA),
        "general.type is 'adapter'; it must be one of model",
    ),
    "a vocabulary": (write.gguf([ARCHITECTURE]), "holds no tensors"),
    "template a number": (
        write.gguf([ARCHITECTURE, key("tokenizer.chat_template", U32, u32(1))], TWO_ENTRIES, TWO_DATA),
        "tokenizer.chat_template is 1; it must be a string",
    ),
    "named template a number": (
        write.gguf([ARCHITECTURE, key("tokenizer.chat_template.rag", U32, u32(1))], TWO_ENTRIES, TWO_DATA),
        "tokenizer.chat_template.rag is 1",
    ),
}


@pytest.mark.parametrize("case", MODEL_REFUSALS)
def test_file_that_is_no_model_is_refused_saying_why(case: str, tmp_path: Path) -> None:
    raw, message = MODEL_REFUSALS[case]
    path = tmp_path / "model.gguf"
    path.write_bytes(raw)
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(path)
    assert message in str(caught.value)
    assert str(caught.value).startswith(f"{path}: ")
