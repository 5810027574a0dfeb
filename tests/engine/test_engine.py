"""The engine over a program with known tokens: each sequence gets what it gets alone, whatever happens beside it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from enum import Enum

import anyio
import pytest
from anyio import wait_all_tasks_blocked
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from poot.devices.base import KV_BLOCK_SIZE, Step
from poot.engine.engine import Engine
from poot.engine.sequence import (
    Delta,
    Event,
    Failed,
    Finished,
    FinishReason,
    GenerationRequest,
    Opened,
    SamplingParams,
)
from poot.errors import Draining
from poot.metrics import Metrics
from tests.fakes.engine_info import fake_info
from tests.fakes.inline_executor import InlineExecutor
from tests.fakes.program import FakeProgram, continuation, hashed_token
from tests.fakes.tokenizer import EOS_ID, VOCAB_SIZE, byte_tokenizer

pytestmark = pytest.mark.anyio

MAX_SEQ = 64
ROWS = 2
# Special tokens have no text; leaving them out keeps one byte a token.
NEXT_TOKEN = hashed_token(VOCAB_SIZE, avoid=frozenset(range(256, VOCAB_SIZE)))


class Loop(Enum):
    """How steps follow each other."""

    IN_TURN = "in turn"
    AHEAD = "ahead"
    AHEAD_OF_A_DEVICE = "ahead of a device that computes by itself"


@pytest.fixture(params=list(Loop), ids=lambda loop: loop.value)
def loop(request: pytest.FixtureRequest) -> Loop:
    loop: Loop = request.param
    return loop


class Harness:
    """An engine, its program, its metrics."""

    def __init__(self, loop: Loop) -> None:
        num_blocks = ROWS * MAX_SEQ // KV_BLOCK_SIZE
        self.program = FakeProgram(num_blocks=num_blocks, next_token=NEXT_TOKEN)
        self.program.launch_computes = loop is not Loop.AHEAD_OF_A_DEVICE
        self.metrics = Metrics()
        self.engine = Engine(
            model=fake_info(rows=ROWS, max_seq=MAX_SEQ, vocab_size=VOCAB_SIZE),
            tokenizer=byte_tokenizer(),
            chat=None,
            program=self.program,
            executor=InlineExecutor(),
            token_budget=24,
            mixed_token_budget=8,
            metrics=self.metrics,
            runs_ahead=loop is not Loop.IN_TURN,
        )

    async def ids(self, request: GenerationRequest) -> list[int]:
        """All token ids of one request, run to its end."""
        collected: list[int] = []
        async with self.engine.open(request) as events:
            async for event in events:
                if isinstance(event, Delta):
                    collected += event.token_ids
        return collected

    def is_empty(self) -> bool:
        statistics = self.engine.statistics()
        return statistics.rows_held == statistics.kv_blocks_held == statistics.waiting == 0


@asynccontextmanager
async def running(loop: Loop) -> AsyncIterator[Harness]:
    harness = Harness(loop)
    async with anyio.create_task_group() as task_group:
        await task_group.start(harness.engine.run)
        yield harness
        await wait_all_tasks_blocked()
        assert harness.is_empty(), harness.engine.statistics()
        task_group.cancel_scope.cancel()


def request(prompt: list[int], max_tokens: int) -> GenerationRequest:
    return GenerationRequest(prompt_ids=tuple(prompt), sampling=SamplingParams(temperature=0), max_tokens=max_tokens)


async def test_a_sequence_opens_streams_and_finishes(loop: Loop) -> None:
    async with running(loop) as harness, harness.engine.open(request([1, 2, 3], 4)) as events:
        received = [event async for event in events]
        assert isinstance(received[0], Opened)
        ids = [token_id for event in received if isinstance(event, Delta) for token_id in event.token_ids]
        assert ids == continuation(NEXT_TOKEN, [1, 2, 3], 4)
        end = received[-1]
        assert isinstance(end, Finished)
        assert (end.reason, end.num_prompt_tokens, end.num_generated_tokens) == (FinishReason.LENGTH, 3, 4)


async def test_max_tokens_is_cut_to_what_max_seq_leaves(loop: Loop) -> None:
    async with running(loop) as harness:
        assert len(await harness.ids(request([5] * 60, 1000))) == MAX_SEQ - 60


async def test_min_tokens_bans_the_end_tokens_until_then(loop: Loop) -> None:
    async with running(loop) as harness:
        wanted = GenerationRequest(prompt_ids=(1,), sampling=SamplingParams(temperature=0), max_tokens=4, min_tokens=2)
        await harness.ids(wanted)
    assert [step.sampling.banned for step in harness.program.steps] == [((EOS_ID,),), ((EOS_ID,),), ((),), ((),)]


async def test_six_sequences_over_two_rows_each_get_what_they_get_alone(loop: Loop) -> None:
    prompts = [[i] * (1 + 7 * i) for i in range(1, 7)]
    results: dict[int, list[int]] = {}
    async with running(loop) as harness, anyio.create_task_group() as task_group:

        async def run(index: int) -> None:
            results[index] = await harness.ids(request(prompts[index], 12))

        for index in range(len(prompts)):
            task_group.start_soon(run, index)
    for index, prompt in enumerate(prompts):
        assert results[index] == continuation(NEXT_TOKEN, prompt, 12)


async def test_an_answer_is_the_same_with_a_cold_and_a_warm_cache(loop: Loop) -> None:
    prompt = list(range(1, 41))
    async with running(loop) as harness:
        cold = await harness.ids(request(prompt, 20))
        async with harness.engine.open(request(prompt, 20)) as events:
            received = [event async for event in events]
    warm = [token_id for event in received if isinstance(event, Delta) for token_id in event.token_ids]
    assert cold == warm == continuation(NEXT_TOKEN, prompt, 20)
    assert isinstance(received[-1], Finished)
    assert received[-1].num_cached_tokens == 32
    assert harness.metrics.registry.get_sample_value("poot_prefix_cache_hit_tokens_total") == 32
    assert harness.metrics.registry.get_sample_value("poot_kv_blocks_cached") == 3  # 59 positions were computed


async def test_leaving_mid_stream_frees_row_and_blocks_within_one_step(loop: Loop) -> None:
    async with running(loop) as harness:
        async with harness.engine.open(request([1], 50)) as events:
            assert isinstance(await events.receive(), Opened)
            await events.receive()
            assert harness.engine.statistics().rows_held == 1
        steps = len(harness.program.steps)
        await wait_all_tasks_blocked()
        assert harness.is_empty()
        assert len(harness.program.steps) <= steps + (1 if loop is Loop.IN_TURN else 2)
    assert harness.metrics.registry.get_sample_value("poot_cancelled_total") == 1


async def test_leaving_the_queue_takes_no_row_and_delays_nobody(loop: Loop) -> None:
    async with running(loop) as harness, anyio.create_task_group() as task_group:
        for _ in range(ROWS):
            task_group.start_soon(harness.ids, request([7], 30))
        while harness.engine.statistics().rows_held < ROWS:  # trio runs tasks in random order
            await anyio.lowlevel.checkpoint()
        async with harness.engine.open(request([9], 5)) as events:
            await anyio.lowlevel.checkpoint()
            assert harness.engine.statistics().waiting >= 1
            with pytest.raises(anyio.WouldBlock):
                events.receive_nowait()
        later = await harness.ids(request([3, 4], 5))
        assert later == continuation(NEXT_TOKEN, [3, 4], 5)


async def test_a_consumer_that_never_reads_delays_nobody(loop: Loop) -> None:
    async with running(loop) as harness, harness.engine.open(request([1], 40)) as unread:
        assert await harness.ids(request([2], 40)) == continuation(NEXT_TOKEN, [2], 40)
        received = [event async for event in unread]
        assert isinstance(received[-1], Finished)


async def test_a_failing_step_ends_its_own_sequences_only(loop: Loop, caplog: pytest.LogCaptureFixture) -> None:
    def fail_on_long_prompts(step: Step) -> None:
        if (step.token_ids == 99).any():
            raise RuntimeError("a kernel failed")

    async with running(loop) as harness:
        harness.program.before_step = fail_on_long_prompts
        async with harness.engine.open(request([99], 5)) as events:
            received = [event async for event in events]
        assert isinstance(received[-1], Failed)
        assert not received[-1].draining
        assert "kernel" not in received[-1].message
        assert await harness.ids(request([2], 5)) == continuation(NEXT_TOKEN, [2], 5)


async def test_draining_refuses_new_sequences_and_lets_open_ones_finish(loop: Loop) -> None:
    async with running(loop) as harness, harness.engine.open(request([1], 5)) as events:
        harness.engine.drain()
        with pytest.raises(Draining):
            async with harness.engine.open(request([1], 5)):
                pass
        received = [event async for event in events]
        assert isinstance(received[-1], Finished)


async def test_abort_ends_running_and_waiting_sequences_with_a_last_word(loop: Loop) -> None:
    last: list[Event] = []
    async with running(loop) as harness, anyio.create_task_group() as task_group:

        async def consume() -> None:
            async with harness.engine.open(request([1], 50)) as events:
                last.append([event async for event in events][-1])

        for _ in range(ROWS + 1):
            task_group.start_soon(consume)
        for _ in range(5):
            await anyio.lowlevel.checkpoint()
        harness.engine.abort("the server shut down")
    assert last == [Failed("the server shut down", draining=True)] * (ROWS + 1)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    plans=st.lists(
        st.tuples(st.integers(1, 40), st.integers(1, 24), st.one_of(st.none(), st.integers(0, 6))),
        min_size=1,
        max_size=8,
    )
)
def test_random_crowds_with_random_leavers(loop: Loop, plans: list[tuple[int, int, int | None]]) -> None:
    """(prompt length, max_tokens, events after which the client leaves or None) for each of up to eight requests."""

    async def main() -> None:
        async with running(loop) as harness, anyio.create_task_group() as task_group:

            async def run(index: int, prompt_length: int, max_tokens: int, leaves_after: int | None) -> None:
                prompt = [index % 2 + 1] * prompt_length  # half of them begin alike, and share blocks
                expected = continuation(NEXT_TOKEN, prompt, min(max_tokens, MAX_SEQ - prompt_length))
                got: list[int] = []
                async with harness.engine.open(request(prompt, max_tokens)) as events:
                    count = 0
                    async for event in events:
                        if isinstance(event, Delta):
                            got += event.token_ids
                        count += 1
                        if leaves_after is not None and count > leaves_after:
                            break
                assert got == expected[: len(got)]
                if leaves_after is None:
                    assert got == expected

            for index, plan in enumerate(plans):
                task_group.start_soon(run, index, *plan)

    anyio.run(main)
