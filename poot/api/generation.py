"""Opens the sequences of one request and merges their events, whatever way the block is left giving every row back.

The wait for the engine is bounded until the first sequence holds a row. A request whose first choice runs is running:
its further choices may wait behind it for as long as that takes.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import TracebackType
from typing import Generic, Protocol, TypeVar

import anyio
from anyio.streams.memory import MemoryObjectSendStream
from prometheus_client import Counter

from poot.api.served import ServedEngine
from poot.engine.sequence import Event, Failed, Finished, GenerationRequest
from poot.errors import Draining, EngineError, Overloaded, RequestError

OVERLOADED_RETRY_AFTER_SECONDS = 10
"""Retry-After of a spent queue wait: the queue is longer than a minute then, and a second would not change that."""

MAX_BATCH = 64
"""Events handed over at a time, so that a stream with text ready does not keep the event loop from others. The frames
of 64 text tokens are 11 KiB and take 0.1 ms to put together and send."""

_NO_RESULT = "the engine ended this request without a result"

Indexed = tuple[int, Event]

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Events(Protocol):
    """The merged events of a request's choices."""

    async def receive(self) -> list[Indexed]:
        """At least one (index of the choice, event), and others that are there already, in order: `MAX_BATCH` at most.

        Never empty: after the last choice finished the caller stops asking.

        Raises:
            EngineError, Draining: a choice failed.
        """


def open_choices(
    engine: ServedEngine,
    requests: Sequence[GenerationRequest],
    *,
    max_queue_wait_seconds: float,
    refused: Counter,
) -> AbstractAsyncContextManager[Events]:
    """The events of all `requests`, from the moment the first of them holds a row.

    Leaving the block releases every row still held and every place in the queue, also when it is cancelled.

    Raises, on entering the block:
        Overloaded: no row within the time; counted in `refused`.
        Draining: the engine takes no new sequences.
        EngineError: the engine failed on a choice before any was opened.
    """
    return _Choices(engine, requests, max_queue_wait_seconds=max_queue_wait_seconds, refused=refused)


class _Choices(AbstractAsyncContextManager[Events]):
    """What `open_choices` gives. A class, since a generator for every request costs more than all else here."""

    def __init__(
        self,
        engine: ServedEngine,
        requests: Sequence[GenerationRequest],
        *,
        max_queue_wait_seconds: float,
        refused: Counter,
    ) -> None:
        self._opening = engine.open(requests[0]) if len(requests) == 1 else _open_many(engine, requests)
        self._max_queue_wait_seconds = max_queue_wait_seconds
        self._refused = refused

    async def __aenter__(self) -> Events:
        events = await self._opening.__aenter__()
        try:
            source = events if isinstance(events, _Many) else _One(events)
            # An engine that had a row at once costs no scope and no wait.
            if not source.has_first():
                await self._wait_first(source)
        except BaseException as error:
            await self._opening.__aexit__(type(error), error, error.__traceback__)
            raise
        return source

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        return await self._opening.__aexit__(kind, error, traceback)

    async def _wait_first(self, source: _One | _Many) -> None:
        seconds = self._max_queue_wait_seconds
        with anyio.CancelScope(deadline=anyio.current_time() + seconds) as wait:
            await source.wait_first()
        if wait.cancelled_caught:
            self._refused.inc()
            raise Overloaded(
                f"the engine had no free row within {seconds:g} s (--max-queue-wait-secs)",
                headers=(("Retry-After", str(OVERLOADED_RETRY_AFTER_SECONDS)),),
            )


class _Channel(Protocol[T_co]):
    """`poot.api.served.EventStream`, of anything."""

    async def receive(self) -> T_co: ...
    def receive_nowait(self) -> T_co: ...


class _Source(Generic[T]):
    """Events from a channel, in the batches they come in; a failure comes after what was before it."""

    def __init__(self, channel: _Channel[T]) -> None:
        self._channel = channel
        self._ready: list[Indexed] = []
        self._failure: RequestError | None = None

    def _keep(self, item: T) -> None:
        """Puts an event with the ready ones; a failure is kept apart and ends the receiving."""
        raise NotImplementedError

    def has_first(self) -> bool:
        """Whether the first event is there, without a wait; it is kept for `receive`."""
        self._take(MAX_BATCH)
        return bool(self._ready)

    async def wait_first(self) -> None:
        """Waits for the first event and keeps it for `receive`."""
        self._ready = await self.receive()

    async def receive(self) -> list[Indexed]:
        # Runs for every token of every stream: what it does not call is what makes it fast.
        if not self._ready and self._failure is None:
            try:
                # Lets the others run, also when it does not have to wait.
                self._keep(await self._channel.receive())
            except anyio.EndOfStream:
                self._failure = EngineError(_NO_RESULT)
            self._take(MAX_BATCH - 1)
        batch = self._ready
        if not batch and self._failure is not None:
            raise self._failure
        self._ready = []
        return batch

    def _take(self, limit: int) -> None:
        """Keeps what is there, up to so many events."""
        try:
            for _ in range(limit):
                if self._failure is not None:
                    return
                self._keep(self._channel.receive_nowait())
        except (anyio.WouldBlock, anyio.EndOfStream):
            pass  # these are all that are there


class _One(_Source[Event]):
    def _keep(self, item: Event) -> None:
        if isinstance(item, Failed):
            self._failure = _error_of(item)
        else:
            self._ready.append((0, item))

    def _take(self, limit: int) -> None:
        # As the base's, without a call for each event.
        if self._failure is not None:
            return
        keep, receive = self._ready.append, self._channel.receive_nowait
        try:
            for _ in range(limit):
                event = receive()
                if isinstance(event, Failed):
                    self._failure = _error_of(event)
                    return
                keep((0, event))
        except (anyio.WouldBlock, anyio.EndOfStream):
            pass


@asynccontextmanager
async def _open_many(engine: ServedEngine, requests: Sequence[GenerationRequest]) -> AsyncGenerator[_Many]:
    # One event of each choice may wait here; the rest waits in the engine's own channels, which are bounded by max_seq.
    send, receive = anyio.create_memory_object_stream[Indexed | RequestError](len(requests))
    try:
        # The channel outlives the group, so that a task is cancelled before it could find the channel closed.
        async with receive, anyio.create_task_group() as group:
            async with send:
                for index, request in enumerate(requests):
                    group.start_soon(_forward, engine, index, request, send.clone())
            yield _Many(receive)
            group.cancel_scope.cancel()
    except BaseExceptionGroup as failures:
        # The group wraps what the block itself raised; the forwarding tasks send their errors instead of raising them.
        raise _only(failures) from None


class _Many(_Source[Indexed | RequestError]):
    def _keep(self, item: Indexed | RequestError) -> None:
        if isinstance(item, RequestError):
            self._failure = item
        elif isinstance(item[1], Failed):
            self._failure = _error_of(item[1])
        else:
            self._ready.append(item)


def _error_of(failed: Failed) -> RequestError:
    return Draining(failed.message) if failed.draining else EngineError(failed.message)


async def _forward(
    engine: ServedEngine,
    index: int,
    request: GenerationRequest,
    send: MemoryObjectSendStream[Indexed | RequestError],
) -> None:
    with send:
        try:
            async with engine.open(request) as events:
                while True:
                    event = await events.receive()
                    await send.send((index, event))
                    if isinstance(event, Finished | Failed):
                        return
        except anyio.EndOfStream:
            await send.send(EngineError(_NO_RESULT))
        except RequestError as error:
            await send.send(error)


def _only(failures: BaseExceptionGroup[BaseException]) -> BaseException:
    """The one exception in a group, cancellation of its tasks aside; the group where there are several."""
    _, rest = failures.split(anyio.get_cancelled_exc_class())
    while rest is not None and len(rest.exceptions) == 1:
        inner = rest.exceptions[0]
        if not isinstance(inner, BaseExceptionGroup):
            return inner
        rest = inner
    return failures
