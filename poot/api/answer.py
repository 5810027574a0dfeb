"""Answers of the two generation endpoints: one loop over the engine's events that either streams them or folds them.

An endpoint brings a `Shape`, which knows its JSON; this file knows the order of things. The head of a stream leaves
when the first sequence holds a row, so everything a request can be refused for is still a real status.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import anyio
import anyio.to_thread

from poot.api.frames import encode
from poot.api.gate import RouteMatch
from poot.api.generation import MAX_BATCH, Indexed, open_choices
from poot.api.limits import Places
from poot.api.prompts import Prepared
from poot.api.responses import JSON_CONTENT_TYPE
from poot.api.served import ServedEngine
from poot.api.turns import Turns
from poot.config import ApiConfig
from poot.engine.sequence import Delta, Event, Finished, FinishReason, Opened, PromptScored
from poot.errors import EngineError, RequestError
from poot.log import get_logger
from poot.metrics import Metrics
from poot.net import sse
from poot.net.exchange import ClientGone, Exchange, Response, StreamWriter

_log = get_logger(__name__)

INLINE_BODY_BYTES = 4 * 1024
"""Bodies up to this size are decoded and tokenized on the event loop, in up to about 2 ms; for larger ones the
hand-over to a worker thread (about 0.2 ms) is the lesser evil."""

REQUESTS_PER_TURN = 16
"""Requests that begin in one turn of the event loop. One takes 0.1 to 0.2 ms, so a burst of hundreds that all began at
once would hold up every stream for tens of milliseconds."""

FULL_BATCHES_PER_TURN = 20
"""Streams that send `MAX_BATCH` events in one turn. One takes 0.1 ms, so that however many have text ready, a turn of
the event loop takes some 2 ms for them. Smaller batches would cost a system call for each."""

PREPARE_THREADS = 4
"""Large bodies prepared at once; more would take cores from the device thread."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Usage:
    """Token counts of one answer."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0

    def as_dict(self) -> dict[str, Any]:
        """The `usage` object."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }


@dataclass(slots=True)
class Folded:
    """What the events of one choice add up to."""

    deltas: list[Delta] = field(default_factory=list)
    reason: FinishReason | None = None
    prompt: PromptScored | None = None
    mean_logprob: float = 0.0

    @property
    def text(self) -> str:
        return "".join(delta.text for delta in self.deltas)

    @property
    def token_ids(self) -> list[int]:
        return [token_id for delta in self.deltas for token_id in delta.token_ids]

    def add(self, event: Event) -> None:
        """Takes the next event of the choice."""
        if isinstance(event, Delta):
            self.deltas.append(event)
        elif isinstance(event, Finished):
            self.reason = event.reason
            if event.cumulative_logprob is not None:
                self.mean_logprob = event.cumulative_logprob / max(1, event.num_generated_tokens)
        elif isinstance(event, PromptScored):
            self.prompt = event


class Shape(Protocol):
    """One endpoint's JSON, for one answer: frames of a stream, or the whole body."""

    def opened(self, index: int) -> bytes:
        """The frame of a choice that begins; may be empty."""

    def prompt(self, index: int, prompt: PromptScored) -> bytes:
        """The frame of an echoed prompt with its log-probabilities."""

    def delta(self, index: int, delta: Delta) -> bytes:
        """The frame of a piece of text with its log-probabilities; empty when it holds neither."""

    def finished(self, index: int, reason: FinishReason) -> bytes:
        """The frame of a choice that ends."""

    def timings(self, timings: dict[str, Any]) -> bytes:
        """The frame with the times, when the client asked for it."""

    def usage(self, usage: Usage) -> bytes:
        """The last frame before [DONE], when the client asked for it."""

    def whole(self, choices: list[Folded], usage: Usage, timings: dict[str, Any] | None) -> bytes:
        """The body of an answer that is not streamed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Generator:
    """Answers prepared requests from one engine."""

    engine: ServedEngine
    config: ApiConfig
    metrics: Metrics
    full_batches: Turns = field(default_factory=lambda: Turns(FULL_BATCHES_PER_TURN))

    async def answer(self, exchange: Exchange, prepared: Prepared, shape: Shape) -> int:
        """Answers the exchange, streamed or whole, and returns the status.

        Cancelled, it leaves no row held: `open_choices` gives them back.

        Raises:
            RequestError: before anything was sent. Later errors are an `error` event in the stream.
            ClientGone: the client does not read on.
        """
        tally = _Tally(prepared)
        async with open_choices(
            self.engine,
            prepared.choices,
            max_queue_wait_seconds=self.config.max_queue_wait_seconds,
            refused=self.metrics.refused.labels("queue_wait"),
        ) as events:
            if prepared.is_streamed:
                async with exchange.stream(200, sse.HEADERS) as writer:
                    try:
                        while not tally.is_complete:
                            batch = await events.receive()
                            if len(batch) == MAX_BATCH:
                                await self.full_batches.take()
                            if frames := tally.frames(shape, batch):
                                await writer.write(frames)
                    except Exception as error:
                        await _end_with_error(writer, error)
                tally.annotate(exchange)
                return 200
            choices = [Folded() for _ in prepared.choices]
            while not tally.is_complete:
                for index, event in await events.receive():
                    choices[index].add(event)
                    if isinstance(event, Finished):
                        tally.count(index, event)
        tally.annotate(exchange)
        timings = tally.timings if prepared.returns_timings else None
        body = shape.whole(_best(choices, prepared), tally.usage, timings)
        await exchange.send(Response(status=200, headers=((b"content-type", JSON_CONTENT_TYPE),), body=body))
        return 200


def _best(choices: list[Folded], prepared: Prepared) -> list[Folded]:
    """The choices to answer: of each prompt the `num_returned` with the highest log-probability per token.

    OpenAI's rule for best_of, which puts the best first; of equals the one that was drawn first.
    """
    num_drawn, num_returned = prepared.num_drawn, prepared.num_returned
    if num_drawn == num_returned:
        return choices
    best: list[Folded] = []
    for start in range(0, len(choices), num_drawn):
        ranked = sorted(choices[start : start + num_drawn], key=lambda choice: -choice.mean_logprob)
        best += ranked[:num_returned]
    return best


class _Tally:
    """Counts events of one answer: how many choices are still to finish, and the tokens of those that did."""

    def __init__(self, prepared: Prepared) -> None:
        self._num_unfinished = len(prepared.choices)
        self._num_prompt_tokens = prepared.num_prompt_tokens
        self._includes_usage = prepared.includes_usage
        self._prepared = prepared
        self._num_completion_tokens = 0
        self._num_cached_tokens = 0
        self._num_drafted_tokens = self._num_accepted_tokens = 0
        # Of several choices the longest times count.
        self._queue_seconds = self._prefill_seconds = self._decode_seconds = 0.0

    @property
    def is_complete(self) -> bool:
        return self._num_unfinished == 0

    @property
    def usage(self) -> Usage:
        return Usage(
            prompt_tokens=self._num_prompt_tokens,
            completion_tokens=self._num_completion_tokens,
            cached_tokens=self._num_cached_tokens,
        )

    @property
    def timings(self) -> dict[str, Any]:
        """The `timings` object: of several choices the longest times, and the sums of tokens."""
        seeds = self._prepared.seeds
        return {
            "queue_ms": 1000 * self._queue_seconds,
            "prefill_ms": 1000 * self._prefill_seconds,
            "decode_ms": 1000 * self._decode_seconds,
            "cached_prompt_tokens": self._num_cached_tokens,
            "draft_proposed_tokens": self._num_drafted_tokens,
            "draft_accepted_tokens": self._num_accepted_tokens,
            "seed": seeds[0] if len(seeds) == 1 else seeds,
        }

    def count(self, index: int, event: Finished) -> None:
        self._num_unfinished -= 1
        self._num_completion_tokens += event.num_generated_tokens
        self._num_drafted_tokens += event.num_drafted_tokens
        self._num_accepted_tokens += event.num_accepted_tokens
        if index % self._prepared.num_drawn == 0:  # a prompt is counted once, and so is what of it was cached
            self._num_cached_tokens += event.num_cached_tokens
        timings = event.timings
        self._queue_seconds = max(self._queue_seconds, timings.queue_seconds)
        self._prefill_seconds = max(self._prefill_seconds, timings.prefill_seconds)
        self._decode_seconds = max(self._decode_seconds, timings.decode_seconds)

    def frames(self, shape: Shape, batch: list[Indexed]) -> bytes:
        """Counts events and returns their frames; the last choice's end brings those that end the stream."""
        frames = []
        for index, event in batch:
            if isinstance(event, Delta):
                frames.append(shape.delta(index, event))
            elif isinstance(event, Finished):
                self.count(index, event)
                frames.append(shape.finished(index, event.reason))
            elif isinstance(event, Opened):
                frames.append(shape.opened(index))
            elif isinstance(event, PromptScored):
                frames.append(shape.prompt(index, event))
        if self.is_complete:
            if self._prepared.returns_timings:
                frames.append(shape.timings(self.timings))
            frames += [shape.usage(self.usage) if self._includes_usage else b"", sse.DONE]
        return b"".join(frames)

    def annotate(self, exchange: Exchange) -> None:
        """Puts times and tokens into the access log."""
        exchange.annotate(
            queue_ms=1000 * self._queue_seconds,
            prefill_ms=1000 * self._prefill_seconds,
            decode_ms=1000 * self._decode_seconds,
            prompt_tokens=self._num_prompt_tokens,
            generated_tokens=self._num_completion_tokens,
        )


async def _end_with_error(writer: StreamWriter, error: Exception) -> None:
    """Ends a stream whose head is out with an `error` event, and without [DONE]: clients raise on the one, and take
    the other for a whole answer."""
    if isinstance(error, ClientGone):
        raise error
    if not isinstance(error, RequestError):
        _log.exception("answering failed in the middle of a stream", error)
        error = EngineError("the server failed while it answered this request")
    await writer.write(sse.data_frame(encode(error.body())))


class GenerationEndpoint:
    """The handler of a generation route: body in, answer out.

    Args:
        receiving: the places for requests that read their body.
        prepare: decodes and tokenizes a body.
        new_shape: the JSON of one answer.
    """

    def __init__(
        self,
        generator: Generator,
        receiving: Places,
        *,
        prepare: Callable[[bytes, ServedEngine], Prepared],
        new_shape: Callable[[ServedEngine, Prepared], Shape],
    ) -> None:
        self._generator = generator
        self._receiving = receiving
        self._prepare = prepare
        self._new_shape = new_shape
        self._threads = anyio.CapacityLimiter(PREPARE_THREADS)
        self._turns = Turns(REQUESTS_PER_TURN)

    async def __call__(self, exchange: Exchange, match: RouteMatch) -> int:
        with self._receiving.hold():
            body = await exchange.read_body(match.route.max_body_bytes)
        await self._turns.take()
        engine = self._generator.engine
        if len(body) <= INLINE_BODY_BYTES:
            prepared = self._prepare(body, engine)
        else:
            # Changes nothing outside itself, so a client that went away need not be waited for.
            prepared = await anyio.to_thread.run_sync(
                self._prepare, body, engine, abandon_on_cancel=True, limiter=self._threads
            )
        return await self._generator.answer(exchange, prepared, self._new_shape(engine, prepared))
