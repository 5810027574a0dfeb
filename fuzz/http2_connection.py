"""Invariant: bytes on an HTTP/2 connection give the same events however they are cut; a fault of the peer ends a stream
or the connection and raises nothing; what is sent is whole frames no larger than every peer takes; and once every
exchange has been released, no stream is held but those whose body may still be coming.

The first byte says what the others are: bit 0, whether they are raw bytes after the preface or a script of frames;
bit 1, whether the preface is left out; bit 2, whether the server begins a drain after the first piece.
A script is read in steps of kind, flags, stream, length and a payload; see `_frames`.
"""

from __future__ import annotations

from hpack import Encoder

from poot.net.http.http2 import MAX_HELD_STREAMS, Http2
from poot.net.http.http2_events import (
    BodyArrived,
    ConnectionEnded,
    DrainConfirmed,
    Http2Event,
    RequestArrived,
    RequestRefused,
    StreamEnded,
)
from poot.net.http.http2_stream import Stream

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS = b"\0\0\0\x04\0\0\0\0\0"

_GET = [(b":method", b"GET"), (b":scheme", b"http"), (b":path", b"/health"), (b":authority", b"localhost:8080")]
_POST = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/v1/completions"), (b":authority", b"localhost")]
_FIELDS = (
    _GET,
    [*_POST, (b"content-length", b"5")],
    [*_POST, (b"expect", b"100-continue"), (b"content-length", b"0005")],
    [(b":method", b"HEAD"), *_GET[1:]],
    [*_GET, (b"connection", b"close")],
    [*_GET[::-1], (b"te", b"trailers")],
    [(b"x-trailer", b"1")],
    [*_GET, (b"Upper", b"case")],
)
# Encoded without the table, so that each can stand anywhere.
BLOCKS = tuple(Encoder().encode([(*field, True) for field in fields]) for fields in _FIELDS)

# Past these, replies to a piece fed whole pass the limit on what is left unread, and bytes fed singly do not.
_MAX_BYTES = 32 * 1024


def check(data: bytes) -> None:
    """Raises AssertionError when the invariant is broken; anything else that is raised breaks it too."""
    mode, rest = (data[0], data[1 : _MAX_BYTES + 1]) if data else (0, b"")
    wire = b"".join(_frames(rest)) if mode & 1 else rest
    if not mode & 2:
        wire = PREFACE + SETTINGS + wire
    whole = _listen([wire])
    assert whole == _listen([wire[index : index + 1] for index in range(len(wire))])
    _serve(wire, is_drained=bool(mode & 4))


def _frames(script: bytes) -> list[bytes]:
    """The frames of a script: kind, flags, stream and length are a byte each, then as much payload as is left.

    HEADERS of length 200 and above are a well-formed block instead, chosen by the length.
    """
    frames = []
    position = 0
    while len(script) - position >= 4:
        kind, flags, stream_id, length = script[position : position + 4]
        position += 4
        kind %= 11
        if kind == 1 and length >= 200:
            payload = BLOCKS[length % len(BLOCKS)]
        else:
            payload = script[position : position + length]
            position += length
        frames.append(len(payload).to_bytes(3, "big") + bytes((kind, flags, 0, 0, 0, stream_id)) + payload)
    return frames


def _listen(pieces: list[bytes]) -> list[tuple[object, ...]]:
    """The events of a server that reads everything and answers nothing."""
    http = Http2()
    seen: list[tuple[object, ...]] = []
    has_ended = False
    for piece in pieces:
        events = http.receive(piece, 0.0)
        assert not (events and has_ended)
        for event in events:
            assert not has_ended
            has_ended = isinstance(event, ConnectionEnded)
            seen.append(_describe(event))
        _check_frames(http.data_to_send())
    return seen


def _describe(event: Http2Event) -> tuple[object, ...]:
    match event:
        case RequestArrived(stream=stream, head=head):
            assert head.http_version == "2"
            return "head", stream.id, head
        case RequestRefused(stream=stream, error=error):
            assert 400 <= error.status < 500
            return "refused", stream.id, error.status, error.message
        case BodyArrived(stream=stream):
            return "body", stream.id
        case StreamEnded(stream=stream):
            assert stream.is_closed
            return "stream ended", stream.id
        case ConnectionEnded(error=error, reason=reason):
            return "connection ended", error, reason
        case DrainConfirmed():
            return ("drain",)


def _serve(wire: bytes, *, is_drained: bool) -> None:
    """A server that takes the bytes in pieces of some frames, reads every body and answers when it is complete."""
    http = Http2()
    held: dict[int, Stream] = {}
    step = max(1, len(wire) // 5)
    for start in range(0, len(wire), step):
        for event in http.receive(wire[start : start + step], float(start)):
            match event:
                case RequestArrived(stream=stream):
                    assert stream.id not in held
                    held[stream.id] = stream
                    if stream.id % 3:
                        http.open_body(stream)
                case RequestRefused(stream=stream):
                    assert stream.id not in held
                    held[stream.id] = stream
                    http.answer(stream, 400, (), b"no")
        assert len(held) <= MAX_HELD_STREAMS
        for stream in tuple(held.values()):
            http.take_body(stream)
            if stream.has_request_ended or stream.is_closed or stream.id % 3 == 0:
                http.begin_answer(stream, 200, ())
                http.queue(stream, bytes(100))
                http.end(stream)
                http.release(held.pop(stream.id)) if stream.is_closed else None
        if is_drained:
            http.begin_drain()
        _check_frames(_drain(http))
    for stream in held.values():
        http.release(stream)
    _drain(http)
    assert http.num_open_streams <= len(wire)
    http.finish_drain()
    _check_frames(_drain(http))


def _drain(http: Http2) -> bytes:
    """Everything that can be sent; more takes than there are frames would be a loop."""
    sent = bytearray()
    for _ in range(10_000):
        if not http.has_output:
            return bytes(sent)
        sent += http.data_to_send()
    raise AssertionError("has_output never ends")


def _check_frames(sent: bytes) -> None:
    position = 0
    while position < len(sent):
        length = int.from_bytes(sent[position : position + 3], "big")
        assert length <= 16_384
        position += 9 + length
    assert position == len(sent)
