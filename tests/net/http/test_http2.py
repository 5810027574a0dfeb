"""HTTP/2 as scripts of bytes in and events and bytes out: no sockets, whole and byte by byte."""

from __future__ import annotations

import pytest
from hpack import Encoder
from hyperframe.frame import PingFrame, SettingsFrame, WindowUpdateFrame

from poot.net.http.frames import ErrorCode
from poot.net.http.http2 import (
    MAX_CONCURRENT_STREAMS,
    MAX_HELD_STREAMS,
)
from poot.net.http.http2_events import (
    BodyArrived,
    DrainConfirmed,
    Http2Event,
    RequestArrived,
    StreamEnded,
)
from tests.net import h2_frames as wire
from tests.net.h2_frames import get, post
from tests.net.http.script import HELLO, MAX_WINDOW, TEXT, Script


def test_settings_say_what_the_client_may_do() -> None:
    frames = Script().reader.frames
    first, window = frames[0], frames[1]
    assert isinstance(first, SettingsFrame)
    # RFC 9113 section 6.5.2: 3 is MAX_CONCURRENT_STREAMS, 6 is MAX_HEADER_LIST_SIZE.
    assert first.settings == {3: 128, 6: 65536}
    assert isinstance(window, WindowUpdateFrame)
    assert (window.stream_id, window.window_increment) == (0, 8 * 1024 * 1024 - 65535)
    assert isinstance(frames[2], SettingsFrame)
    assert "ACK" in frames[2].flags


def test_a_request_arrives_and_is_answered(script: Script) -> None:
    events = script.feed(wire.headers(1, get(b"/a?b=c", (b"x-one", b"1"), (b"x-one", b"2"))))
    (event,) = events
    assert isinstance(event, RequestArrived)
    head = event.head
    assert (head.method, head.path, head.query, head.authority) == ("GET", "/a", "b=c", "poot:80")
    assert (head.http_version, head.headers) == ("2", ((b"x-one", b"1"), (b"x-one", b"2")))
    assert event.stream.has_request_ended
    script.http.answer(event.stream, 200, TEXT, b"hello")
    reader = script.read()
    assert reader.fields[1] == [(b":status", b"200"), *TEXT, (b"content-length", b"5")]
    assert (reader.bodies[1], reader.ended, reader.resets) == (b"hello", {1}, {})
    assert event.stream.is_closed


def test_a_body_arrives_in_pieces(script: Script) -> None:
    stream = script.open(post(10), ends=False)
    assert not stream.has_request_ended
    assert stream.expected_bytes == 10
    events = script.feed(wire.data(1, b"hello") + wire.data(1, b"world", ends=True))
    assert [type(event) for event in events] == [BodyArrived, BodyArrived]
    assert b"".join(script.http.take_body(stream)) == b"helloworld"
    assert script.http.take_body(stream) == []
    assert stream.has_request_ended


def test_trailers_end_the_body_and_are_ignored(script: Script) -> None:
    encoder = Encoder()
    (event,) = script.feed(wire.headers(1, post(5), ends=False, encoder=encoder))
    assert isinstance(event, RequestArrived)
    script.feed(wire.data(1, b"hello") + wire.headers(1, [(b"x-checksum", b"1")], encoder=encoder))
    assert script.http.take_body(event.stream) == [b"hello"]
    assert event.stream.has_request_ended
    assert event.head.get(b"x-checksum") is None


@pytest.mark.parametrize(
    ("trailer", "ends"),
    [
        ([(b"x", b"1")], False),
        ([(b":path", b"/")], True),
        ([(b"X", b"1")], True),
        ([(b"connection", b"close")], True),
    ],
)
def test_a_malformed_trailer_ends_the_stream(trailer: wire.Fields, ends: bool) -> None:
    script = Script()
    encoder = Encoder()
    script.feed(wire.headers(1, post(None), ends=False, encoder=encoder))
    (event,) = script.feed(wire.headers(1, trailer, ends=ends, encoder=encoder))
    assert isinstance(event, StreamEnded)
    assert script.read().resets == {1: ErrorCode.PROTOCOL_ERROR}
    script.assert_alive()


CONNECTION_FAULTS: dict[str, tuple[bytes, ErrorCode]] = {
    "no preface": (b"GET / HTTP/1.1\r\n", ErrorCode.PROTOCOL_ERROR),
    "other preface": (b"PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n", ErrorCode.PROTOCOL_ERROR),
    "no SETTINGS": (wire.PREFACE + wire.ping(), ErrorCode.PROTOCOL_ERROR),
    "only an ACK": (wire.PREFACE + wire.settings(ack=True), ErrorCode.PROTOCOL_ERROR),
    "frame too large": (HELLO + wire.raw(0, 0, 1, bytes(16385)), ErrorCode.FRAME_SIZE_ERROR),
    "unknown frame too large": (HELLO + wire.raw(99, 0, 0, bytes(16385)), ErrorCode.FRAME_SIZE_ERROR),
    "HEADERS on 0": (HELLO + wire.raw(1, 5, 0, b"\x82"), ErrorCode.PROTOCOL_ERROR),
    "HEADERS on 2": (HELLO + wire.headers(2, get()), ErrorCode.PROTOCOL_ERROR),
    "HEADERS too short": (HELLO + wire.raw(1, 0x25, 1, b"\x00"), ErrorCode.FRAME_SIZE_ERROR),
    "HEADERS all padding": (HELLO + wire.raw(1, 0xD, 1, b"\x02\x82"), ErrorCode.PROTOCOL_ERROR),
    "CONTINUATION alone": (HELLO + wire.raw(9, 4, 1, b""), ErrorCode.PROTOCOL_ERROR),
    "frame within a block": (HELLO + wire.raw(1, 1, 1, b"\x82") + wire.ping(), ErrorCode.PROTOCOL_ERROR),
    "other CONTINUATION": (HELLO + wire.raw(1, 1, 1, b"\x82") + wire.raw(9, 4, 3, b""), ErrorCode.PROTOCOL_ERROR),
    "DATA on 0": (HELLO + wire.raw(0, 0, 0, b"x"), ErrorCode.PROTOCOL_ERROR),
    "DATA on idle": (HELLO + wire.data(1, b"x"), ErrorCode.PROTOCOL_ERROR),
    "DATA all padding": (
        HELLO + wire.headers(1, post(9), ends=False) + wire.raw(0, 8, 1, b"\x01"),
        ErrorCode.PROTOCOL_ERROR,
    ),
    "RST_STREAM on 0": (HELLO + wire.raw(3, 0, 0, bytes(4)), ErrorCode.PROTOCOL_ERROR),
    "RST_STREAM on idle": (HELLO + wire.rst_stream(1), ErrorCode.PROTOCOL_ERROR),
    "RST_STREAM too long": (HELLO + wire.raw(3, 0, 1, bytes(5)), ErrorCode.FRAME_SIZE_ERROR),
    "WINDOW_UPDATE on idle": (HELLO + wire.window_update(1, 1), ErrorCode.PROTOCOL_ERROR),
    "WINDOW_UPDATE of 0": (HELLO + wire.raw(8, 0, 0, bytes(4)), ErrorCode.PROTOCOL_ERROR),
    "WINDOW_UPDATE too short": (HELLO + wire.raw(8, 0, 0, bytes(3)), ErrorCode.FRAME_SIZE_ERROR),
    "window overflow": (HELLO + wire.window_update(0, MAX_WINDOW), ErrorCode.FLOW_CONTROL_ERROR),
    "PING on 1": (HELLO + wire.raw(6, 0, 1, bytes(8)), ErrorCode.PROTOCOL_ERROR),
    "PING too short": (HELLO + wire.raw(6, 0, 0, bytes(7)), ErrorCode.FRAME_SIZE_ERROR),
    "SETTINGS on 1": (HELLO + wire.raw(4, 0, 1, b""), ErrorCode.PROTOCOL_ERROR),
    "SETTINGS odd": (HELLO + wire.raw(4, 0, 0, bytes(5)), ErrorCode.FRAME_SIZE_ERROR),
    "SETTINGS ACK with content": (HELLO + wire.raw(4, 1, 0, bytes(6)), ErrorCode.FRAME_SIZE_ERROR),
    "stream window overflow": (
        HELLO + wire.headers(1, get()) + wire.window_update(1, MAX_WINDOW - 65535) + wire.settings({4: 65536}),
        ErrorCode.FLOW_CONTROL_ERROR,
    ),
    "window too large": (HELLO + wire.settings({4: 2**31}), ErrorCode.FLOW_CONTROL_ERROR),
    "frame size too small": (HELLO + wire.settings({5: 16383}), ErrorCode.PROTOCOL_ERROR),
    "push neither": (HELLO + wire.settings({2: 2}), ErrorCode.PROTOCOL_ERROR),
    "PUSH_PROMISE": (HELLO + wire.raw(5, 4, 1, bytes(4)), ErrorCode.PROTOCOL_ERROR),
    "GOAWAY on 1": (HELLO + wire.raw(7, 0, 1, bytes(8)), ErrorCode.PROTOCOL_ERROR),
    "GOAWAY too short": (HELLO + wire.raw(7, 0, 0, bytes(7)), ErrorCode.PROTOCOL_ERROR),
    "PRIORITY on 0": (HELLO + wire.raw(2, 0, 0, bytes(5)), ErrorCode.PROTOCOL_ERROR),
}


@pytest.mark.parametrize("is_bytewise", [False, True])
@pytest.mark.parametrize(("sent", "error"), CONNECTION_FAULTS.values(), ids=CONNECTION_FAULTS.keys())
def test_a_connection_error_ends_the_connection(sent: bytes, error: ErrorCode, is_bytewise: bool) -> None:
    Script(opening=sent, is_bytewise=is_bytewise).assert_ended(error)


def test_frames_on_a_stream_both_sides_have_ended_are_a_connection_error() -> None:
    for late in (wire.data(1, b"x"), wire.headers(1, get())):
        script = Script()
        script.http.answer(script.open(get()), 200, (), b"")
        script.feed(late)
        script.assert_ended(ErrorCode.STREAM_CLOSED)


def test_late_window_updates_and_resets_are_ignored() -> None:
    script = Script()
    script.http.answer(script.open(get()), 200, (), b"")
    assert script.feed(wire.window_update(1, 5) + wire.rst_stream(1) + wire.raw(2, 0, 1, bytes(5))) == []
    script.assert_alive()


STREAM_FAULTS: dict[str, tuple[bytes, ErrorCode]] = {
    "more than Content-Length": (wire.data(1, b"123456"), ErrorCode.PROTOCOL_ERROR),
    "less than Content-Length": (wire.data(1, b"1234", ends=True), ErrorCode.PROTOCOL_ERROR),
    "nothing": (wire.data(1, b"", ends=True), ErrorCode.PROTOCOL_ERROR),
    "WINDOW_UPDATE of 0": (wire.raw(8, 0, 1, bytes(4)), ErrorCode.PROTOCOL_ERROR),
    "window overflow": (wire.window_update(1, MAX_WINDOW), ErrorCode.FLOW_CONTROL_ERROR),
    "PRIORITY too short": (wire.raw(2, 0, 1, bytes(4)), ErrorCode.FRAME_SIZE_ERROR),
    "DATA behind the end": (wire.data(1, b"12345", ends=True) + wire.data(1, b"x"), ErrorCode.STREAM_CLOSED),
    "trailers behind the end": (
        wire.data(1, b"12345", ends=True) + wire.header_block(1, b""),
        ErrorCode.STREAM_CLOSED,
    ),
}


@pytest.mark.parametrize(("sent", "error"), STREAM_FAULTS.values(), ids=STREAM_FAULTS.keys())
def test_a_stream_error_ends_its_stream_alone(script: Script, sent: bytes, error: ErrorCode) -> None:
    stream = script.open(post(5), ends=False)
    other = script.open(get(), stream_id=3)
    assert script.feed(sent)[-1] == StreamEnded(stream)
    assert stream.is_closed
    script.http.answer(stream, 200, (), b"too late")
    script.http.answer(other, 200, (), b"fine")
    reader = script.read()
    assert reader.resets == {1: error}
    assert reader.bodies == {3: b"fine"}
    # What was on the way when the client did not know yet.
    assert script.feed(wire.data(1, b"x") + wire.headers(1, [])) == []
    script.assert_alive()


def test_a_reset_ends_the_stream_and_drops_what_was_queued(script: Script) -> None:
    stream = script.open(get())
    script.http.begin_answer(stream, 200, TEXT)
    script.http.queue(stream, b"never sent")
    assert script.feed(wire.rst_stream(1)) == [StreamEnded(stream)]
    assert script.http.num_open_streams == 0
    assert 1 not in script.read().bodies
    assert script.reader.resets == {}


def test_goaway_from_the_client_leaves_its_streams_alone(script: Script) -> None:
    stream = script.open(get())
    assert script.feed(wire.goaway()) == []
    script.http.answer(stream, 200, (), b"still here")
    assert script.read().bodies[1] == b"still here"


def test_unknown_frames_settings_and_priority_are_ignored(script: Script) -> None:
    script.feed(wire.raw(0xBE, 0xFF, 7, b"grease") + wire.settings({0x9A9A: 1, 8: 1}) + wire.raw(2, 0, 5, bytes(5)))
    script.assert_alive()
    assert script.events == []


def test_a_stream_over_the_limit_is_refused_and_may_be_tried_again() -> None:
    script = Script()
    encoder = Encoder()

    def ask(number: int) -> list[Http2Event]:
        return script.feed(wire.headers(2 * number + 1, post(None), ends=False, encoder=encoder))

    streams = []
    for number in range(MAX_CONCURRENT_STREAMS):
        (event,) = ask(number)
        assert isinstance(event, RequestArrived)
        streams.append(event.stream)
    refused = 2 * MAX_CONCURRENT_STREAMS + 1
    assert ask(MAX_CONCURRENT_STREAMS) == []
    assert script.read().resets == {refused: ErrorCode.REFUSED_STREAM}
    assert script.feed(wire.data(refused, b"on the way")) == []
    script.http.reset(streams[0], ErrorCode.NO_ERROR)
    script.http.release(streams[0])
    (event,) = ask(MAX_CONCURRENT_STREAMS + 1)
    assert isinstance(event, RequestArrived)


def test_resets_do_not_get_around_the_stream_limit() -> None:
    script = Script()
    encoder = Encoder()
    for number in range(MAX_HELD_STREAMS):
        events = script.feed(wire.headers(2 * number + 1, get(), encoder=encoder) + wire.rst_stream(2 * number + 1))
        assert [type(event) for event in events] == [RequestArrived, StreamEnded]
    next_id = 2 * MAX_HELD_STREAMS + 1
    assert script.feed(wire.headers(next_id, get(), encoder=encoder)) == []
    assert script.read().resets[next_id] == ErrorCode.REFUSED_STREAM
    arrived = script.events[0]
    assert isinstance(arrived, RequestArrived)
    script.http.release(arrived.stream)
    assert len(script.feed(wire.headers(next_id + 2, get(), encoder=encoder))) == 1


def test_continue_is_sent_once_and_only_for_a_body_that_is_wanted() -> None:
    script = Script()
    wanted = script.open(post(5, (b"expect", b"100-continue")), ends=False)
    unwanted = script.open(post(5, (b"expect", b"100-continue")), stream_id=3, ends=False)
    script.http.open_body(wanted)
    script.http.open_body(wanted)
    assert script.read().fields == {1: [(b":status", b"100")]}
    assert sum(frame.stream_id == 1 for frame in script.reader.frames) == 1
    script.feed(wire.data(1, b"hello", ends=True))
    script.http.answer(wanted, 200, (), b"")
    script.http.answer(unwanted, 413, (), b"")
    assert (script.read().status(1), script.reader.status(3)) == (200, 413)


def test_a_body_that_came_unasked_gets_no_continue() -> None:
    script = Script()
    stream = script.open(post(5, (b"expect", b"100-continue")), ends=False)
    script.feed(wire.data(1, b"he"))
    script.http.open_body(stream)
    assert script.read().fields == {}


def test_head_gets_fields_and_no_body() -> None:
    script = Script()
    for stream_id in (1, 3):
        (event,) = script.feed(wire.headers(stream_id, [(b":method", b"HEAD"), *get()[1:]]))
        assert isinstance(event, RequestArrived)
        if stream_id == 1:
            script.http.answer(event.stream, 200, TEXT, b"hello")
        else:
            script.http.begin_answer(event.stream, 200, TEXT)
            script.http.queue(event.stream, b"hello")
            script.http.end(event.stream)
    reader = script.read()
    assert dict(reader.fields[1])[b"content-length"] == b"5"
    assert b"".join(reader.bodies.values()) == b""
    assert reader.ended == {1, 3}


def test_release_resets_what_was_not_answered() -> None:
    script = Script()
    stream = script.open(get())
    script.http.begin_answer(stream, 200, TEXT)
    script.http.release(stream)
    assert script.read().resets == {1: ErrorCode.INTERNAL_ERROR}


def test_a_drain_says_goaway_twice_and_serves_what_is_on_its_way(script: Script) -> None:
    first = script.open(get())
    script.http.begin_drain()
    pings = [frame for frame in script.read().frames if isinstance(frame, PingFrame)]
    assert script.reader.goaways == [(MAX_WINDOW, ErrorCode.NO_ERROR, b"")]
    on_its_way = script.open(get(), stream_id=3)
    script.feed(wire.ping(b"anything", ack=True))
    assert len(script.reader.goaways) == 1
    assert script.feed(wire.ping(pings[-1].opaque_data, ack=True)) == [DrainConfirmed()]
    assert script.read().goaways[1] == (3, ErrorCode.NO_ERROR, b"")
    assert script.feed(wire.headers(5, post(4), ends=False) + wire.data(5, b"late")) == []
    for stream in (first, on_its_way):
        script.http.answer(stream, 200, TEXT, b"done")
    assert script.read().bodies == {1: b"done", 3: b"done"}
    assert script.reader.resets == {}
    assert script.http.num_open_streams == 0


def test_a_confirmation_of_no_drain_is_nothing() -> None:
    script = Script()
    assert script.feed(wire.ping(b"draining", ack=True)) == []
    script.open(get())


def test_a_drain_goes_on_without_a_confirmation() -> None:
    script = Script()
    script.http.begin_drain()
    script.http.finish_drain()
    script.http.finish_drain()
    script.http.begin_drain()
    assert [last for last, _, _ in script.read().goaways] == [MAX_WINDOW, 0]
