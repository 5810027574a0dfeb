"""An HTTP/2 connection without sockets, for scripts of bytes in and events and bytes out."""

from __future__ import annotations

from hyperframe.frame import PingFrame, WindowUpdateFrame

from poot.net.http.frames import ErrorCode
from poot.net.http.http2 import (
    Http2,
)
from poot.net.http.http2_events import (
    ConnectionEnded,
    Http2Event,
    RequestArrived,
)
from poot.net.http.http2_stream import Stream
from tests.net import h2_frames as wire
from tests.net.h2_frames import AnswerReader, get

HELLO = wire.PREFACE + wire.settings()


TEXT = ((b"content-type", b"text/plain"),)


MAX_WINDOW = 2**31 - 1


class Script:
    """A connection that was opened, and what it said."""

    def __init__(self, *, is_bytewise: bool = False, opening: bytes = HELLO) -> None:
        self.http = Http2()
        self.reader = AnswerReader()
        self.now = 0.0
        self._is_bytewise = is_bytewise
        self.events: list[Http2Event] = []
        self.feed(opening)
        self.read()

    def feed(self, data: bytes) -> list[Http2Event]:
        pieces = [data[index : index + 1] for index in range(len(data))] if self._is_bytewise else [data]
        events = [event for piece in pieces for event in self.http.receive(piece, self.now)]
        self.events += events
        return events

    def read(self) -> AnswerReader:
        while self.http.has_output:
            self.reader.feed(self.http.data_to_send())
        return self.reader

    def open(self, fields: wire.Fields, *, stream_id: int = 1, ends: bool = True) -> Stream:
        """Sends a request that is taken."""
        event = self.feed(wire.headers(stream_id, fields, ends=ends))[0]
        assert isinstance(event, RequestArrived), event
        return event.stream

    def assert_ended(self, error: ErrorCode) -> None:
        """The connection has ended with this code, said so, and reads nothing more."""
        ended = self.events[-1]
        assert isinstance(ended, ConnectionEnded)
        assert ended.error == error, ended
        _, code, reason = self.read().goaways[-1]
        assert (code, reason) == (error, ended.reason.encode())
        assert self.feed(wire.headers(99, get())) == []

    def assert_alive(self) -> None:
        """A PING is still answered."""
        self.feed(wire.ping(b"are you?"))
        pings = [frame for frame in self.read().frames if isinstance(frame, PingFrame)]
        assert pings[-1].opaque_data == b"are you?"


def credit(script: Script, stream_id: int) -> int:
    return sum(
        frame.window_increment
        for frame in script.read().frames
        if isinstance(frame, WindowUpdateFrame) and frame.stream_id == stream_id
    )
