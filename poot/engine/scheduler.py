"""Which tokens of which sequences the next step computes. Pure policy: no torch, no waiting, no clock.

`compose` says what to run, the runner runs it, `commit` takes the drawn tokens: three verbs, one loop.

Policy, in this order:
1. Rows are the only admission. A waiting sequence takes a free row, first come first served.
2. Every row that only lacks its newest token (decode) gets one token of the step's budget.
3. What is left of the budget goes to prompts, oldest first, as chunks.

The pool holds max_seq positions for every row, so an admitted sequence can always run to its end: there is no
preemption.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

from poot.engine.kv.allocator import BlockAllocator
from poot.engine.sequence import Sequence, SequenceState


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens of one sequence to compute in one step.

    Attributes:
        start: position of the first token.
        num_tokens: how many.
        samples: whether the chunk reaches the newest token, so that a token is drawn after it.
    """

    sequence: Sequence
    start: int
    num_tokens: int
    samples: bool


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step: chunks in row order, decoding rows first."""

    chunks: tuple[Chunk, ...]

    @property
    def num_tokens(self) -> int:
        return sum(chunk.num_tokens for chunk in self.chunks)


class Scheduler:
    """Owns every sequence from `add` to `remove`.

    Args:
        num_rows: sequences that run at once.
        block_size: positions in a KV block.
        token_budget: most tokens in one step.
        mixed_token_budget: most tokens in a step in which some row decodes, so that a long prompt's chunk delays its
            neighbours' next token by a bounded time.
        allocator: the pool's bookkeeping; this scheduler is its only user.
    """

    def __init__(
        self,
        *,
        num_rows: int,
        block_size: int,
        token_budget: int,
        mixed_token_budget: int,
        allocator: BlockAllocator,
    ) -> None:
        assert num_rows <= mixed_token_budget <= token_budget
        self._block_size = block_size
        self._token_budget = token_budget
        self._mixed_token_budget = mixed_token_budget
        self._allocator = allocator
        self._free_rows = list(range(num_rows - 1, -1, -1))
        self._waiting: deque[Sequence] = deque()
        self._running: list[Sequence] = []  # oldest first

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        return len(self._running)

    def add(self, sequence: Sequence) -> None:
        """Queues a sequence behind those that wait."""
        assert sequence.state is SequenceState.WAITING
        self._waiting.append(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Ends a sequence in whatever state it is, and takes back its row and blocks. Must not be called mid-step."""
        if sequence.state is SequenceState.WAITING:
            self._waiting.remove(sequence)
        elif sequence.state is SequenceState.RUNNING:
            self._running.remove(sequence)
            assert sequence.row is not None
            self._free_rows.append(sequence.row)
            self._allocator.release(sequence.block_table)
            sequence.block_table = []
            sequence.row = None
        sequence.state = SequenceState.FINISHED

    def admit(self) -> SequenceOf[Sequence]:
        """Gives free rows to waiting sequences; returns those that got one."""
        admitted = []
        while self._waiting and self._free_rows:
            sequence = self._waiting.popleft()
            sequence.row = self._free_rows.pop()
            sequence.state = SequenceState.RUNNING
            self._running.append(sequence)
            admitted.append(sequence)
        return admitted

    def compose(self) -> StepPlan | None:
        """The next step, or None when no sequence runs. Gives the chunks the KV blocks they write to."""
        chunks = []
        prefilling = []
        for sequence in self._running:
            if len(sequence.token_ids) - sequence.num_computed_tokens == 1 and sequence.num_computed_tokens > 0:
                chunks.append(self._chunk(sequence, 1))
            else:
                prefilling.append(sequence)
        budget = (self._mixed_token_budget if chunks else self._token_budget) - len(chunks)
        for sequence in prefilling:
            if budget == 0:
                break
            num_tokens = min(budget, len(sequence.token_ids) - sequence.num_computed_tokens)
            budget -= num_tokens
            chunks.append(self._chunk(sequence, num_tokens))
        return StepPlan(tuple(chunks)) if chunks else None

    def _chunk(self, sequence: Sequence, num_tokens: int) -> Chunk:
        start = sequence.num_computed_tokens
        end = start + num_tokens
        missing = -(-end // self._block_size) - len(sequence.block_table)
        if missing > 0:
            sequence.block_table += self._allocator.allocate(missing)
        return Chunk(sequence, start, num_tokens, samples=end == len(sequence.token_ids))

    def commit(self, plan: StepPlan, token_ids: SequenceOf[int]) -> None:
        """Records that `plan` was computed and appends the token drawn for each of its sampling chunks, in order."""
        drawn = iter(token_ids)
        for chunk in plan.chunks:
            chunk.sequence.num_computed_tokens = chunk.start + chunk.num_tokens
            if chunk.samples:
                chunk.sequence.token_ids.append(next(drawn))
        assert next(drawn, None) is None
