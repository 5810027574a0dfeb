"""A loop that runs one step ahead draws what the loop draws that waits for each step, and wastes little.

Over a program with known logits and the real sampler. Both ways to run ahead: of a device whose launch computes, and of
one that computes by itself.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from collections.abc import Sequence as SequenceOf
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import anyio
import pytest
from anyio import wait_all_tasks_blocked
from hypothesis import given, settings
from hypothesis import strategies as st

from poot.devices.base import KV_BLOCK_SIZE, Step
from poot.engine.engine import Engine
from poot.engine.sequence import Event, Failed, Finished, FinishReason, GenerationRequest, SamplingParams
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
PROMPT = tuple(range(40, 90))
BAD_TOKEN = 39

both_devices = pytest.mark.parametrize("launch_computes", [True, False], ids=["launch computes", "launch returns"])


@dataclass
class Fixture:
    engine: Engine
    program: SampledProgram
    executor: InlineExecutor
    metrics: Metrics

    async def events(self, request: GenerationRequest) -> list[Event]:
        async with self.engine.open(request) as events:
            return [event async for event in events]

    async def crowd(self, requests: SequenceOf[GenerationRequest]) -> list[list[Event]]:
        """The events of each request, all of them open at the same time."""
        results: list[list[Event]] = [[] for _ in requests]

        async def ask(index: int) -> None:
            results[index] = await self.events(requests[index])

        async with anyio.create_task_group() as tasks:
            for index in range(len(requests)):
                tasks.start_soon(ask, index)
        return results

    def num_steps(self) -> float | None:
        return self.metrics.registry.get_sample_value("poot_steps_total")


@asynccontextmanager
async def running(*, runs_ahead: bool, launch_computes: bool = True) -> AsyncIterator[Fixture]:
    program = SampledProgram(num_blocks=ROWS * MAX_BLOCKS, vocab_size=VOCAB_SIZE)
    program.launch_computes = launch_computes
    executor = InlineExecutor()
    metrics = Metrics()
    engine = Engine(
        model=fake_info(rows=ROWS, max_seq=MAX_SEQ, vocab_size=VOCAB_SIZE),
        tokenizer=byte_tokenizer(),
        chat=None,
        program=program,
        executor=executor,
        token_budget=24,
        mixed_token_budget=8,
        metrics=metrics,
        runs_ahead=runs_ahead,
    )
    async with anyio.create_task_group() as tasks:
        await tasks.start(engine.run)
        yield Fixture(engine, program, executor, metrics)
        await wait_all_tasks_blocked()
        held = engine.statistics()
        assert (held.rows_held, held.kv_blocks_held, held.waiting) == (0, 0, 0)
        tasks.cancel_scope.cancel()


def request(prompt: SequenceOf[int] = PROMPT, *, max_tokens: int = 20, **params: float) -> GenerationRequest:
    sampling = replace(SamplingParams(temperature=0.8, seed=7), **params)  # type: ignore[arg-type]  # each a field
    return GenerationRequest(prompt_ids=tuple(prompt), sampling=sampling, max_tokens=max_tokens, ignore_eos=True)


def without_timings(events: SequenceOf[Event]) -> list[Event]:
    # How much of a prompt was cached depends on who came first, which trio leaves to chance.
    return [
        replace(event, timings=None, num_cached_tokens=0) if isinstance(event, Finished) else event  # type: ignore[arg-type]  # left out of a comparison
        for event in events
    ]


requests = st.builds(
    lambda length, max_tokens, params, stop_token_ids, num_prompt_logprobs, min_tokens: GenerationRequest(
        prompt_ids=PROMPT[:length],
        sampling=params,
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        stop_token_ids=stop_token_ids,
        num_prompt_logprobs=num_prompt_logprobs,
    ),
    st.integers(1, 50),
    st.integers(0, 30),
    st.builds(
        SamplingParams,
        temperature=st.sampled_from([0.0, 0.8]),
        seed=st.integers(0, 2**64 - 1),
        top_k=st.sampled_from([0, 5]),
        num_logprobs=st.sampled_from([None, 2]),
        repetition_penalty=st.sampled_from([1.0, 1.0, 1.3]),
        frequency_penalty=st.sampled_from([0.0, 0.0, 0.5]),
        logit_bias=st.sampled_from([(), ((70, 3.0),)]),
    ),
    st.frozensets(st.integers(0, 255), max_size=40),
    st.sampled_from([None, None, 1]),
    st.integers(0, 3),
)


@both_devices
@settings(max_examples=40, deadline=None)
@given(crowd=st.lists(requests, min_size=1, max_size=6))
def test_a_crowd_gets_the_same_events_from_both_loops(launch_computes: bool, crowd: list[GenerationRequest]) -> None:
    async def answers(*, runs_ahead: bool) -> list[list[Event]]:
        async with running(runs_ahead=runs_ahead, launch_computes=launch_computes) as fixture:
            return [without_timings(events) for events in await fixture.crowd(crowd)]

    async def main() -> None:
        assert await answers(runs_ahead=True) == await answers(runs_ahead=False)

    anyio.run(main)


@pytest.mark.parametrize(("runs_ahead", "most"), [(False, 1), (True, 2)])
async def test_the_next_step_is_handed_over_while_one_is_in_flight(runs_ahead: bool, most: int) -> None:
    async with running(runs_ahead=runs_ahead) as fixture:
        await fixture.events(request())
        assert fixture.executor.most_waiting == most


async def test_penalties_wait_for_the_token_they_count() -> None:
    async with running(runs_ahead=True) as fixture:
        await fixture.events(request(PROMPT[:20], presence_penalty=1.0))
        assert fixture.executor.most_waiting == 1


@both_devices
@pytest.mark.parametrize("max_tokens", [1, 2, 9])
async def test_a_text_that_ends_at_its_length_costs_no_further_step(launch_computes: bool, max_tokens: int) -> None:
    steps = []
    for runs_ahead in (False, True):
        async with running(runs_ahead=runs_ahead, launch_computes=launch_computes) as fixture:
            await fixture.events(request(max_tokens=max_tokens))
            steps.append(fixture.num_steps())
    assert steps[0] == steps[1] == 3 + max_tokens - 1  # 50 tokens in chunks of 24


@both_devices
async def test_a_text_that_ends_by_a_token_costs_one_further_row_of_a_step(launch_computes: bool) -> None:
    async with running(runs_ahead=False) as fixture:
        free = ids_of(await fixture.events(request()))
    stop = free[6]
    wanted = replace(request(), stop_token_ids=frozenset({stop}))
    computed = []
    for runs_ahead in (False, True):
        async with running(runs_ahead=runs_ahead, launch_computes=launch_computes) as fixture:
            events = await fixture.events(wanted)
            assert isinstance(events[-1], Finished)
            assert events[-1].reason is FinishReason.STOP
            assert ids_of(events) == free[: free.index(stop) + 1]
            await wait_all_tasks_blocked()
            computed.append(fixture.program.num_computed_tokens)
    assert computed[1] == computed[0] + 1


@both_devices
@pytest.mark.parametrize(("length", "num_shared"), [(50, 48), (40, 32)], ids=["short last chunk", "long last chunk"])
@pytest.mark.parametrize("max_tokens", [1, 12])
async def test_choices_of_one_prompt_compute_it_once(
    launch_computes: bool, max_tokens: int, length: int, num_shared: int
) -> None:
    crowd = [request(PROMPT[:length], max_tokens=max_tokens, seed=seed) for seed in range(ROWS)]
    async with running(runs_ahead=True, launch_computes=launch_computes) as fixture:
        await fixture.crowd(crowd)
        # The prompt's full blocks are shared; the rest, and each token but the last, is each choice's own.
        assert fixture.program.num_computed_tokens == num_shared + ROWS * (length - num_shared + max_tokens - 1)


@both_devices
async def test_a_step_that_fails_while_the_next_is_in_flight_ends_its_own_sequences_only(
    launch_computes: bool,
) -> None:
    def fail(step: Step) -> None:
        if (step.token_ids == BAD_TOKEN).any():
            raise RuntimeError("a kernel failed")

    good = request(PROMPT[:5], max_tokens=12)
    async with running(runs_ahead=True, launch_computes=launch_computes) as fixture:
        (alone,) = await fixture.crowd([good])
        fixture.program.before_step = fail
        # Of two chunks: the second is composed and handed over before the first has failed.
        bad = await fixture.events(request([BAD_TOKEN] * 40))
        assert isinstance(bad[-1], Failed)
        (after,) = await fixture.crowd([good])
    assert without_timings(after) == without_timings(alone)


@both_devices
async def test_what_a_failed_step_was_to_fill_is_never_shared(launch_computes: bool) -> None:
    prompt = [*PROMPT[:30], BAD_TOKEN, *PROMPT[30:]]
    failing = True

    def fail(step: Step) -> None:
        if failing and (step.token_ids == BAD_TOKEN).any():
            raise RuntimeError("a kernel failed")

    async with running(runs_ahead=False) as fixture:
        expected = ids_of(await fixture.events(request(prompt)))
    async with running(runs_ahead=True, launch_computes=launch_computes) as fixture:
        fixture.program.before_step = fail
        assert isinstance((await fixture.events(request(prompt)))[-1], Failed)
        failing = False
        events = await fixture.events(request(prompt))
        assert ids_of(events) == expected
        assert isinstance(events[-1], Finished)
        assert events[-1].num_cached_tokens == 16  # the one block of the 24 tokens that were computed


@both_devices
async def test_leaving_frees_row_and_blocks_though_a_step_with_them_is_in_flight(launch_computes: bool) -> None:
    async with running(runs_ahead=True, launch_computes=launch_computes) as fixture:
        expected = ids_of(await fixture.events(request(range(1, 30), max_tokens=30)))
        for _ in range(4):
            async with fixture.engine.open(request(max_tokens=40)) as events:
                for _ in range(5):
                    await events.receive()
            assert ids_of(await fixture.events(request(range(1, 30), max_tokens=30))) == expected
