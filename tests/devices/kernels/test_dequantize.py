"""Dequantization against gguf-py, bit for bit (NaN for NaN), on random bytes and on the blocks of real files."""

from __future__ import annotations

from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import pytest
import torch

from poot.devices.formats import Format
from poot.devices.kernels.dequantize import dequantize
from poot.engine.checkpoint import open_checkpoint
from tests.models import require_model

PACKED = [format for format in Format if not format.is_dense]


def assert_same_bits(got: npt.NDArray[np.float32], expected: npt.NDArray[np.float32]) -> None:
    """Equal bit patterns; a NaN of any payload equals a NaN, since which payload survives is up to the processor."""
    nan = np.isnan(expected)
    assert np.array_equal(np.isnan(got), nan)
    assert np.array_equal(got.view(np.uint32)[~nan], expected.view(np.uint32)[~nan])


def reference(format: Format, data: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    with np.errstate(all="ignore"):
        result: npt.NDArray[np.float32] = gguf.quants.dequantize(data, gguf.GGMLQuantizationType[format.label])
    return result


@pytest.mark.parametrize("format", PACKED, ids=lambda format: format.label)
def test_sizes_are_those_of_gguf(format: Format) -> None:
    sizes: dict[Any, tuple[int, int]] = gguf.GGML_QUANT_SIZES
    assert sizes[gguf.GGMLQuantizationType[format.label]] == (format.block_weights, format.block_bytes)


@pytest.mark.parametrize("format", PACKED, ids=lambda format: format.label)
def test_random_bytes_give_the_bits_of_gguf(format: Format) -> None:
    # Among thousands of random scales are infinities, NaN and subnormals.
    data = np.random.default_rng(7).integers(
        0, 256, (1024, max(2, 512 // format.block_weights) * format.block_bytes), dtype=np.uint8
    )
    expected = reference(format, data)
    got = dequantize(format, torch.from_numpy(data))
    assert got.shape == expected.shape
    assert_same_bits(got.numpy(), expected)


@pytest.mark.parametrize("format", PACKED, ids=lambda format: format.label)
@pytest.mark.parametrize("fill", [0x00, 0xFF, 0x80, 0x7C, 0x01])
def test_uniform_bytes_give_the_bits_of_gguf(format: Format, fill: int) -> None:
    data = np.full((3, 3 * format.block_bytes), fill, dtype=np.uint8)
    assert_same_bits(dequantize(format, torch.from_numpy(data)).numpy(), reference(format, data))


@pytest.mark.parametrize(
    ("format", "dtype"),
    [(Format.F32, torch.float32), (Format.F16, torch.float16), (Format.BF16, torch.bfloat16)],
    ids=lambda value: getattr(value, "label", None),
)
def test_dense_weights_are_widened(format: Format, dtype: torch.dtype) -> None:
    data = np.random.default_rng(3).integers(0, 256, (16, 64), dtype=np.uint8)
    expected = reference(format, data)
    stored = torch.from_numpy(data).view(dtype)
    assert_same_bits(dequantize(format, stored).numpy(), expected)
    out = torch.empty(stored.shape)
    assert dequantize(format, stored, out) is out
    assert_same_bits(out.numpy(), expected)


def test_out_is_filled_and_returned() -> None:
    data = torch.zeros((2, Format.Q4_0.row_bytes(64)), dtype=torch.uint8)
    out = torch.full((2, 64), 5.0)
    assert dequantize(Format.Q4_0, data, out) is out
    assert not out.any()


@pytest.mark.parametrize("model", ["smollm2", "gemma3"])
def test_real_blocks_give_the_bits_of_gguf(model: str) -> None:
    # poot's own reader finds the bytes, since gguf-py takes ten seconds over a large vocabulary.
    seen: set[Format] = set()
    for weight in open_checkpoint(require_model(model)).tensors.values():
        if weight.format.is_dense or weight.format in seen:
            continue
        seen.add(weight.format)
        data = weight.data[:512].clone()
        assert_same_bits(dequantize(weight.format, data).numpy(), reference(weight.format, data.numpy()))
    assert seen
