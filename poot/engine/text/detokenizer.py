"""Token ids to text, a token at a time, never half a character."""

from __future__ import annotations

import codecs
from collections.abc import Callable

_Utf8Decoder = codecs.getincrementaldecoder("utf-8")


class Detokenizer:
    """Decodes one sequence. Joined pushes and the flush equal the decoding of all bytes at once, where invalid bytes
    become U+FFFD by the rules of `bytes.decode("utf-8", "replace")`.

    The text continues a prompt: no space is stripped from its beginning.

    Args:
        token_bytes: the bytes of a token id; any of them may be part of a character.
    """

    def __init__(self, token_bytes: Callable[[int], bytes]) -> None:
        self._token_bytes = token_bytes
        self._decoder = _Utf8Decoder("replace")

    @property
    def has_pending(self) -> bool:
        """Whether the newest token ended inside a character."""
        return bool(self._decoder.getstate()[0])

    def push(self, token_id: int) -> str:
        """The characters that are complete with `token_id`; often none, where a character spans tokens."""
        return self._decoder.decode(self._token_bytes(token_id))

    def flush(self) -> str:
        """What is left at the end of the sequence: U+FFFD for a character that was never completed, or nothing."""
        return self._decoder.decode(b"", final=True)
