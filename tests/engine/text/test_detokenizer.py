from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from poot.engine.text import Detokenizer

PIECES = st.lists(st.binary(max_size=5) | st.text(max_size=2).map(lambda text: text.encode("utf-8", "surrogatepass")))


def decode_all(pieces: list[bytes]) -> list[str]:
    detokenizer = Detokenizer(pieces.__getitem__)
    return [*(detokenizer.push(index) for index in range(len(pieces))), detokenizer.flush()]


@given(PIECES)
def test_pushes_and_flush_join_to_the_decoding_of_the_whole(pieces: list[bytes]) -> None:
    assert "".join(decode_all(pieces)) == b"".join(pieces).decode("utf-8", "replace")


@given(st.text(), st.data())
def test_valid_text_never_shows_a_replacement_in_any_cut(text: str, data: st.DataObject) -> None:
    raw = text.encode("utf-8", "replace")
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)))))
    bounds = [0, *cuts, len(raw)]
    pieces = [raw[start:end] for start, end in pairwise(bounds)]
    detokenizer = Detokenizer(pieces.__getitem__)
    shown = ""
    for index in range(len(pieces)):
        shown += detokenizer.push(index)
        assert raw.decode().startswith(shown)
    assert shown == raw.decode()
    assert detokenizer.flush() == ""


def test_a_split_emoji_comes_out_whole_with_its_last_byte() -> None:
    first, second = "🙂".encode()[:3], "🙂".encode()[3:]
    assert decode_all([first, second]) == ["", "🙂", ""]


def test_an_unfinished_character_is_flushed_as_one_replacement() -> None:
    assert decode_all([b"ok\xe6\x9d"]) == ["ok", "�"]


def test_has_pending_tells_whether_a_character_is_unfinished() -> None:
    detokenizer = Detokenizer([b"\xf0\x9f", b"\x99\x82"].__getitem__)
    detokenizer.push(0)
    assert detokenizer.has_pending
    detokenizer.push(1)
    assert not detokenizer.has_pending


def test_a_leading_space_stays() -> None:
    assert decode_all([b" Paris"]) == [" Paris", ""]
