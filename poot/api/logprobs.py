"""Log-probabilities in OpenAI's two shapes, as plain data ready for JSON."""

from __future__ import annotations

import codecs
import math
from collections.abc import Iterable
from typing import Any

from poot.engine.sequence import PromptScored, TokenLogprob

NEVER_LOGPROB = -9999.0
"""Stands for a token that cannot be drawn: JSON has no -Infinity. OpenAI writes the same number."""


def chat_logprobs(tokens: Iterable[TokenLogprob]) -> list[dict[str, Any]]:
    """The entries of `choices[].logprobs.content` of a chat.

    `token` shows bytes that are no whole characters as `\\xNN`; `bytes` has them as they are.
    """
    return [
        {
            "token": _display(token.token_bytes),
            "logprob": _finite(token.logprob),
            "bytes": list(token.token_bytes),
            "top_logprobs": [
                {"token": _display(token_bytes), "logprob": _finite(logprob), "bytes": list(token_bytes)}
                for _, token_bytes, logprob in token.top
            ],
        }
        for token in tokens
    ]


class CompletionLogprobs:
    """The four parallel lists of `choices[].logprobs` of a completion, and where in the text each token begins.

    `text_offset` counts characters of this choice's text from 0, an echoed prompt being part of it. A token that begins
    inside a character has the offset of that character. `top_logprobs` holds the drawn token beside the most likely
    ones, so one entry more when it is not among them.
    """

    def __init__(self) -> None:
        self._num_chars = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._next_offset = 0

    def add(self, text: str, tokens: Iterable[TokenLogprob]) -> dict[str, list[Any]]:
        """The lists for the tokens that are complete with `text`, the newest piece of the choice's text."""
        lists: dict[str, list[Any]] = empty_completion_logprobs()
        self._num_chars += len(text)
        self._add_tokens(lists, tokens)
        return lists

    def add_prompt(self, text: str, prompt: PromptScored) -> dict[str, list[Any]]:
        """The lists for an echoed prompt, whose first token has no log-probability: null, as OpenAI writes it."""
        lists: dict[str, list[Any]] = empty_completion_logprobs()
        self._num_chars += len(text)
        lists["tokens"].append(_legacy_name(prompt.first_bytes))
        lists["token_logprobs"].append(None)
        lists["top_logprobs"].append(None)
        lists["text_offset"].append(0)
        self._next_offset += len(self._decoder.decode(prompt.first_bytes))
        self._add_tokens(lists, prompt.logprobs)
        return lists

    def _add_tokens(self, lists: dict[str, list[Any]], tokens: Iterable[TokenLogprob]) -> None:
        for token in tokens:
            name = _legacy_name(token.token_bytes)
            tops = {_legacy_name(token_bytes): _finite(logprob) for _, token_bytes, logprob in reversed(token.top)}
            tops = dict(reversed(tops.items()))
            tops.setdefault(name, _finite(token.logprob))
            lists["tokens"].append(name)
            lists["token_logprobs"].append(_finite(token.logprob))
            lists["top_logprobs"].append(tops)
            lists["text_offset"].append(min(self._next_offset, self._num_chars))
            self._next_offset += len(self._decoder.decode(token.token_bytes))


def empty_completion_logprobs() -> dict[str, list[Any]]:
    """The shape with no token in it."""
    return {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}


def _finite(logprob: float) -> float:
    return logprob if math.isfinite(logprob) else NEVER_LOGPROB


def _display(token_bytes: bytes) -> str:
    return token_bytes.decode("utf-8", "backslashreplace")


def _legacy_name(token_bytes: bytes) -> str:
    """Completions have no `bytes`, so a token that is no whole character is named by them, as OpenAI does."""
    try:
        return token_bytes.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token_bytes)
