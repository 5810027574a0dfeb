"""A minimal HTTP/2 client: enough of RFC 9113 to load a server, without a window to run out of and without HPACK state.

Header blocks are literals without indexing and static table entries (RFC 7541 section 6 and appendix A), encoded once.
"""

from __future__ import annotations

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _PING, _GOAWAY, _WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
_END_STREAM, _END_HEADERS, _ACK = 1, 4, 1
_INITIAL_WINDOW_SIZE = 4
_LARGEST_WINDOW = 2**31 - 1
_DEFAULT_WINDOW = 2**16 - 1


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3) + bytes([kind, flags]) + stream.to_bytes(4) + payload


OPENING = (
    PREFACE
    + frame(_SETTINGS, 0, 0, _INITIAL_WINDOW_SIZE.to_bytes(2) + _LARGEST_WINDOW.to_bytes(4))
    + frame(_WINDOW_UPDATE, 0, 0, (_LARGEST_WINDOW - _DEFAULT_WINDOW).to_bytes(4))
)
"""What a client sends first: windows so large that no measurement uses them up."""


def header_block(*, method: str, path: str, authority: str, body: bytes = b"") -> bytes:
    """A request's header list, encoded."""

    def literal(name_index: int, value: str) -> bytes:
        # Four bits of prefix hold an index up to 14; what is beyond follows in the next byte.
        name = bytes([name_index]) if name_index < 15 else bytes([15, name_index - 15])
        assert len(value) < 127
        return name + bytes([len(value)]) + value.encode("ascii")

    block = bytes([0x82 if method == "GET" else 0x83, 0x86]) + literal(4, path) + literal(1, authority)
    if body:
        block += literal(31, "application/json") + literal(28, str(len(body)))
    return block


class Requests:
    """The frames of one request, for any stream."""

    def __init__(self, block: bytes, body: bytes) -> None:
        self._headers = len(block).to_bytes(3) + bytes([_HEADERS, _END_HEADERS | (0 if body else _END_STREAM)])
        self._block = block
        self._data = len(body).to_bytes(3) + bytes([_DATA, _END_STREAM]) if body else b""
        self._body = body

    def on(self, stream: int) -> bytes:
        number = stream.to_bytes(4)
        head = self._headers + number + self._block
        return head + self._data + number + self._body if self._body else head


class Reader:
    """The server's frames, of which only the ends of streams, statuses and what wants an answer matter."""

    def __init__(self) -> None:
        self._buffer = b""
        self.num_failed = 0

    def read(self, data: bytes) -> tuple[int, bytes]:
        """How many streams ended with `data`, and what is to be sent back for it."""
        buffer = self._buffer + data if self._buffer else data
        position, size = 0, len(buffer)
        num_ended = 0
        reply = b""
        while position + 9 <= size:
            length = int.from_bytes(buffer[position : position + 3])
            end = position + 9 + length
            if end > size:
                break
            kind = buffer[position + 3]
            flags = buffer[position + 4]
            if kind <= _HEADERS:
                # 0x88 is `:status: 200`; a change of the dynamic table's size may stand before it.
                if kind == _HEADERS and 0x88 not in buffer[position + 9 : position + 15]:
                    self.num_failed += 1
                if flags & _END_STREAM:
                    num_ended += 1
            elif kind in (_RST_STREAM, _GOAWAY):
                self.num_failed += 1
                num_ended += kind == _RST_STREAM
            elif kind in (_SETTINGS, _PING) and not flags & _ACK:
                payload = buffer[position + 9 : end] if kind == _PING else b""
                reply += frame(kind, _ACK, 0, payload)
            position = end
        self._buffer = buffer[position:]
        return num_ended, reply
