from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poot.engine.text.special import SpecialTokens, literal_pattern

TEXTS = st.sets(st.text("ab<|", min_size=1, max_size=5), min_size=1, max_size=8)


def search(texts: set[str], text: str) -> list[tuple[int, int]]:
    """Leftmost matches, the longest at each place, by trying all."""
    spans = []
    start = 0
    while start < len(text):
        found = [item for item in texts if text.startswith(item, start)]
        if found:
            end = start + max(map(len, found))
            spans.append((start, end))
            start = end
        else:
            start += 1
    return spans


@given(TEXTS, st.text("ab<|", max_size=40))
def test_matches_are_leftmost_and_longest(texts: set[str], text: str) -> None:
    special = SpecialTokens({item: index for index, item in enumerate(sorted(texts))}, {})
    assert special.find(text) == search(texts, text)


@given(TEXTS)
def test_the_pattern_matches_each_text_whole(texts: set[str]) -> None:
    pattern = re.compile(literal_pattern(dict.fromkeys(texts, 0)))
    assert all(pattern.fullmatch(text) for text in texts)


def test_a_longer_ordinary_token_hides_a_special_one_inside() -> None:
    special = SpecialTokens({"<s>": 1}, {"<s>x": 5})
    assert special.mark("a<s>x") == "a<s>x"
    assert special.mark("a<s>") == "a" + special.names["<s>"]


def test_names_cannot_be_written_by_a_client_who_knows_another_process() -> None:
    assert SpecialTokens({"<s>": 1}, {}).names != SpecialTokens({"<s>": 1}, {}).names


@pytest.mark.parametrize(
    ("text", "begun"),
    [
        ("hi <|im_", [3]),
        ("hi <|im_ \n", [3]),
        ("hi <", [3]),
        ("hi <|im_end|>", []),
        ("hi <|im_end|> ", []),
        ("<|x", []),
        ("", []),
    ],
)
def test_a_token_begun_at_the_end_is_found(text: str, begun: list[int]) -> None:
    assert SpecialTokens({"<|im_end|>": 2, "<|im_start|>": 1}, {}).find_begun(text) == begun


def test_thousands_of_tokens_cost_no_more_than_a_few() -> None:
    special = SpecialTokens({f"<unused{index}>": index for index in range(6000)}, {})
    started = time.perf_counter()
    assert special.find("<unused" * 20_000) == []
    # Trying 6,000 tokens at each "<" takes 20 s here; the tree takes 0.02 s.
    assert time.perf_counter() - started < 2.0
