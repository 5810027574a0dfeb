"""Steps for the device tests, and a way to run any piece of model code as one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from poot.devices.base import KV_BLOCK_SIZE, Bucket, Ops, SamplingBatch, Step, StepTensors
from poot.devices.torch_device import CpuDevice


def sampling(num_samples: int, **changes: Any) -> SamplingBatch:
    """Greedy parameters for every sample, but for the scalars or arrays in `changes`."""

    def column(name: str, default: float, dtype: type) -> Any:
        return np.full(num_samples, 0, dtype) + np.asarray(changes.pop(name, default), dtype)

    batch = SamplingBatch(
        temperature=column("temperature", 0, np.float32),
        top_k=column("top_k", 0, np.int32),
        top_p=column("top_p", 1, np.float32),
        min_p=column("min_p", 0, np.float32),
        seed=column("seed", 0, np.uint64),
        choice=column("choice", 0, np.int32),
        position=column("position", 0, np.int32),
        banned=changes.pop("banned", ((),) * num_samples),
        num_logprobs=changes.pop("num_logprobs", (None,) * num_samples),
        edits=changes.pop("edits", ()),
    )
    assert not changes, changes
    return batch


def make_step(rows: Sequence[tuple[int, int]], *, max_positions: int, shuffle_seed: int | None = None) -> Step:
    """A step of (context_length, num_queries) rows over a pool with `max_positions` for each of them.

    Blocks of a row lie side by side, or anywhere in the pool if a `shuffle_seed` is given.
    """
    max_blocks = max_positions // KV_BLOCK_SIZE
    blocks = np.arange(len(rows) * max_blocks, dtype=np.int32)
    if shuffle_seed is not None:
        blocks = np.random.default_rng(shuffle_seed).permutation(blocks)
    tables = blocks.reshape(len(rows), max_blocks)
    positions, slots = [], []
    for row, (context_length, num_queries) in enumerate(rows):
        for position in range(context_length - num_queries, context_length):
            positions.append(position)
            slots.append(int(tables[row, position // KV_BLOCK_SIZE]) * KV_BLOCK_SIZE + position % KV_BLOCK_SIZE)
    query_starts = np.cumsum([0] + [num_queries for _, num_queries in rows]).astype(np.int32)
    return Step(
        token_ids=np.zeros(len(positions), np.int64),
        positions=np.array(positions, np.int64),
        slots=np.array(slots, np.int64),
        query_starts=query_starts,
        context_lengths=np.array([context_length for context_length, _ in rows], np.int32),
        block_tables=tables,
        sample_indices=query_starts[1:].astype(np.int64) - 1,
        sampling=sampling(len(rows)),
    )


def run(
    device: CpuDevice,
    step: Step,
    function: Callable[[Ops, StepTensors], torch.Tensor],
    *,
    max_positions: int | None = None,
) -> torch.Tensor:
    """What `function` gives inside a program of exactly the step's size, copied out of the device's buffers."""
    results: list[torch.Tensor] = []

    def forward(ops: Ops, tensors: StepTensors) -> torch.Tensor:
        results.append(function(ops, tensors).clone())
        return torch.zeros(len(tensors.sample_indices), 4)

    bucket = Bucket(num_rows=step.num_rows, num_tokens=step.num_tokens, max_positions=max_positions)
    device.record(forward, bucket).launch(step).tokens()
    return results[-1]
