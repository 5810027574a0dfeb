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
from poot.engine.sequence import Delta, FinishReason, PromptScored


class ChatShape:
    """`chat.completion.chunk` objects in a stream, one `chat.completion` otherwise."""

    def __init__(self, envelope: dict[str, Any], prepared: Prepared) -> None:
        self._envelope = envelope
        self._has_logprobs = prepared.num_logprobs is not None
        self._has_token_ids = prepared.returns_token_ids
        self._prompt_ids = prepared.choices[0].prompt_ids
        self._chunks = Chunks({**envelope, "object": "chat.completion.chunk"}, includes_usage=prepared.includes_usage)
        self._text_frames = [
            self._chunks.around(b'{"index":%d,"delta":{"content":' % index, b'},"logprobs":null,"finish_reason":null}')
            for index in range(len(prepared.choices) if prepared.is_streamed else 0)
        ]

    def opened(self, index: int) -> bytes:
        choice = _choice(index, {"role": "assistant", "content": ""})
        if self._has_token_ids:
            return self._chunks.choice(choice, prompt_token_ids=self._prompt_ids)
        return self._chunks.choice(choice)

    def prompt(self, index: int, prompt: PromptScored) -> bytes:
        raise AssertionError("a chat has no echo")

    def delta(self, index: int, delta: Delta) -> bytes:
        if not (self._has_logprobs or self._has_token_ids):
            return self._text_frames[index].frame(encode(delta.text)) if delta.text else b""
        token_ids = delta.token_ids if self._has_token_ids else ()
        if not delta.text and not delta.logprobs and not token_ids:
            return b""
        choice = _choice(index, {"content": delta.text}, logprobs=_logprobs(delta) if self._has_logprobs else None)
        if self._has_token_ids:
            choice["token_ids"] = token_ids
        return self._chunks.choice(choice)

    def finished(self, index: int, reason: FinishReason) -> bytes:
        return self._chunks.choice(_choice(index, {}, finish_reason=reason.value))

    def timings(self, timings: dict[str, Any]) -> bytes:
        return self._chunks.timings(timings)

    def usage(self, usage: Usage) -> bytes:
        return self._chunks.usage(usage.as_dict())

    def whole(self, choices: list[Folded], usage: Usage, timings: dict[str, Any] | None) -> bytes:
        answer = {
            **self._envelope,
            "choices": [self._whole_choice(index, choice) for index, choice in enumerate(choices)],
            "usage": usage.as_dict(),
        }
        if self._has_token_ids:
            answer["prompt_token_ids"] = self._prompt_ids
        if timings is not None:
            answer["timings"] = timings
        return encode(answer)

    def _whole_choice(self, index: int, choice: Folded) -> dict[str, Any]:
        assert choice.reason is not None
        whole = {
            "index": index,
            "message": {"role": "assistant", "content": choice.text, "refusal": None},
            "logprobs": _logprobs(*choice.deltas) if self._has_logprobs else None,
            "finish_reason": choice.reason.value,
        }
        if self._has_token_ids:
            whole["token_ids"] = choice.token_ids
        return whole


def _choice(
    index: int, delta: dict[str, Any], *, logprobs: Any = None, finish_reason: str | None = None
) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}


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
