"""Invariant: the body of a request is decoded, or refused with one `RequestError` of status 400 or 404 whose answer is
itself well-formed JSON of bounded size. A body that is decoded is a JSON object to Python's reader as well, and a chat
that is decoded gives messages of plain strings and tool calls or is refused in the same way.
"""

from __future__ import annotations

import json

from poot.api.schema.chat import decode_chat, template_messages
from poot.api.schema.completions import decode_completion
from poot.api.schema.embeddings import MAX_INPUTS, decode_embeddings
from poot.errors import RequestError

MODEL = "m"

# A field's path is cut to a hundred characters; some messages add a value or a list of what is known.
_MAX_ANSWER_BYTES = 16_384


def check(data: bytes) -> None:
    """Raises AssertionError when the invariant is broken; anything else that is raised breaks it too."""
    try:
        prompts = decode_completion(data, MODEL).prompts
    except RequestError as error:
        _check_refusal(error)
    else:
        _check_is_object(data)
        assert prompts
    try:
        inputs = decode_embeddings(data, MODEL).inputs
    except RequestError as error:
        _check_refusal(error)
    else:
        _check_is_object(data)
        assert 1 <= len(inputs) <= MAX_INPUTS
        assert all(inputs)
    try:
        chat = decode_chat(data, MODEL)
    except RequestError as error:
        _check_refusal(error)
        return
    _check_is_object(data)
    try:
        messages = template_messages(chat)
    except RequestError as error:
        _check_refusal(error)
        return
    assert len(messages) == len(chat.messages)
    for message in messages:
        assert {"role", "content"} <= message.keys() <= {"role", "content", "name", "tool_calls", "tool_call_id"}
        calls = message.pop("tool_calls", [])
        assert all(isinstance(value, str) for value in message.values())
        assert all(isinstance(call["function"]["arguments"], dict) for call in calls)


def _check_refusal(error: RequestError) -> None:
    assert error.status in (400, 404)
    answer = json.dumps(error.body(), ensure_ascii=False).encode("utf-8")  # fails on a lone surrogate
    assert len(answer) <= _MAX_ANSWER_BYTES


def _check_is_object(data: bytes) -> None:
    assert isinstance(json.loads(data.decode("utf-8"), parse_int=float), dict)
