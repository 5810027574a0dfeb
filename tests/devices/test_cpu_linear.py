"""Linear maps and embeddings of the cpu device in every format, few rows and many, against gguf-py and f64."""

from __future__ import annotations

import gguf
import numpy as np
import numpy.typing as npt
import pytest
import torch

from poot.devices.base import KvLayout, Ops, StepTensors, Weight
from poot.devices.formats import Format
from poot.devices.torch_device import CpuDevice
from tests.devices.steps import make_step, run

IN_FEATURES = 512
DENSE = {Format.F32: torch.float32, Format.F16: torch.float16, Format.BF16: torch.bfloat16}


def make_device(use_native: bool) -> CpuDevice:
    device = CpuDevice(use_native=use_native, threads=1)
    device.allocate_kv(KvLayout(num_blocks=8, layers=((1, 8),)))
    return device


def make_weight(format: Format, rows: int, seed: int, in_features: int = IN_FEATURES) -> tuple[Weight, torch.Tensor]:
    """A weight of random numbers or random blocks, and its values in f64."""
    rng = np.random.default_rng(seed)
    if format.is_dense:
        data = torch.from_numpy(rng.standard_normal((rows, in_features), np.float32)).to(DENSE[format])
        return Weight(f"w{seed}", (rows, in_features), format, data), data.double()
    blocks = rng.integers(0, 256, (rows * in_features // format.block_weights, format.block_bytes), np.uint8)
    values = _finite(format, blocks)
    data = torch.from_numpy(blocks.reshape(rows, -1))
    return Weight(f"w{seed}", (rows, in_features), format, data), torch.from_numpy(values).view(rows, -1).double()


def _finite(format: Format, blocks: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    """Values of `blocks` by gguf-py; blocks whose random scale is not a tame number first get that of a tame block."""
    kind = gguf.GGMLQuantizationType[format.label]
    with np.errstate(all="ignore"):
        values = gguf.quants.dequantize(blocks, kind)
        largest = np.abs(values).max(axis=1)
        tame = np.flatnonzero(np.isfinite(values).all(axis=1) & (largest < 100) & (largest > 1e-3))
        assert len(tame), "no tame block among the random ones"
        wild = np.setdiff1d(np.arange(len(blocks)), tame)
        blocks[wild] = blocks[np.resize(tame, len(wild))]
        tamed: npt.NDArray[np.float32] = gguf.quants.dequantize(blocks, kind)
        return tamed


def assert_product(result: torch.Tensor, values: torch.Tensor, x: torch.Tensor, bias: torch.Tensor | None) -> None:
    wanted = x.double() @ values.T
    # Rounding grows with the sum of the products' sizes: some units of f32's last place of it.
    bound = 1e-6 * (x.double().abs() @ values.abs().T) + 1e-6
    if bias is not None:
        wanted += bias
        bound += 2e-7 * bias.abs()
    assert ((result.double() - wanted).abs() <= bound).all(), ((result - wanted).abs() / bound).max()


def multiply(
    device: CpuDevice, weights: list[Weight], bias: list[torch.Tensor | None] | None, x: torch.Tensor
) -> torch.Tensor:
    linear = device.linear(weights, bias)
    assert linear.in_features == x.shape[1]
    assert linear.out_features == sum(weight.shape[0] for weight in weights)
    step = make_step([(len(x), len(x))], max_positions=128)
    return run(device, step, lambda ops, tensors: ops.linear(linear, x))


@pytest.mark.parametrize("use_native", [True, False], ids=["native", "torch"])
@pytest.mark.parametrize("rows", [1, 3, 8, 16, 17, 70])
@pytest.mark.parametrize("format", Format, ids=lambda format: format.label)
def test_a_product_in_every_format(format: Format, rows: int, use_native: bool) -> None:
    weight, values = make_weight(format, 37, seed=1)
    x = torch.randn(rows, IN_FEATURES, generator=torch.Generator().manual_seed(2))
    assert_product(multiply(make_device(use_native), [weight], None, x), values, x, None)


@pytest.mark.parametrize("use_native", [True, False], ids=["native", "torch"])
@pytest.mark.parametrize("rows", [1, 5, 40])
def test_fused_weights_keep_their_formats_and_biases(rows: int, use_native: bool) -> None:
    formats = [Format.Q4_K, Format.Q6_K, Format.F32, Format.F16]
    made = [make_weight(format, 20 + seed, seed) for seed, format in enumerate(formats)]
    bias = [torch.randn(20), None, torch.randn(22), torch.randn(23)]
    x = torch.randn(rows, IN_FEATURES, generator=torch.Generator().manual_seed(2))
    result = multiply(make_device(use_native), [weight for weight, _ in made], bias, x)
    whole = torch.cat([torch.zeros(21) if b is None else b for b in bias]).double()
    assert_product(result, torch.cat([values for _, values in made]), x, whole)


@pytest.mark.parametrize("second_format", [Format.Q4_0, Format.IQ4_NL], ids=lambda format: format.label)
@pytest.mark.parametrize("gap", [0, 4])
@pytest.mark.parametrize("rows", [2, 40])
def test_weights_that_lie_side_by_side_in_a_file(rows: int, gap: int, second_format: Format) -> None:
    (first, first_values), (second, second_values) = make_weight(Format.Q4_0, 20, 1), make_weight(second_format, 30, 2)
    file = torch.cat([first.data, torch.zeros(gap, first.data.shape[1], dtype=torch.uint8), second.data])
    weights = [
        Weight("first", first.shape, first.format, file[:20]),
        Weight("second", second.shape, second.format, file[20 + gap :]),
    ]
    x = torch.randn(rows, IN_FEATURES, generator=torch.Generator().manual_seed(2))
    result = multiply(make_device(True), weights, None, x)
    assert_product(result, torch.cat([first_values, second_values]), x, None)


@pytest.mark.parametrize("format", [Format.Q8_0, Format.F16, Format.F32], ids=lambda format: format.label)
def test_a_weight_larger_than_a_tile(format: Format) -> None:
    weight, values = make_weight(format, 5000, seed=3)  # 2.56 million weights, tiles of 2.1 million
    bias = torch.randn(5000)
    x = torch.randn(20, IN_FEATURES)
    assert_product(multiply(make_device(True), [weight], [bias], x), values, x, bias.double())


def test_no_rows_give_no_rows() -> None:
    weight, _ = make_weight(Format.Q8_0, 10, seed=1)
    device = make_device(True)
    head = device.linear([weight])
    x = torch.randn(4, IN_FEATURES)
    step = make_step([(4, 4)], max_positions=128)
    assert run(device, step, lambda ops, tensors: ops.linear(head, x[:0])).shape == (0, 10)


@pytest.mark.parametrize("use_native", [True, False], ids=["native", "torch"])
@pytest.mark.parametrize("format", Format, ids=lambda format: format.label)
def test_an_embedding_gathers_and_its_head_shares_it(format: Format, use_native: bool) -> None:
    weight, values = make_weight(format, 50, seed=4)
    device = make_device(use_native)
    table = device.embedding(weight)
    head = device.output_head(table)
    assert (table.num_embeddings, table.dim) == (50, IN_FEATURES)
    assert (head.out_features, head.in_features) == (50, IN_FEATURES)
    assert device.weight_bytes() == weight.num_bytes  # the head holds nothing of its own
    ids = torch.tensor([3, 49, 0, 3])

    def function(ops: Ops, tensors: StepTensors) -> torch.Tensor:
        return ops.embed(table, ids).clone()

    step = make_step([(4, 4)], max_positions=128)
    embedded = run(device, step, function)
    torch.testing.assert_close(embedded.double(), values[ids], atol=0, rtol=0)
    x = torch.randn(2, IN_FEATURES)
    assert_product(run(device, step, lambda ops, tensors: ops.linear(head, x)), values, x, None)


def test_weights_are_not_copied() -> None:
    weight, _ = make_weight(Format.Q4_0, 10, seed=1)
    device = make_device(True)
    x = torch.ones(1, IN_FEATURES)
    linear = device.linear([weight])
    step = make_step([(1, 1)], max_positions=128)
    before = run(device, step, lambda ops, tensors: ops.linear(linear, x))
    weight.data[:, :2] = 0  # a scale of zero in every row's first block
    assert not torch.equal(run(device, step, lambda ops, tensors: ops.linear(linear, x)), before)


def test_a_vector_is_f32_with_its_offset() -> None:
    device = make_device(True)
    data = torch.tensor([0.5, -1.0, 3.0], dtype=torch.bfloat16)
    vector = device.vector(Weight("norm", (3,), Format.BF16, data), offset=1.0)
    assert vector.dtype == torch.float32
    assert vector.tolist() == [1.5, 0.0, 4.0]
    plain = torch.tensor([1.0, 2.0])
    device.vector(Weight("norm", (2,), Format.F32, plain), offset=1.0)
    assert plain.tolist() == [1.0, 2.0]  # the file's tensor is not changed
