"""Prompt lookup against a search through the whole sequence."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given

from poot.engine.speculate.lookup import LookupIndex


def search(token_ids: list[int], ngram: int, num_tokens: int) -> tuple[int, ...]:
    """The definition: the last earlier place of the sequence's end, and what followed it, itself included."""
    length = len(token_ids)
    for end in range(length - 1, ngram - 1, -1):
        if token_ids[end - ngram : end] == token_ids[length - ngram :]:
            text = list(token_ids)
            while len(text) < length + num_tokens:
                text.append(text[len(text) - (length - end)])
            return tuple(text[length:])
    return ()


@given(
    pieces=st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=6), min_size=1, max_size=8),
    ngram=st.integers(1, 4),
    num_tokens=st.integers(0, 9),
)
def test_a_proposal_is_what_followed_the_last_match(pieces: list[list[int]], ngram: int, num_tokens: int) -> None:
    index = LookupIndex(ngram)
    token_ids: list[int] = []
    for piece in pieces:
        token_ids += piece
        expected = search(token_ids, ngram, num_tokens) if len(token_ids) > ngram else ()
        assert index.propose(token_ids, num_tokens) == expected


def test_text_with_a_short_period_is_proposed_whole() -> None:
    assert LookupIndex(2).propose([7, 1, 2, 1, 2], 6) == (1, 2, 1, 2, 1, 2)


def test_new_text_has_no_proposal() -> None:
    assert LookupIndex(3).propose([1, 2, 3, 4, 5, 6], 4) == ()
    assert LookupIndex(3).propose([1, 2, 3], 4) == ()
