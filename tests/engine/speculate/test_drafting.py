"""Speculation leaves what is generated as it is, whoever proposes and however badly.

Over programs with known logits and the real sampler: a pool that a rejected token was left in, a random number of
another position or a count that includes a rejected token would each change what is drawn next.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
from collections.abc import Sequence as SequenceOf
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from poot.devices.base import KV_BLOCK_SIZE
from poot.engine.engine import Engine
from poot.engine.kv.allocator import BlockAllocator
from poot.engine.scheduler import Chunk
from poot.engine.sequence import Delta, Event, Finished, GenerationRequest, SamplingParams
from poot.engine.speculate.drafter import Drafter, LookupDrafter
from poot.engine.speculate.model import ModelDrafter
from poot.metrics import Metrics
from tests.engine.events import ids_of
from tests.fakes.engine_info import fake_info
from tests.fakes.inline_executor import InlineExecutor
from tests.fakes.sampled_program import SampledProgram
from tests.fakes.tokenizer import VOCAB_SIZE, byte_tokenizer

pytestmark = pytest.mark.anyio

MAX_SEQ = 96
ROWS = 3
MAX_BLOCKS = MAX_SEQ // KV_BLOCK_SIZE
NUM_DRAFT_TOKENS = 4
PROMPT = tuple(range(40, 75))


@dataclass
class Fixture:
    """An engine, its program, and what counts its speculation."""

    engine: Engine
    program: SampledProgram
    metrics: Metrics

    async def events(self, request: GenerationRequest) -> list[Event]:
        async with self.engine.open(request) as events:
            return [event async for event in events]

    async def ids(self, request: GenerationRequest) -> list[int]:
        return ids_of(await self.events(request))

    def sample(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(f"poot_{name}_total", labels)


def end_of(events: SequenceOf[Event]) -> Finished:
    assert isinstance(events[-1], Finished)
    return events[-1]


MakeDrafter = Callable[[BlockAllocator], Drafter]


@asynccontextmanager
async def running(make_drafter: MakeDrafter | None) -> AsyncIterator[Fixture]:
    program = SampledProgram(num_blocks=ROWS * MAX_BLOCKS, vocab_size=VOCAB_SIZE)
    metrics = Metrics()
    engine = Engine(
        model=fake_info(rows=ROWS, max_seq=MAX_SEQ, vocab_size=VOCAB_SIZE),
        tokenizer=byte_tokenizer(),
        chat=None,
        program=program,
        executor=InlineExecutor(),
        token_budget=24,
        mixed_token_budget=8,
        metrics=metrics,
        max_draft_tokens=0 if make_drafter is None else NUM_DRAFT_TOKENS,
        make_drafter=make_drafter,
    )
    async with anyio.create_task_group() as tasks:
        await tasks.start(engine.run)
        yield Fixture(engine, program, metrics)
        await anyio.wait_all_tasks_blocked()
        held = engine.statistics()
        assert held.rows_held == held.kv_blocks_held == held.waiting == 0
        tasks.cancel_scope.cancel()


def request(prompt: tuple[int, ...] = PROMPT, max_tokens: int = 30, **sampling: Any) -> GenerationRequest:
    return GenerationRequest(
        prompt_ids=prompt, sampling=SamplingParams(**sampling), max_tokens=max_tokens, ignore_eos=True
    )


@dataclass
class Oracle:
    """Knows what comes, and says something else for a share of the tokens."""

    texts: list[list[int]]
    wrong: float
    source: random.Random = field(default_factory=lambda: random.Random(1))
    most: int = 0

    def propose(self, chunks: SequenceOf[Chunk]) -> list[tuple[int, ...]]:
        proposals = []
        for chunk in chunks:
            assert 1 <= chunk.max_draft_tokens <= NUM_DRAFT_TOKENS
            self.most = max(self.most, chunk.max_draft_tokens)
            held = chunk.sequence.token_ids
            known = next(text for text in self.texts if text[: len(held)] == held)
            ahead = known[len(held) : len(held) + chunk.max_draft_tokens]
            number = self.source.randint(0, len(ahead))
            proposals.append(
                tuple(
                    self.source.randrange(VOCAB_SIZE) if self.source.random() < self.wrong else token
                    for token in ahead[:number]
                )
            )
        return proposals


SAMPLINGS: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 0.8, "seed": 5},
    {"temperature": 1.2, "seed": 9, "top_p": 0.9, "top_k": 40, "num_logprobs": 3},
    {"temperature": 0.7, "seed": 2, "repetition_penalty": 2.0, "frequency_penalty": 1.0, "presence_penalty": 0.5},
    {"temperature": 0, "frequency_penalty": 1.5, "logit_bias": ((7, 6.0), (9, 6.0))},
]


async def alone(requests: SequenceOf[GenerationRequest]) -> list[list[Event]]:
    """What each request gets by itself and without speculation."""
    results = []
    for wanted in requests:
        async with running(None) as plain:
            results.append(await plain.events(wanted))
    return results


@settings(max_examples=25, deadline=None)
@given(
    picks=st.lists(
        st.tuples(st.sampled_from(range(len(SAMPLINGS))), st.integers(1, 60), st.integers(1, 30)),
        min_size=1,
        max_size=5,
    ),
    wrong=st.sampled_from([0.0, 0.3, 1.0]),
)
def test_a_crowd_gets_what_each_gets_alone_however_often_proposals_are_wrong(
    picks: list[tuple[int, int, int]], wrong: float
) -> None:
    """(sampling, prompt length, max_tokens) of each request; prompts begin alike, so that blocks are shared too."""

    async def main() -> None:
        requests = [
            replace(request(tuple(range(length)), max_tokens, **SAMPLINGS[pick]), min_tokens=max_tokens // 2)
            for pick, length, max_tokens in picks
        ]
        expected = await alone(requests)
        oracle = Oracle([[*r.prompt_ids, *ids_of(e)] for r, e in zip(requests, expected, strict=True)], wrong)
        results: dict[int, list[Event]] = {}
        async with running(lambda allocator: oracle) as speculating, anyio.create_task_group() as tasks:

            async def run(index: int) -> None:
                results[index] = await speculating.events(requests[index])

            for index in range(len(requests)):
                tasks.start_soon(run, index)
        for index, events in enumerate(expected):
            got = results[index]
            assert ids_of(got) == ids_of(events)
            assert [e.logprobs for e in got if isinstance(e, Delta)] == [
                e.logprobs for e in events if isinstance(e, Delta)
            ]
            assert end_of(got).reason == end_of(events).reason
            assert end_of(got).num_generated_tokens == end_of(events).num_generated_tokens

    anyio.run(main)


@pytest.mark.parametrize("end", ["stop token", "stop string", "length"])
async def test_a_sequence_that_ends_inside_a_proposal_ends_there(end: str) -> None:
    (plain,) = await alone([request(temperature=0)])
    ids = ids_of(plain)
    place = next(i for i in range(5, 12) if ids[i] < 128 and ids[i] not in ids[:i])
    wanted = request(temperature=0)
    if end == "stop token":
        wanted = replace(wanted, stop_token_ids=frozenset({ids[place]}))
    elif end == "stop string":
        wanted = replace(wanted, stop=(chr(ids[place]),))
    else:
        wanted = replace(wanted, max_tokens=place + 1)
    (expected,) = await alone([wanted])
    async with running(lambda allocator: Oracle([[*PROMPT, *ids]], 0.0)) as speculating:
        events = await speculating.events(wanted)
    assert ids_of(events) == ids_of(expected)
    assert end_of(events).num_generated_tokens == end_of(expected).num_generated_tokens == place + 1
    assert end_of(events).reason == end_of(expected).reason


async def test_a_step_brings_as_many_tokens_as_agree_and_one_more() -> None:
    (plain,) = await alone([request(temperature=0, max_tokens=31)])
    text = [*PROMPT, *ids_of(plain)]

    class Sure:
        def propose(self, chunks: SequenceOf[Chunk]) -> list[tuple[int, ...]]:
            return [tuple(text[(n := len(chunk.sequence.token_ids)) : n + chunk.max_draft_tokens]) for chunk in chunks]

    async with running(lambda allocator: Sure()) as speculating:
        end = end_of(await speculating.events(request(temperature=0, max_tokens=31)))
        steps = speculating.sample("steps")
    # 35 prompt tokens by 24; then 30 tokens, five a step.
    assert steps == 2 + 6
    assert (end.num_drafted_tokens, end.num_accepted_tokens) == (24, 24)
    assert speculating.sample("draft_proposed_tokens") == speculating.sample("draft_accepted_tokens") == 24
    for position in "1234":
        assert speculating.sample("draft_position_proposed_tokens", position=position) == 6
        assert speculating.sample("draft_position_accepted_tokens", position=position) == 6


async def test_acceptance_is_counted_by_position() -> None:
    (plain,) = await alone([request(temperature=0)])
    text = [*PROMPT, *ids_of(plain)]

    class RightTwice:
        def propose(self, chunks: SequenceOf[Chunk]) -> list[tuple[int, ...]]:
            n = len(chunks[0].sequence.token_ids)
            ahead = text[n : n + chunks[0].max_draft_tokens]
            return [tuple(token if place < 2 else (token + 1) % VOCAB_SIZE for place, token in enumerate(ahead))]

    async with running(lambda allocator: RightTwice()) as speculating:
        assert await speculating.ids(request(temperature=0)) == ids_of(plain)
    accepted = [speculating.sample("draft_position_accepted_tokens", position=str(p)) for p in (1, 2, 3)]
    proposed = [speculating.sample("draft_position_proposed_tokens", position=str(p)) for p in (1, 2, 3)]
    assert accepted[:2] == proposed[:2]
    assert (proposed[2] or 0) > 0
    assert accepted[2] == 0


async def test_lookup_proposes_what_stood_there_before() -> None:
    class Periodic(SampledProgram):
        """Logits that want the token of eight positions ago, which text from a prompt of period eight repeats."""

        def _logits(self, step: Any, indices: Any) -> Any:
            logits = super()._logits(step, indices)
            for row, index in enumerate(indices.tolist()):
                logits[row, (int(step.positions[index]) + 1) % 8] += 100
            return logits

    prompt = tuple(position % 8 for position in range(20))
    async with running(lambda allocator: LookupDrafter(3)) as speculating:
        speculating.engine._program = Periodic(num_blocks=ROWS * MAX_BLOCKS, vocab_size=VOCAB_SIZE)
        events = await speculating.events(request(prompt, 41, temperature=0))
    assert ids_of(events) == [position % 8 for position in range(20, 61)]
    assert end_of(events).num_accepted_tokens == end_of(events).num_drafted_tokens == 32


def draft_of(program: SampledProgram, vocab_size: int = VOCAB_SIZE, token_budget: int = 16) -> MakeDrafter:
    return lambda allocator: ModelDrafter(
        program, allocator=allocator, vocab_size=vocab_size, token_budget=token_budget, max_blocks=MAX_BLOCKS
    )


def draft_program(vocab_size: int = VOCAB_SIZE, salt: int = 0) -> SampledProgram:
    return SampledProgram(num_blocks=ROWS * MAX_BLOCKS, vocab_size=vocab_size, salt=salt)


@pytest.mark.parametrize("sampling", SAMPLINGS)
async def test_a_model_that_drafts_for_itself_is_always_right(sampling: dict[str, Any]) -> None:
    (plain,) = await alone([request(**sampling)])
    async with running(draft_of(draft_program())) as speculating:
        events = await speculating.events(request(**sampling))
    assert ids_of(events) == ids_of(plain)
    assert end_of(events).num_accepted_tokens == end_of(events).num_drafted_tokens >= 18


@pytest.mark.parametrize("sampling", SAMPLINGS)
async def test_a_draft_that_knows_nothing_changes_nothing_and_is_asked_less(sampling: dict[str, Any]) -> None:
    (plain,) = await alone([request(max_tokens=60, **sampling)])
    async with running(draft_of(draft_program(salt=1))) as speculating:
        events = await speculating.events(request(max_tokens=60, **sampling))
    assert ids_of(events) == ids_of(plain)
    end = end_of(events)
    assert end.num_accepted_tokens <= 8
    assert end.num_drafted_tokens < 60


async def test_drafts_stay_right_in_a_crowd_over_shared_blocks_and_after_pauses() -> None:
    """Six sequences over three rows; the draft's pool is read back, so a position that was left out would show."""
    requests = [request(tuple(range(10 + 9 * i)), 30, temperature=0.8, seed=i) for i in range(6)]
    expected = await alone(requests)
    results: dict[int, list[Event]] = {}
    async with running(draft_of(draft_program())) as speculating, anyio.create_task_group() as tasks:

        async def run(index: int) -> None:
            results[index] = await speculating.events(requests[index])

        for index in range(6):
            tasks.start_soon(run, index)
    for index in range(6):
        assert ids_of(results[index]) == ids_of(expected[index])
        assert end_of(results[index]).num_accepted_tokens == end_of(results[index]).num_drafted_tokens > 0


async def test_the_draft_computes_a_shared_beginning_once() -> None:
    program = draft_program()
    async with running(draft_of(program)) as speculating:
        await speculating.ids(request(temperature=0))
        first = program.num_computed_tokens
        events = await speculating.events(request(temperature=0))
    assert end_of(events).num_cached_tokens == 32
    assert end_of(events).num_accepted_tokens == end_of(events).num_drafted_tokens
    assert program.num_computed_tokens - first == first - 32


async def test_a_smaller_vocabulary_proposes_until_a_token_it_lacks() -> None:
    """Token ids that the draft has no embedding for reach neither its steps nor its penalties."""
    sampling: dict[str, Any] = {"temperature": 0, "repetition_penalty": 1.1, "logit_bias": ((VOCAB_SIZE - 1, 1.0),)}
    wanted = replace(request(**sampling), min_tokens=3, stop_token_ids=frozenset({VOCAB_SIZE - 2}))
    (plain,) = await alone([wanted])
    async with running(draft_of(draft_program(vocab_size=200), vocab_size=200)) as speculating:
        events = await speculating.events(wanted)
        beyond = await speculating.events(replace(wanted, prompt_ids=(*PROMPT, 250)))
    assert ids_of(events) == ids_of(plain)
    assert end_of(beyond).num_drafted_tokens == 0


async def test_leaving_while_tokens_are_verified_frees_everything() -> None:
    async with running(draft_of(draft_program())) as speculating:
        async with speculating.engine.open(request(max_tokens=50, temperature=0)) as events:
            async for event in events:
                if isinstance(event, Delta):
                    break
        await anyio.wait_all_tasks_blocked()
        assert speculating.engine.statistics().rows_held == 0
