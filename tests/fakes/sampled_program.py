"""A program with known logits and the real sampler: what a sequence draws is a function of its text and parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch

from poot.devices.base import KV_BLOCK_SIZE, Step
from poot.devices.sampler import Scorer, sample
from tests.fakes.inline_executor import Done


def known_logits(context: Sequence[int], vocab_size: int, salt: int = 0) -> torch.Tensor:
    """Logits f32 `[vocab_size]` after `context`: random, and the same for the same length, last tokens and `salt`.

    A smaller vocabulary has the beginning of a larger one's logits.
    """
    generator = np.random.default_rng([salt, len(context), *context[-3:]])
    return torch.from_numpy(2 * generator.standard_normal(vocab_size, np.float32))


class SampledProgram:
    """Implements `Program`. It keeps token ids where a device keeps keys and values.

    Attributes:
        num_computed_tokens: tokens of all steps so far.
        launch_computes: as of `Program`; false says that `tokens` would block, though it never does.
        before_step: called with each step before it runs; may raise, to stand for a device that fails.
    """

    def __init__(self, *, num_blocks: int, vocab_size: int, salt: int = 0) -> None:
        self.num_computed_tokens = 0
        self._salt = salt
        self._pool = np.full(num_blocks * KV_BLOCK_SIZE, -1, np.int64)
        self._vocab_size = vocab_size
        self.launch_computes = True
        self.before_step: Callable[[Step], None] = lambda step: None
        self._drawn = np.empty(0, np.int64)

    def launch(self, step: Step) -> Done:
        step = step.resolve(self._drawn)
        self._drawn = np.zeros(len(step.sample_indices), np.int64)
        self.before_step(step)
        self.num_computed_tokens += step.num_tokens
        assert step.token_ids.max() < self._vocab_size, "a token without an embedding"
        self._pool[step.slots] = step.token_ids
        result = sample(self._logits(step, step.sample_indices), step.sampling)
        if step.scored is not None:
            scorer = Scorer(step.scored)
            scoring = scorer.scoring(2)
            for indices in scoring.slices:
                scoring.take(self._logits(step, indices.numpy()))
            result = replace(result, scores=tuple(scorer.scores))
        self._drawn[:] = result.token_ids
        return Done(result)

    def _logits(self, step: Step, indices: np.ndarray[tuple[int], np.dtype[np.int64]]) -> torch.Tensor:
        rows = []
        for index in indices.tolist():
            row = int(np.searchsorted(step.query_starts, index, side="right")) - 1
            positions = np.arange(step.positions[index] + 1)
            blocks = step.block_tables[row][positions // KV_BLOCK_SIZE]
            context = self._pool[blocks * KV_BLOCK_SIZE + positions % KV_BLOCK_SIZE]
            rows.append(known_logits(context.tolist(), self._vocab_size, self._salt))
        return torch.stack(rows) if rows else torch.empty(0, self._vocab_size)
