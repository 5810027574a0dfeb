"""Where tokens begin in the text, and tokens that cannot be told apart by name."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from poot.api.logprobs import CompletionLogprobs, chat_logprobs
from poot.engine.sequence import TokenLogprob


def token(token_bytes: bytes, logprob: float = -1.0, *top: tuple[int, bytes, float]) -> TokenLogprob:
    return TokenLogprob(0, token_bytes, logprob, top)


@given(st.text(max_size=20), st.data())
def test_offsets_count_whole_characters_however_the_bytes_are_cut(text: str, data: st.DataObject) -> None:
    encoded = text.encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(encoded)), max_size=6)))
    bounds = [0, *cuts, len(encoded)]
    pieces = [encoded[start:end] for start, end in itertools.pairwise(bounds)]
    offsets = CompletionLogprobs().add(text, [token(piece) for piece in pieces])["text_offset"]
    # The characters that are complete before the token: an independent count of bytes that begin one.
    assert offsets == [len(encoded[:start].decode("utf-8", "ignore")) for start, _ in itertools.pairwise(bounds)]


def test_offsets_go_on_over_deltas_also_when_text_is_held_back() -> None:
    lists = CompletionLogprobs()
    assert lists.add("ab", [token(b"a")])["text_offset"] == [0]  # b is out, its token is not complete
    assert lists.add("c", [token(b"bc")])["text_offset"] == [1]
    assert lists.add("d", [token(b"d")])["text_offset"] == [3]


def test_an_offset_never_lies_behind_the_text() -> None:
    lists = CompletionLogprobs()
    assert lists.add("a", [token(b"a stop string"), token(b"x")])["text_offset"] == [0, 1]


def test_of_tops_with_one_name_the_likelier_counts() -> None:
    lists = CompletionLogprobs().add("a", [token(b"a", -0.5, (1, b"a", -0.5), (2, b"b", -1.0), (3, b"a", -2.0))])
    assert lists["top_logprobs"] == [{"a": -0.5, "b": -1.0}]


def test_a_chat_keeps_tops_of_one_name_apart() -> None:
    (entry,) = chat_logprobs([token(b"", -0.5, (1, b"", -0.5), (2, b"", -1.0))])
    assert [top["logprob"] for top in entry["top_logprobs"]] == [-0.5, -1.0]


def test_numbers_json_does_not_have_become_openais() -> None:
    (entry,) = chat_logprobs([token(b"a", float("-inf"))])
    assert entry["logprob"] == -9999.0
