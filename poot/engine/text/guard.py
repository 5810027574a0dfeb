"""Keeping what clients wrote apart from what a chat template wrote.

A rendered chat is one string, in which the template's "<|im_end|>" must become a token and a user's must stay text.
So before rendering, a guard character is put after the first character of every special token that stands in a
client's string, which unmakes it; after rendering, special tokens are found, and the guards dropped
(`Tokenizer.encode_guarded`). A beginning of a special token at the end of a string is broken in the same way, so that
two strings that a template joins cannot make one either.

The guard is a character that occurs in none of the strings, a noncharacter as a rule (Unicode 23.7), so there is
nothing to escape. A template sees it only in strings that hold such text; if it compares or measures them, it sees a
string one character longer.

What this does not reach: a template that deletes something from the middle of a client's string joins the two sides
anew, and a template that itself writes the beginning of a special token right before a client's string ("<|" + role)
lets that string complete it; roles are checked by the API.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

from poot.engine.text.special import NAME_START, SpecialTokens
from poot.errors import BadRequest

# Noncharacters first, which no text has a use for, without those of internal names; then the private use planes, for a
# text that has them all.
_CANDIDATES = tuple(map(chr, chain(range(0xFDD0, ord(NAME_START)), range(0xF0000, 0xFFFFE), range(0x100000, 0x10FFFE))))

# Deeper than any request the API lets through (128).
MAX_DEPTH = 200


def choose_guard(*values: Any) -> str:
    """A character that occurs in no string anywhere in `values`.

    Raises:
        BadRequest: the values are nested too deeply, or hold every one of 131,096 candidates.
    """
    strings = list(_strings(values, MAX_DEPTH))
    for candidate in _CANDIDATES:
        if not any(candidate in string for string in strings):
            return candidate
    raise BadRequest("the request holds every private use character of Unicode")


def guard_value(value: Any, guard: str, special_tokens: SpecialTokens) -> Any:
    """A copy of `value`, a tree of JSON values, in which no string holds the text of a special token."""
    if isinstance(value, str):
        return guard_text(value, guard, special_tokens)
    if isinstance(value, Mapping):
        return {
            guard_text(key, guard, special_tokens) if isinstance(key, str) else key: guard_value(
                item, guard, special_tokens
            )
            for key, item in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [guard_value(item, guard, special_tokens) for item in value]
    return value


def guard_text(text: str, guard: str, special_tokens: SpecialTokens) -> str:
    """`text` with `guard` inside every special token, whole or begun at the end."""
    starts = [start for start, _ in special_tokens.find(text)]
    starts += special_tokens.find_begun(text)
    if not starts:
        return text
    pieces = []
    done = 0
    for start in sorted(set(starts)):
        pieces.append(text[done : start + 1])
        done = start + 1
    return guard.join([*pieces, text[done:]])


def _strings(value: Any, depth: int) -> Iterator[str]:
    if depth < 0:
        raise BadRequest(f"messages are nested deeper than {MAX_DEPTH}")
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _strings(key, depth - 1)
            yield from _strings(item, depth - 1)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _strings(item, depth - 1)
