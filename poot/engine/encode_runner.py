"""Embeddings and scores below HTTP: texts in, vectors out, passes shared by all that wait.

The device task runs the passes; `encode` is what requests call. Both are on the event loop, so plain objects do.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import anyio
import numpy as np

from poot.devices.base import FloatArray
from poot.devices.encode import EncodeProgram, Pooling
from poot.engine.device_thread import StepExecutor
from poot.engine.encode_queue import EncodeQueue, EncodeRequest, PassText
from poot.engine.encode_step import build_encode_step
from poot.engine.encoding import EncodeText, TextEncoder
from poot.errors import Draining, EngineError, RequestError
from poot.metrics import Metrics

logger = logging.getLogger("poot.engine")


@dataclass(eq=False, slots=True)
class _Waiting:
    """A request that somebody waits for, and its vectors as they come."""

    request: EncodeRequest
    vectors: FloatArray
    done: anyio.Event = field(default_factory=anyio.Event)
    error: RequestError | None = None

    def fail(self, error: RequestError) -> None:
        self.error = error
        self.done.set()


class EncodeRunner:
    """Runs encode passes on one program.

    Args:
        text_encoder: the model's text side.
        program: a recorded pass of up to `max_texts` texts and `token_budget` tokens, or one text of any length served.
        executor: where the blocking half of a pass runs.
    """

    def __init__(
        self,
        *,
        text_encoder: TextEncoder,
        program: EncodeProgram,
        max_texts: int,
        token_budget: int,
        executor: StepExecutor,
        metrics: Metrics,
    ) -> None:
        self.text_encoder = text_encoder
        self._program = program
        self._executor = executor
        self._metrics = metrics
        self._queue = EncodeQueue(max_texts=max_texts, token_budget=token_budget)
        self._waiting: dict[EncodeRequest, _Waiting] = {}

    @property
    def num_waiting_texts(self) -> int:
        """Texts that no pass has taken yet."""
        return self._queue.num_waiting_texts

    async def encode(self, texts: Sequence[EncodeText], pooling: Pooling, wake: Callable[[], None]) -> FloatArray:
        """As `Engine.encode`. `wake` tells the device task that there is work."""
        request = EncodeRequest(texts=texts, pooling=pooling)
        waiting = _Waiting(request, np.empty((len(texts), self.text_encoder.profile.dim), np.float32))
        self._waiting[request] = waiting
        self._queue.add(request)
        self._publish()
        wake()
        try:
            await waiting.done.wait()
        finally:
            self._forget(request)
        if waiting.error is not None:
            raise waiting.error
        return waiting.vectors

    def abort(self, message: str) -> None:
        """Fails every request that waits, as draining."""
        for waiting in list(self._waiting.values()):
            waiting.fail(Draining(message))

    async def run_pass(self) -> bool:
        """Computes one pass; whether there was anything to compute."""
        composed = self._queue.compose()
        if not composed:
            return False
        self._publish()
        started = anyio.current_time()
        try:
            vectors = await self._executor.call(lambda: self._program.launch(build_encode_step(composed)).vectors())
        except Exception:
            # Our own bug, or the device's: it fails the requests of this pass and no other.
            logger.exception("an encode pass of %d texts failed", len(composed))
            for taken in composed:
                self._fail(taken.request, "the engine failed on this request")
            return True
        self._metrics.encode_passes.inc()
        self._metrics.encode_pass_wall_seconds.inc(anyio.current_time() - started)
        self._metrics.encode_texts.inc(len(composed))
        self._metrics.encode_tokens.inc(sum(taken.text.num_tokens for taken in composed))
        self._deliver(composed, vectors)
        return True

    def _deliver(self, composed: Sequence[PassText], vectors: FloatArray) -> None:
        for taken, vector in zip(composed, vectors, strict=True):
            waiting = self._waiting.get(taken.request)
            if waiting is None:  # left while the pass ran
                continue
            if not np.isfinite(vector).all():
                logger.error("a text's vector is not finite")
                self._fail(taken.request, "the model gave no valid vector for this request")
                continue
            waiting.vectors[taken.index] = vector
            taken.request.num_unfinished -= 1
            if taken.request.num_unfinished == 0:
                waiting.done.set()

    def _fail(self, request: EncodeRequest, message: str) -> None:
        waiting = self._waiting.get(request)
        if waiting is not None:
            self._queue.remove(request)
            waiting.fail(EngineError(message))

    def _forget(self, request: EncodeRequest) -> None:
        self._waiting.pop(request, None)
        self._queue.remove(request)
        self._publish()

    def _publish(self) -> None:
        self._metrics.encode_texts_waiting.set(self._queue.num_waiting_texts)
