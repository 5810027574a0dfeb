"""The native dequantization and packed products against the torch reference."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from poot.devices.formats import Format
from poot.devices.kernels.dequantize import dequantize
from poot.devices.kernels.native import NativeKernels
from tests.devices.kernels.native_kernels import native, random_weight
from tests.devices.kernels.test_dequantize import assert_same_bits

__all__ = ["native"]  # a fixture is used by being in scope

FORMATS = list(Format)
PACKED = [format for format in Format if not format.is_dense]
each_format = pytest.mark.parametrize("format", FORMATS, ids=lambda format: format.label)


def product(
    native: NativeKernels,
    format: Format,
    weight: torch.Tensor,
    x: torch.Tensor,
    bias: torch.Tensor | None = None,
    threads: int = 1,
) -> torch.Tensor:
    out = torch.full((len(x), len(weight)), float("nan"))
    native.linear(format, weight, x, out, bias, threads)
    return out


def width(format: Format, blocks_of_32: int) -> int:
    return blocks_of_32 * max(32, format.block_weights)


@pytest.mark.parametrize("format", PACKED, ids=lambda format: format.label)
def test_dequantize_gives_the_bits_of_the_reference(native: NativeKernels, format: Format) -> None:
    data = np.random.default_rng(5).integers(
        0, 256, (512, max(3, 256 // format.block_weights) * format.block_bytes), dtype=np.uint8
    )
    stored = torch.from_numpy(data)
    expected = dequantize(format, stored)
    for threads in (1, 2):
        got = torch.empty_like(expected)
        native.dequantize(format, stored, got, threads)
        assert_same_bits(got.numpy(), expected.numpy())


@pytest.mark.parametrize("format", PACKED, ids=lambda format: format.label)
def test_dequantize_of_long_rows_gives_the_bits_of_the_reference(native: NativeKernels, format: Format) -> None:
    stored = random_weight(format, 3, width(format, 67))
    expected = dequantize(format, stored)
    got = torch.empty_like(expected)
    native.dequantize(format, stored, got, 1)
    assert_same_bits(got.numpy(), expected.numpy())


@pytest.mark.parametrize("format", [Format.F16, Format.BF16], ids=lambda format: format.label)
def test_every_half_is_widened(native: NativeKernels, format: Format) -> None:
    every = torch.arange(-32768, 32768, dtype=torch.int32).to(torch.int16).view(random_weight(format, 1, 1).dtype)
    stored = every[None, :65535].contiguous()  # an odd count leaves a tail
    got = torch.empty(stored.shape)
    native.dequantize(format, stored, got, 1)
    assert_same_bits(got.numpy(), stored.float().numpy())


@each_format
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 8, 13])
def test_linear_is_the_product_with_the_dequantized_weight(native: NativeKernels, format: Format, rows: int) -> None:
    # 23 outputs leave a tail in every tile; 27 blocks make two chunks of unequal length.
    weight = random_weight(format, 23, width(format, 27 if format.block_weights < 256 else 4))
    x = torch.randn((rows, width(format, 27 if format.block_weights < 256 else 4)), generator=torch.manual_seed(rows))
    bias = torch.randn(23)
    exact = x.double() @ dequantize(format, weight).double().T + bias
    got = product(native, format, weight, x, bias)
    # f32 accumulation in 32 lanes: a few units of 6e-8 of the largest output.
    assert (got - exact).abs().max() <= 2e-6 * exact.abs().max()


@pytest.mark.parametrize("format", [Format.F32, Format.F16, Format.BF16], ids=lambda format: format.label)
@pytest.mark.parametrize("in_features", [1, 7, 31, 32, 33, 100, 801])
@pytest.mark.parametrize("out_features", [1, 5])
def test_dense_weights_may_have_any_shape(
    native: NativeKernels, format: Format, in_features: int, out_features: int
) -> None:
    weight = random_weight(format, out_features, in_features)
    x = torch.randn((2, in_features))
    exact = x.double() @ weight.double().T
    assert torch.allclose(product(native, format, weight, x).double(), exact, rtol=0, atol=2e-6 * in_features**0.5)


@pytest.mark.parametrize("format", [Format.Q4_1, Format.Q8_0, Format.Q6_K], ids=lambda format: format.label)
def test_one_block_one_output(native: NativeKernels, format: Format) -> None:
    weight = random_weight(format, 1, width(format, 1))
    x = torch.randn((1, width(format, 1)))
    exact = x.double() @ dequantize(format, weight).double().T
    assert torch.allclose(product(native, format, weight, x).double(), exact, rtol=1e-5, atol=1e-5)


@each_format
def test_linear_does_not_depend_on_threads_or_on_the_other_rows(native: NativeKernels, format: Format) -> None:
    weight = random_weight(format, 131, width(format, 24 if format.block_weights < 256 else 3))
    x = torch.randn((9, width(format, 24 if format.block_weights < 256 else 3)))
    alone = torch.cat([product(native, format, weight, x[row : row + 1]) for row in range(9)])
    for threads in (1, 2, 3):
        for rows in (2, 3, 4, 7, 9):
            assert torch.equal(product(native, format, weight, x[:rows], threads=threads), alone[:rows])
    # nor on which outputs share a tile
    assert torch.equal(product(native, format, weight[3:10], x), alone[:, 3:10])


@pytest.mark.parametrize("format", [Format.Q4_1, Format.Q8_0, Format.Q4_K, Format.F16], ids=lambda f: f.label)
def test_out_and_x_may_be_slices(native: NativeKernels, format: Format) -> None:
    weight = random_weight(format, 10, 256)
    wide_x = torch.randn((3, 300))
    wide_out = torch.full((3, 25), 7.0)
    native.linear(format, weight, wide_x[:, 20:276], wide_out[:, 5:15], None, 2)
    assert torch.equal(wide_out[:, 5:15], product(native, format, weight, wide_x[:, 20:276].contiguous()))
    assert (wide_out[:, :5] == 7.0).all()
    assert (wide_out[:, 15:] == 7.0).all()


def test_nan_and_infinity_reach_their_row_and_no_other(native: NativeKernels) -> None:
    weight = random_weight(Format.Q8_0, 6, 64)
    x = torch.randn((4, 64))
    clean = product(native, Format.Q8_0, weight, x)
    x[1, 5] = float("nan")
    x[2, 63] = float("inf")
    got = product(native, Format.Q8_0, weight, x)
    assert got[1].isnan().all()
    assert not got[2].isfinite().any()
    assert torch.equal(got[[0, 3]], clean[[0, 3]])


def test_a_nan_scale_reaches_its_output_and_no_other(native: NativeKernels) -> None:
    weight = random_weight(Format.Q4_1, 6, 64)
    x = torch.randn((1, 64))
    clean = product(native, Format.Q4_1, weight, x)
    weight[2, 20:22] = torch.tensor([0x01, 0x7E], dtype=torch.uint8)
    got = product(native, Format.Q4_1, weight, x)
    assert got[0, 2].isnan()
    assert torch.equal(got[0, [0, 1, 3, 4, 5]], clean[0, [0, 1, 3, 4, 5]])


@each_format
def test_an_outlier_costs_the_small_inputs_nothing(native: NativeKernels, format: Format) -> None:
    """One input of 1e4 among ones: what the others add is still there, which int8 activations would lose."""
    weight = random_weight(format, 16, 256, seed=3)
    x = torch.ones((1, 256))
    x[0, 77] = 1e4
    exact = x.double() @ dequantize(format, weight).double().T
    magnitude = x.double().abs() @ dequantize(format, weight).double().abs().T
    assert ((product(native, format, weight, x) - exact).abs() <= 1e-6 * magnitude).all()
