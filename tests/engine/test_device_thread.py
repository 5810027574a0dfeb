from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest

from poot.engine.device_thread import DeviceThread

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def running() -> AsyncIterator[DeviceThread]:
    thread = DeviceThread()
    async with anyio.create_task_group() as task_group:
        await task_group.start(thread.run)
        yield thread
        task_group.cancel_scope.cancel()


async def test_every_call_runs_on_the_same_thread_and_not_on_the_event_loops() -> None:
    async with running() as device_thread:
        idents = {await device_thread.call(threading.get_ident) for _ in range(5)}
    assert len(idents) == 1
    assert threading.get_ident() not in idents


async def test_an_error_reaches_the_caller_and_the_thread_lives_on() -> None:
    def fail() -> None:
        raise ZeroDivisionError("on the device")

    async with running() as device_thread:
        with pytest.raises(ZeroDivisionError, match="on the device"):
            await device_thread.call(fail)
        assert await device_thread.call(lambda: 42) == 42


async def test_cancelling_a_call_waits_for_the_step_to_end() -> None:
    started, may_end = threading.Event(), threading.Event()
    ended = False

    def step() -> None:
        nonlocal ended
        started.set()
        assert may_end.wait(20)
        ended = True

    async with running() as device_thread, anyio.create_task_group() as task_group:
        task_group.start_soon(device_thread.call, step)
        await anyio.to_thread.run_sync(started.wait, 20)
        task_group.cancel_scope.cancel()
        may_end.set()
    assert ended


async def test_the_thread_ends_with_its_task() -> None:
    async with running() as device_thread:
        worker = await device_thread.call(threading.current_thread)
        names = {thread.name for thread in threading.enumerate()}
        assert worker.name in names
    # AnyIO and trio keep an idle thread for a while; what matters is that ours takes no jobs any more.
    assert device_thread._jobs.empty()
