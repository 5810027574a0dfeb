"""HTTP/2 as a state machine without sockets or time (RFC 9113): bytes in and events out, answers in and bytes out.

Header blocks are decoded by hpack; the rest is here. The h2 library's connection object is not used (but in the tests,
as an independent client), for three things that it does by design and a server on an open port must not:

 1. It meets a fault of one request (a malformed field, a wrong Content-Length) with the end of the connection, where
    RFC 9113 section 8.1.1 asks for the end of that stream, and the application's gate for an answer.
 2. It sends nothing once either side has sent GOAWAY, where a drain has answers to finish (section 6.8).
 3. It takes 90 us of processor time for a small GET and its answer, where the whole request, application included,
    takes 50 to 70 us with this module (h2 4.4, CPython 3.11, measured on one Xeon core).

Three cases of what a peer can do wrong, and what they end:
 1. a request that is malformed as HTTP: `RequestRefused`, an answer on its stream;
 2. a stream error: RST_STREAM and `StreamEnded`;
 3. a connection error, or a budget of `http2_limits` spent: GOAWAY and `ConnectionEnded`.

Trailers are checked and then ignored, as are priorities, unknown frames and the client's GOAWAY, after which the
streams that are open are still answered. The client cannot be pushed to, so nothing of that is here.
"""

from __future__ import annotations

from poot.errors import RequestError
from poot.net.exchange import Head, Headers
from poot.net.http import frames
from poot.net.http.frames import (
    INITIAL_WINDOW_BYTES,
    MAX_FRAME_BYTES,
    MAX_STREAM_ID,
    MAX_WINDOW_BYTES,
    ErrorCode,
    Flag,
    FrameType,
    Setting,
)
from poot.net.http.head import MAX_HEAD_BYTES, body_length, malformed
from poot.net.http.header_block import BlockDecoder, BlockError, encode_answer
from poot.net.http.http2_events import (
    BodyArrived,
    ConnectionEnded,
    DrainConfirmed,
    Http2Event,
    RequestArrived,
    RequestRefused,
    StreamEnded,
)
from poot.net.http.http2_head import check_fields, parse_fields
from poot.net.http.http2_inbox import Inbox
from poot.net.http.http2_limits import (
    PRIORITIES_PER_STREAM,
    WINDOW_UPDATES_PER_DATA,
    Abuse,
    Budgets,
)
from poot.net.http.http2_outbox import Outbox
from poot.net.http.http2_reader import ConnectionFault, FrameReader, ReadFrame, protocol_error, size_error
from poot.net.http.http2_stream import Stream

MAX_CONCURRENT_STREAMS = 128
"""Announced. RFC 9113 asks for 100 at least; nginx takes 128, Go 250."""

MAX_HELD_STREAMS = 2 * MAX_CONCURRENT_STREAMS
"""Streams the shell may be busy with, counting those a client has reset and whose exchange has not ended yet. Twice the
announced number lets a client replace all its streams at once; without a bound, resets would get around it."""

MAX_REPLY_BYTES = 64 * 1024
"""Replies to frames (PING, SETTINGS, resets, credit) a client may leave unread: 3,800 PINGs. More is a flood."""

_MAX_REMEMBERED = 1024
"""Streams we have reset, of which frames may still be on the way: eight times as many as can be open."""

_DRAIN_PING = b"draining"


class Http2:
    """The server's side of one HTTP/2 connection.

    Feed it with `receive`, and send what `data_to_send` returns whenever `has_output`. Answer a stream with `answer`,
    or with `begin_answer`, `queue` and `end`; all of these do nothing on a stream that is closed. Call `release` once
    for every stream that arrived or was refused, when nobody works on it any more.
    """

    def __init__(self) -> None:
        self._reader = FrameReader()
        self._has_failed = False
        self._decoder = BlockDecoder()
        self._last_parsed: tuple[list[tuple[bytes, bytes]], Head] | None = None
        self._streams: dict[int, Stream] = {}
        self._num_held = 0
        self._last_stream_id = 0
        self._is_draining = False
        self._is_closed_to_new = False
        # Ids only, in order; a dict for its look-up.
        self._remembered: dict[int, None] = {}
        self._budgets = Budgets()
        self._initial_send_window = INITIAL_WINDOW_BYTES
        self._outbox = Outbox(self._finish)
        self._num_data_frames_seen = 0
        self._outbox.put(
            frames.settings(
                {
                    # Everything else is at its initial value: 4 KiB of HPACK table, 64 KiB windows, 16 KiB frames.
                    Setting.MAX_CONCURRENT_STREAMS: MAX_CONCURRENT_STREAMS,
                    Setting.MAX_HEADER_LIST_SIZE: MAX_HEAD_BYTES,
                }
            )
        )
        self._inbox = Inbox(self._outbox)

    @property
    def num_open_streams(self) -> int:
        """Streams that are not closed."""
        return len(self._streams)

    @property
    def block_began_at(self) -> float | None:
        """When the header block began to arrive that is not complete, if there is one."""
        return self._reader.block_began_at

    # -- bytes in ----------------------------------------------------------------------------------------------------

    def receive(self, data: bytes, now: float) -> list[Http2Event]:
        """What these bytes from the client, received at `now` (seconds, any origin), amount to."""
        if self._has_failed:
            return []
        events: list[Http2Event] = []
        try:
            for frame in self._reader.read(data, now):
                self._read_frame(frame, now, events)
            if self._outbox.num_reply_bytes > MAX_REPLY_BYTES:
                raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "replies are left unread")
        except ConnectionFault as fault:
            self.fail(fault.error, fault.reason)
            events.append(ConnectionEnded(fault.error, fault.reason))
        return events

    def _read_frame(self, frame: ReadFrame, now: float, events: list[Http2Event]) -> None:
        match frame.kind:
            case FrameType.DATA:
                self._read_data(frame, now, events)
            case FrameType.HEADERS:
                self._read_headers(frame, now, events)
            case FrameType.WINDOW_UPDATE:
                self._read_window_update(frame.stream_id, frame.payload, now, events)
            case FrameType.RST_STREAM:
                self._read_rst_stream(frame.stream_id, frame.payload, now, events)
            case FrameType.SETTINGS:
                self._read_settings(frame.flags, frame.stream_id, frame.payload, now)
            case FrameType.PING:
                self._read_ping(frame.flags, frame.stream_id, frame.payload, now, events)
            case FrameType.PRIORITY:
                self._read_priority(frame.stream_id, frame.payload, now, events)
            case FrameType.GOAWAY:
                if frame.stream_id or len(frame.payload) < 8:
                    raise protocol_error("a malformed GOAWAY")
                self._spend(Abuse.UNKNOWN, now)
            case FrameType.PUSH_PROMISE:
                raise protocol_error("PUSH_PROMISE from a client")
            case _:
                self._spend(Abuse.UNKNOWN, now)

    def _read_headers(self, frame: ReadFrame, now: float, events: list[Http2Event]) -> None:
        stream_id, ends = frame.stream_id, bool(frame.flags & Flag.END_STREAM)
        if stream_id % 2 == 0:
            raise protocol_error("HEADERS on a stream that is not the client's")
        try:
            fields = self._decoder.decode(frame.payload)
        except BlockError as error:
            code = ErrorCode.ENHANCE_YOUR_CALM if error.is_oversized else ErrorCode.COMPRESSION_ERROR
            raise ConnectionFault(code, str(error)) from error
        stream = self._streams.get(stream_id)
        if stream is not None:
            self._read_trailer(stream, fields, ends, now, events)
        elif stream_id > self._last_stream_id:
            self._open_stream(stream_id, fields, ends, now, events)
        elif stream_id not in self._remembered:
            raise ConnectionFault(ErrorCode.STREAM_CLOSED, "HEADERS on a closed stream")

    def _open_stream(
        self, stream_id: int, fields: list[tuple[bytes, bytes]], ends: bool, now: float, events: list[Http2Event]
    ) -> None:
        if self._is_closed_to_new:
            # After the last GOAWAY: the client knows, or will, that nobody looks at this one (section 6.8).
            self._remember(stream_id)
            return
        self._last_stream_id = stream_id
        if len(self._streams) >= MAX_CONCURRENT_STREAMS or self._num_held >= MAX_HELD_STREAMS:
            self._spend(Abuse.REFUSED, now)
            self._remember(stream_id)
            self._outbox.reply(frames.rst_stream(stream_id, ErrorCode.REFUSED_STREAM))
            return
        stream = Stream(stream_id, send_window=self._initial_send_window)
        stream.has_request_ended = ends
        self._streams[stream_id] = stream
        self._num_held += 1
        self._budgets.earn(Abuse.PRIORITY, PRIORITIES_PER_STREAM)
        try:
            head = self._parse(fields)
            stream.sends_body = head.method != "HEAD"
            if head.get(b"content-length") is not None:
                stream.expected_bytes = body_length(head)
            if ends and stream.expected_bytes:
                raise malformed("a Content-Length without a body")
        except RequestError as error:
            events.append(RequestRefused(stream, error))
            return
        if not ends:
            expectation = head.get(b"expect")
            stream.expects_continue = expectation is not None and expectation.lower() == b"100-continue"
        events.append(RequestArrived(stream, head))

    def _parse(self, fields: list[tuple[bytes, bytes]]) -> Head:
        """As `parse_fields`, which a repeated head (see `BlockDecoder.decode`) does not need a second time."""
        if self._last_parsed is None or self._last_parsed[0] is not fields:
            self._last_parsed = (fields, parse_fields(fields))
        return self._last_parsed[1]

    def _read_trailer(
        self, stream: Stream, fields: list[tuple[bytes, bytes]], ends: bool, now: float, events: list[Http2Event]
    ) -> None:
        if stream.has_request_ended:
            self._fail_stream(stream, ErrorCode.STREAM_CLOSED, now, events)
            return
        if stream.is_lingering and ends:
            self._close(stream)
            return
        try:
            check_fields(fields)
        except RequestError:
            ends = False
        if not ends:
            self._fail_stream(stream, ErrorCode.PROTOCOL_ERROR, now, events)
            return
        self._end_request(stream, now, events)

    def _read_data(self, frame: ReadFrame, now: float, events: list[Http2Event]) -> None:
        # Whatever becomes of it, all of the frame counts against the windows, padding included (section 6.9.1).
        stream_id, length, data = frame.stream_id, frame.num_bytes, frame.payload
        if not self._inbox.receive(length):
            raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "more DATA than the connection's window")
        ends = bool(frame.flags & Flag.END_STREAM)
        if not data and not ends:
            self._spend(Abuse.EMPTY, now)
        stream = self._streams.get(stream_id)
        if stream is None:
            self._inbox.credit(length)
            if stream_id % 2 == 0 or (stream_id > self._last_stream_id and stream_id not in self._remembered):
                raise protocol_error("DATA on a stream that is not open")
            if stream_id not in self._remembered:
                raise ConnectionFault(ErrorCode.STREAM_CLOSED, "DATA on a closed stream")
            return
        stream.receive_window -= length
        stream.received_bytes += len(data)
        if stream.is_lingering:
            if ends:
                self._inbox.credit(length)
                self._close(stream)
            elif not self._inbox.discard(stream, length):
                self.reset(stream, ErrorCode.NO_ERROR)
            return
        error: ErrorCode | None = None
        if stream.has_request_ended:
            error = ErrorCode.STREAM_CLOSED
        elif stream.receive_window < 0:
            error = ErrorCode.FLOW_CONTROL_ERROR
        elif stream.expected_bytes is not None and stream.received_bytes > stream.expected_bytes:
            error = ErrorCode.PROTOCOL_ERROR
        if error is not None:
            self._inbox.credit(length)
            self._fail_stream(stream, error, now, events)
            return
        if length > len(data):
            stream.is_padded = True
            self._inbox.consume(stream, length - len(data))
        if data:
            stream.unread.append(data)
        if ends:
            self._end_request(stream, now, events)
        elif data:
            events.append(BodyArrived(stream))

    def _end_request(self, stream: Stream, now: float, events: list[Http2Event]) -> None:
        if stream.expected_bytes is not None and stream.received_bytes != stream.expected_bytes:
            self._fail_stream(stream, ErrorCode.PROTOCOL_ERROR, now, events)
            return
        stream.has_request_ended = True
        events.append(BodyArrived(stream))

    def _read_window_update(self, stream_id: int, payload: bytes, now: float, events: list[Http2Event]) -> None:
        if len(payload) != 4:
            raise size_error("a WINDOW_UPDATE that is not 4 bytes")
        num_frames = self._outbox.num_data_frames - self._num_data_frames_seen
        if num_frames:
            self._num_data_frames_seen += num_frames
            self._budgets.earn(Abuse.WINDOW_UPDATE, num_frames * WINDOW_UPDATES_PER_DATA)
        self._spend(Abuse.WINDOW_UPDATE, now)
        increment = frames.read_long(payload) & MAX_WINDOW_BYTES
        if stream_id == 0:
            if increment == 0:
                raise protocol_error("a WINDOW_UPDATE of nothing")
            self._outbox.window += increment
            if self._outbox.window > MAX_WINDOW_BYTES:
                raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "the connection's window overflows")
            return
        stream = self._streams.get(stream_id)
        if stream is None:
            self._check_was_opened(stream_id)
        elif increment == 0:
            self._fail_stream(stream, ErrorCode.PROTOCOL_ERROR, now, events)
        elif stream.send_window + increment > MAX_WINDOW_BYTES:
            self._fail_stream(stream, ErrorCode.FLOW_CONTROL_ERROR, now, events)
        else:
            stream.send_window += increment
            self._outbox.line_up(stream)

    def _read_rst_stream(self, stream_id: int, payload: bytes, now: float, events: list[Http2Event]) -> None:
        if len(payload) != 4:
            raise size_error("an RST_STREAM that is not 4 bytes")
        self._spend(Abuse.RESET, now)
        stream = self._streams.get(stream_id)
        if stream is None:
            self._check_was_opened(stream_id)
            return
        self._close(stream)
        self._remember(stream_id)
        events.append(StreamEnded(stream))

    def _read_settings(self, flags: int, stream_id: int, payload: bytes, now: float) -> None:
        if stream_id:
            raise protocol_error("SETTINGS on a stream")
        self._spend(Abuse.SETTINGS, now)
        if flags & Flag.ACK:
            if payload:
                raise size_error("an acknowledgement of SETTINGS with content")
            return
        if len(payload) % 6:
            raise size_error("SETTINGS that are no multiple of 6 bytes")
        initial_window = self._initial_send_window
        for code, value in frames.read_settings(payload):
            if code == Setting.INITIAL_WINDOW_SIZE:
                if value > MAX_WINDOW_BYTES:
                    raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "SETTINGS_INITIAL_WINDOW_SIZE out of range")
                initial_window = value
            elif code == Setting.MAX_FRAME_SIZE:
                # Ours stay at the size that every peer takes.
                if not MAX_FRAME_BYTES <= value < 2**24:
                    raise protocol_error("SETTINGS_MAX_FRAME_SIZE out of range")
            elif code == Setting.ENABLE_PUSH and value > 1:
                raise protocol_error("SETTINGS_ENABLE_PUSH out of range")
        # Once a frame: a frame has room for 2,730 changes, each of which would touch every stream.
        self._change_initial_window(initial_window)
        self._outbox.reply(frames.SETTINGS_ACK)

    def _change_initial_window(self, value: int) -> None:
        change = value - self._initial_send_window
        self._initial_send_window = value
        for stream in self._streams.values():
            stream.send_window += change
            if stream.send_window > MAX_WINDOW_BYTES:
                raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "a stream's window overflows")
            self._outbox.line_up(stream)

    def _read_ping(self, flags: int, stream_id: int, payload: bytes, now: float, events: list[Http2Event]) -> None:
        if stream_id:
            raise protocol_error("PING on a stream")
        if len(payload) != 8:
            raise size_error("a PING that is not 8 bytes")
        self._spend(Abuse.PING, now)
        if not flags & Flag.ACK:
            self._outbox.reply(frames.ping(payload, is_ack=True))
        elif payload == _DRAIN_PING and self._is_draining and not self._is_closed_to_new:
            self.finish_drain()
            events.append(DrainConfirmed())

    def _read_priority(self, stream_id: int, payload: bytes, now: float, events: list[Http2Event]) -> None:
        if stream_id == 0:
            raise protocol_error("PRIORITY without a stream")
        self._spend(Abuse.PRIORITY, now)
        if len(payload) != 5 and (stream := self._streams.get(stream_id)) is not None:
            self._fail_stream(stream, ErrorCode.FRAME_SIZE_ERROR, now, events)

    def _check_was_opened(self, stream_id: int) -> None:
        """A frame on a stream that is closed is late, one on a stream that never opened a fault (section 5.1)."""
        if stream_id % 2 == 0 or (stream_id > self._last_stream_id and stream_id not in self._remembered):
            raise protocol_error("a frame on a stream that was never opened")

    def _spend(self, abuse: Abuse, now: float) -> None:
        if not self._budgets.spend(abuse, now):
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, f"too many {abuse.label}")

    def _fail_stream(self, stream: Stream, error: ErrorCode, now: float, events: list[Http2Event]) -> None:
        self._spend(Abuse.RESET, now)
        self.reset(stream, error)
        events.append(StreamEnded(stream))

    # -- bodies ------------------------------------------------------------------------------------------------------

    def open_body(self, stream: Stream) -> None:
        """The body is wanted: sends 100 Continue if the client waits for it, and widens the stream's window."""
        if stream.is_closed or stream.has_request_ended:
            return
        if stream.expects_continue and not stream.received_bytes:
            self._outbox.put_head(stream, encode_answer(100, ()), ends=False)
        stream.expects_continue = False
        self._inbox.open(stream)

    def take_body(self, stream: Stream) -> list[bytes]:
        """The pieces of the body that have arrived since the last call; gives their credit back to the client."""
        return self._inbox.take(stream)

    # -- answers in --------------------------------------------------------------------------------------------------

    def answer(self, stream: Stream, status: int, headers: Headers, body: bytes) -> None:
        """Answers whole; see `Stream.num_sent` for how much of the body is on its way.

        Raises:
            ValueError: a field is malformed; nothing has changed.
        """
        block = encode_answer(status, (*headers, (b"content-length", b"%d" % len(body))))
        if stream.is_closed:
            return
        if not stream.sends_body:
            body = b""
        self._outbox.put_head(stream, block, ends=not body)
        if body:
            self._outbox.put_body(stream, body)
        else:
            self._finish(stream)

    def begin_answer(self, stream: Stream, status: int, headers: Headers) -> None:
        """The head of an answer of unknown length.

        Raises:
            ValueError: a field is malformed; nothing has changed.
        """
        block = encode_answer(status, headers)
        if not stream.is_closed:
            self._outbox.put_head(stream, block, ends=False)

    def queue(self, stream: Stream, data: bytes) -> bool:
        """Adds to the answer's body; says whether it joined bytes that only wait for the next `data_to_send`."""
        if stream.is_closed or not stream.sends_body:
            return False
        return self._outbox.queue(stream, data)

    def end(self, stream: Stream) -> None:
        """The answer's body is complete."""
        if not stream.is_closed:
            self._outbox.end(stream)

    def reset(self, stream: Stream, error: ErrorCode) -> None:
        """Ends a stream at once, if it has not ended; what was queued on it is dropped."""
        if stream.id in self._streams:
            self._close(stream)
            self._remember(stream.id)
            self._outbox.reply(frames.rst_stream(stream.id, error))

    def release(self, stream: Stream) -> None:
        """Nobody works on the stream any more. One without a complete answer is reset."""
        self._num_held -= 1
        if not stream.is_lingering:
            self.reset(stream, ErrorCode.INTERNAL_ERROR)

    def begin_drain(self) -> None:
        """Asks the client to open no more streams; those on their way are still served (section 6.8)."""
        if not self._has_failed and not self._is_closed_to_new:
            self._is_draining = True
            self._outbox.put(frames.goaway(MAX_STREAM_ID, ErrorCode.NO_ERROR) + frames.ping(_DRAIN_PING))

    def finish_drain(self) -> None:
        """Says which stream is the last one that is served."""
        if not self._has_failed and not self._is_closed_to_new:
            self._is_closed_to_new = True
            self._outbox.put(frames.goaway(self._last_stream_id, ErrorCode.NO_ERROR))

    def fail(self, error: ErrorCode, reason: str) -> None:
        """Ends the connection: nothing more is read, and GOAWAY is the last thing that is sent."""
        if self._has_failed:
            return
        self._has_failed = True
        for stream in tuple(self._streams.values()):
            self._close(stream)
        self._reader.clear()
        self._outbox.put(frames.goaway(self._last_stream_id, error, reason.encode("ascii")))

    # -- bytes out ---------------------------------------------------------------------------------------------------

    @property
    def has_output(self) -> bool:
        """Whether `data_to_send` may return something."""
        return self._outbox.has_output

    def data_to_send(self) -> bytes:
        """What goes out next; see `Outbox.take`."""
        return self._outbox.take()

    def take_progressed(self) -> list[Stream]:
        """See `Outbox.take_progressed`."""
        return self._outbox.take_progressed()

    def hold_up(self, is_held_up: bool) -> None:
        """The shell says whether the client takes no bytes at the moment."""
        self._outbox.is_held_up = is_held_up

    def _finish(self, stream: Stream) -> None:
        """The answer is out. A body that is still coming is not wanted; the shell decides when to `reset` for it."""
        if stream.has_request_ended:
            self._close(stream)
        else:
            stream.is_closed = True
            self._inbox.linger(stream)

    def _close(self, stream: Stream) -> None:
        stream.is_closed = True
        stream.is_lingering = False
        stream.queue = bytearray()
        del self._streams[stream.id]
        self._outbox.note_progress(stream)
        self._inbox.forget(stream)

    def _remember(self, stream_id: int) -> None:
        self._remembered[stream_id] = None
        if len(self._remembered) > _MAX_REMEMBERED:
            del self._remembered[next(iter(self._remembered))]
