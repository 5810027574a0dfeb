"""A device thread without a thread, and what a program without a device hands back."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import anyio.lowlevel

from poot.devices.base import StepResult
from poot.engine.device_thread import Job

T = TypeVar("T")


class InlineExecutor:
    """Runs jobs on the event loop, each when it or one after it is waited for.

    Every other task runs first, up to where it waits.

    Attributes:
        most_waiting: jobs that had been started and had not run yet, at most.
    """

    def __init__(self) -> None:
        self._jobs: deque[Job[Any]] = deque()
        self.most_waiting = 0

    def start(self, function: Callable[[], T]) -> Job[T]:
        job = _InlineJob(function)
        job.executor = self
        self._jobs.append(job)
        self.most_waiting = max(self.most_waiting, len(self._jobs))
        return job

    async def call(self, function: Callable[[], T]) -> T:
        return await self.start(function).result()

    def run_up_to(self, job: Job[Any]) -> None:
        """Runs what was started, in order, `job` last."""
        while not job.done.is_set():
            first = self._jobs.popleft()
            first.run()
            first.done.set()


class _InlineJob(Job[T]):
    executor: InlineExecutor

    async def result(self) -> T:
        await anyio.lowlevel.checkpoint()
        self.executor.run_up_to(self)
        return await super().result()


@dataclass(frozen=True, slots=True)
class Done:
    """A `Pending` that has run."""

    result: StepResult

    def tokens(self) -> StepResult:
        return self.result
