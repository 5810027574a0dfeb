"""Proposals of a second, smaller model.

The draft model keeps its keys and values in a pool of its own that is laid out like the target's: a sequence's block
table serves both. It draws each token with the random number and the parameters the target will draw with, so that it
proposes what it would generate itself; a draft that agrees with the target is accepted at every temperature.

The draft's keys and values follow the target's from behind: what a prompt, a pause or a rejection left out is computed
when the next proposal is asked for, at most a budget of tokens a step.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, replace

import numpy as np

from poot.devices.base import KV_BLOCK_SIZE, Program, SamplingBatch, Step
from poot.devices.penalties import LogitEdits
from poot.engine.kv.allocator import BlockAllocator
from poot.engine.scheduler import Chunk
from poot.engine.sequence import Sequence
from poot.engine.step import StepRow, build_rows


@dataclass(slots=True)
class _DraftState:
    """What the draft has of one sequence.

    Attributes:
        num_computed_tokens: tokens whose keys and values it has; the last ones may be proposals.
        num_filled_blocks: leading blocks known to be filled with the sequence's own tokens.
        can_follow: false once the sequence holds a token that the draft has no embedding for.
    """

    num_computed_tokens: int = 0
    num_filled_blocks: int = 0
    can_follow: bool = True


class ModelDrafter:
    """Proposes what a draft model generates.

    Args:
        program: the draft's recorded step.
        allocator: of the target's pool; says when a block was handed out anew.
        vocab_size: the draft's; at most the target's.
        token_budget: most tokens of one of its steps.
        max_blocks: width of a block table.
    """

    def __init__(
        self, program: Program, *, allocator: BlockAllocator, vocab_size: int, token_budget: int, max_blocks: int
    ) -> None:
        self._program = program
        self._allocator = allocator
        self._vocab_size = vocab_size
        self._token_budget = token_budget
        self._max_blocks = max_blocks
        # For each block, its number of allocations when the draft filled it: what is still the same is still there.
        self._filled = [0] * allocator.num_blocks

    def propose(self, chunks: SequenceOf[Chunk]) -> list[tuple[int, ...]]:
        """As `Drafter.propose`. One step of the draft for the first tokens, and one for each further one."""
        drafts: list[list[int]] = [[] for _ in chunks]
        rows: list[StepRow] = []
        drawing: list[int] = []  # chunks that a token is drawn for in the coming step
        budget = self._token_budget - len(chunks)
        for index, chunk in enumerate(chunks):
            sequence = chunk.sequence
            if not chunk.max_draft_tokens or not self._catch_up(sequence):
                continue
            start = sequence.draft_state.num_computed_tokens
            missing = sequence.token_ids[start : start + budget + 1]
            budget -= len(missing) - 1
            is_complete = start + len(missing) == len(sequence.token_ids)
            rows.append(StepRow(sequence, start, missing, num_samples=1 if is_complete else 0))
            if is_complete:
                drawing.append(index)
        while rows:
            drawn = self._run(rows)
            going = []
            for index, token_id in zip(drawing, drawn, strict=True):
                drafts[index].append(token_id)
                if len(drafts[index]) < chunks[index].max_draft_tokens:
                    going.append(index)
            rows = [
                StepRow(
                    sequence := chunks[index].sequence,
                    len(sequence.token_ids) + len(drafts[index]) - 1,
                    drafts[index][-1:],
                    num_samples=1,
                    draft=tuple(drafts[index]),
                )
                for index in going
            ]
            drawing = going
        return [tuple(draft) for draft in drafts]

    def _catch_up(self, sequence: Sequence) -> bool:
        """Settles which of the draft's positions still hold; false where it cannot follow the sequence."""
        state: _DraftState | None = sequence.draft_state
        filled, num_allocations = self._filled, self._allocator.num_allocations
        if state is None:
            state = sequence.draft_state = _DraftState()
            # Blocks shared with an earlier sequence may have been filled for that one.
            for block in sequence.block_table[: sequence.num_cached_tokens // KV_BLOCK_SIZE]:
                if filled[block] != num_allocations[block]:
                    break
                state.num_computed_tokens += KV_BLOCK_SIZE
        # A rejected proposal lies behind the newest token but one, with everything computed after it.
        first = state.num_computed_tokens = min(state.num_computed_tokens, len(sequence.token_ids) - 1)
        num_filled = first // KV_BLOCK_SIZE
        for block in sequence.block_table[state.num_filled_blocks : num_filled]:
            filled[block] = num_allocations[block]
        state.num_filled_blocks = num_filled
        state.can_follow = state.can_follow and max(sequence.token_ids[first:]) < self._vocab_size
        return state.can_follow

    def _run(self, rows: SequenceOf[StepRow]) -> tuple[int, ...]:
        """One step of the draft; the tokens drawn by the rows that draw one."""
        step = build_rows(rows, max_blocks=self._max_blocks)
        result = self._program.launch(replace(step, sampling=self._sampling(step))).tokens()
        for row in rows:
            row.sequence.draft_state.num_computed_tokens = row.start + len(row.token_ids)
        return result.token_ids

    def _sampling(self, step: Step) -> SamplingBatch:
        """The target's parameters as far as the draft's vocabulary goes; nobody reads its log-probabilities."""
        batch = step.sampling
        return replace(
            batch,
            num_logprobs=(None,) * len(batch.num_logprobs),
            banned=tuple(tuple(t for t in banned if t < self._vocab_size) for banned in batch.banned),
            edits=tuple(None if edits is None else self._clipped(edits) for edits in batch.edits),
        )

    def _clipped(self, edits: LogitEdits) -> LogitEdits:
        biased, seen = (np.flatnonzero(ids < self._vocab_size) for ids in (edits.bias_ids, edits.token_ids))
        return replace(
            edits,
            bias_ids=edits.bias_ids[biased],
            bias=edits.bias[biased],
            token_ids=edits.token_ids[seen],
            counts=edits.counts[seen],
        )
