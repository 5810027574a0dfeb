"""Attention of the cpu device against a loop over tokens in f64, straight from the definition in `Ops`."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from poot.devices.base import KV_BLOCK_SIZE, KvLayout, Ops, Step, StepTensors
from poot.devices.torch_device import CpuDevice
from tests.devices.steps import make_step, run

MAX_POSITIONS = 320
NUM_HEADS, NUM_KV_HEADS, HEAD_DIM = 6, 2, 16

# Sums of up to 320 products of normal numbers in f32 stay within this of f64.
TOLERANCE = 2e-5

KINDS = {
    "full": (None, None),
    "window": (40, None),
    "one position": (1, None),
    "window beyond the context": (1000, None),
    "softcap": (None, 5.0),
    "softcap and window": (33, 5.0),
}


@pytest.fixture(params=[True, False], ids=["native", "torch"])
def device(request: pytest.FixtureRequest) -> CpuDevice:
    device = CpuDevice(use_native=request.param, threads=1)
    device.allocate_kv(KvLayout(num_blocks=4 * MAX_POSITIONS // KV_BLOCK_SIZE, layers=((NUM_KV_HEADS, HEAD_DIM),) * 2))
    return device


class Row:
    """Keys, values and queries of one row at all its positions."""

    def __init__(self, seed: int, num_heads: int = NUM_HEADS, num_kv_heads: int = NUM_KV_HEADS) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.query = torch.randn(MAX_POSITIONS, num_heads, HEAD_DIM, generator=generator)
        self.key = torch.randn(MAX_POSITIONS, num_kv_heads, HEAD_DIM, generator=generator)
        self.value = torch.randn(MAX_POSITIONS, num_kv_heads, HEAD_DIM, generator=generator)


def attend(
    device: CpuDevice, rows: list[Row], step: Step, window: int | None, softcap: float | None, layer: int = 1
) -> torch.Tensor:
    """The step's attention; queries, keys and values come as slices of one tensor, as from a fused projection."""
    tokens = [
        torch.cat([rows[row].query[position], rows[row].key[position], rows[row].value[position]])
        for row, position in zip(_row_of_token(step), step.positions, strict=True)
    ]
    projected = torch.stack(tokens)

    def function(ops: Ops, tensors: StepTensors) -> torch.Tensor:
        num_heads = rows[0].query.shape[1]
        num_kv_heads = rows[0].key.shape[1]
        ops.kv_write(
            layer, projected[:, num_heads : num_heads + num_kv_heads], projected[:, num_heads + num_kv_heads :]
        )
        return ops.attention(layer, projected[:, :num_heads], scale=0.25, window=window, softcap=softcap)

    return run(device, step, function, max_positions=MAX_POSITIONS)


def _row_of_token(step: Step) -> list[int]:
    return [int(row) for row in np.repeat(np.arange(step.num_rows), np.diff(step.query_starts))]


def expected(rows: list[Row], step: Step, window: int | None, softcap: float | None) -> torch.Tensor:
    outputs = []
    for row, position in zip(_row_of_token(step), (int(p) for p in step.positions), strict=True):
        seen = slice(0 if window is None else max(0, position - window + 1), position + 1)
        query, key, value = rows[row].query[position].double(), rows[row].key[seen], rows[row].value[seen]
        share = query.shape[0] // key.shape[1]  # neighbouring heads share a key
        scores = torch.einsum("hd,chd->hc", query, key.double().repeat_interleave(share, dim=1)) * 0.25
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        weights = torch.exp(scores - scores.max(dim=1, keepdim=True).values)
        weights /= weights.sum(dim=1, keepdim=True)
        outputs.append(torch.einsum("hc,chd->hd", weights, value.double().repeat_interleave(share, dim=1)))
    return torch.stack(outputs).view(step.num_tokens, -1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shuffle_seed", [None, 3], ids=["neighbouring blocks", "scattered blocks"])
def test_a_prompt_in_one_piece(device: CpuDevice, kind: str, shuffle_seed: int | None) -> None:
    rows, (window, softcap) = [Row(1)], KINDS[kind]
    step = make_step([(200, 200)], max_positions=MAX_POSITIONS, shuffle_seed=shuffle_seed)
    result = attend(device, rows, step, window, softcap)
    torch.testing.assert_close(result.double(), expected(rows, step, window, softcap), atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shuffle_seed", [None, 3], ids=["neighbouring blocks", "scattered blocks"])
@pytest.mark.parametrize("sizes", [[150, 140], [1] * 20, [3, 17, 1, 2, 9, 130]], ids=["halves", "single", "uneven"])
def test_a_prompt_in_chunks(device: CpuDevice, kind: str, shuffle_seed: int | None, sizes: list[int]) -> None:
    rows, (window, softcap) = [Row(2)], KINDS[kind]
    done = 0
    for size in sizes:
        done += size
        step = make_step([(done, size)], max_positions=MAX_POSITIONS, shuffle_seed=shuffle_seed)
        result = attend(device, rows, step, window, softcap)
        torch.testing.assert_close(result.double(), expected(rows, step, window, softcap), atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("second", [[1, 1, 1, 1], [1, 90, 1, 2], [20, 1, 1, 30], [1, 2, 3, 4]], ids=str)
def test_decoding_and_prefilling_rows_share_a_step(device: CpuDevice, kind: str, second: list[int]) -> None:
    rows, (window, softcap) = [Row(seed) for seed in range(4)], KINDS[kind]
    first = [60, 20, 33, 64]
    for lengths, queries in ((first, first), ([a + b for a, b in zip(first, second, strict=True)], second)):
        step = make_step(list(zip(lengths, queries, strict=True)), max_positions=MAX_POSITIONS, shuffle_seed=5)
        result = attend(device, rows, step, window, softcap)
    torch.testing.assert_close(result.double(), expected(rows, step, window, softcap), atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize(("num_heads", "num_kv_heads"), [(4, 4), (4, 1)], ids=["multi-head", "multi-query"])
@pytest.mark.parametrize("softcap", [None, 5.0])
@pytest.mark.parametrize("use_native", [True, False], ids=["native", "torch"])
def test_every_share_of_keys(use_native: bool, num_heads: int, num_kv_heads: int, softcap: float | None) -> None:
    device = CpuDevice(use_native=use_native, threads=1)
    device.allocate_kv(KvLayout(num_blocks=2 * MAX_POSITIONS // KV_BLOCK_SIZE, layers=((num_kv_heads, HEAD_DIM),) * 2))
    rows = [Row(seed, num_heads, num_kv_heads) for seed in range(2)]
    for lengths in ([(50, 50), (7, 7)], [(90, 40), (8, 1)]):
        step = make_step(lengths, max_positions=MAX_POSITIONS)
        result = attend(device, rows, step, None, softcap)
    torch.testing.assert_close(result.double(), expected(rows, step, None, softcap), atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("queries", [1, 2, 3, 40])
@pytest.mark.parametrize("softcap", [None, 5.0])
def test_what_an_earlier_sequence_left_in_the_pool_is_never_read(
    device: CpuDevice, queries: int, softcap: float | None
) -> None:
    rows = [Row(1)]
    broken = Row(2)
    broken.key.fill_(float("nan"))
    broken.value.fill_(float("nan"))
    attend(device, [broken], make_step([(200, 200)], max_positions=MAX_POSITIONS, shuffle_seed=1), None, softcap)
    for length, size in ((50, 50), (50 + queries, queries)):
        step = make_step([(length, size)], max_positions=MAX_POSITIONS, shuffle_seed=1)
        result = attend(device, rows, step, None, softcap)
    torch.testing.assert_close(result.double(), expected(rows, step, None, softcap), atol=TOLERANCE, rtol=0)


def test_layers_keep_their_own_keys(device: CpuDevice) -> None:
    step = make_step([(20, 20)], max_positions=MAX_POSITIONS)
    rows, others = [Row(1)], [Row(2)]
    first = attend(device, rows, step, None, None, layer=0)
    attend(device, others, step, None, None, layer=1)
    again = make_step([(20, 1)], max_positions=MAX_POSITIONS)
    torch.testing.assert_close(attend(device, rows, again, None, None, layer=0)[0], first[-1], atol=TOLERANCE, rtol=0)
