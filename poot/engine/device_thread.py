"""The one thread that touches the device, and the hand-over to it.

Event-loop side: `start` and `call`. Device side: `_work`, which runs on a worker thread for as long as the engine runs.
Between the two stand a queue of jobs (the device task starts one more at most than it waits for) and a call back into
the loop.
"""

from __future__ import annotations

import queue
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar, cast

import anyio
import anyio.from_thread
import anyio.to_thread
from anyio.abc import TaskStatus

T = TypeVar("T")


@dataclass(slots=True)
class Job(Generic[T]):
    """A function that was handed over to run, and what came of it."""

    function: Callable[[], T]
    done: anyio.Event = field(default_factory=anyio.Event)
    value: T | None = None
    error: BaseException | None = None

    def run(self) -> None:
        """Runs the function and keeps what it returns or raises; sets no event."""
        try:
            self.value = self.function()
        except BaseException as error:
            self.error = error

    async def result(self) -> T:
        """What the function returned, once it has run. Shielded: cancellation waits for it.

        Raises:
            BaseException: what the function raised.
        """
        with anyio.CancelScope(shield=True):
            await self.done.wait()
        if self.error is not None:
            raise self.error
        return cast("T", self.value)


class StepExecutor(Protocol):
    """Runs functions that may block on the device, one after another."""

    def start(self, function: Callable[[], T]) -> Job[T]:
        """Lets `function` run after those started before it; does not wait for it."""
        ...

    def call(self, function: Callable[[], T]) -> Awaitable[T]:
        """The result of `function`. Cancellation waits for it: a step cannot be left half done."""
        ...


class DeviceThread:
    """A `StepExecutor` on one dedicated thread."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Job[Any] | None] = queue.SimpleQueue()

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
            job.run()
            anyio.from_thread.run_sync(job.done.set)

    def start(self, function: Callable[[], T]) -> Job[T]:
        """As `StepExecutor.start`, on the device thread."""
        job = Job(function)
        self._jobs.put(job)
        return job

    async def call(self, function: Callable[[], T]) -> T:
        """Runs `function` on the device thread. Shielded: cancellation is delivered after it has returned."""
        return await self.start(function).result()
