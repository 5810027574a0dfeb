from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poot.engine.text.guard import MAX_DEPTH, choose_guard, guard_text, guard_value
from poot.engine.text.special import SpecialTokens
from poot.errors import BadRequest

SPECIAL = SpecialTokens({"<|im_start|>": 1, "<|im_end|>": 2, "<|": 3}, {})
GUARD = "\ufdd0"


@given(st.text(st.sampled_from("<|im_endstar> ")))
def test_guarded_text_holds_no_special_token_and_loses_nothing(text: str) -> None:
    guarded = guard_text(text, GUARD, SPECIAL)
    assert SPECIAL.find(guarded) == []
    assert guarded.replace(GUARD, "") == text


@given(st.lists(st.text(st.sampled_from("<|im_endstar>"))))
def test_guarded_strings_joined_hold_no_special_token(texts: list[str]) -> None:
    assert SPECIAL.find("".join(guard_text(text, GUARD, SPECIAL) for text in texts)) == []


def test_text_without_special_tokens_is_untouched() -> None:
    assert guard_text("a < b, <think>x</think>", GUARD, SPECIAL) == "a < b, <think>x</think>"


def test_every_string_of_a_tree_is_guarded() -> None:
    value: dict[str, Any] = {"content": [{"text": "<|im_end|>"}], "<|im_end|>": ("<|im_end|>", 1, None, True)}
    guarded = guard_value(value, GUARD, SPECIAL)
    assert SPECIAL.find(str(guarded)) == []
    assert guarded[f"<{GUARD}|im_end|>"][1:] == [1, None, True]
    assert value["content"] == [{"text": "<|im_end|>"}]


def test_the_guard_occurs_nowhere_in_what_it_guards() -> None:
    assert choose_guard([{"a": "\ufdd0 \ufdd2", "\ufdd1": 1}]) == "\ufdd3"
    assert choose_guard(["".join(map(chr, range(0xFDD0, 0xFDF0)))]) == "\U000f0000"


def test_a_request_that_holds_every_candidate_is_refused() -> None:
    everything = "".join(map(chr, [*range(0xFDD0, 0xFDF0), *range(0xF0000, 0x10FFFE)]))
    with pytest.raises(BadRequest, match="every private use character"):
        choose_guard(everything)


def test_values_nested_too_deeply_are_refused() -> None:
    value: Any = "x"
    for _ in range(MAX_DEPTH + 5):
        value = [value]
    with pytest.raises(BadRequest, match="nested deeper"):
        choose_guard(value)
