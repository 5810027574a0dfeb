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
from poot.engine.sequence import Delta, FinishReason, PromptScored


class CompletionShape:
    """`text_completion` objects, streamed and whole."""

    def __init__(self, envelope: dict[str, Any], prepared: Prepared) -> None:
        self._envelope = envelope
        self._prepared = prepared
        self._has_logprobs = prepared.num_logprobs is not None
        self._has_token_ids = prepared.returns_token_ids
        chunks = Chunks(envelope, includes_usage=prepared.includes_usage)
        self._chunks = chunks
        self._text_frames = [
            chunks.around(b'{"index":%d,"text":' % index, b',"logprobs":null,"finish_reason":null}')
            for index in range(len(prepared.choices) if prepared.is_streamed else 0)
        ]
        self._logprobs = [CompletionLogprobs() for _ in prepared.choices] if self._has_logprobs else []

    def opened(self, index: int) -> bytes:
        prepared = self._prepared
        echo = "" if self._has_logprobs else prepared.echo(index)  # with log-probabilities it waits for them
        if not echo and not self._has_token_ids:
            return b""
        choice: dict[str, Any] = {"index": index, "text": echo, "logprobs": None, "finish_reason": None}
        if self._has_token_ids:
            choice |= {"prompt_token_ids": prepared.choices[index].prompt_ids, "token_ids": []}
        return self._chunks.choice(choice)

    def prompt(self, index: int, prompt: PromptScored) -> bytes:
        text = self._prepared.echo(index)
        lists = self._logprobs[index].add_prompt(text, prompt)
        return self._chunks.choice({"index": index, "text": text, "logprobs": lists, "finish_reason": None})

    def delta(self, index: int, delta: Delta) -> bytes:
        if not (self._has_logprobs or self._has_token_ids):
            return self._text_frames[index].frame(encode(delta.text)) if delta.text else b""
        token_ids = delta.token_ids if self._has_token_ids else ()
        if not delta.text and not delta.logprobs and not token_ids:
            return b""
        lists = self._logprobs[index].add(delta.text, delta.logprobs) if self._has_logprobs else None
        choice: dict[str, Any] = {"index": index, "text": delta.text, "logprobs": lists, "finish_reason": None}
        if self._has_token_ids:
            choice["token_ids"] = token_ids
        return self._chunks.choice(choice)

    def finished(self, index: int, reason: FinishReason) -> bytes:
        return self._chunks.choice({"index": index, "text": "", "logprobs": None, "finish_reason": reason.value})

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
        if timings is not None:
            answer["timings"] = timings
        return encode(answer)

    def _whole_choice(self, index: int, choice: Folded) -> dict[str, Any]:
        echo = self._prepared.echo(index)
        logprobs = None
        if self._has_logprobs:
            writer = self._logprobs[index]
            logprobs = empty_completion_logprobs() if choice.prompt is None else writer.add_prompt(echo, choice.prompt)
            for delta in choice.deltas:
                for name, values in writer.add(delta.text, delta.logprobs).items():
                    logprobs[name] += values
        assert choice.reason is not None
        whole: dict[str, Any] = {
            "index": index,
            "text": echo + choice.text,
            "logprobs": logprobs,
            "finish_reason": choice.reason.value,
        }
        if self._has_token_ids:
            prepared = self._prepared
            prompt = prepared.choices[index // prepared.num_returned * prepared.num_drawn]
            whole |= {"prompt_token_ids": prompt.prompt_ids, "token_ids": choice.token_ids}
        return whole


def prepare(body: bytes, engine: ServedEngine) -> Prepared:
    """What the body of a completion asks of the engine.

    Raises:
        BadRequest, NotFound, ContextLengthExceeded: as `decode_completion` and `prepare_completion` say.
    """
    return prepare_completion(decode_completion(body, engine.model.model_id), engine)


def new_shape(engine: ServedEngine, prepared: Prepared) -> CompletionShape:
    """The JSON of one new answer."""
    return CompletionShape(new_envelope("text_completion", "cmpl", engine.model), prepared)
