"""POST /v1/completions: text in, text out."""

from __future__ import annotations

from typing import Any

from poot.api.answer import Folded, Usage
from poot.api.frames import Chunks, encode
from poot.api.identity import new_envelope
from poot.api.logprobs import CompletionLogprobs, empty_completion_logprobs
from poot.api.prompts import Prepared, prepare_completion
from poot.api.schema.completions import decode_completion
from poot.api.served import ServedEngine
from poot.engine.sequence import Delta, FinishReason


class CompletionShape:
    """`text_completion` objects, streamed and whole."""

    def __init__(self, envelope: dict[str, Any], prepared: Prepared) -> None:
        self._envelope = envelope
        self._has_logprobs = prepared.num_logprobs is not None
        chunks = Chunks(envelope, includes_usage=prepared.includes_usage)
        self._chunks = chunks
        self._text_frames = [
            chunks.around(b'{"index":%d,"text":' % index, b',"logprobs":null,"finish_reason":null}')
            for index in range(len(prepared.choices) if prepared.is_streamed else 0)
        ]
        self._logprobs = [CompletionLogprobs() for _ in prepared.choices] if self._has_logprobs else []

    def opened(self, index: int) -> bytes:
        return b""

    def delta(self, index: int, delta: Delta) -> bytes:
        if not delta.text and not delta.logprobs:
            return b""
        if self._has_logprobs:
            lists = self._logprobs[index].add(delta.text, delta.logprobs)
            choice = {"index": index, "text": delta.text, "logprobs": lists, "finish_reason": None}
            return self._chunks.choice(choice)
        return self._text_frames[index].frame(encode(delta.text))

    def finished(self, index: int, reason: FinishReason) -> bytes:
        return self._chunks.choice({"index": index, "text": "", "logprobs": None, "finish_reason": reason.value})

    def usage(self, usage: Usage) -> bytes:
        return self._chunks.usage(usage.as_dict())

    def whole(self, choices: list[Folded], usage: Usage) -> bytes:
        answer = {
            **self._envelope,
            "choices": [self._whole_choice(index, choice) for index, choice in enumerate(choices)],
            "usage": usage.as_dict(),
        }
        return encode(answer)

    def _whole_choice(self, index: int, choice: Folded) -> dict[str, Any]:
        logprobs = None
        if self._has_logprobs:
            logprobs = empty_completion_logprobs()
            for delta in choice.deltas:
                for name, values in self._logprobs[index].add(delta.text, delta.logprobs).items():
                    logprobs[name] += values
        assert choice.reason is not None
        return {"index": index, "text": choice.text, "logprobs": logprobs, "finish_reason": choice.reason.value}


def prepare(body: bytes, engine: ServedEngine) -> Prepared:
    """What the body of a completion asks of the engine.

    Raises:
        BadRequest, NotFound, ContextLengthExceeded: as `decode_completion` and `prepare_completion` say.
    """
    return prepare_completion(decode_completion(body, engine.model.model_id), engine)


def new_shape(engine: ServedEngine, prepared: Prepared) -> CompletionShape:
    """The JSON of one new answer."""
    return CompletionShape(new_envelope("text_completion", "cmpl", engine.model), prepared)
