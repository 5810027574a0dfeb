"""A burst is spread over turns of the event loop, and nobody is left behind."""

from __future__ import annotations

import anyio
import anyio.lowlevel
import pytest

from poot.api.turns import Turns

pytestmark = pytest.mark.anyio


async def count_by_turn(turns: Turns, num_tasks: int, num_turns: int) -> list[int]:
    """How many of `num_tasks` that begin at once get through in each turn of the loop."""
    num_through = 0
    counts = []

    async def pass_through() -> None:
        nonlocal num_through
        await turns.take()
        num_through += 1

    async with anyio.create_task_group() as group:
        for _ in range(num_tasks):
            group.start_soon(pass_through)
        for _ in range(num_turns):
            before = num_through
            await anyio.lowlevel.checkpoint()
            counts.append(num_through - before)
    assert num_through == num_tasks
    return counts


async def test_a_burst_goes_on_a_few_at_a_time() -> None:
    counts = await count_by_turn(Turns(4), num_tasks=40, num_turns=60)
    # trio runs the tasks of a turn in a random order, so that two turns may meet between two looks.
    assert max(counts) <= 8
    assert sum(counts) == 40


async def test_a_few_do_not_wait() -> None:
    turns = Turns(4)
    for _ in range(4):
        with anyio.CancelScope() as scope:
            scope.cancel()
            await turns.take()
        assert not scope.cancelled_caught  # there was no checkpoint


async def test_a_cancelled_one_takes_no_place() -> None:
    turns = Turns(1)
    await turns.take()
    with anyio.CancelScope() as scope:
        scope.cancel()
        await turns.take()
    assert scope.cancelled_caught
    await turns.take()
