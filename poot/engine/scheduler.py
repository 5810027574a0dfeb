"""Which tokens of which sequences the next step computes. Pure policy: no torch, no waiting, no clock.

`compose` says what to run, the runner runs it, `commit` takes the drawn tokens: three verbs, one loop. A loop that runs
one step ahead calls `assume` once it has launched a plan, may then compose the next one, and commits the first while
the second runs. Blocks are shared only once the step that fills them is committed.

Policy, in this order:
1. Rows are the only admission. A waiting sequence takes a free row, first come first served.
2. Every row that only lacks its newest token (decode) gets one token of the step's budget.
3. What is left of the budget goes to prompts, oldest first, as chunks.
4. A prompt starts behind the blocks of it that are in the pool already. While an older prompt computes the next block
   that a younger one needs too (choices of one request, a shared system prompt), the younger one waits for it.

The pool holds max_seq positions for every row, so an admitted sequence can always run to its end: there is no
preemption.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

from poot.engine.kv.allocator import BlockAllocator
from poot.engine.kv.prefix_index import Key, PrefixIndex
from poot.engine.sequence import Sequence, SequenceState
from poot.engine.speculate.adaptive import ProposalLength

# Stands for a token that a step in flight draws. Never read: a device puts in the token it drew.
_PLACEHOLDER = 0


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens of one sequence to compute in one step.

    Attributes:
        start: position of the first token.
        num_tokens: how many.
        samples: whether the chunk reaches the newest token, so that a token is drawn after it.
        max_draft_tokens: most tokens that may be proposed after the newest one; blocks for them are there.
        draft: tokens proposed, to be verified in this step: a token is drawn after each of them too.
        carried_sample: the chunk's one token is the sample of this number of the step in flight; None where its tokens
            are known.
    """

    sequence: Sequence
    start: int
    num_tokens: int
    samples: bool
    max_draft_tokens: int = 0
    draft: tuple[int, ...] = ()
    carried_sample: int | None = None

    @property
    def length(self) -> int:
        """Positions the chunk takes in the step."""
        return self.num_tokens + len(self.draft)

    @property
    def num_samples(self) -> int:
        return 1 + len(self.draft) if self.samples else 0


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step: chunks in row order, decoding rows first."""

    chunks: tuple[Chunk, ...]

    @property
    def num_tokens(self) -> int:
        return sum(chunk.length for chunk in self.chunks)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a step brought one sequence.

    Attributes:
        samples: indices into the step's drawn tokens: the sequence's new tokens, in order.
        num_accepted: how many of its proposed tokens stood; one less than `samples` holds.
    """

    chunk: Chunk
    samples: range
    num_accepted: int


class Scheduler:
    """Owns every sequence from `add` to `remove`.

    Args:
        num_rows: sequences that run at once.
        block_size: positions in a KV block.
        token_budget: most tokens in one step.
        mixed_token_budget: most tokens in a step in which some row decodes, so that a long prompt's chunk delays its
            neighbours' next token by a bounded time.
        allocator: the pool's bookkeeping; this scheduler is its only user.
        max_draft_tokens: most tokens that speculation proposes for a row in one step; 0 is no speculation. They come on
            top of the budgets.

    Attributes:
        num_cached_tokens: tokens of all prompts so far whose blocks were in the pool already.
    """

    def __init__(
        self,
        *,
        num_rows: int,
        block_size: int,
        token_budget: int,
        mixed_token_budget: int,
        allocator: BlockAllocator,
        max_draft_tokens: int = 0,
    ) -> None:
        assert num_rows <= mixed_token_budget <= token_budget
        self._block_size = block_size
        self._token_budget = token_budget
        self._mixed_token_budget = mixed_token_budget
        self._allocator = allocator
        self._max_draft_tokens = max_draft_tokens
        self._index = PrefixIndex(allocator, block_size)
        self.num_cached_tokens = 0
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
        """Ends a sequence in whatever state it is, and takes back its row and blocks.

        A step in flight may still write to them: whoever gets them next is computed by a later one.
        """
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
        """The next step, or None when there is nothing to compute. Gives the chunks the KV blocks they write to."""
        chunks = []
        prefilling = []
        computed: set[Key] = set()
        for sequence in self._running:
            if sequence.num_generated_tokens == 0:
                self._take_cached(sequence)
            elif (key := self._key_in_flight(sequence)) is not None:
                computed.add(key)
            if len(sequence.token_ids) >= sequence.max_total_tokens:  # it ends with the step in flight
                continue
            if len(sequence.token_ids) - sequence.num_computed_tokens == 1 and sequence.num_computed_tokens > 0:
                chunks.append(self._chunk(sequence, 1, self._max_draft(sequence)))
            else:
                prefilling.append(sequence)
        budget = (self._mixed_token_budget if chunks else self._token_budget) - len(chunks)
        for sequence in prefilling:
            if budget == 0:
                break
            key = self._next_key(sequence)
            if key in computed and self._may_take_cached(sequence):
                continue
            if key is not None:
                computed.add(key)
            num_tokens = min(budget, len(sequence.token_ids) - sequence.num_computed_tokens)
            budget -= num_tokens
            chunks.append(self._chunk(sequence, num_tokens))
        return StepPlan(tuple(chunks)) if chunks else None

    def _next_key(self, sequence: Sequence) -> Key | None:
        """The key of the block `sequence` computes next; None where its prompt ends inside that block, or with it."""
        # The newest token is always computed, whatever is cached: a token is drawn after it.
        has_more = self._end_of_first_unknown(sequence) < len(sequence.token_ids)
        return self._first_unknown_key(sequence) if has_more else None

    def _key_in_flight(self, sequence: Sequence) -> Key | None:
        """The key of the first block of `sequence` that a step in flight fills; None where none is filled."""
        is_filled = self._end_of_first_unknown(sequence) <= sequence.num_computed_tokens
        return self._first_unknown_key(sequence) if is_filled else None

    def _end_of_first_unknown(self, sequence: Sequence) -> int:
        """The position behind the first block of `sequence` that the index does not know yet."""
        return (sequence.num_known_blocks + 1) * self._block_size

    def _first_unknown_key(self, sequence: Sequence) -> Key:
        """That block's key; all of its tokens are there."""
        return self._index.key(sequence.prefix_node, sequence.token_ids, sequence.num_known_blocks * self._block_size)

    def _may_take_cached(self, sequence: Sequence) -> bool:
        if sequence.request.num_prompt_logprobs is not None:  # every position of it is to be computed
            return False
        return sequence.num_computed_tokens == sequence.num_known_blocks * self._block_size

    def _take_cached(self, sequence: Sequence) -> None:
        """Moves a prompt forward over the blocks that are in the pool already."""
        while self._may_take_cached(sequence):
            key = self._next_key(sequence)
            found = None if key is None else self._index.take(key)
            if found is None:
                return
            sequence.prefix_node, block = found
            sequence.block_table.append(block)
            sequence.num_known_blocks += 1
            sequence.num_computed_tokens += self._block_size
            sequence.num_cached_tokens += self._block_size
            self.num_cached_tokens += self._block_size

    def _max_draft(self, sequence: Sequence) -> int:
        """Tokens that may be proposed for a decoding row: as its acceptance allows, and none past its end."""
        if not self._max_draft_tokens:
            return 0
        if sequence.proposal_length is None:
            sequence.proposal_length = ProposalLength(self._max_draft_tokens)
        return min(sequence.proposal_length.next(), sequence.max_total_tokens - len(sequence.token_ids) - 1)

    def _chunk(self, sequence: Sequence, num_tokens: int, max_draft_tokens: int = 0) -> Chunk:
        start = sequence.num_computed_tokens
        end = start + num_tokens
        missing = -(-(end + max_draft_tokens) // self._block_size) - len(sequence.block_table)
        if missing > 0:
            sequence.block_table += self._allocator.allocate(missing)
        carried = sequence.carried_sample
        return Chunk(
            sequence, start, num_tokens, end == len(sequence.token_ids), max_draft_tokens, carried_sample=carried
        )

    def can_compose_ahead(self) -> bool:
        """Whether the next step can be composed before the tokens of the one in flight are known.

        It cannot where something proposes tokens, or where a row's penalties go by the token that is being drawn.
        """
        if self._max_draft_tokens:
            return False
        return not any(
            sequence.carried_sample is not None and sequence.request.sampling.has_penalties
            for sequence in self._running
        )

    def assume(self, plan: StepPlan) -> None:
        """Goes on as if `plan`, which was launched, had been computed; `commit` brings its tokens later."""
        first = 0
        for chunk in plan.chunks:
            sequence = chunk.sequence
            sequence.num_computed_tokens = chunk.start + chunk.num_tokens
            sequence.carried_sample = None
            if chunk.samples:
                sequence.token_ids.append(_PLACEHOLDER)
                sequence.carried_sample = first
                first += chunk.num_samples

    def commit(self, plan: StepPlan, token_ids: SequenceOf[int]) -> list[Outcome]:
        """Records that `plan` was computed, and gives its sequences what was drawn; those removed since get nothing.

        A proposed token stands while the token drawn in its place is the same, and the first one that differs is the
        last new token: what was computed after it is forgotten.

        Args:
            token_ids: the tokens drawn, chunk by chunk.
        """
        outcomes = []
        first = 0
        for chunk in plan.chunks:
            sequence = chunk.sequence
            samples = range(first, first + chunk.num_samples)
            first = samples.stop
            if sequence.state is SequenceState.FINISHED:
                continue
            end = chunk.start + chunk.num_tokens
            if chunk.samples:
                drawn = token_ids[samples.start : samples.stop]
                num_accepted = 0
                while num_accepted < len(chunk.draft) and drawn[num_accepted] == chunk.draft[num_accepted]:
                    num_accepted += 1
                is_newest = end + 1 >= len(sequence.token_ids)  # else the next step has been assumed as well
                sequence.token_ids[end : end + 1] = drawn[: num_accepted + 1]
                end += num_accepted
                if is_newest:
                    sequence.carried_sample = None
                if chunk.draft:
                    self._note_draft(sequence, len(chunk.draft), num_accepted)
                outcomes.append(Outcome(chunk, samples[: num_accepted + 1], num_accepted))
            sequence.num_computed_tokens = max(sequence.num_computed_tokens, end)
            self._enter_full_blocks(sequence, end)
        assert first == len(token_ids)
        return outcomes

    def _note_draft(self, sequence: Sequence, num_proposed: int, num_accepted: int) -> None:
        assert sequence.proposal_length is not None
        sequence.proposal_length.note(num_proposed, num_accepted)
        sequence.num_drafted_tokens += num_proposed
        sequence.num_accepted_tokens += num_accepted

    def _enter_full_blocks(self, sequence: Sequence, num_tokens: int) -> None:
        """Lets others share the blocks that the first `num_tokens` tokens of `sequence` fill, all computed by now."""
        while self._end_of_first_unknown(sequence) <= num_tokens:
            block = sequence.block_table[sequence.num_known_blocks]
            sequence.prefix_node = self._index.enter(self._first_unknown_key(sequence), block)
            sequence.num_known_blocks += 1
