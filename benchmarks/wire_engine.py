"""An engine without a model: it emits prepared tokens, so that what is measured is the wire and the API alone.

Has the face of `poot.engine.Engine` that the API uses (`poot.api.served`) and its way of delivering: one task, one
token for every sequence in a step, all in one pass, then the event loop's turn. A step takes no time of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, cast

import anyio
import anyio.lowlevel
from anyio.streams.memory import MemoryObjectSendStream

from poot.api.served import EventStream
from poot.engine.plan import Plan
from poot.engine.sampling.defaults import SamplingDefaults
from poot.engine.sequence import Delta, Event, Finished, FinishReason, GenerationRequest, Opened, Timings
from poot.engine.text import ChatTemplate, Tokenizer

TEXT = " token"
"""Text of every token, about as long as an English one."""

_DELTA = Delta(TEXT, (7,))
_OPENED = Opened()
_TIMINGS = Timings(queue_seconds=0.0, prefill_seconds=0.0, decode_seconds=0.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class NullModel:
    model_id: str = "null"
    task: str = "generate"
    backend: str = "null"
    device: str = "none"
    rows: int = 1024
    max_seq: int = 8192
    vocab_size: int = 32000
    context_limit: int = 8192
    created: int = 1_700_000_000
    weight_bytes: int = 0
    kv_bytes: int = 0
    terms: Mapping[str, int] = field(default_factory=dict)
    plan: Plan | None = None
    sampling_defaults: SamplingDefaults = field(default_factory=SamplingDefaults)


@dataclass(frozen=True, kw_only=True, slots=True)
class NullStatistics:
    rows_held: int
    kv_blocks_held: int
    waiting: int


class NullTokenizer:
    """One token for every four characters: tokenizing is not the wire's cost."""

    def encode(self, text: str, **options: Any) -> list[int]:
        return [7] * (1 + len(text) // 4)


@dataclass(eq=False, slots=True)
class _Running:
    request: GenerationRequest
    send: MemoryObjectSendStream[Event]
    num_left: int
    tokens_per_step: int


class _Ready:
    """The events of a sequence whose text is ready, made as they are received, as the peers' generators make frames."""

    def __init__(self, request: GenerationRequest) -> None:
        self._request = request
        self._position = -1

    async def receive(self) -> Event:
        await anyio.lowlevel.checkpoint()
        return self.receive_nowait()

    def receive_nowait(self) -> Event:
        request = self._request
        self._position = position = self._position + 1
        if 0 < position <= request.max_tokens:
            return _DELTA
        if position == 0:
            return _OPENED
        if position > request.max_tokens + 1:
            raise anyio.EndOfStream
        return _finished(request)


def _finished(request: GenerationRequest) -> Finished:
    return Finished(FinishReason.LENGTH, len(request.prompt_ids), request.max_tokens, _TIMINGS)


class _OpeningReady(AbstractAsyncContextManager[EventStream]):
    """One sequence whose text is ready, for the length of a block."""

    def __init__(self, request: GenerationRequest) -> None:
        self._request = request

    async def __aenter__(self) -> EventStream:
        return _Ready(self._request)

    async def __aexit__(self, *exception: object) -> None:
        pass


class _Opening(AbstractAsyncContextManager[EventStream]):
    """One sequence, for the length of a block."""

    def __init__(self, engine: NullEngine, request: GenerationRequest) -> None:
        send, self._receive = anyio.create_memory_object_stream[Event](request.max_tokens + 4)
        self._engine = engine
        self._running = _Running(request, send, request.max_tokens, max(1, request.sampling.seed))

    async def __aenter__(self) -> EventStream:
        self._engine.begin(self._running)
        return self._receive

    async def __aexit__(self, *exception: object) -> None:
        self._receive.close()
        self._running.send.close()
        self._engine.end(self._running)


class NullEngine:
    """Plays `max_tokens` tokens for each sequence, then `length`. `run` is its device task.

    A request's seed says how many tokens of it a step gives, 1 for a plain decoder. Where one step is all it takes, the
    events are there when the sequence opens, as a generator's are that never waits.
    """

    def __init__(self) -> None:
        self.model = NullModel()
        self.tokenizer = cast("Tokenizer", NullTokenizer())
        self.chat: ChatTemplate | None = None
        self.encoder: None = None
        self.generates = True
        self.is_draining = False
        self._running: dict[_Running, None] = {}
        self._wake = anyio.Event()

    def statistics(self) -> NullStatistics:
        held = len(self._running)
        return NullStatistics(rows_held=held, kv_blocks_held=held, waiting=0)

    async def encode(self, texts: Any, pooling: Any) -> Any:
        """Not this engine's: it has no `encoder`."""
        raise NotImplementedError

    def open(self, request: GenerationRequest) -> AbstractAsyncContextManager[EventStream]:
        """See `poot.api.served.ServedEngine.open`. There is a row for everybody."""
        if request.max_tokens <= request.sampling.seed:
            return _OpeningReady(request)
        return _Opening(self, request)

    def begin(self, running: _Running) -> None:
        """Takes a sequence in."""
        self._running[running] = None
        running.send.send_nowait(_OPENED)
        self._wake.set()

    def end(self, running: _Running) -> None:
        """Forgets a sequence, finished or not."""
        self._running.pop(running, None)

    async def run(self) -> None:
        """Steps until cancelled, and sleeps while there is no sequence."""
        while True:
            if not self._running:
                self._wake = anyio.Event()
                await self._wake.wait()
            for running in tuple(self._running):
                self._step(running)
            await anyio.lowlevel.checkpoint()

    def _step(self, running: _Running) -> None:
        send = running.send
        num_tokens = running.tokens_per_step
        if num_tokens > running.num_left:
            num_tokens = running.num_left
        for _ in range(num_tokens):
            send.send_nowait(_DELTA)
        running.num_left -= num_tokens
        if not running.num_left:
            send.send_nowait(_finished(running.request))
            del self._running[running]
