"""HTTP/2 frames by way of hyperframe and hpack, which poot's own frames are held against."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hpack import Decoder, Encoder
from hyperframe.frame import (
    ContinuationFrame,
    DataFrame,
    Frame,
    GoAwayFrame,
    HeadersFrame,
    PingFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

Fields = Sequence[tuple[bytes, bytes]]


def get(path: bytes = b"/", *more: tuple[bytes, bytes]) -> list[tuple[bytes, bytes]]:
    return [(b":method", b"GET"), (b":scheme", b"http"), (b":path", path), (b":authority", b"poot:80"), *more]


def post(length: int | None, *more: tuple[bytes, bytes], path: bytes = b"/p") -> list[tuple[bytes, bytes]]:
    given = [(b"content-length", b"%d" % length)] if length is not None else []
    return [(b":method", b"POST"), *get(path)[1:], *given, *more]


def settings(values: dict[int, int] | None = None, *, ack: bool = False) -> bytes:
    frame = SettingsFrame(0, settings=values or {})
    if ack:
        frame.flags.add("ACK")
    return frame.serialize()


def headers(
    stream_id: int, fields: Fields, *, ends: bool = True, encoder: Encoder | None = None, pieces: int = 1
) -> bytes:
    """HEADERS, with its block cut into so many frames."""
    block = (encoder or Encoder()).encode(fields)
    return header_block(stream_id, block, ends=ends, pieces=pieces)


def header_block(stream_id: int, block: bytes, *, ends: bool = True, pieces: int = 1) -> bytes:
    size = max(1, -(-len(block) // pieces))
    cut = [block[start : start + size] for start in range(0, len(block), size)] or [b""]
    out: list[HeadersFrame | ContinuationFrame] = [HeadersFrame(stream_id, data=cut[0])]
    out += [ContinuationFrame(stream_id, data=piece) for piece in cut[1:]]
    if ends:
        out[0].flags.add("END_STREAM")
    out[-1].flags.add("END_HEADERS")
    return b"".join(frame.serialize() for frame in out)


def data(stream_id: int, content: bytes, *, ends: bool = False, padding: int | None = None) -> bytes:
    frame = DataFrame(stream_id, data=content)
    if ends:
        frame.flags.add("END_STREAM")
    if padding is not None:
        frame.flags.add("PADDED")
        frame.pad_length = padding
    return frame.serialize()


def ping(opaque: bytes = b"12345678", *, ack: bool = False) -> bytes:
    frame = PingFrame(0, opaque_data=opaque)
    if ack:
        frame.flags.add("ACK")
    return frame.serialize()


def rst_stream(stream_id: int, error: int = 8) -> bytes:
    return RstStreamFrame(stream_id, error_code=error).serialize()


def window_update(stream_id: int, increment: int) -> bytes:
    return WindowUpdateFrame(stream_id, window_increment=increment).serialize()


def goaway(last_stream_id: int = 0, error: int = 0) -> bytes:
    return GoAwayFrame(0, last_stream_id=last_stream_id, error_code=error).serialize()


def raw(kind: int, flags: int, stream_id: int, payload: bytes) -> bytes:
    """A frame that hyperframe would not build."""
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream_id.to_bytes(4, "big") + payload


def split(received: bytearray) -> list[Frame]:
    """Takes the whole frames at the beginning of `received`."""
    found: list[Frame] = []
    while len(received) >= 9:
        frame, length = Frame.parse_frame_header(memoryview(bytes(received[:9])))
        if len(received) < 9 + length:
            break
        frame.parse_body(memoryview(bytes(received[9 : 9 + length])))
        del received[: 9 + length]
        found.append(frame)
    return found


def data_frames(frames: Iterable[Frame]) -> list[DataFrame]:
    return [frame for frame in frames if isinstance(frame, DataFrame)]


class AnswerReader:
    """Puts together what a server sent, stream by stream, with hpack's decoder."""

    def __init__(self) -> None:
        self._decoder = Decoder()
        self._rest = bytearray()
        self.frames: list[Frame] = []
        self.fields: dict[int, list[tuple[bytes, bytes]]] = {}
        self.bodies: dict[int, bytes] = {}
        self.ended: set[int] = set()
        self.resets: dict[int, int] = {}
        self.goaways: list[tuple[int, int, bytes]] = []

    def feed(self, received: bytes) -> list[Frame]:
        """Takes bytes from the server; returns the frames they complete."""
        self._rest += received
        new = split(self._rest)
        self.frames += new
        for frame in new:
            if isinstance(frame, HeadersFrame):
                assert "END_HEADERS" in frame.flags
                decoded = self._decoder.decode(frame.data, raw=True)
                self.fields[frame.stream_id] = [(bytes(name), bytes(value)) for name, value in decoded]
            elif isinstance(frame, DataFrame):
                assert frame.stream_id in self.fields, "DATA before HEADERS"
                self.bodies[frame.stream_id] = self.bodies.get(frame.stream_id, b"") + frame.data
            elif isinstance(frame, RstStreamFrame):
                self.resets[frame.stream_id] = frame.error_code
            elif isinstance(frame, GoAwayFrame):
                self.goaways.append((frame.last_stream_id, frame.error_code, frame.additional_data))
            if "END_STREAM" in frame.flags and frame.stream_id:
                assert frame.stream_id not in self.ended, "two ends"
                self.ended.add(frame.stream_id)
        return new

    def status(self, stream_id: int) -> int:
        return int(dict(self.fields[stream_id])[b":status"])
