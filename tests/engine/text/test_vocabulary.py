from __future__ import annotations

import pytest
from tokenizers import pre_tokenizers

from poot.engine.text.vocabulary import PieceStyle, Vocabulary, byte_level_alphabet


def vocabulary(style: PieceStyle, *pieces: str | None) -> Vocabulary:
    return Vocabulary(pieces, style, special_ids=[0], literal_ids=[1])


def test_byte_level_alphabet_is_gpt2s() -> None:
    alphabet = byte_level_alphabet()
    library = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    text = "".join(map(chr, [*range(0xD800), *range(0xE000, 0x20000), *range(0x20000, 0x110000, 0x1000)]))
    ((encoded, _),) = library.pre_tokenize_str(text)
    assert encoded == "".join(alphabet[byte] for byte in text.encode())
    assert set(alphabet.values()) == set(library.alphabet())


@pytest.mark.parametrize(
    ("style", "piece", "expected"),
    [
        (PieceStyle.BYTE_LEVEL, "Ġhi", b" hi"),
        (PieceStyle.BYTE_LEVEL, "ðŁĻ", "🙂".encode()[:3]),
        (PieceStyle.BYTE_LEVEL, "東", "東".encode()),
        (PieceStyle.SENTENCEPIECE, "▁hi▁", b" hi "),
        (PieceStyle.SENTENCEPIECE, "<0xE6>", b"\xe6"),
        (PieceStyle.SENTENCEPIECE, "<0xZZ>", b"<0xZZ>"),
        (PieceStyle.WORDPIECE_CONTINUED, "hi", b" hi"),
        (PieceStyle.WORDPIECE_CONTINUED, "##hi", b"hi"),
        (PieceStyle.WORDPIECE_CONTINUED, "##", b" ##"),
        (PieceStyle.WORDPIECE_STARTED, "▁hi", b" hi"),
        (PieceStyle.WORDPIECE_STARTED, "hi", b"hi"),
        (PieceStyle.PLAIN, "▁hi", "▁hi".encode()),
    ],
)
def test_bytes_of_a_piece(style: PieceStyle, piece: str, expected: bytes) -> None:
    assert vocabulary(style, "<s>", "x", piece).token_bytes(2) == expected


def test_a_special_token_adds_nothing_and_shows_its_name() -> None:
    words = vocabulary(PieceStyle.BYTE_LEVEL, "<s>")
    assert (words.token_bytes(0), words.token_text(0)) == (b"", "<s>")


def test_an_added_token_is_its_own_text() -> None:
    assert vocabulary(PieceStyle.SENTENCEPIECE, "<s>", "a▁b").token_bytes(1) == "a▁b".encode()


def test_ids_past_the_vocabulary_and_holes_add_nothing() -> None:
    words = vocabulary(PieceStyle.PLAIN, "<s>", "x", None)
    assert [words.token_bytes(token_id) for token_id in (2, 3, 1000, -1)] == [b""] * 4


def test_part_of_a_character_shows_as_a_replacement() -> None:
    assert vocabulary(PieceStyle.BYTE_LEVEL, "<s>", "x", "æ").token_text(2) == "�"
