"""What the API needs from an engine, and no more. `poot.engine.engine.Engine` fits it, and so does a fake in a test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from poot.engine.encoding import EncodeText, FloatArray, Pooling, TextEncoder
from poot.engine.plan import Plan
from poot.engine.sampling.defaults import SamplingDefaults
from poot.engine.sequence import Event, GenerationRequest
from poot.engine.text import ChatTemplate, Tokenizer


class ServedModel(Protocol):
    """What is served, as settled at startup. Sizes in bytes, `created` in Unix seconds."""

    @property
    def model_id(self) -> str: ...
    @property
    def task(self) -> str: ...
    @property
    def backend(self) -> str: ...
    @property
    def device(self) -> str: ...
    @property
    def rows(self) -> int: ...
    @property
    def max_seq(self) -> int: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def context_limit(self) -> int: ...
    @property
    def created(self) -> int: ...
    @property
    def weight_bytes(self) -> int: ...
    @property
    def kv_bytes(self) -> int: ...
    @property
    def terms(self) -> Mapping[str, int]: ...
    @property
    def plan(self) -> Plan | None:
        """The fit that rows, max_seq and terms came from; None where nothing was fitted."""

    @property
    def sampling_defaults(self) -> SamplingDefaults: ...


class Statistics(Protocol):
    """What the engine holds right now."""

    @property
    def rows_held(self) -> int: ...
    @property
    def kv_blocks_held(self) -> int: ...
    @property
    def waiting(self) -> int: ...


class EventStream(Protocol):
    """The events of one sequence, in order. An AnyIO memory object stream is one."""

    async def receive(self) -> Event:
        """The next event. Lets other tasks run, also where it need not wait.

        Raises:
            anyio.EndOfStream: there are no more.
        """

    def receive_nowait(self) -> Event:
        """The next event.

        Raises:
            anyio.WouldBlock: it is not there yet.
            anyio.EndOfStream: there are no more.
        """


class ServedEngine(Protocol):
    """An engine as the API sees it: it generates, or encodes, or both."""

    @property
    def model(self) -> ServedModel: ...
    @property
    def tokenizer(self) -> Tokenizer: ...
    @property
    def chat(self) -> ChatTemplate | None:
        """The template chats are rendered through; None for a model without one."""

    @property
    def is_draining(self) -> bool: ...

    @property
    def generates(self) -> bool:
        """Whether `open` may be called."""

    @property
    def encoder(self) -> TextEncoder | None:
        """The text side of embeddings and scores; None where the model gives neither."""

    def statistics(self) -> Statistics: ...

    async def encode(self, texts: Sequence[EncodeText], pooling: Pooling) -> FloatArray:
        """A vector for each text, f32 `[num_texts, dim]`. Only where `encoder` is not None.

        Cancelled, it drops what no pass has taken.

        Raises:
            Draining: the engine takes no new requests, or ended this one.
            EngineError: a pass failed.
        """

    def open(self, request: GenerationRequest) -> AbstractAsyncContextManager[EventStream]:
        """A channel of `Opened`, `Delta`s, then `Finished` or `Failed`. Leaving the block releases the row.

        Raises:
            Draining: the engine takes no new sequences.
        """
