"""A step's arrays as the cpu device's operations use them, worked out once for all layers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from poot.devices.base import KV_BLOCK_SIZE, Step


@dataclass(frozen=True, slots=True)
class RowGroup:
    """Neighbouring rows with few queries each, which one kernel call serves.

    Attributes:
        first, last: their tokens, `[first, last)`.
        block_tables: int32 `[num_rows, max_blocks]`.
        query_starts: int32 `[num_rows + 1]`, from 0.
        context_lengths: int32 `[num_rows]`.
    """

    first: int
    last: int
    block_tables: torch.Tensor
    query_starts: torch.Tensor
    context_lengths: torch.Tensor


@dataclass(frozen=True, slots=True)
class ChunkRow:
    """One row with many queries.

    Attributes:
        first, last: its tokens, `[first, last)`.
        context_length: its positions, those of this step included.
        blocks: its KV blocks, int64 `[num_blocks]`.
        first_slot: slot of its position 0 if its blocks lie one after the other in the pool, else None.
    """

    first: int
    last: int
    context_length: int
    blocks: torch.Tensor
    first_slot: int | None


@dataclass(frozen=True, slots=True)
class CpuStep:
    """`slots` is int64 `[num_tokens]`; `groups` cover all tokens in order."""

    slots: torch.Tensor
    groups: tuple[RowGroup | ChunkRow, ...]


def prepare(step: Step, max_kernel_queries: int) -> CpuStep:
    """Splits a step's rows into kernel groups (rows of up to `max_kernel_queries` tokens) and chunks (all others)."""
    lengths = np.diff(step.query_starts)
    groups: list[RowGroup | ChunkRow] = []
    row = 0
    while row < step.num_rows:
        stop = row + 1
        if lengths[row] > max_kernel_queries:
            groups.append(_chunk(step, row))
        else:
            while stop < step.num_rows and lengths[stop] <= max_kernel_queries:
                stop += 1
            groups.append(_group(step, row, stop))
        row = stop
    return CpuStep(as_tensor(step.slots, np.int64), tuple(groups))


def as_tensor(array: npt.NDArray[np.generic], dtype: npt.DTypeLike) -> torch.Tensor:
    """`array` as a tensor, sharing its memory where it is contiguous, writable and of `dtype` already."""
    return torch.from_numpy(np.require(array, dtype, ["C", "W"]))


def _group(step: Step, row: int, stop: int) -> RowGroup:
    starts = step.query_starts[row : stop + 1]
    return RowGroup(
        first=int(starts[0]),
        last=int(starts[-1]),
        block_tables=as_tensor(step.block_tables[row:stop], np.int32),
        query_starts=as_tensor(starts - starts[0], np.int32),
        context_lengths=as_tensor(step.context_lengths[row:stop], np.int32),
    )


def _chunk(step: Step, row: int) -> ChunkRow:
    context_length = int(step.context_lengths[row])
    blocks = step.block_tables[row, : -(-context_length // KV_BLOCK_SIZE)].astype(np.int64)
    is_contiguous = bool((np.diff(blocks) == 1).all())
    return ChunkRow(
        first=int(step.query_starts[row]),
        last=int(step.query_starts[row + 1]),
        context_length=context_length,
        blocks=torch.from_numpy(blocks),
        first_slot=int(blocks[0]) * KV_BLOCK_SIZE if is_contiguous else None,
    )
