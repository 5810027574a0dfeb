"""The one thread that touches the device, and the hand-over to it.

Event-loop side: `call`. Device side: `_work`, which runs on a worker thread for as long as the engine runs. Between
the two stand a queue of jobs (at most one in it: the device task waits for each) and a call back into the loop.
"""

from __future__ import annotations

import queue
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import anyio
import anyio.from_thread
import anyio.to_thread
from anyio.abc import TaskStatus

T = TypeVar("T")


class StepExecutor(Protocol):
    """Runs a function that may block on the device."""

    def call(self, function: Callable[[], T]) -> Awaitable[T]:
        """The result of `function`. Cancellation waits for it: a step cannot be left half done."""
        ...


@dataclass(slots=True)
class _Job:
    function: Callable[[], Any]
    done: anyio.Event = field(default_factory=anyio.Event)
    result: Any = None
    error: BaseException | None = None


class DeviceThread:
    """A `StepExecutor` on one dedicated thread."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Keeps the thread until cancelled; a job in progress is finished first."""
        async with anyio.create_task_group() as task_group:
            task_group.start_soon(self._host_thread)
            task_status.started()
            try:
                await anyio.sleep_forever()
            finally:
                self._jobs.put(None)

    async def _host_thread(self) -> None:
        # A limiter of its own: the thread lives as long as the engine and must not take a place of the default pool.
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(self._work, limiter=anyio.CapacityLimiter(1))

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                job.result = job.function()
            except BaseException as error:
                job.error = error
            anyio.from_thread.run_sync(job.done.set)

    async def call(self, function: Callable[[], T]) -> T:
        """Runs `function` on the device thread. Shielded: cancellation is delivered after it has returned."""
        job = _Job(function)
        self._jobs.put(job)
        with anyio.CancelScope(shield=True):
            await job.done.wait()
        if job.error is not None:
            raise job.error
        result: T = job.result
        return result
