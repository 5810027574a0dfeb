"""A program with known tokens that checks, at every step, that paging kept each row's text apart and in order.

It stores token ids instead of keys and values. To draw a token it reads a row's whole context back through the block
table, so a block shared, lost, reused too early or written at a wrong slot changes the token that comes out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

import numpy as np

from poot.devices.base import KV_BLOCK_SIZE, Step, StepResult
from tests.fakes.inline_executor import Done

NextToken = Callable[[Sequence[int]], int]


def hashed_token(vocab_size: int, *, avoid: frozenset[int] = frozenset()) -> NextToken:
    """A next-token function of the whole context: the first id of its hash chain that is not in `avoid`."""

    def next_token(context: Sequence[int]) -> int:
        digest = hashlib.sha256(np.asarray(context, np.int64).tobytes()).digest()
        while (token := int.from_bytes(digest[:8], "little") % vocab_size) in avoid:
            digest = hashlib.sha256(digest).digest()
        return token

    return next_token


def continuation(next_token: NextToken, prompt: Sequence[int], length: int) -> list[int]:
    """What a sequence generates when it runs alone: `length` tokens after `prompt`."""
    context = list(prompt)
    for _ in range(length):
        context.append(next_token(context))
    return context[len(prompt) :]


class FakeProgram:
    """Implements `Program`.

    Attributes:
        launch_computes: as of `Program`; false says that `tokens` would block, though it never does.
        steps: the steps launched so far.
        before_step: called with each step before it runs; may raise, to stand for a device that fails.
    """

    def __init__(self, *, num_blocks: int, next_token: NextToken) -> None:
        self._pool = np.full(num_blocks * KV_BLOCK_SIZE, -1, np.int64)
        self._next_token = next_token
        self.steps: list[Step] = []
        self.before_step: Callable[[Step], None] = lambda step: None
        self.launch_computes = True
        self._drawn = np.empty(0, np.int64)

    def launch(self, step: Step) -> Done:
        step = step.resolve(self._drawn)
        self._drawn = np.zeros(len(step.sample_indices), np.int64)
        self.before_step(step)
        self.steps.append(step)
        assert len(set(step.slots.tolist())) == step.num_tokens, "two tokens written to one slot"
        self._pool[step.slots] = step.token_ids
        drawn = []
        for index in step.sample_indices.tolist():
            row = int(np.searchsorted(step.query_starts, index, side="right")) - 1
            positions = np.arange(step.positions[index] + 1)
            blocks = step.block_tables[row][positions // KV_BLOCK_SIZE]
            context = self._pool[blocks * KV_BLOCK_SIZE + positions % KV_BLOCK_SIZE]
            drawn.append(self._next_token(context.tolist()))
        self._drawn[:] = drawn
        return Done(StepResult(tuple(drawn), (None,) * len(drawn)))
