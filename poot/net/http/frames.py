"""HTTP/2 frames as bytes (RFC 9113 sections 4.1 and 6): what this server sends, and the layout of what it reads.

Pure functions; which frame may be sent when is `http2`'s business.
"""

from __future__ import annotations

from enum import IntEnum
from struct import Struct

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""What a client that speaks HTTP/2 sends first (section 3.4). No HTTP/1.1 parser takes it for a request."""

FRAME_HEADER_BYTES = 9

MAX_FRAME_BYTES = 16384
"""Largest payload sent or received: the initial SETTINGS_MAX_FRAME_SIZE, which every peer takes. Larger frames would
only make one stream hold the connection for longer."""

INITIAL_WINDOW_BYTES = 65535
"""Flow-control window of a connection, and of a stream unless SETTINGS_INITIAL_WINDOW_SIZE says otherwise."""

MAX_WINDOW_BYTES = 2**31 - 1
MAX_STREAM_ID = 2**31 - 1


class FrameType(IntEnum):
    """Section 6; every other type is ignored (section 5.5)."""

    DATA = 0
    HEADERS = 1
    PRIORITY = 2
    RST_STREAM = 3
    SETTINGS = 4
    PUSH_PROMISE = 5
    PING = 6
    GOAWAY = 7
    WINDOW_UPDATE = 8
    CONTINUATION = 9


class ErrorCode(IntEnum):
    """Why a stream or a connection ends (section 7)."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    SETTINGS_TIMEOUT = 4
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    CONNECT_ERROR = 10
    ENHANCE_YOUR_CALM = 11
    INADEQUATE_SECURITY = 12
    HTTP_1_1_REQUIRED = 13


class Setting(IntEnum):
    """Section 6.5.2; every other one is ignored."""

    HEADER_TABLE_SIZE = 1
    ENABLE_PUSH = 2
    MAX_CONCURRENT_STREAMS = 3
    INITIAL_WINDOW_SIZE = 4
    MAX_FRAME_SIZE = 5
    MAX_HEADER_LIST_SIZE = 6


class Flag:
    """Bits of a frame's flags. ACK and END_STREAM share one: they belong to different types.

    Plain numbers: an IntFlag takes a microsecond for each `&`, several times a frame.
    """

    ACK = 0x1
    END_STREAM = 0x1
    END_HEADERS = 0x4
    PADDED = 0x8
    PRIORITY = 0x20


_HEADER = Struct(">HBBBL")
_SETTING = Struct(">HL")
_LONG = Struct(">L")
_TWO_LONGS = Struct(">LL")


def frame(kind: int, flags: int, stream_id: int, payload: bytes) -> bytes:
    """Any frame, whole."""
    length = len(payload)
    return _HEADER.pack(length >> 8, length & 0xFF, kind, flags, stream_id) + payload


def read_frame_header(data: bytes | bytearray, offset: int) -> tuple[int, int, int, int]:
    """Payload length, type, flags and stream of the frame header at `offset`."""
    high, low, kind, flags, stream_id = _HEADER.unpack_from(data, offset)
    return (high << 8) | low, kind, flags, stream_id & MAX_STREAM_ID


def read_long(payload: bytes, offset: int = 0) -> int:
    """The unsigned 32-bit number at `offset`."""
    value: int = _LONG.unpack_from(payload, offset)[0]
    return value


def read_settings(payload: bytes) -> list[tuple[int, int]]:
    """Identifiers and values of a SETTINGS payload, whose length is a multiple of six."""
    return list(_SETTING.iter_unpack(payload))


def settings(values: dict[Setting, int]) -> bytes:
    return frame(FrameType.SETTINGS, 0, 0, b"".join(_SETTING.pack(code, value) for code, value in values.items()))


SETTINGS_ACK = frame(FrameType.SETTINGS, Flag.ACK, 0, b"")


def ping(opaque: bytes, *, is_ack: bool = False) -> bytes:
    return frame(FrameType.PING, Flag.ACK if is_ack else 0, 0, opaque)


def goaway(last_stream_id: int, error: ErrorCode, reason: bytes = b"") -> bytes:
    return frame(FrameType.GOAWAY, 0, 0, _TWO_LONGS.pack(last_stream_id, error) + reason)


def rst_stream(stream_id: int, error: ErrorCode) -> bytes:
    return frame(FrameType.RST_STREAM, 0, stream_id, _LONG.pack(error))


def window_update(stream_id: int, increment: int) -> bytes:
    return frame(FrameType.WINDOW_UPDATE, 0, stream_id, _LONG.pack(increment))


def headers(stream_id: int, block: bytes, *, end_stream: bool) -> bytes:
    """HEADERS, and as many CONTINUATION as a block needs that one frame does not hold."""
    end = Flag.END_STREAM if end_stream else 0
    if len(block) <= MAX_FRAME_BYTES:
        return frame(FrameType.HEADERS, Flag.END_HEADERS | end, stream_id, block)
    pieces = [block[start : start + MAX_FRAME_BYTES] for start in range(0, len(block), MAX_FRAME_BYTES)]
    first, *middle, last = pieces
    return b"".join(
        (
            frame(FrameType.HEADERS, end, stream_id, first),
            *(frame(FrameType.CONTINUATION, 0, stream_id, piece) for piece in middle),
            frame(FrameType.CONTINUATION, Flag.END_HEADERS, stream_id, last),
        )
    )


def data(stream_id: int, payload: bytes | bytearray, *, end_stream: bool) -> bytes:
    length = len(payload)
    header = _HEADER.pack(length >> 8, length & 0xFF, 0, Flag.END_STREAM if end_stream else 0, stream_id)
    return header + payload
