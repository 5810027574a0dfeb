"""Header blocks (RFC 7541): requests' blocks into fields by way of hpack, and answers' fields into blocks.

Answers use neither the dynamic table nor Huffman coding. An answer's head is some 200 bytes, most of them new each time
(Date, X-Request-Id), so compressing it saves a client little and would cost us more time than all the rest of a small
answer; and an encoder without state cannot disagree with its peer.
"""

from __future__ import annotations

import re
from functools import lru_cache

from hpack import Decoder, HPACKError, OversizedHeaderListError
from hpack.table import HeaderTable

from poot.net.exchange import Headers
from poot.net.http.head import MAX_HEAD_BYTES

MAX_BLOCK_BYTES = 2 * MAX_HEAD_BYTES
"""Largest encoded header block. A field takes less encoded than by the measure of the cap (with Huffman coding only
where that helps), so a list some way over the cap can still be answered 431; what is larger ends the connection, for
without decoding it the compression state is lost."""

MAX_DECODED_BYTES = 2 * MAX_HEAD_BYTES
"""Where decoding stops, by the measure of SETTINGS_MAX_HEADER_LIST_SIZE. A byte of a block can name a field of 4 KiB in
the dynamic table, so the block's own length bounds nothing."""

_CONNECTION_FIELDS = frozenset((b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"))
_NAME = re.compile(rb"[!#$%&'*+\-.^_`|~0-9a-z]+")
_VALUE = re.compile(rb"(?:[\x21-\x7e\x80-\xff](?:[\t\x20-\x7e\x80-\xff]*[\x21-\x7e\x80-\xff])?)?")

# Appendix A; a name that is there more than once goes by its first index.
_STATIC_NAMES = {name: index for index, (name, _) in reversed(list(enumerate(HeaderTable.STATIC_TABLE, 1)))}
_STATIC_STATUSES = {
    int(value): bytes([0x80 | index])
    for index, (name, value) in enumerate(HeaderTable.STATIC_TABLE, 1)
    if name == b":status"
}

_INDEXED = bytes(range(0x81, 0xFF))
"""First and only bytes of an Indexed Header Field, by which a block changes nothing (section 6.1)."""

NO_TABLE = b"\x20"
"""Sets our dynamic table to no size (section 6.3). Sent at the head of the first block, so that whatever table size the
client allows later, there is nothing left to shrink."""


class BlockError(Exception):
    """A header block that cannot be decoded; the connection's compression state is lost with it.

    Attributes:
        is_oversized: it was well formed as far as it was read, but expands to more than `MAX_DECODED_BYTES`.
    """

    def __init__(self, *, is_oversized: bool) -> None:
        super().__init__("oversized header block" if is_oversized else "malformed header block")
        self.is_oversized = is_oversized


class BlockDecoder:
    """Decodes the header blocks of one connection, in order."""

    def __init__(self) -> None:
        self._decoder = Decoder(max_header_list_size=MAX_DECODED_BYTES)
        # The last block, if it only named table entries. A client that asks the same again sends the same bytes, and
        # they mean the same until a block changes the table.
        self._last: tuple[bytes, list[tuple[bytes, bytes]]] | None = None

    def decode(self, block: bytes) -> list[tuple[bytes, bytes]]:
        """The fields of a block: the same list again if it is the last one repeated, so it must not be changed.

        Raises:
            BlockError: it is malformed or too large; nothing can be decoded any more.
        """
        if self._last is not None and self._last[0] == block:
            return self._last[1]
        self._last = None
        fields = self._decode(block)
        if not block.translate(None, _INDEXED):
            self._last = (block, fields)
        return fields

    def _decode(self, block: bytes) -> list[tuple[bytes, bytes]]:
        try:
            return list(self._decoder.decode(block, raw=True))
        except OversizedHeaderListError as error:
            raise BlockError(is_oversized=True) from error
        except HPACKError as error:
            raise BlockError(is_oversized=False) from error
        except IndexError as error:
            # hpack reads past the end of a block that stops within a literal.
            raise BlockError(is_oversized=False) from error


def encode_answer(status: int, fields: Headers) -> bytes:
    """The block of an answer's head.

    Raises:
        ValueError: a field is malformed, or belongs to HTTP/1.1 connections; `net` adds those.
    """
    parts = [_STATIC_STATUSES.get(status) or b"\x08\x03%d" % status]
    for name, value in fields:
        parts.append(_encode_name(name))
        if not _VALUE.fullmatch(value):
            raise ValueError("a field of an answer has a malformed value")
        length = len(value)
        parts.append(bytes((length,)) if length < 127 else _encode_integer(length, 7))
        parts.append(value)
    return b"".join(parts)


@lru_cache(maxsize=256)
def _encode_name(name: bytes) -> bytes:
    """Literal Header Field without Indexing (section 6.2.2), up to the value."""
    name = name.lower()
    if not _NAME.fullmatch(name):
        raise ValueError("a field of an answer has a malformed name")
    if name in _CONNECTION_FIELDS:
        raise ValueError("a field of an answer is about the connection")
    index = _STATIC_NAMES.get(name)
    if index is not None:
        return _encode_integer(index, 4)
    return b"\x00" + _encode_integer(len(name), 7) + name


def _encode_integer(value: int, num_prefix_bits: int) -> bytes:
    """Section 5.1, with the bits before the prefix zero."""
    largest = (1 << num_prefix_bits) - 1
    if value < largest:
        return bytes((value,))
    encoded = bytearray((largest,))
    value -= largest
    while value >= 128:
        encoded.append(value & 127 | 128)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
