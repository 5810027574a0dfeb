"""POST /v1/chat/completions: a conversation in, the assistant's message out."""

from __future__ import annotations

from typing import Any

from poot.api.answer import Folded, Usage
from poot.api.frames import Chunks, encode
from poot.api.identity import new_envelope
from poot.api.logprobs import chat_logprobs
from poot.api.prompts import Prepared, prepare_chat
from poot.api.schema.chat import decode_chat
from poot.api.served import ServedEngine
from poot.engine.sequence import Delta, FinishReason


class ChatShape:
    """`chat.completion.chunk` objects in a stream, one `chat.completion` otherwise."""

    def __init__(self, envelope: dict[str, Any], prepared: Prepared) -> None:
        self._envelope = envelope
        self._has_logprobs = prepared.num_logprobs is not None
        self._chunks = Chunks({**envelope, "object": "chat.completion.chunk"}, includes_usage=prepared.includes_usage)
        self._text_frames = [
            self._chunks.around(b'{"index":%d,"delta":{"content":' % index, b'},"logprobs":null,"finish_reason":null}')
            for index in range(len(prepared.choices) if prepared.is_streamed else 0)
        ]

    def opened(self, index: int) -> bytes:
        return self._chunk(index, {"role": "assistant", "content": ""})

    def delta(self, index: int, delta: Delta) -> bytes:
        if not delta.text and not delta.logprobs:
            return b""
        if self._has_logprobs:
            return self._chunk(index, {"content": delta.text}, logprobs=_logprobs(delta))
        return self._text_frames[index].frame(encode(delta.text))

    def finished(self, index: int, reason: FinishReason) -> bytes:
        return self._chunk(index, {}, finish_reason=reason.value)

    def usage(self, usage: Usage) -> bytes:
        return self._chunks.usage(usage.as_dict())

    def whole(self, choices: list[Folded], usage: Usage) -> bytes:
        answer = {
            **self._envelope,
            "choices": [self._whole_choice(index, choice) for index, choice in enumerate(choices)],
            "usage": usage.as_dict(),
        }
        return encode(answer)

    def _chunk(
        self, index: int, delta: dict[str, Any], *, logprobs: Any = None, finish_reason: str | None = None
    ) -> bytes:
        return self._chunks.choice(
            {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}
        )

    def _whole_choice(self, index: int, choice: Folded) -> dict[str, Any]:
        assert choice.reason is not None
        return {
            "index": index,
            "message": {"role": "assistant", "content": choice.text, "refusal": None},
            "logprobs": _logprobs(*choice.deltas) if self._has_logprobs else None,
            "finish_reason": choice.reason.value,
        }


def _logprobs(*deltas: Delta) -> dict[str, Any]:
    return {"content": [entry for delta in deltas for entry in chat_logprobs(delta.logprobs)], "refusal": None}


def prepare(body: bytes, engine: ServedEngine) -> Prepared:
    """What the body of a chat asks of the engine.

    Raises:
        BadRequest, NotFound, UnsupportedCapability, ContextLengthExceeded: as `decode_chat` and `prepare_chat` say.
    """
    return prepare_chat(decode_chat(body, engine.model.model_id), engine)


def new_shape(engine: ServedEngine, prepared: Prepared) -> ChatShape:
    """The JSON of one new answer."""
    return ChatShape(new_envelope("chat.completion", "chatcmpl", engine.model), prepared)
