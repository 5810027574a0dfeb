from __future__ import annotations

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


def make_sequence(num_prompt_tokens: int, max_tokens: int = 4) -> Sequence:
    prompt = tuple(range(num_prompt_tokens))
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
            sequence = make_sequence(prompt, data.draw(st.integers(1, MAX_SEQ - prompt)))
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
    tables = [block for sequence in alive for block in sequence.block_table]
    assert len(tables) == len(set(tables)) == allocator.num_held
    running = [sequence.row for sequence in alive if sequence.row is not None]
    assert len(running) == len(set(running)) == scheduler.num_running
    scheduler.commit(plan, [7 for chunk in plan.chunks if chunk.samples])
    for sequence in [s for s in alive if len(s.token_ids) >= s.max_total_tokens]:
        scheduler.remove(sequence)
        alive.remove(sequence)
