"""GGUF files that are right: against bytes written by hand, gguf-py's writer and gguf-py's reader."""

from __future__ import annotations

import gc
import struct
import time
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

from poot.devices.formats import Format
from poot.engine.checkpoint import FileFormat, open_checkpoint
from poot.engine.checkpoint.gguf import parse_gguf
from poot.engine.checkpoint.gguf_tensors import TYPE_NAMES
from tests.engine.checkpoint import gguf_bytes as write
from tests.models import require_model


def raw_bytes(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize("version", [2, 3])
def test_file_written_by_hand_is_read_exactly(version: int) -> None:
    contents = parse_gguf(memoryview(write.valid_gguf(version)), "hand.gguf")
    assert contents.version == version
    assert dict(contents.metadata) == write.VALID_METADATA
    assert [type(value) for value in contents.metadata.values()] == [
        type(value) for value in write.VALID_METADATA.values()
    ]
    a, b = contents.tensors["a"], contents.tensors["b"]
    assert (a.name, a.shape, a.format) == ("a", (2, 3), Format.F32)
    assert a.data.dtype == torch.float32
    assert a.data.tolist() == [list(struct.unpack("<3f", struct.pack("<3f", *row))) for row in rows_of_three()]
    assert (b.name, b.shape, b.format) == ("b", (2, 32), Format.Q8_0)
    assert b.data.dtype == torch.uint8
    assert b.data.tolist() == [list(range(34)), list(range(34, 68))]


def rows_of_three() -> list[tuple[float, ...]]:
    return [write.F32_VALUES[:3], write.F32_VALUES[3:]]


def test_type_table_agrees_with_gguf_py() -> None:
    known = {int(member): member.name for member in gguf.GGMLQuantizationType}
    assert {type_id: TYPE_NAMES.get(type_id) for type_id in known} == known


@pytest.mark.parametrize("format_", list(Format), ids=lambda format_: format_.label)
def test_every_served_type_is_read_as_gguf_py_writes_it(format_: Format, tmp_path: Path) -> None:
    path = tmp_path / "one.gguf"
    quantization = gguf.GGMLQuantizationType[format_.label]
    rng = np.random.default_rng(3)
    shape = (3, 2, 2 * format_.block_weights)
    row_bytes = format_.row_bytes(shape[-1])
    data = rng.integers(0, 256, (3, 2, row_bytes), dtype=np.uint8)
    writer = gguf.GGUFWriter(path, "llama")
    if format_ in (Format.F32, Format.F16):
        data &= np.uint8(0x3F)  # no NaN, whose bits a copy through a float may change
        writer.add_tensor("weights", data.view(np.float32 if format_ is Format.F32 else np.float16))
    else:
        writer.add_tensor("weights", data, raw_dtype=quantization)
    write_out(writer)

    weight = open_checkpoint(path).tensors["weights"]
    assert (weight.shape, weight.format) == (shape, format_)
    assert raw_bytes(weight.data) == data.tobytes()
    assert weight.num_bytes == data.nbytes
    if format_.is_dense:
        assert tuple(weight.data.shape) == shape
    else:
        assert tuple(weight.data.shape) == (6, row_bytes)
        assert weight.data.dtype == torch.uint8


def write_out(writer: Any) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_metadata_of_gguf_py_and_its_templates_are_read(tmp_path: Path) -> None:
    path = tmp_path / "meta.gguf"
    writer = gguf.GGUFWriter(path, "qwen3")
    writer.add_type("model")
    writer.add_context_length(4096)
    writer.add_rope_freq_base(1e6)
    writer.add_token_list(["<s>", "▁a", "é"])
    writer.add_token_scores([0.0, -1.5, -2.0])
    writer.add_add_bos_token(True)
    writer.add_chat_template([{"name": "default", "template": "D"}, {"name": "tool_use", "template": "T"}])
    writer.add_custom_alignment(64)
    writer.add_tensor("x", np.arange(5, dtype=np.float32))
    writer.add_tensor("y", np.arange(7, dtype=np.float16))
    write_out(writer)

    checkpoint = open_checkpoint(path)
    assert checkpoint.path == path
    assert checkpoint.file_format is FileFormat.GGUF
    assert checkpoint.architecture == "qwen3"
    assert checkpoint.config["qwen3.context_length"] == 4096
    assert checkpoint.config["qwen3.rope.freq_base"] == 1e6
    assert checkpoint.config["tokenizer.ggml.tokens"] == ["<s>", "▁a", "é"]
    assert checkpoint.config["tokenizer.ggml.scores"] == [0.0, -1.5, -2.0]
    assert checkpoint.config["tokenizer.ggml.add_bos_token"] is True
    assert checkpoint.chat_template == "D"
    assert dict(checkpoint.chat_templates) == {"tool_use": "T"}
    assert (checkpoint.generation_config, checkpoint.tokenizer_json, checkpoint.tokenizer_config) == ({}, None, {})
    assert checkpoint.tensors["x"].data.tolist() == [0, 1, 2, 3, 4]
    assert checkpoint.tensors["y"].data.tolist() == [0, 1, 2, 3, 4, 5, 6]
    assert list(checkpoint.tensors) == ["x", "y"]


@pytest.mark.parametrize("alignment", [8, 16, 4096])
def test_alignment_of_the_metadata_moves_the_data(alignment: int) -> None:
    keys = [write.key("general.alignment", write.U32, write.u32(alignment))]
    raw = write.gguf(
        keys,
        [write.entry("a", [1], 0, 0), write.entry("b", [1], 0, alignment)],
        struct.pack("<f", 1) + bytes(alignment - 4) + struct.pack("<f", 2),
        alignment=alignment,
    )
    tensors = parse_gguf(memoryview(raw), "f").tensors
    assert [tensors["a"].data.item(), tensors["b"].data.item()] == [1.0, 2.0]


def test_table_order_and_gaps_in_the_data_do_not_matter() -> None:
    raw = write.gguf(
        [],
        [write.entry("late", [1], 0, 96), write.entry("early", [1], 0, 32)],
        bytes(96) + struct.pack("<f", 7) + b"tail",
    )
    tensors = parse_gguf(memoryview(raw), "f").tensors
    assert list(tensors) == ["late", "early"]
    assert [tensors["late"].data.item(), tensors["early"].data.item()] == [7.0, 0.0]


def test_unsplit_file_may_say_so() -> None:
    keys = [write.ARCHITECTURE, write.key("split.count", write.U16, b"\x01\x00")]
    assert parse_gguf(memoryview(write.gguf(keys)), "f").metadata["split.count"] == 1


def test_weights_view_the_mapping_and_outlive_the_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(write.valid_gguf())
    checkpoint = open_checkpoint(path)
    weights = list(checkpoint.tensors.values())
    # One storage, as long as the file: nothing was copied.
    assert {weight.data.untyped_storage().data_ptr() for weight in weights} == {
        weights[0].data.untyped_storage().data_ptr()
    }
    assert weights[0].data.untyped_storage().nbytes() == path.stat().st_size
    kept = weights[1].data
    del checkpoint, weights
    gc.collect()
    assert kept.tolist() == [list(range(34)), list(range(34, 68))]


def test_vocabulary_only_file_parses() -> None:
    raw = write.gguf([write.ARCHITECTURE, write.array("tokenizer.ggml.tokens", write.STRING, [write.string("a")])])
    assert parse_gguf(memoryview(raw), "f").tensors == {}


@pytest.mark.parametrize("name", ["smollm2", "gemma3"])
def test_real_file_equals_what_gguf_py_reads(name: str) -> None:
    path = require_model(name)
    checkpoint = open_checkpoint(path)
    reader = gguf.GGUFReader(path)

    expected = {key: field.contents() for key, field in reader.fields.items() if not key.startswith("GGUF.")}
    assert dict(checkpoint.config) == expected
    assert checkpoint.architecture == expected["general.architecture"]
    assert checkpoint.chat_template == expected.get("tokenizer.chat_template")

    assert [tensor.name for tensor in reader.tensors] == list(checkpoint.tensors)
    for tensor in reader.tensors:
        weight = checkpoint.tensors[tensor.name]
        assert weight.shape == tuple(reversed([int(size) for size in tensor.shape])), tensor.name
        assert weight.format.label == tensor.tensor_type.name
        assert weight.num_bytes == tensor.n_bytes
        mine = weight.data.flatten().view(torch.uint8).numpy()
        assert np.array_equal(mine, tensor.data.reshape(-1).view(np.uint8)), tensor.name


def test_large_vocabulary_opens_in_under_a_second() -> None:
    path = require_model("gemma3")
    start = time.process_time()
    checkpoint = open_checkpoint(path)
    seconds = time.process_time() - start
    assert len(checkpoint.config["tokenizer.ggml.tokens"]) == 262144
    assert seconds < 1.0  # about 0.12 on a 2-core machine; of this process, whatever else runs
