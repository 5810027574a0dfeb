"""From the bytes of an HTTP/2 connection to whole frames, and to whole header blocks out of HEADERS and CONTINUATION.

Checks what can be said without knowing any stream: the preface, sizes, padding, and that nothing comes between the
frames of a header block (RFC 9113 sections 3.4, 4.2, 6.1, 6.2 and 6.10).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from poot.net.http.frames import (
    FRAME_HEADER_BYTES,
    MAX_FRAME_BYTES,
    PREFACE,
    ErrorCode,
    Flag,
    FrameType,
    read_frame_header,
)
from poot.net.http.header_block import MAX_BLOCK_BYTES
from poot.net.http.http2_limits import MAX_CONTINUATIONS


class ConnectionFault(Exception):
    """Ends the connection with a GOAWAY of this code."""

    def __init__(self, error: ErrorCode, reason: str) -> None:
        super().__init__(reason)
        self.error = error
        self.reason = reason


def protocol_error(reason: str) -> ConnectionFault:
    return ConnectionFault(ErrorCode.PROTOCOL_ERROR, reason)


def size_error(reason: str) -> ConnectionFault:
    return ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, reason)


@dataclass(frozen=True, slots=True)
class ReadFrame:
    """A frame without its padding. HEADERS holds all of its header block, and nothing else.

    Attributes:
        num_bytes: the payload's size on the wire, which flow control counts.
    """

    kind: int
    flags: int
    stream_id: int
    payload: bytes
    num_bytes: int


@dataclass(slots=True)
class _Block:
    """A header block that is arriving."""

    stream_id: int
    flags: int
    data: bytearray
    began_at: float
    num_continuations: int = 0


class FrameReader:
    """Takes bytes and gives frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._preface_left = PREFACE
        self._has_settings = False
        self._block: _Block | None = None

    @property
    def block_began_at(self) -> float | None:
        """When the header block began to arrive that is not complete, if there is one."""
        return self._block.began_at if self._block is not None else None

    def clear(self) -> None:
        """Forgets what is not complete."""
        self._buffer.clear()
        self._block = None

    def read(self, data: bytes, now: float) -> Iterator[ReadFrame]:
        """The frames that `data`, received at `now`, completes. To be used up.

        Raises:
            ConnectionFault: while iterating; the frames before it are good.
        """
        buffer = self._buffer
        buffer += data
        if self._preface_left:
            length = min(len(self._preface_left), len(buffer))
            if not self._preface_left.startswith(buffer[:length]):
                raise protocol_error("no HTTP/2 preface")
            self._preface_left = self._preface_left[length:]
            del buffer[:length]
        offset = 0
        try:
            while len(buffer) - offset >= FRAME_HEADER_BYTES:
                length, kind, flags, stream_id = read_frame_header(buffer, offset)
                if length > MAX_FRAME_BYTES:
                    raise size_error("a frame over SETTINGS_MAX_FRAME_SIZE")
                start = offset + FRAME_HEADER_BYTES
                if len(buffer) < start + length:
                    return
                offset = start + length
                frame = self._check(kind, flags, stream_id, bytes(buffer[start:offset]), now)
                if frame is not None:
                    yield frame
        finally:
            del buffer[:offset]

    def _check(self, kind: int, flags: int, stream_id: int, payload: bytes, now: float) -> ReadFrame | None:
        """The frame, or None for one that a header block goes on behind."""
        length = len(payload)
        if not self._has_settings:
            if kind != FrameType.SETTINGS or flags & Flag.ACK:
                raise protocol_error("the first frame is not SETTINGS")
            self._has_settings = True
        if self._block is not None:
            return self._continue_block(self._block, kind, flags, stream_id, payload)
        if kind == FrameType.DATA:
            payload = _without_padding(flags, payload)
        elif kind == FrameType.HEADERS:
            payload = _without_padding(flags, payload)
            if flags & Flag.PRIORITY:
                if len(payload) < 5:
                    raise size_error("HEADERS too short for their priority")
                payload = payload[5:]
            if not flags & Flag.END_HEADERS:
                self._block = _Block(stream_id, flags, bytearray(payload), now)
                return None
        elif kind == FrameType.CONTINUATION:
            raise protocol_error("CONTINUATION without HEADERS")
        return ReadFrame(kind, flags, stream_id, payload, length)

    def _continue_block(self, block: _Block, kind: int, flags: int, stream_id: int, payload: bytes) -> ReadFrame | None:
        if kind != FrameType.CONTINUATION or stream_id != block.stream_id:
            raise protocol_error("a frame within a header block")
        block.num_continuations += 1
        block.data += payload
        if block.num_continuations > MAX_CONTINUATIONS or len(block.data) > MAX_BLOCK_BYTES:
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "an oversized header block")
        if not flags & Flag.END_HEADERS:
            return None
        self._block = None
        return ReadFrame(FrameType.HEADERS, block.flags, stream_id, bytes(block.data), len(block.data))


def _without_padding(flags: int, payload: bytes) -> bytes:
    if not flags & Flag.PADDED:
        return payload
    if not payload or payload[0] >= len(payload):
        raise protocol_error("padding longer than its frame")
    return payload[1 : len(payload) - payload[0]]
