"""The text side of one sequence: drawn tokens in, events out.

Detokenizing, stop strings and log-probabilities of one sequence meet here. Synchronous; the engine delivers what
`accept` returns.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field

from anyio.streams.memory import MemoryObjectSendStream

from poot.devices.base import SampleLogprobs
from poot.engine.sequence import (
    Delta,
    Event,
    Finished,
    FinishReason,
    PromptScored,
    Sequence,
    Timings,
    TokenLogprob,
)
from poot.engine.text import Detokenizer, StopMatcher, Tokenizer


@dataclass(slots=True)
class Clock:
    """When a sequence reached each stage, in seconds of the event loop's clock."""

    arrived: float
    opened: float | None = None
    first_token: float | None = None
    last_token: float | None = None

    def timings(self) -> Timings:
        """Durations up to the last token."""
        opened = self.opened if self.opened is not None else self.arrived
        first = self.first_token if self.first_token is not None else opened
        last = self.last_token if self.last_token is not None else first
        return Timings(opened - self.arrived, first - opened, last - first)


@dataclass(slots=True, eq=False)
class Generation:
    """A sequence with everything needed to turn its tokens into events.

    Attributes:
        send: where its events go; the buffer holds every event the sequence can cause.
    """

    sequence: Sequence
    tokenizer: Tokenizer
    send: MemoryObjectSendStream[Event]
    clock: Clock
    detokenizer: Detokenizer = field(init=False)
    stop_matcher: StopMatcher = field(init=False)
    num_decoded_chars: int = 0
    num_sent_chars: int = 0
    _unsent: deque[tuple[int, int, TokenLogprob]] = field(default_factory=deque)
    is_over: bool = False
    # Tokens accepted so far; the sequence may hold more already, as a step of speculation brings several.
    num_generated: int = 0
    cumulative_logprob: float | None = None
    _token_bytes: Callable[[int], bytes] = field(init=False)
    # Until they are sent; None where nobody asked for them.
    _prompt_logprobs: list[TokenLogprob] | None = field(init=False)

    def __post_init__(self) -> None:
        request = self.sequence.request
        self.detokenizer = self.tokenizer.detokenizer(skips_special=request.skips_special)
        self.stop_matcher = StopMatcher(request.stop, includes_stop=request.includes_stop)
        vocabulary = self.tokenizer.vocabulary
        self._prompt_logprobs = None if request.num_prompt_logprobs is None else []
        self._token_bytes = vocabulary.token_bytes if request.skips_special else vocabulary.shown_bytes

    def accept(self, token_id: int, logprobs: SampleLogprobs | None) -> list[Event]:
        """Events of the next generated token; the last one is `Finished` if the sequence ends with it."""
        if self._prompt_logprobs is not None:
            first_bytes = self._token_bytes(self.sequence.request.prompt_ids[0])
            scored = PromptScored(first_bytes, tuple(self._prompt_logprobs))
            self._prompt_logprobs = None
            return [scored, *self.accept(token_id, logprobs)]
        sequence = self.sequence
        request = sequence.request
        if request.max_tokens == 0:  # drawn because a step with a prompt's end in it draws; nobody asked for it
            return self._last_events("", (), FinishReason.LENGTH)
        self.num_generated += 1
        if logprobs is not None:
            self.cumulative_logprob = (self.cumulative_logprob or 0.0) + logprobs.logprob
        is_last = token_id in sequence.stop_ids
        if is_last and not request.includes_stop:
            return self._end("", (token_id,), FinishReason.STOP)
        piece = self.detokenizer.push(token_id)
        start = self.num_decoded_chars
        self.num_decoded_chars += len(piece)
        if logprobs is not None:
            # A token that ends inside a character is complete once that character is.
            end = self.num_decoded_chars + (1 if self.detokenizer.has_pending else 0)
            self._unsent.append((start, end, self._token_logprob(token_id, logprobs)))
        text, is_stopped = self.stop_matcher.push(piece)
        if is_stopped:
            return self._last_events(text, (token_id,), FinishReason.STOP)
        if is_last:
            return self._end(text, (token_id,), FinishReason.STOP)
        if sequence.num_prompt_tokens + self.num_generated >= sequence.max_total_tokens:
            return self._end(text, (token_id,), FinishReason.LENGTH)
        self.num_sent_chars += len(text)
        return [Delta(text, (token_id,), self._take_logprobs())]

    def accept_prompt(self, first: int, scores: SequenceOf[SampleLogprobs]) -> None:
        """Takes the log-probabilities of the prompt's tokens from position `first` on; they come in order of position.

        `accept` sends them before the first token.
        """
        assert self._prompt_logprobs is not None
        assert first == 1 + len(self._prompt_logprobs)
        ids = self.sequence.request.prompt_ids[first : first + len(scores)]
        self._prompt_logprobs += [self._token_logprob(*pair) for pair in zip(ids, scores, strict=True)]

    def _end(self, text: str, token_ids: tuple[int, ...], reason: FinishReason) -> list[Event]:
        """The last events of a sequence that no stop string has ended yet: what is still held goes out with `text`."""
        tail, is_stopped = self.stop_matcher.push(self.detokenizer.flush())
        text += tail
        if not is_stopped:
            tail, is_stopped = self.stop_matcher.flush()
            text += tail
        return self._last_events(text, token_ids, FinishReason.STOP if is_stopped else reason)

    def _last_events(self, text: str, token_ids: tuple[int, ...], reason: FinishReason) -> list[Event]:
        self.num_sent_chars += len(text)
        logprobs = self._take_logprobs(everything_before_cut=True)
        self.is_over = True
        sequence = self.sequence
        finished = Finished(
            reason,
            sequence.num_prompt_tokens,
            self.num_generated,
            self.clock.timings(),
            self.cumulative_logprob,
            sequence.num_cached_tokens,
            sequence.num_drafted_tokens,
            sequence.num_accepted_tokens,
        )
        return [Delta(text, token_ids, logprobs), finished] if text or token_ids or logprobs else [finished]

    def _take_logprobs(self, *, everything_before_cut: bool = False) -> tuple[TokenLogprob, ...]:
        """Log-probabilities of the tokens whose text is out; at the end, of those any of whose text is."""
        taken = []
        while self._unsent:
            start, end, logprob = self._unsent[0]
            is_out = end <= self.num_sent_chars or (everything_before_cut and start < self.num_sent_chars)
            if not is_out:
                break
            taken.append(logprob)
            self._unsent.popleft()
        return tuple(taken)

    def _token_logprob(self, token_id: int, logprobs: SampleLogprobs) -> TokenLogprob:
        token_bytes = self._token_bytes
        return TokenLogprob(
            token_id,
            token_bytes(token_id),
            logprobs.logprob,
            tuple((top_id, token_bytes(top_id), value) for top_id, value in logprobs.top),
        )
