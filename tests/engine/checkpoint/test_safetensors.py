"""One safetensors file: against bytes written by hand, the reference library, and a table of malformations."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load, load_file, save

from poot.devices.formats import Format
from poot.engine.checkpoint import open_checkpoint
from poot.engine.checkpoint.safetensors import MAX_HEADER_BYTES, parse_safetensors
from poot.errors import CheckpointError
from tests.engine.checkpoint import safetensors_bytes as write
from tests.engine.checkpoint.safetensors_bytes import info, safetensors
from tests.models import require_model


def test_file_written_by_hand_is_read_exactly() -> None:
    contents = parse_safetensors(memoryview(write.valid_safetensors()), "hand.safetensors")
    assert list(contents.tensors) == ["late", "early", "scalar"]
    assert contents.skipped == frozenset()
    early, late, scalar = (contents.tensors[name] for name in ("early", "late", "scalar"))
    assert (early.name, early.shape, early.format) == ("early", (3, 2), Format.F32)
    assert early.data.flatten().tolist() == torch.tensor(write.F32_VALUES).tolist()
    assert (late.shape, late.format, late.data.dtype) == ((2,), Format.BF16, torch.bfloat16)
    assert late.data.tolist() == list(write.BF16_VALUES)
    assert (scalar.shape, scalar.format, scalar.data.item()) == ((), Format.F16, 0.25)


def test_file_of_the_reference_library_is_read_as_it_reads_it() -> None:
    generator = torch.Generator().manual_seed(5)
    tensors = {
        "a": torch.randn(3, 4, generator=generator),
        "b": torch.randn(5, generator=generator).to(torch.bfloat16),
        "c": torch.randn(2, 1, 3, generator=generator).to(torch.float16),
        "none": torch.empty(0, 4),
    }
    raw = save(tensors, {"format": "pt"})
    contents = parse_safetensors(memoryview(raw), "f")
    for name, expected in load(raw).items():
        assert torch.equal(contents.tensors[name].data, expected)
        assert contents.tensors[name].data.dtype == expected.dtype
    assert contents.tensors.keys() == tensors.keys()


def test_real_model_equals_what_the_reference_library_reads() -> None:
    path = require_model("minilm")
    checkpoint = open_checkpoint(path)
    expected = load_file(path / "model.safetensors")
    assert expected.pop("embeddings.position_ids").dtype == torch.int64  # the buffer that is skipped
    assert checkpoint.tensors.keys() == expected.keys()
    for name, tensor in expected.items():
        weight = checkpoint.tensors[name]
        assert weight.shape == tuple(tensor.shape)
        assert torch.equal(weight.data, tensor)


@pytest.mark.parametrize("num_spaces", range(4))
def test_header_that_is_not_padded_is_read_all_the_same(num_spaces: int) -> None:
    header = json.dumps(write.VALID_HEADER).encode() + b" " * num_spaces
    contents = parse_safetensors(memoryview(safetensors(header, write.VALID_DATA)), "f")
    for weight in contents.tensors.values():
        assert weight.data.data_ptr() % weight.data.element_size() == 0
    assert contents.tensors["early"].data.flatten().tolist() == torch.tensor(write.F32_VALUES).tolist()
    assert contents.tensors["late"].data.tolist() == list(write.BF16_VALUES)


def test_padded_file_is_not_copied() -> None:
    raw = bytearray(write.valid_safetensors())
    contents = parse_safetensors(memoryview(raw), "f")
    start = len(raw) - len(write.VALID_DATA)
    raw[start : start + 4] = bytes.fromhex("0000 803f")
    assert contents.tensors["early"].data[0, 0].item() == 1.0


def test_position_ids_are_skipped_and_said_so() -> None:
    header = {
        "position_ids": info("I64", [2], 0, 16),
        "a.position_ids": info("I64", [1, 1], 16, 24),
        "w": info("F32", [1], 24, 28),
    }
    contents = parse_safetensors(memoryview(safetensors(header, bytes(28))), "f")
    assert contents.tensors.keys() == {"w"}
    assert contents.skipped == {"position_ids", "a.position_ids"}


F32_4 = info("F32", [4], 0, 16)

MALFORMED = {
    # The header's frame.
    "empty": (b"", "the file ends inside the header's length: it has 0 bytes"),
    "length cut": (b"\1\2\3", "the file ends inside the header's length: it has 3 bytes"),
    "header over the limit": (safetensors({}, length=MAX_HEADER_BYTES + 1), "100000001 bytes; at most 100000000"),
    "header of 2^64": (safetensors({}, length=2**64 - 1), "the header has 18446744073709551615 bytes"),
    "header cut": (safetensors({"t": F32_4}, length=5000), "the file ends inside the header: 5000 bytes needed"),
    "header of no bytes": (safetensors(b""), "the header does not begin with '{'"),
    "not UTF-8": (safetensors(b'{"\xff":1}'), "the header is not UTF-8 (at byte 10)"),
    "not JSON": (safetensors('{"a": '), "not JSON"),
    "text after the object": (safetensors('{} {"a": 1}'), "not JSON: Extra data in line 1, column 4"),
    "a list": (safetensors("[]"), "the header does not begin with '{'"),
    "spaces first": (safetensors("  {}"), "the header does not begin with '{'"),
    "too deep": (safetensors('{"a":' * 100_000), "the JSON is nested too deeply"),
    "too deep in lists": (safetensors('{"a":' + "[" * 100_000), "the JSON is nested too deeply"),
    "digits without end": (safetensors('{"a":' + "1" * 10_000 + "}"), "not JSON that can be read"),
    "too many values": (safetensors('{"a":[' + "0," * (2**21 + 1) + "0]}"), "the JSON has more than 2097152 values"),
    "tensor twice": (
        safetensors(f'{{"t": {json.dumps(F32_4)}, "t": {json.dumps(F32_4)}}}', bytes(16)),
        "the JSON key 't' is there twice",
    ),
    "field twice": (
        safetensors('{"t": {"dtype": "F32", "dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}', bytes(16)),
        "the JSON key 'dtype' is there twice",
    ),
    "metadata a list": (safetensors({"__metadata__": []}), "__metadata__ in the header must map strings to strings"),
    "metadata of numbers": (safetensors({"__metadata__": {"a": 1}}), "__metadata__ in the header must map strings"),
    "too many tensors": (safetensors(dict.fromkeys(map(str, range(131073)), 0)), "131073 tensors; at most 131072"),
    # A tensor's entry.
    "tensor a number": (safetensors({"t": 3}), "tensor 't' must have dtype, shape and data_offsets"),
    "no dtype": (safetensors({"t": {"shape": [4], "data_offsets": [0, 16]}}), "tensor 't' must have dtype, shape and"),
    "a field more": (safetensors({"t": {**F32_4, "stride": [1]}}, bytes(16)), "tensor 't' must have dtype, shape and"),
    "dtype not known": (safetensors({"t": info("F33", [4], 0, 16)}, bytes(16)), "'t' has the unknown dtype 'F33'"),
    "dtype in small letters": (safetensors({"t": info("f32", [4], 0, 16)}, bytes(16)), "the unknown dtype 'f32'"),
    "dtype a list": (safetensors({"t": {**F32_4, "dtype": ["F32"]}}, bytes(16)), "the unknown dtype a list of 1"),
    "dtype null": (safetensors({"t": {**F32_4, "dtype": None}}, bytes(16)), "the unknown dtype None"),
    "shape a number": (safetensors({"t": {**F32_4, "shape": 4}}, bytes(16)), "must have a shape of at most 8 integers"),
    "shape of a float": (safetensors({"t": {**F32_4, "shape": [4.0]}}, bytes(16)), "must have a shape of at most 8"),
    "shape of a bool": (safetensors({"t": info("F32", [True], 0, 4)}, bytes(4)), "must have a shape of at most 8"),
    "shape negative": (safetensors({"t": info("F32", [-2, -2], 0, 16)}, bytes(16)), "must have a shape of at most 8"),
    "nine dimensions": (safetensors({"t": info("F32", [1] * 9, 0, 4)}, bytes(4)), "must have a shape of at most 8"),
    "shape beyond 64 bits": (
        safetensors({"t": info("F32", [2**63], 0, 4)}, bytes(4)),
        "must have a shape of at most 8",
    ),
    "shape overflows": (safetensors({"t": info("F32", [2**62] * 4, 0, 0)}), "make an integer beyond 64 bits"),
    "shape too large for its bytes": (
        safetensors({"t": info("F32", [5], 0, 16)}, bytes(16)),
        "tensor 't' has data_offsets 0 to 16, 16 bytes, but its shape and dtype make 20",
    ),
    "one offset": (safetensors({"t": {**F32_4, "data_offsets": [16]}}, bytes(16)), "data_offsets of the form [begin,"),
    "offsets turned round": (safetensors({"t": info("F32", [4], 16, 0)}, bytes(16)), "data_offsets of the form"),
    "offset negative": (safetensors({"t": info("F32", [4], -16, 0)}, bytes(16)), "data_offsets of the form [begin,"),
    "offset of a float": (safetensors({"t": {**F32_4, "data_offsets": [0, 16.0]}}, bytes(16)), "data_offsets of the"),
    # The data.
    "truncated": (safetensors({"t": F32_4}, bytes(15)), "ends at byte 16 of the data, but the file holds 15"),
    "offset of 2^62": (safetensors({"t": info("F32", [4], 2**62, 2**62 + 16)}, bytes(16)), "but the file holds 16"),
    "overlap": (
        safetensors({"a": info("F32", [4], 0, 16), "b": info("F32", [4], 12, 28)}, bytes(28)),
        "tensor 'b' overlaps the tensor before it at byte 12",
    ),
    "same place": (
        safetensors({"a": info("F32", [4], 0, 16), "b": info("F32", [4], 0, 16)}, bytes(16)),
        "tensor 'b' overlaps the tensor before it at byte 0",
    ),
    "hole": (
        safetensors({"a": info("F32", [1], 0, 4), "b": info("F32", [1], 8, 12)}, bytes(12)),
        "4 bytes before tensor 'b' belong to no tensor",
    ),
    "hole at the start": (safetensors({"t": info("F32", [1], 4, 8)}, bytes(8)), "4 bytes before tensor 't' belong"),
    "bytes left over": (safetensors({"t": F32_4}, bytes(20)), "4 bytes at the end of the data belong to no tensor"),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed_file_is_refused_saying_why(case: str) -> None:
    raw, message = MALFORMED[case]
    with pytest.raises(CheckpointError) as caught:
        parse_safetensors(memoryview(raw), "bad.safetensors")
    text = str(caught.value)
    assert message in text
    assert text.startswith("bad.safetensors: ")
    assert "\n" not in text
    assert len(text) < 300


# From the reference implementation's enum of dtypes.
NOT_SERVED = "BOOL U8 I8 F8_E5M2 F8_E4M3 F8_E8M0 I16 U16 I32 U32 F64 I64 U64 C64 F4 F6_E2M3 F6_E3M2".split()


@pytest.mark.parametrize("dtype", NOT_SERVED)
def test_dtype_that_is_not_served_is_refused_by_name(dtype: str) -> None:
    raw = safetensors({"h.position_id": info(dtype, [8], 0, 64)}, bytes(64))
    with pytest.raises(CheckpointError, match=f"tensor 'h.position_id' has dtype {dtype}, which is not supported"):
        parse_safetensors(memoryview(raw), "f")


def test_position_ids_of_another_dtype_are_not_skipped() -> None:
    raw = safetensors({"position_ids": info("I32", [4], 0, 16)}, bytes(16))
    with pytest.raises(CheckpointError, match="tensor 'position_ids' has dtype I32"):
        parse_safetensors(memoryview(raw), "f")


def test_file_cut_anywhere_is_refused() -> None:
    whole = memoryview(write.valid_safetensors())
    for length in range(len(whole)):
        with pytest.raises(CheckpointError):
            parse_safetensors(whole[:length], "f")


def test_skipped_buffer_is_checked_like_any_tensor(tmp_path: Path) -> None:
    raw = safetensors({"position_ids": info("I64", [3], 0, 16)}, bytes(16))
    with pytest.raises(CheckpointError, match="its shape and dtype make 24"):
        parse_safetensors(memoryview(raw), "f")
