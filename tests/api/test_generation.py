"""Opening the sequences of a request: events merged in order, one deadline for the queue, everything given back."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from trio.testing import MockClock

from poot.api.generation import Events, open_choices
from poot.engine.sequence import Delta, Event, Failed, Finished, FinishReason, GenerationRequest, Opened, SamplingParams
from poot.errors import Draining, EngineError, Overloaded
from poot.metrics import Metrics
from poot.net.exchange import ClientGone
from tests.fakes.engine import TIMINGS, FakeEngine, FakeModel, say

pytestmark = pytest.mark.anyio

NEVER = 10**6  # seconds; no test waits for it


def requests(num: int) -> list[GenerationRequest]:
    return [
        GenerationRequest(prompt_ids=(1,), sampling=SamplingParams(), max_tokens=5, choice=choice)
        for choice in range(num)
    ]


def say_choice(request: GenerationRequest) -> list[Event]:
    return say(*f"choice {request.choice}")(request)


class Refusals:
    """The counter that open_choices counts a spent queue wait in."""

    def __init__(self) -> None:
        self._metrics = Metrics()
        self.counter = self._metrics.refused.labels("queue_wait")

    @property
    def num(self) -> int:
        count: int = self._metrics.as_json()["refused"]["queue_wait"]
        return count


def opening(
    engine: FakeEngine, num_choices: int, *, wait: float = NEVER, refusals: Refusals | None = None
) -> AbstractAsyncContextManager[Events]:
    counter = (refusals or Refusals()).counter
    return open_choices(engine, requests(num_choices), max_queue_wait_seconds=wait, refused=counter)


async def drain_events(engine: FakeEngine, num_choices: int, seen: list[tuple[int, Event]] | None = None) -> None:
    """Receives without end, keeping what came in `seen`."""
    async with opening(engine, num_choices) as events:
        while True:
            batch = await events.receive()
            if seen is not None:
                seen += batch


async def collect(events: Events, num_choices: int) -> dict[int, list[Event]]:
    """All events by choice, until each has finished."""
    collected: dict[int, list[Event]] = {choice: [] for choice in range(num_choices)}
    while any(not got or not isinstance(got[-1], Finished) for got in collected.values()):
        batch = await events.receive()
        assert batch
        for choice, event in batch:
            collected[choice].append(event)
    return collected


@pytest.mark.parametrize("num_choices", [1, 2, 3, 11])
async def test_each_choice_keeps_its_order_and_all_of_its_events(num_choices: int) -> None:
    engine = FakeEngine(say_choice)
    async with opening(engine, num_choices) as events:
        collected = await collect(events, num_choices)
    for choice, got in collected.items():
        assert got == [Opened(), *say_choice(requests(num_choices)[choice])]
    assert engine.statistics().rows_held == engine.num_cancelled == 0


async def test_events_that_are_there_come_in_one_batch() -> None:
    async with opening(FakeEngine(say("a", "b")), 1) as events:
        batch = await events.receive()
    assert [type(event) for _, event in batch] == [Opened, Delta, Delta, Finished]


@pytest.mark.parametrize("num_choices", [1, 3])
async def test_leaving_the_block_early_gives_every_row_and_place_back(num_choices: int) -> None:
    engine = FakeEngine(say(*"long"), model=FakeModel(rows=2), is_stepped=True)
    async with opening(engine, num_choices) as events:
        await events.receive()
        await anyio.wait_all_tasks_blocked()
        held = engine.statistics()
        assert (held.rows_held, held.waiting) == (min(2, num_choices), max(0, num_choices - 2))
    held = engine.statistics()
    assert (held.rows_held, held.waiting, engine.num_cancelled) == (0, 0, num_choices)


async def leave_with(error: Exception, engine: FakeEngine, num_choices: int, scope: anyio.CancelScope) -> None:
    async with opening(engine, num_choices) as events:
        await events.receive()
        await anyio.wait_all_tasks_blocked()
        scope.cancel()
        raise error


@pytest.mark.parametrize("num_choices", [1, 3])
async def test_an_error_of_the_block_comes_out_as_itself(num_choices: int) -> None:
    engine = FakeEngine(is_stepped=True)
    with pytest.raises(ClientGone):
        await leave_with(ClientGone(), engine, num_choices, anyio.CancelScope())
    assert engine.statistics().rows_held == 0


@pytest.mark.parametrize("num_choices", [1, 3])
async def test_an_error_beside_a_cancellation_comes_out_as_itself(num_choices: int) -> None:
    engine = FakeEngine(is_stepped=True)
    with anyio.CancelScope() as scope:
        with pytest.raises(ClientGone):
            await leave_with(ClientGone(), engine, num_choices, scope)
    assert engine.statistics().rows_held == 0


@pytest.mark.parametrize("num_choices", [1, 3])
async def test_cancelled_in_the_queue_it_leaves_no_place_behind(num_choices: int) -> None:
    engine = FakeEngine(model=FakeModel(rows=0))
    refusals = Refusals()
    async with anyio.create_task_group() as group:

        async def wait() -> None:
            async with opening(engine, num_choices, refusals=refusals):
                pytest.fail("opened without a row")

        group.start_soon(wait)
        await anyio.wait_all_tasks_blocked()
        assert engine.statistics().waiting == num_choices
        group.cancel_scope.cancel()
    assert engine.statistics().waiting == refusals.num == 0


def failing(message: str, *, draining: bool, after: int) -> Any:
    def script(request: GenerationRequest) -> list[Event]:
        return [*(Delta("x", (1,)) for _ in range(after)), Failed(message, draining)]

    return script


@pytest.mark.parametrize("num_choices", [1, 3])
@pytest.mark.parametrize(("draining", "kind"), [(True, Draining), (False, EngineError)])
async def test_a_failure_is_raised_after_what_came_before_it(
    num_choices: int, draining: bool, kind: type[Exception]
) -> None:
    engine = FakeEngine(failing("so it goes", draining=draining, after=2), model=FakeModel(rows=1))
    seen: list[tuple[int, Event]] = []
    with pytest.raises(kind, match="so it goes"):
        await drain_events(engine, num_choices, seen)
    assert [type(event) for choice, event in seen if choice == 0] == [Opened, Delta, Delta]
    assert engine.statistics().rows_held == 0


@pytest.mark.parametrize("num_choices", [1, 3])
async def test_a_choice_that_fails_in_the_queue_fails_the_request(num_choices: int) -> None:
    engine = FakeEngine(model=FakeModel(rows=0))

    async def fail() -> None:
        await anyio.wait_all_tasks_blocked()
        engine.fail_all("going down", draining=True)

    async with anyio.create_task_group() as group:
        group.start_soon(fail)
        with pytest.raises(Draining, match="going down"):
            await drain_events(engine, num_choices)


@pytest.mark.parametrize("num_choices", [1, 3])
async def test_an_engine_that_drains_refuses(num_choices: int) -> None:
    engine = FakeEngine()
    engine.is_draining = True
    with pytest.raises(Draining):
        async with opening(engine, num_choices):
            pytest.fail("opened")


@pytest.mark.parametrize("num_choices", [1, 2])
async def test_events_that_end_without_an_end_are_an_engine_error(num_choices: int) -> None:
    engine = FakeEngine(lambda request: [Delta("x", (1,))])
    with pytest.raises(EngineError, match="without a result"):
        await drain_events(engine, num_choices)


class TestQueueWait:
    """Sixty seconds of it, on trio's virtual clock."""

    @pytest.fixture
    def anyio_backend(self) -> tuple[str, dict[str, Any]]:
        return "trio", {"clock": MockClock(autojump_threshold=0)}

    @pytest.mark.parametrize("num_choices", [1, 3])
    async def test_a_request_still_queued_after_the_wait_is_refused(self, num_choices: int) -> None:
        engine = FakeEngine(model=FakeModel(rows=1), is_stepped=True)
        refusals = Refusals()
        async with engine.open(requests(1)[0]) as running:
            started = anyio.current_time()
            with pytest.raises(Overloaded, match="within 60 s") as caught:
                async with opening(engine, num_choices, wait=60, refusals=refusals):
                    pytest.fail("opened")
            assert anyio.current_time() - started == pytest.approx(60)
            assert dict(caught.value.headers) == {"Retry-After": "10"}
            assert (engine.statistics().waiting, refusals.num) == (0, 1)
            # What was running was not touched.
            assert engine.statistics().rows_held == 1
            engine.step()
            assert [type(running.receive_nowait()) for _ in range(2)] == [Opened, Delta]

    async def test_a_row_at_the_last_moment_is_taken(self) -> None:
        engine = FakeEngine(model=FakeModel(rows=1), is_stepped=True)
        async with anyio.create_task_group() as group:

            async def hold() -> None:
                async with engine.open(requests(1)[0]):
                    await anyio.sleep(59.9)

            group.start_soon(hold)
            await anyio.wait_all_tasks_blocked()
            async with opening(engine, 1, wait=60) as events:
                assert await events.receive() == [(0, Opened())]

    async def test_an_opened_request_may_take_longer_than_the_wait(self) -> None:
        engine = FakeEngine(say("slow"), is_stepped=True)
        async with (
            opening(engine, 1, wait=60) as events,
            anyio.create_task_group() as group,
        ):

            async def drive() -> None:
                for _ in range(2):
                    await anyio.sleep(3600)
                    engine.step()

            group.start_soon(drive)
            collected = await collect(events, 1)
        assert collected[0][-1] == Finished(FinishReason.STOP, 1, 1, TIMINGS)

    async def test_more_choices_than_rows_wait_behind_their_own_siblings_without_a_deadline(self) -> None:
        engine = FakeEngine(say("x"), model=FakeModel(rows=1), is_stepped=True)
        async with (
            opening(engine, 3, wait=60) as events,
            anyio.create_task_group() as group,
        ):

            async def drive() -> None:
                await anyio.sleep(3600)
                while True:
                    engine.step()
                    await anyio.lowlevel.checkpoint()

            group.start_soon(drive)
            collected = await collect(events, 3)
            group.cancel_scope.cancel()
        assert all(len(got) == 3 for got in collected.values())
