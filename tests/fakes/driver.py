"""Runs sequences through a model on any device without the scheduler: one KV pool, greedy, logits kept."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from poot.devices.base import KV_BLOCK_SIZE, Bucket, Device, KvLayout, Ops, SamplingBatch, Step, StepTensors
from poot.engine.models import DecoderModel


def greedy_sampling(positions: Sequence[int]) -> SamplingBatch:
    """Sampling parameters that take the likeliest token, for samples at `positions`."""
    count = len(positions)
    return SamplingBatch(
        temperature=np.zeros(count, np.float32),
        top_k=np.zeros(count, np.int32),
        top_p=np.ones(count, np.float32),
        min_p=np.zeros(count, np.float32),
        seed=np.zeros(count, np.uint64),
        choice=np.zeros(count, np.int32),
        position=np.array(positions, np.int32),
        banned=((),) * count,
        num_logprobs=(None,) * count,
    )


class Driver:
    """One model with a pool of `num_rows` rows of `max_seq` positions; rows are filled in any order.

    Blocks of the rows are interleaved in the pool, so that a device that ignores block tables fails.
    """

    def __init__(self, model: DecoderModel, device: Device, *, max_seq: int, num_rows: int = 1) -> None:
        self._blocks_per_row = -(-max_seq // KV_BLOCK_SIZE)
        self._num_rows = num_rows
        self._lengths = [0] * num_rows
        self._model = model
        self._logits = torch.empty(0)
        layout = KvLayout(num_blocks=self._blocks_per_row * num_rows, layers=model.kv_layers)
        device.allocate_kv(layout)
        # As many rows as tokens, for steps that take logits of every token: a program is sized for a sample a row.
        num_tokens = max_seq * num_rows
        self._program = device.record(self._forward, Bucket(num_rows=num_tokens, num_tokens=num_tokens))

    def _forward(self, ops: Ops, step: StepTensors) -> torch.Tensor:
        logits = self._model.forward(ops, step)
        self._logits = logits.clone()
        return logits

    def run(self, chunks: Sequence[tuple[int, Sequence[int]]], *, every_token: bool = False) -> torch.Tensor:
        """Runs one step in which each (row, token ids) extends its row.

        Returns logits f32 of each chunk's last token, or of every token, in the order given.
        """
        token_ids: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        tables: list[list[int]] = []
        samples: list[int] = []
        starts, contexts = [0], []
        for row, ids in chunks:
            table = [block * self._num_rows + row for block in range(self._blocks_per_row)]
            for offset, token_id in enumerate(ids):
                position = self._lengths[row] + offset
                if every_token or offset == len(ids) - 1:
                    samples.append(len(token_ids))
                token_ids.append(token_id)
                positions.append(position)
                slots.append(table[position // KV_BLOCK_SIZE] * KV_BLOCK_SIZE + position % KV_BLOCK_SIZE)
            self._lengths[row] += len(ids)
            starts.append(len(token_ids))
            contexts.append(self._lengths[row])
            used = -(-self._lengths[row] // KV_BLOCK_SIZE)
            tables.append(table[:used] + [0] * (self._blocks_per_row - used))
        step = Step(
            token_ids=np.array(token_ids, np.int64),
            positions=np.array(positions, np.int64),
            slots=np.array(slots, np.int64),
            query_starts=np.array(starts, np.int32),
            context_lengths=np.array(contexts, np.int32),
            block_tables=np.array(tables, np.int32),
            sample_indices=np.array(samples, np.int64),
            sampling=greedy_sampling([positions[index] + 1 for index in samples]),
        )
        drawn = self._program.launch(step).tokens().token_ids
        # The device's own greedy choice, ties aside, is the likeliest token of the logits the model gave it.
        for token_id, row_logits in zip(drawn, self._logits, strict=True):
            assert row_logits[token_id] == row_logits.max()
        return self._logits

    def prefill(self, ids: Sequence[int], *, row: int = 0, chunk: int | None = None) -> torch.Tensor:
        """Logits f32 `[len(ids), vocab_size]` of `ids` appended to `row`, `chunk` tokens at a time."""
        size = chunk or len(ids)
        return torch.cat(
            [self.run([(row, ids[start : start + size])], every_token=True) for start in range(0, len(ids), size)]
        )

    def greedy(self, ids: Sequence[int], count: int, *, row: int = 0) -> list[int]:
        """The `count` likeliest tokens, one after the other, after `ids` on a fresh row."""
        assert self._lengths[row] == 0
        drawn = [int(self.prefill(ids, row=row)[-1].argmax())]
        while len(drawn) < count:
            drawn.append(int(self.run([(row, [drawn[-1]])])[-1].argmax()))
        return drawn

    def reset(self) -> None:
        """Forgets every row."""
        self._lengths = [0] * self._num_rows
