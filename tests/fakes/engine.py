"""An engine that says what a test tells it to: the face of `poot.engine.engine.Engine` without a model or a device.

Rows are real: a sequence waits until one is free, holds it until its script ends or its block is left, and the test
sees both in `statistics`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from poot.engine.encoding import EncodeText, FloatArray, Pooling, TextEncoder
from poot.engine.plan import Plan
from poot.engine.sampling.defaults import SamplingDefaults
from poot.engine.sequence import Delta, Event, Failed, Finished, FinishReason, GenerationRequest, Opened, Timings
from poot.engine.text import ChatTemplate, Tokenizer
from poot.errors import Draining
from tests.fakes.encoder import VectorOf, sum_and_length, vectors
from tests.fakes.tokenizer import TEMPLATE, VOCAB_SIZE, byte_tokenizer

Script = Callable[[GenerationRequest], Sequence[Event]]

TIMINGS = Timings(queue_seconds=0.25, prefill_seconds=0.5, decode_seconds=2.0)


@dataclass(frozen=True, kw_only=True)
class FakeModel:
    model_id: str = "fake-model"
    task: str = "generate"
    backend: str = "fake"
    device: str = "a test"
    rows: int = 4
    max_seq: int = 64
    vocab_size: int = VOCAB_SIZE
    context_limit: int = 128
    created: int = 1_700_000_000
    weight_bytes: int = 1000
    kv_bytes: int = 2000
    terms: Mapping[str, int] = field(default_factory=lambda: {"weights": 1000, "kv": 2000})
    plan: Plan | None = None
    sampling_defaults: SamplingDefaults = field(default_factory=SamplingDefaults)


@dataclass(frozen=True, kw_only=True)
class FakeStatistics:
    rows_held: int
    kv_blocks_held: int
    waiting: int


def say(
    *texts: str, reason: FinishReason = FinishReason.STOP, num_prompt_tokens: int | None = None
) -> Callable[[GenerationRequest], list[Event]]:
    """A script: one delta a text, one token each, then the end."""

    def script(request: GenerationRequest) -> list[Event]:
        deltas = [Delta(text, (index,)) for index, text in enumerate(texts)]
        prompt = len(request.prompt_ids) if num_prompt_tokens is None else num_prompt_tokens
        return [*deltas, Finished(reason, prompt, len(texts), TIMINGS)]

    return script


@dataclass(eq=False)
class _Open:
    request: GenerationRequest
    send: MemoryObjectSendStream[Event]
    script: deque[Event]
    holds_row: bool = False
    is_over: bool = False


class FakeEngine:
    """Plays a script for each sequence.

    Args:
        script: the events of a sequence after `Opened`.
        is_stepped: events after `Opened` come one by one, with each call of `step`, instead of all at once. An `encode`
            then never returns.
        encoder, vector_of: the text side of `encode`, and the vector of each text.
    """

    def __init__(
        self,
        script: Script | None = None,
        *,
        model: FakeModel | None = None,
        tokenizer: Tokenizer | None = None,
        has_chat: bool = True,
        is_stepped: bool = False,
        encoder: TextEncoder | None = None,
        vector_of: VectorOf = sum_and_length,
        generates: bool = True,
    ) -> None:
        self.model = model or FakeModel()
        self.tokenizer = tokenizer or byte_tokenizer()
        self.chat: ChatTemplate | None = ChatTemplate(TEMPLATE, origin="a test") if has_chat else None
        self.encoder = encoder
        self.generates = generates
        self.encoded: list[tuple[list[EncodeText], Pooling]] = []
        self._vector_of = vector_of
        self.is_draining = False
        self.requests: list[GenerationRequest] = []
        self.num_cancelled = 0
        self._script: Script = script or say("Hello", " world")
        self._is_stepped = is_stepped
        self._running: list[_Open] = []
        self._waiting: deque[_Open] = deque()

    def statistics(self) -> FakeStatistics:
        held = len(self._running)
        return FakeStatistics(rows_held=held, kv_blocks_held=held, waiting=len(self._waiting))

    async def encode(self, texts: Sequence[EncodeText], pooling: Pooling) -> FloatArray:
        if self.is_draining:
            raise Draining("the engine is draining")
        assert self.encoder is not None
        assert all(1 <= text.num_tokens <= self.encoder.profile.max_tokens for text in texts)
        self.encoded.append((list(texts), pooling))
        await anyio.lowlevel.checkpoint()
        if self._is_stepped:
            try:
                await anyio.sleep_forever()
            finally:
                self.num_cancelled += 1
        return vectors(texts, self._vector_of)

    @asynccontextmanager
    async def open(self, request: GenerationRequest) -> AsyncGenerator[MemoryObjectReceiveStream[Event]]:
        if self.is_draining:
            raise Draining("the engine is draining")
        assert 1 <= len(request.prompt_ids) < self.model.max_seq
        assert 0 <= request.max_tokens <= self.model.max_seq - len(request.prompt_ids)
        assert 0 <= request.min_tokens <= request.max_tokens
        assert 0 <= request.sampling.seed < 2**64
        self.requests.append(request)
        script = deque(self._script(request))
        send, receive = anyio.create_memory_object_stream[Event](len(script) + 2)
        opened = _Open(request, send, script)
        self._waiting.append(opened)
        self._admit()
        try:
            yield receive
        finally:
            receive.close()
            if not opened.is_over:
                self.num_cancelled += 1
                if opened in self._waiting:
                    self._waiting.remove(opened)
                self._end(opened)

    def step(self) -> None:
        """Delivers the next event of every running sequence."""
        for opened in list(self._running):
            self._deliver_one(opened)

    def fail_all(self, message: str, *, draining: bool) -> None:
        """Ends every sequence, running or waiting, with `Failed`."""
        for opened in [*self._running, *self._waiting]:
            opened.script = deque([Failed(message, draining)])
            self._deliver_one(opened)
        self._waiting.clear()

    def _admit(self) -> None:
        while self._waiting and len(self._running) < self.model.rows:
            opened = self._waiting.popleft()
            opened.holds_row = True
            self._running.append(opened)
            opened.send.send_nowait(Opened())
            while not self._is_stepped and not opened.is_over:
                self._deliver_one(opened)

    def _deliver_one(self, opened: _Open) -> None:
        event = opened.script.popleft() if opened.script else None
        if event is not None:
            opened.send.send_nowait(event)
        if event is None or isinstance(event, Finished | Failed):
            self._end(opened)

    def _end(self, opened: _Open) -> None:
        opened.is_over = True
        opened.send.close()
        if opened.holds_row:
            opened.holds_row = False
            self._running.remove(opened)
        self._admit()
