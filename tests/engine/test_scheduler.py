from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from poot.devices.base import KV_BLOCK_SIZE
from poot.engine.kv.allocator import BlockAllocator
from poot.engine.scheduler import Scheduler
from poot.engine.sequence import GenerationRequest, SamplingParams, Sequence, SequenceState

MAX_SEQ = 64
BLOCKS_A_ROW = MAX_SEQ // KV_BLOCK_SIZE


def make_scheduler(*, rows: int = 2, budget: int = 16, mixed: int = 8) -> tuple[Scheduler, BlockAllocator]:
    allocator = BlockAllocator(rows * BLOCKS_A_ROW)
    scheduler = Scheduler(
        num_rows=rows,
        block_size=KV_BLOCK_SIZE,
        token_budget=budget,
        mixed_token_budget=mixed,
        allocator=allocator,
    )
    return scheduler, allocator


_first_ids = count(1000, 1000)


def make_sequence(num_prompt_tokens: int, max_tokens: int = 4, *, first_id: int | None = None) -> Sequence:
    """A sequence whose prompt counts up from `first_id`; by default no other prompt has anything in common with it."""
    first_id = next(_first_ids) if first_id is None else first_id
    prompt = tuple(range(first_id, first_id + num_prompt_tokens))
    return Sequence(
        request=GenerationRequest(prompt_ids=prompt, sampling=SamplingParams(), max_tokens=max_tokens),
        token_ids=list(prompt),
        num_prompt_tokens=num_prompt_tokens,
        max_total_tokens=num_prompt_tokens + max_tokens,
        stop_ids=frozenset(),
    )


def run_step(scheduler: Scheduler) -> list[tuple[Sequence, int, int, bool]]:
    """Composes and commits one step that draws token 7 everywhere."""
    plan = scheduler.compose()
    assert plan is not None
    scheduler.commit(plan, [7 for chunk in plan.chunks if chunk.samples])
    return [(chunk.sequence, chunk.start, chunk.num_tokens, chunk.samples) for chunk in plan.chunks]


def test_rows_are_the_only_admission_first_come_first_served() -> None:
    scheduler, _ = make_scheduler(rows=2)
    first, second, third = make_sequence(3), make_sequence(3), make_sequence(3)
    for sequence in (first, second, third):
        scheduler.add(sequence)
    assert list(scheduler.admit()) == [first, second]
    assert third.state is SequenceState.WAITING
    scheduler.remove(second)
    assert list(scheduler.admit()) == [third]


def test_a_long_prompt_is_cut_into_chunks_of_the_budget_and_samples_at_its_end_only() -> None:
    scheduler, _ = make_scheduler(budget=16)
    sequence = make_sequence(40)
    scheduler.add(sequence)
    scheduler.admit()
    assert run_step(scheduler) == [(sequence, 0, 16, False)]
    assert run_step(scheduler) == [(sequence, 16, 16, False)]
    assert run_step(scheduler) == [(sequence, 32, 8, True)]
    assert sequence.token_ids[40:] == [7]
    assert run_step(scheduler) == [(sequence, 40, 1, True)]


def test_decoding_rows_come_first_and_shrink_the_chunk_beside_them() -> None:
    scheduler, _ = make_scheduler(budget=16, mixed=8)
    decoding, long = make_sequence(4), make_sequence(40)
    scheduler.add(decoding)
    scheduler.admit()
    run_step(scheduler)
    scheduler.add(long)
    scheduler.admit()
    assert run_step(scheduler) == [(decoding, 4, 1, True), (long, 0, 7, False)]


def test_a_prompt_of_one_token_is_prefilled_not_decoded() -> None:
    scheduler, _ = make_scheduler()
    sequence = make_sequence(1)
    scheduler.add(sequence)
    scheduler.admit()
    assert run_step(scheduler) == [(sequence, 0, 1, True)]


def test_two_prompts_share_a_step_oldest_first() -> None:
    scheduler, _ = make_scheduler(budget=16)
    first, second = make_sequence(10), make_sequence(10)
    scheduler.add(first)
    scheduler.add(second)
    scheduler.admit()
    assert run_step(scheduler) == [(first, 0, 10, True), (second, 0, 6, False)]


def test_removing_a_waiting_sequence_leaves_the_others_in_order() -> None:
    scheduler, _ = make_scheduler(rows=1)
    first, second, third = make_sequence(3), make_sequence(3), make_sequence(3)
    for sequence in (first, second, third):
        scheduler.add(sequence)
    scheduler.admit()
    scheduler.remove(second)
    scheduler.remove(first)
    assert list(scheduler.admit()) == [third]


def prefill(scheduler: Scheduler, sequence: Sequence) -> int:
    """Runs steps until `sequence` has its first token; says how many."""
    num_steps = 0
    while not sequence.num_generated_tokens:
        run_step(scheduler)
        num_steps += 1
    return num_steps


def test_a_prompt_starts_behind_the_blocks_that_an_earlier_one_left() -> None:
    scheduler, allocator = make_scheduler()
    first = make_sequence(40, first_id=0)
    scheduler.add(first)
    scheduler.admit()
    prefill(scheduler, first)
    scheduler.remove(first)
    assert (allocator.num_held, allocator.num_kept) == (0, 2)
    second = make_sequence(50, first_id=0)
    scheduler.add(second)
    scheduler.admit()
    assert run_step(scheduler) == [(second, 32, 16, False)]
    assert second.num_cached_tokens == scheduler.num_cached_tokens == 32


@pytest.mark.parametrize("length", [32, 33])
def test_the_newest_token_is_computed_whatever_is_cached(length: int) -> None:
    scheduler, _ = make_scheduler()
    for _ in range(2):
        sequence = make_sequence(length, first_id=0)
        scheduler.add(sequence)
        scheduler.admit()
        prefill(scheduler, sequence)
        scheduler.remove(sequence)
    # Of 32 tokens the second block would leave nothing to compute.
    assert sequence.num_cached_tokens == (16 if length == 32 else 32)


def test_another_beginning_shares_nothing_with_the_same_text_after_it() -> None:
    scheduler, _ = make_scheduler()
    for prompt in ((1, *range(16, 48)), (2, *range(16, 48))):
        sequence = make_sequence(33)
        sequence.token_ids = list(prompt)
        scheduler.add(sequence)
        scheduler.admit()
        prefill(scheduler, sequence)
        assert sequence.num_cached_tokens == 0
        scheduler.remove(sequence)


def test_generated_tokens_are_shared_too() -> None:
    scheduler, _ = make_scheduler()
    first = make_sequence(20, 30, first_id=0)
    scheduler.add(first)
    scheduler.admit()
    prefill(scheduler, first)
    for _ in range(15):
        run_step(scheduler)
    scheduler.remove(first)
    follow_up = make_sequence(40)
    follow_up.token_ids = [*first.token_ids[:35], 1, 2, 3, 4, 5]
    scheduler.add(follow_up)
    scheduler.admit()
    prefill(scheduler, follow_up)
    assert follow_up.num_cached_tokens == 32


def test_choices_of_one_prompt_compute_it_once_and_share_its_blocks() -> None:
    scheduler, allocator = make_scheduler(rows=3, budget=16, mixed=8)
    choices = [make_sequence(40, first_id=0) for _ in range(3)]
    for choice in choices:
        scheduler.add(choice)
    scheduler.admit()
    assert run_step(scheduler) == [(choices[0], 0, 16, False)]
    # The others follow behind its blocks; what is left of the prompt after the last full one each computes itself.
    while not all(choice.num_generated_tokens for choice in choices):
        run_step(scheduler)
    assert [choice.num_cached_tokens for choice in choices] == [0, 32, 32]
    assert choices[0].block_table[:2] == choices[1].block_table[:2] == choices[2].block_table[:2]
    assert allocator.num_held == 2 + 3
    scheduler.remove(choices[0])
    assert allocator.num_held == 2 + 2


def test_a_prompt_with_log_probabilities_computes_all_of_its_positions() -> None:
    scheduler, _ = make_scheduler()
    first, scored = make_sequence(40, first_id=0), make_sequence(40, first_id=0)
    scored.request = replace(scored.request, num_prompt_logprobs=0)
    scheduler.add(first)
    scheduler.admit()
    prefill(scheduler, first)
    scheduler.remove(first)
    scheduler.add(scored)
    scheduler.admit()
    assert prefill(scheduler, scored) == 3
    assert scored.num_cached_tokens == 0


def test_the_blocks_released_first_make_room_first_and_those_at_a_prompts_end_before_its_beginning() -> None:
    scheduler, allocator = make_scheduler(rows=1)  # four blocks
    for first_id, length in ((0, 33), (500, 17)):
        sequence = make_sequence(length, 1, first_id=first_id)
        scheduler.add(sequence)
        scheduler.admit()
        prefill(scheduler, sequence)
        scheduler.remove(sequence)
    assert allocator.num_kept == 3  # and one free block
    large = make_sequence(20, first_id=900)  # takes the free one and the older prompt's second
    scheduler.add(large)
    scheduler.admit()
    prefill(scheduler, large)
    scheduler.remove(large)
    for first_id, num_cached in ((0, 16), (500, 16)):
        again = make_sequence(33, first_id=first_id)
        scheduler.add(again)
        scheduler.admit()
        scheduler.compose()
        assert again.num_cached_tokens == num_cached
        scheduler.remove(again)


def test_a_long_prompt_delays_no_token_of_its_decoding_neighbours() -> None:
    """3,000 tokens arrive among three decoding rows: each of them still gets a token in every step."""
    allocator = BlockAllocator(4 * 256)
    scheduler = Scheduler(
        num_rows=4, block_size=KV_BLOCK_SIZE, token_budget=512, mixed_token_budget=128, allocator=allocator
    )
    decoding = [make_sequence(5, 200) for _ in range(3)]
    for sequence in decoding:
        scheduler.add(sequence)
    scheduler.admit()
    run_step(scheduler)
    long = make_sequence(3000)
    scheduler.add(long)
    scheduler.admit()
    num_steps = prefill(scheduler, long)
    assert num_steps == 24  # 125 tokens a step beside three rows
    assert [sequence.num_generated_tokens for sequence in decoding] == [1 + num_steps] * 3


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_no_sequence_starves_no_block_leaks_and_budgets_hold(data: st.DataObject) -> None:
    rows = data.draw(st.integers(1, 3))
    mixed = data.draw(st.integers(rows, 9))
    budget = data.draw(st.integers(mixed, 20))
    scheduler, allocator = make_scheduler(rows=rows, budget=budget, mixed=mixed)
    alive: list[Sequence] = []
    for _ in range(data.draw(st.integers(1, 25))):
        action = data.draw(st.sampled_from(["add", "cancel", "step", "step"]))
        if action == "add":
            prompt = data.draw(st.integers(1, MAX_SEQ - 1))
            first_id = data.draw(st.sampled_from([0, 0, 1]))
            sequence = make_sequence(prompt, data.draw(st.integers(1, MAX_SEQ - prompt)), first_id=first_id)
            alive.append(sequence)
            scheduler.add(sequence)
        elif action == "cancel" and alive:
            scheduler.remove(alive.pop(data.draw(st.integers(0, len(alive) - 1))))
        scheduler.admit()
        _checked_step(scheduler, allocator, alive, budget=budget, mixed=mixed)
    steps = 0
    while alive:
        scheduler.admit()
        _checked_step(scheduler, allocator, alive, budget=budget, mixed=mixed)
        steps += 1
        assert steps < 10_000, "a sequence starves"
    assert allocator.num_held == scheduler.num_running == scheduler.num_waiting == 0


def check_blocks(allocator: BlockAllocator, alive: list[Sequence]) -> None:
    """Every block is held by exactly those sequences that have it in their table; none is lost."""
    tables = Counter(block for sequence in alive for block in sequence.block_table)
    assert allocator.holders(tables) == list(tables.values())
    assert len(tables) == allocator.num_held
    assert allocator.num_held + allocator.num_free == allocator.num_blocks


def _checked_step(
    scheduler: Scheduler, allocator: BlockAllocator, alive: list[Sequence], *, budget: int, mixed: int
) -> None:
    plan = scheduler.compose()
    if plan is None:
        assert not alive
        return
    decodes = any(chunk.start >= chunk.sequence.num_prompt_tokens for chunk in plan.chunks)
    assert 1 <= plan.num_tokens <= (mixed if decodes else budget)
    for chunk in plan.chunks:
        assert chunk.num_tokens >= 1
        assert len(chunk.sequence.block_table) * KV_BLOCK_SIZE >= chunk.start + chunk.num_tokens
    check_blocks(allocator, alive)
    written = [
        chunk.sequence.block_table[position // KV_BLOCK_SIZE]
        for chunk in plan.chunks
        for position in range(chunk.start, chunk.start + chunk.num_tokens, KV_BLOCK_SIZE)
    ]
    assert all(holders == 1 for holders in allocator.holders(written)), "a shared block is written to"
    running = [sequence.row for sequence in alive if sequence.row is not None]
    assert len(running) == len(set(running)) == scheduler.num_running
    scheduler.commit(plan, [7 for chunk in plan.chunks if chunk.samples])
    for sequence in [s for s in alive if len(s.token_ids) >= s.max_total_tokens]:
        scheduler.remove(sequence)
        alive.remove(sequence)
