"""What each token id stands for: raw bytes for decoding, text for display.

A tokenizer file writes its pieces in one of a few conventions (bytes as printable characters, spaces as "▁", word
beginnings as "##" or its absence). `Vocabulary` undoes them one token at a time, so that decoding needs no look at the
neighbours: a generated text continues its prompt, and nothing is stripped from its beginning.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from enum import Enum

WORD_START = "▁"  # how SentencePiece writes a space

_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class PieceStyle(Enum):
    """How a vocabulary writes the bytes of a token."""

    BYTE_LEVEL = "byte level"  # GPT-2: each byte is one printable character
    SENTENCEPIECE = "sentencepiece"  # "▁" is a space, "<0x0A>" a byte
    WORDPIECE_CONTINUED = "wordpiece, continuations marked"  # "word", "##piece"
    WORDPIECE_STARTED = "wordpiece, beginnings marked"  # "▁word", "piece": the layout of GGUF files
    PLAIN = "plain"  # the piece is the text


def byte_level_alphabet() -> dict[int, str]:
    """The printable character that stands for each of the 256 bytes in GPT-2's byte-level BPE.

    Bytes that are printable in Latin-1 stand for themselves; the others, in order, are U+0100 and up (OpenAI's GPT-2
    release, encoder.py).
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + index) for index, byte in enumerate(others)}


_BYTE_OF_CHARACTER = {character: byte for byte, character in byte_level_alphabet().items()}


def _byte_level_bytes(piece: str) -> bytes:
    try:
        return bytes([_BYTE_OF_CHARACTER[character] for character in piece])
    except KeyError:  # a piece outside the alphabet stands for its own text
        return piece.encode()


def _sentencepiece_bytes(piece: str) -> bytes:
    byte = _BYTE_PIECE.fullmatch(piece)
    return bytes([int(byte[1], 16)]) if byte else piece.replace(WORD_START, " ").encode()


def _continued_bytes(piece: str) -> bytes:
    return piece[2:].encode() if piece.startswith("##") and len(piece) > 2 else b" " + piece.encode()


def _started_bytes(piece: str) -> bytes:
    return piece.replace(WORD_START, " ").encode()


_DECODERS: dict[PieceStyle, Callable[[str], bytes]] = {
    PieceStyle.BYTE_LEVEL: _byte_level_bytes,
    PieceStyle.SENTENCEPIECE: _sentencepiece_bytes,
    PieceStyle.WORDPIECE_CONTINUED: _continued_bytes,
    PieceStyle.WORDPIECE_STARTED: _started_bytes,
    PieceStyle.PLAIN: str.encode,
}


class Vocabulary:
    """The pieces of one tokenizer.

    Args:
        pieces: each id's piece as the file writes it; None for an id that the file leaves out.
        style: the convention of the pieces.
        special_ids: tokens that are never text, such as an end of turn; they stand for no bytes.
        literal_ids: tokens added beside the trained ones whose piece is their text, whatever the style.
    """

    def __init__(
        self,
        pieces: Sequence[str | None],
        style: PieceStyle,
        *,
        special_ids: Collection[int],
        literal_ids: Collection[int],
    ) -> None:
        self.pieces = pieces
        self.style = style
        self.special_ids = frozenset(special_ids)
        self._literal_ids = frozenset(literal_ids)
        self._decode = _DECODERS[style]
        self._bytes: dict[int, bytes] = {}

    def __len__(self) -> int:
        return len(self.pieces)

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that `token_id` adds to a text; they need not be whole characters.

        Empty for a special token, and for an id past the vocabulary: models pad their output to a round size.
        """
        known = self._bytes.get(token_id)
        if known is None:
            known = self._bytes[token_id] = self._find_bytes(token_id)
        return known

    def shown_bytes(self, token_id: int) -> bytes:
        """As `token_bytes`, but a special token adds its name."""
        if token_id in self.special_ids:
            return (self.pieces[token_id] or "").encode()
        return self.token_bytes(token_id)

    def _find_bytes(self, token_id: int) -> bytes:
        piece = self.pieces[token_id] if 0 <= token_id < len(self.pieces) else None
        if piece is None or token_id in self.special_ids:
            return b""
        return piece.encode() if token_id in self._literal_ids else self._decode(piece)

    def token_text(self, token_id: int) -> str:
        """`token_id` for display: a special token as its piece, incomplete characters as U+FFFD."""
        if token_id in self.special_ids:
            return self.pieces[token_id] or ""
        return self.token_bytes(token_id).decode("utf-8", "replace")
