"""The native attention against the torch reference, which is checked here against torch's own attention."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from poot.devices.kernels.attention_reference import attention
from poot.devices.kernels.native import NativeKernels
from tests.devices.kernels.native_kernels import native

__all__ = ["native"]


@dataclass(frozen=True)
class Paged:
    """Rows of random keys and values in a pool whose blocks are handed out in random order."""

    query: torch.Tensor
    key_pool: torch.Tensor
    value_pool: torch.Tensor
    block_tables: torch.Tensor
    query_starts: torch.Tensor
    context_lengths: torch.Tensor

    def reference(self, scale: float, window: int | None = None, softcap: float | None = None) -> torch.Tensor:
        return attention(
            self.query.double(),
            self.key_pool,
            self.value_pool,
            self.block_tables,
            self.query_starts,
            self.context_lengths,
            scale=scale,
            window=window,
            softcap=softcap,
        )

    def run(
        self,
        native: NativeKernels,
        scale: float,
        window: int | None = None,
        softcap: float | None = None,
        threads: int = 1,
    ) -> torch.Tensor:
        out = torch.full((len(self.query), self.query.shape[1] * self.query.shape[2]), float("nan"))
        native.attention(
            self.query,
            self.key_pool,
            self.value_pool,
            self.block_tables,
            self.query_starts,
            self.context_lengths,
            scale=scale,
            window=window,
            softcap=softcap,
            out=out,
            threads=threads,
        )
        return out


def paged(
    rows: list[tuple[int, int]], num_heads: int = 6, num_kv_heads: int = 2, head_dim: int = 64, seed: int = 0
) -> Paged:
    """`rows` lists (query length, context length)."""
    generator = torch.Generator().manual_seed(seed)
    max_blocks = max(-(-context // 16) for _, context in rows) + 1
    num_blocks = sum(-(-context // 16) for _, context in rows) + 3
    order = torch.randperm(num_blocks, generator=generator).tolist()
    tables = torch.zeros((len(rows), max_blocks), dtype=torch.int32)
    for row, (_, context) in enumerate(rows):
        for block in range(-(-context // 16)):
            tables[row, block] = order.pop()
    num_tokens = sum(query for query, _ in rows)
    starts = torch.tensor([0, *torch.tensor([query for query, _ in rows]).cumsum(0).tolist()], dtype=torch.int32)
    shape = (num_blocks * 16, num_kv_heads, head_dim)
    return Paged(
        torch.randn((num_tokens, num_heads, head_dim), generator=generator),
        torch.randn(shape, generator=generator),
        torch.randn(shape, generator=generator),
        tables,
        starts,
        torch.tensor([context for _, context in rows], dtype=torch.int32),
    )


def assert_close(got: torch.Tensor, expected: torch.Tensor) -> None:
    # Averages of unit normals, scores accumulated in f32: a few 1e-6 of 1.
    assert torch.allclose(got.double(), expected, rtol=0, atol=5e-6), (got - expected).abs().max()


def test_the_reference_is_torchs_attention_for_one_whole_row() -> None:
    case = paged([(37, 37)], num_heads=6, num_kv_heads=2)
    slots = torch.cat([block * 16 + torch.arange(16) for block in case.block_tables[0].tolist()])[:37]
    keys, values = case.key_pool[slots].double(), case.value_pool[slots].double()
    expected = torch.nn.functional.scaled_dot_product_attention(
        case.query.double().transpose(0, 1)[None],
        keys.transpose(0, 1)[None],
        values.transpose(0, 1)[None],
        is_causal=True,
        scale=0.125,
        enable_gqa=True,
    )
    assert torch.allclose(case.reference(0.125), expected[0].transpose(0, 1).reshape(37, -1), atol=1e-12)


@pytest.mark.parametrize("context", [1, 2, 15, 16, 17, 33, 100, 257])
def test_one_token_sees_its_whole_row(native: NativeKernels, context: int) -> None:
    case = paged([(1, context)])
    assert_close(case.run(native, 0.125), case.reference(0.125))


@pytest.mark.parametrize("head_dim", [16, 20, 48, 64, 80, 96, 128, 256])
@pytest.mark.parametrize(("num_heads", "num_kv_heads"), [(1, 1), (4, 4), (9, 3), (8, 1), (34, 2)])
def test_head_sizes_and_groups(native: NativeKernels, head_dim: int, num_heads: int, num_kv_heads: int) -> None:
    case = paged([(1, 40), (2, 19)], num_heads, num_kv_heads, head_dim)
    assert_close(case.run(native, head_dim**-0.5), case.reference(head_dim**-0.5))


@pytest.mark.parametrize("window", [None, 1, 5, 16, 17, 40, 1000])
@pytest.mark.parametrize("softcap", [None, 3.0, 50.0])
def test_rows_of_different_lengths_with_window_and_softcap(
    native: NativeKernels, window: int | None, softcap: float | None
) -> None:
    case = paged([(1, 70), (4, 33), (7, 7), (1, 1), (3, 48)])
    assert_close(case.run(native, 0.3, window, softcap), case.reference(0.3, window, softcap))


def test_a_large_score_anywhere_does_not_overflow(native: NativeKernels) -> None:
    for position in (0, 18, 39):
        case = paged([(1, 40)])
        slot = int(case.block_tables[0, position // 16]) * 16 + position % 16
        case.key_pool[slot] *= 1000
        assert_close(case.run(native, 1.0), case.reference(1.0))


def test_a_position_with_score_minus_infinity_has_no_weight(native: NativeKernels) -> None:
    case = paged([(1, 40)], num_heads=1, num_kv_heads=1)
    case.query.abs_()
    for position in range(17):  # the whole first block and one more
        slot = int(case.block_tables[0, position // 16]) * 16 + position % 16
        case.key_pool[slot] = float("-inf")
    got = case.run(native, 1.0)
    assert got.isfinite().all()
    assert_close(got, case.reference(1.0))


def test_nan_reaches_its_row_and_no_other(native: NativeKernels) -> None:
    case = paged([(1, 40), (1, 40)], num_heads=2, num_kv_heads=2)
    clean = case.run(native, 1.0)
    case.key_pool[int(case.block_tables[1, 1]) * 16, 1, 3] = float("nan")
    got = case.run(native, 1.0)
    assert torch.equal(got[0], clean[0])
    assert torch.equal(got[1, :64], clean[1, :64])
    assert got[1, 64:].isnan().all()


def test_padding_tokens_are_left_alone(native: NativeKernels) -> None:
    case = paged([(1, 20), (1, 9)])
    padded = Paged(
        torch.cat([case.query, case.query]),
        case.key_pool,
        case.value_pool,
        case.block_tables,
        case.query_starts,
        case.context_lengths,
    )
    got = padded.run(native, 0.125)
    assert torch.equal(got[:2], case.run(native, 0.125))
    assert got[2:].isnan().all()


def test_the_query_may_be_a_slice_of_a_fused_projection(native: NativeKernels) -> None:
    case = paged([(2, 20), (1, 9)])
    fused = torch.randn((3, 6 * 64 + 100))
    fused[:, : 6 * 64] = case.query.reshape(3, -1)
    sliced = Paged(
        fused[:, : 6 * 64].view(3, 6, 64),
        case.key_pool,
        case.value_pool,
        case.block_tables,
        case.query_starts,
        case.context_lengths,
    )
    assert torch.equal(sliced.run(native, 0.125), case.run(native, 0.125))


def test_attention_does_not_depend_on_threads_or_on_the_other_rows(native: NativeKernels) -> None:
    rows = [(1, 70), (4, 33), (2, 2), (1, 300)]
    case = paged(rows)
    together = case.run(native, 0.125)
    for threads in (2, 3):
        assert torch.equal(case.run(native, 0.125, threads=threads), together)
    for row in range(len(rows)):
        first, last = int(case.query_starts[row]), int(case.query_starts[row + 1])
        alone = Paged(
            case.query[first:last],
            case.key_pool,
            case.value_pool,
            case.block_tables[row : row + 1],
            torch.tensor([0, last - first], dtype=torch.int32),
            case.context_lengths[row : row + 1],
        )
        assert torch.equal(alone.run(native, 0.125, threads=2), together[first:last])
