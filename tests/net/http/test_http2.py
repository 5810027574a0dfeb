"""HTTP/2 as scripts of bytes in and events and bytes out: no sockets, whole and byte by byte."""

from __future__ import annotations

from collections.abc import Callable

import h2.errors
import pytest
from h2.settings import SettingCodes
from hpack import Encoder
from hyperframe.frame import DataFrame, PingFrame, SettingsFrame, WindowUpdateFrame

from poot.errors import BadRequest, HeadersTooLarge
from poot.net.http import http2_limits
from poot.net.http.frames import ErrorCode, Setting
from poot.net.http.http2 import (
    MAX_CONCURRENT_STREAMS,
    MAX_HELD_STREAMS,
    MAX_REPLY_BYTES,
    Http2,
)
from poot.net.http.http2_events import (
    BodyArrived,
    ConnectionEnded,
    DrainConfirmed,
    Http2Event,
    RequestArrived,
    RequestRefused,
    StreamEnded,
)
from poot.net.http.http2_inbox import BODY_WINDOW_BYTES, CONNECTION_WINDOW_BYTES, LINGER_BYTES
from poot.net.http.http2_limits import WINDOW_SECONDS, Abuse
from poot.net.http.http2_stream import Stream
from tests.net import h2_frames as wire
from tests.net.h2_frames import AnswerReader, get, post

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


@pytest.fixture(params=["whole", "bytewise"])
def script(request: pytest.FixtureRequest) -> Script:
    return Script(is_bytewise=request.param == "bytewise")


def test_names_and_numbers_are_those_of_h2() -> None:
    assert {code.name: code.value for code in ErrorCode} == {code.name: code.value for code in h2.errors.ErrorCodes}
    for setting in Setting:
        assert int(SettingCodes[setting.name]) == int(setting)


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


@pytest.mark.parametrize("status", [200, 204, 304, 400, 404, 408, 421, 429, 500, 503])
def test_every_status_is_read_by_hpack(status: int) -> None:
    script = Script()
    long_value = b"v" * 300
    stream = script.open(get())
    script.http.answer(stream, status, ((b"X-Long-Name" * 20, long_value), (b"retry-after", b"1")), b"")
    fields = dict(script.read().fields[1])
    assert fields == {
        b":status": b"%d" % status,
        b"x-long-name" * 20: long_value,
        b"retry-after": b"1",
        b"content-length": b"0",
    }
    assert script.reader.ended == {1}


def test_answers_are_read_after_the_client_forbids_tables() -> None:
    # h2's clients, for one, insist on a table size update when they have lowered the size (RFC 7541 section 4.2).
    script = Script(opening=wire.PREFACE + wire.settings({1: 0}))
    script.reader._decoder.max_allowed_table_size = 0
    for stream_id in (1, 3):
        script.http.answer(script.open(get(), stream_id=stream_id), 200, TEXT, b"x")
    assert script.read().bodies == {1: b"x", 3: b"x"}


@pytest.mark.parametrize(
    "field",
    [
        (b"connection", b"close"),
        (b"transfer-encoding", b"chunked"),
        (b"x", b"a\r\nb"),
        (b"x", b"a\nb"),
        (b"x", b"\x00"),
        (b"x", b" a"),
        (b"", b"a"),
        (b"a b", b"a"),
        (b":status", b"200"),
    ],
)
def test_a_malformed_answer_is_our_error_and_changes_nothing(field: tuple[bytes, bytes]) -> None:
    script = Script()
    stream = script.open(get())
    with pytest.raises(ValueError, match="a field of an answer"):
        script.http.answer(stream, 200, (field,), b"x")
    with pytest.raises(ValueError, match="a field of an answer"):
        script.http.begin_answer(stream, 200, (field,))
    script.http.answer(stream, 200, TEXT, b"x")
    assert script.read().bodies[1] == b"x"


def test_repeated_heads_mean_what_they_meant() -> None:
    script = Script()
    encoder = Encoder()
    seen = []
    paths = [b"/a", b"/a", b"/a", b"/b", b"/b", b"/a", b"/a"]
    for number, path in enumerate(paths):
        (event,) = script.feed(wire.headers(2 * number + 1, get(path, (b"x", b"y")), encoder=encoder))
        assert isinstance(event, RequestArrived)
        seen.append(event.head.path.encode())
    assert seen == paths
    # New entries move what the same bytes name: the block of "/a" again, after "/c" entered the table.
    script.feed(wire.headers(21, get(b"/c", (b"z", b"z")), encoder=encoder))
    (event,) = script.feed(wire.headers(23, get(b"/a", (b"x", b"y")), encoder=encoder))
    assert isinstance(event, RequestArrived)
    assert (event.head.path, event.head.headers) == ("/a", ((b"x", b"y"),))


def test_a_body_arrives_in_pieces(script: Script) -> None:
    stream = script.open(post(10), ends=False)
    assert not stream.has_request_ended
    assert stream.expected_bytes == 10
    events = script.feed(wire.data(1, b"hello") + wire.data(1, b"world", ends=True))
    assert [type(event) for event in events] == [BodyArrived, BodyArrived]
    assert b"".join(script.http.take_body(stream)) == b"helloworld"
    assert script.http.take_body(stream) == []
    assert stream.has_request_ended


def test_a_head_in_many_continuations_is_one_head(script: Script) -> None:
    fields = get(b"/", *((b"x-%d" % number, b"v" * 100) for number in range(20)))
    (event,) = script.feed(wire.headers(1, fields, pieces=20))
    assert isinstance(event, RequestArrived)
    assert list(event.head.headers) == fields[4:]
    assert script.http.block_began_at is None


def test_a_head_with_padding_and_priority_is_read(script: Script) -> None:
    block = Encoder().encode(get(b"/padded"))
    payload = b"\x05" + (3).to_bytes(4, "big") + b"\x10" + block + bytes(5)
    (event,) = script.feed(wire.raw(1, 0x1 | 0x4 | 0x8 | 0x20, 1, payload))
    assert isinstance(event, RequestArrived)
    assert event.head.path == "/padded"


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


def without(name: bytes) -> list[tuple[bytes, bytes]]:
    return [field for field in get() if field[0] != name]


MALFORMED: dict[str, list[tuple[bytes, bytes]]] = {
    "no method": without(b":method"),
    "no scheme": without(b":scheme"),
    "no path": without(b":path"),
    "empty path": [*without(b":path"), (b":path", b"")],
    "absolute path": [*without(b":path"), (b":path", b"http://poot/")],
    "path with space": [*without(b":path"), (b":path", b"/a b")],
    "path with fragment": [*without(b":path"), (b":path", b"/a#b")],
    "relative path": [*without(b":path"), (b":path", b"a")],
    "star for GET": [*without(b":path"), (b":path", b"*")],
    "method no token": [*without(b":method"), (b":method", b"G T")],
    "CONNECT": [(b":method", b"CONNECT"), (b":authority", b"poot:80")],
    "other scheme": [*without(b":scheme"), (b":scheme", b"ftp")],
    "twice": [*get(), (b":path", b"/")],
    "unknown": [*get(), (b":protocol", b"websocket")],
    "status": [*get(), (b":status", b"200")],
    "pseudo behind regular": [*without(b":path"), (b"x", b"y"), (b":path", b"/")],
    "upper case": get(b"/", (b"X-Upper", b"1")),
    "space in name": get(b"/", (b"x y", b"1")),
    "empty name": get(b"/", (b"", b"1")),
    "colon in name": get(b"/", (b"x:y", b"1")),
    "LF in value": get(b"/", (b"x", b"a\nb")),
    "CR in value": get(b"/", (b"x", b"a\rb")),
    "NUL in value": get(b"/", (b"x", b"a\x00b")),
    "DEL in value": get(b"/", (b"x", b"a\x7fb")),
    "leading space": get(b"/", (b"x", b" a")),
    "trailing tab": get(b"/", (b"x", b"a\t")),
    "connection": get(b"/", (b"connection", b"close")),
    "keep-alive": get(b"/", (b"keep-alive", b"1")),
    "proxy-connection": get(b"/", (b"proxy-connection", b"close")),
    "transfer-encoding": get(b"/", (b"transfer-encoding", b"chunked")),
    "upgrade": get(b"/", (b"upgrade", b"h2c")),
    "te": get(b"/", (b"te", b"gzip")),
    "two hosts": get(b"/", (b"host", b"poot:80"), (b"host", b"poot:80")),
    "other host": get(b"/", (b"host", b"other")),
    "authority with user": [*without(b":authority"), (b":authority", b"me@poot")],
    "host no host": [*without(b":authority"), (b"host", b"a/b")],
    "length without body": post(5),
}


@pytest.mark.parametrize("fields", MALFORMED.values(), ids=MALFORMED.keys())
def test_a_malformed_request_is_refused_on_its_stream(fields: wire.Fields) -> None:
    script = Script()
    (event,) = script.feed(wire.headers(1, fields))
    assert isinstance(event, RequestRefused)
    assert type(event.error) is BadRequest
    script.http.answer(event.stream, 400, (), b"no")
    assert script.read().bodies == {1: b"no"}
    script.open(get(), stream_id=3)


@pytest.mark.parametrize(
    ("fields", "authority"),
    [
        (get(b"/", (b"host", b"poot:80")), "poot:80"),
        ([*without(b":authority"), (b"host", b"other:1")], "other:1"),
        (without(b":authority"), None),
        (get(b"/", (b"te", b"trailers")), "poot:80"),
    ],
)
def test_authority_is_what_was_asked_for(fields: wire.Fields, authority: str | None) -> None:
    (event,) = Script().feed(wire.headers(1, fields))
    assert isinstance(event, RequestArrived)
    assert event.head.authority == authority


def test_a_header_list_over_the_cap_is_431() -> None:
    # RFC 9113 section 6.5.2: a field counts its name, its value and 32.
    def padded(total: int) -> wire.Fields:
        base = sum(len(name) + len(value) + 32 for name, value in get())
        return get(b"/", (b"x", b"v" * (total - base - 33)))

    script = Script()
    encoder = Encoder()
    (at_cap,) = script.feed(wire.headers(1, padded(65536), encoder=encoder, pieces=8))
    assert isinstance(at_cap, RequestArrived)
    (over,) = script.feed(wire.headers(3, padded(65537), encoder=encoder, pieces=8))
    assert isinstance(over, RequestRefused)
    assert type(over.error) is HeadersTooLarge
    script.http.answer(over.stream, 431, (), b"no")
    assert script.read().status(3) == 431
    script.assert_alive()


def test_an_expanding_header_block_ends_the_connection() -> None:
    script = Script()
    # One entry of 4,000 bytes, named by a byte each time (a bomb: 1,000 bytes make 4 MB).
    block = Encoder().encode(get(b"/", (b"x", b"v" * 3900))) + b"\xbe" * 1000
    script.feed(wire.header_block(1, block))
    script.assert_ended(ErrorCode.ENHANCE_YOUR_CALM)


def test_an_oversized_header_block_ends_the_connection_before_it_is_complete() -> None:
    script = Script()
    script.feed(wire.raw(1, 0, 1, bytes(16384)))
    for _ in range(8):
        script.feed(wire.raw(9, 0, 1, bytes(16384)))
    script.assert_ended(ErrorCode.ENHANCE_YOUR_CALM)


def test_endless_continuations_end_the_connection() -> None:
    script = Script()
    script.feed(wire.raw(1, 0, 1, b"\x82"))
    for _ in range(http2_limits.MAX_CONTINUATIONS):
        assert script.feed(wire.raw(9, 0, 1, b"\x86")) == []
    script.feed(wire.raw(9, 0, 1, b"\x86"))
    script.assert_ended(ErrorCode.ENHANCE_YOUR_CALM)


@pytest.mark.parametrize(
    "block", [b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", b"\x80", b"\xfe", b"\x40", b"\x3f\xe2\x1f"]
)
def test_an_undecodable_header_block_ends_the_connection(block: bytes) -> None:
    script = Script()
    script.feed(wire.header_block(1, block))
    script.assert_ended(ErrorCode.COMPRESSION_ERROR)


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


# -- streams over the limit -------------------------------------------------------------------------------------------


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


# -- counted limits ---------------------------------------------------------------------------------------------------


def resets(script: Script) -> Callable[[int], bytes]:
    encoder = Encoder()

    def frame(number: int) -> bytes:
        for event in script.events:
            if isinstance(event, RequestArrived):
                script.http.release(event.stream)
        script.events.clear()
        return wire.headers(2 * number + 1, get(), encoder=encoder) + wire.rst_stream(2 * number + 1)

    return frame


def faults(script: Script) -> Callable[[int], bytes]:
    """Streams on which the client makes us send the reset (CVE-2025-8671)."""
    rapid = resets(script)

    def frame(number: int) -> bytes:
        return rapid(number)[: -len(wire.rst_stream(1))] + wire.data(2 * number + 1, b"behind the end")

    return frame


def late_resets(script: Script) -> Callable[[int], bytes]:
    script.open(get())
    return lambda number: wire.rst_stream(1)


def over_limit(script: Script) -> Callable[[int], bytes]:
    encoder = Encoder()
    for number in range(MAX_CONCURRENT_STREAMS):
        script.feed(wire.headers(2 * number + 1, get(), encoder=encoder))
    first = 2 * MAX_CONCURRENT_STREAMS + 1
    return lambda number: wire.headers(first + 2 * number, get(), encoder=encoder)


def empty_data(script: Script) -> Callable[[int], bytes]:
    script.open(post(5), ends=False)
    return lambda number: wire.data(1, b"", padding=number % 200 if number % 2 else None)


def window_updates(script: Script) -> Callable[[int], bytes]:
    return lambda number: wire.window_update(0, 1)


ATTACKS: dict[str, tuple[Callable[[Script], Callable[[int], bytes]], Abuse]] = {
    "rapid reset": (resets, Abuse.RESET),
    "made to reset": (faults, Abuse.RESET),
    "late resets": (late_resets, Abuse.RESET),
    "streams over the limit": (over_limit, Abuse.REFUSED),
    "PING": (lambda script: lambda number: wire.ping(), Abuse.PING),
    "SETTINGS": (lambda script: lambda number: wire.settings({4: 65535}), Abuse.SETTINGS),
    "empty DATA": (empty_data, Abuse.EMPTY),
    "WINDOW_UPDATE": (window_updates, Abuse.WINDOW_UPDATE),
    "SETTINGS ACK": (lambda script: lambda number: wire.settings(ack=True), Abuse.SETTINGS),
    "GOAWAY": (lambda script: lambda number: wire.goaway(), Abuse.UNKNOWN),
    "PRIORITY": (lambda script: lambda number: wire.raw(2, 0, 1, bytes(5)), Abuse.PRIORITY),
    "unknown frames": (lambda script: lambda number: wire.raw(0xAA, 0, 0, b""), Abuse.UNKNOWN),
}


@pytest.mark.parametrize(("attack", "abuse"), ATTACKS.values(), ids=ATTACKS.keys())
def test_spending_a_budget_ends_the_connection(
    attack: Callable[[Script], Callable[[int], bytes]], abuse: Abuse
) -> None:
    script = Script()
    frame = attack(script)
    number = 0
    while not (script.events and isinstance(script.events[-1], ConnectionEnded)):
        script.feed(frame(number))
        script.read()
        number += 1
        assert number <= abuse.budget + 1, "nothing stops it"
    # SETTINGS of the opening count too; late resets are one stream's.
    assert number >= abuse.budget
    script.assert_ended(ErrorCode.ENHANCE_YOUR_CALM)
    ended = script.events[-1]
    assert isinstance(ended, ConnectionEnded)
    assert abuse.label in ended.reason


@pytest.mark.parametrize(("attack", "abuse"), ATTACKS.values(), ids=ATTACKS.keys())
def test_a_budget_comes_back(attack: Callable[[Script], Callable[[int], bytes]], abuse: Abuse) -> None:
    script = Script()
    frame = attack(script)
    number = 0
    for _ in range(3):
        for _ in range(abuse.budget - 1):
            script.feed(frame(number))
            script.read()
            number += 1
        script.now += WINDOW_SECONDS
    script.assert_alive()


def test_readers_may_open_windows_as_often_as_they_are_sent_data() -> None:
    script = Script()
    stream = script.open(get())
    script.http.begin_answer(stream, 200, TEXT)
    for _ in range(2000):
        script.http.queue(stream, b"token")
        script.read()
        script.feed(wire.window_update(0, 5) + wire.window_update(1, 5))
    script.assert_alive()


def test_replies_that_nobody_reads_end_the_connection() -> None:
    script = Script()
    for number in range(MAX_REPLY_BYTES // 17 + 2):
        script.now = number
        script.feed(wire.ping())
    script.assert_ended(ErrorCode.ENHANCE_YOUR_CALM)


# -- flow control of bodies -------------------------------------------------------------------------------------------


def credit(script: Script, stream_id: int) -> int:
    return sum(
        frame.window_increment
        for frame in script.read().frames
        if isinstance(frame, WindowUpdateFrame) and frame.stream_id == stream_id
    )


def test_a_body_nobody_reads_is_bounded_by_its_window() -> None:
    script = Script()
    stream = script.open(post(None), ends=False)
    for _ in range(3):
        script.feed(wire.data(1, bytes(16384)))
    assert credit(script, 1) == 0
    script.feed(wire.data(1, bytes(16383)))
    assert script.feed(wire.data(1, b"x")) == [StreamEnded(stream)]
    assert script.read().resets == {1: ErrorCode.FLOW_CONTROL_ERROR}


def test_the_connection_window_is_enforced() -> None:
    script = Script()
    encoder = Encoder()
    sent = 0
    for number in range(MAX_CONCURRENT_STREAMS):
        stream_id = 2 * number + 1
        script.feed(wire.headers(stream_id, post(None), ends=False, encoder=encoder))
        for size in (16384, 16384, 16384, 16383):
            assert [type(event) for event in script.feed(wire.data(stream_id, bytes(size)))] == [BodyArrived]
            sent += size
    assert sent <= CONNECTION_WINDOW_BYTES, "all initial windows together fit the connection's"
    script.feed(wire.data(1, bytes(CONNECTION_WINDOW_BYTES - sent + 1)))
    script.assert_ended(ErrorCode.FLOW_CONTROL_ERROR)


def test_credit_comes_back_as_the_body_is_read() -> None:
    script = Script()
    stream = script.open(post(None), ends=False)
    script.http.open_body(stream)
    assert credit(script, 1) == BODY_WINDOW_BYTES - 65535
    total = 0
    while total < 3 * CONNECTION_WINDOW_BYTES:
        script.feed(wire.data(1, bytes(16384)))
        total += sum(map(len, script.http.take_body(stream)))
        script.read()
    assert 65535 + credit(script, 1) - total >= BODY_WINDOW_BYTES // 2
    assert 65535 + credit(script, 0) - total >= CONNECTION_WINDOW_BYTES // 2 - 16384
    script.assert_alive()


def test_a_body_that_fits_its_window_takes_no_updates() -> None:
    script = Script()
    stream = script.open(post(60000), ends=False)
    script.http.open_body(stream)
    for size in (16384, 16384, 16384):
        script.feed(wire.data(1, bytes(size)))
        script.http.take_body(stream)
    assert credit(script, 1) == 0


def test_a_long_body_gets_a_window_of_its_length() -> None:
    script = Script()
    stream = script.open(post(100_000), ends=False)
    script.http.open_body(stream)
    script.http.open_body(stream)
    assert credit(script, 1) == 100_000 - 65535


def test_padding_counts_and_is_given_back() -> None:
    script = Script()
    stream = script.open(post(1000), ends=False)
    script.http.open_body(stream)
    window = 65535
    for _ in range(1000):
        script.feed(wire.data(1, b"x", padding=255))
        window -= 257
        assert window + credit(script, 1) >= 0
        script.http.take_body(stream)
    assert not stream.is_closed
    assert window + credit(script, 1) > 0, "padding has eaten the window"


def test_unread_bodies_of_ended_streams_are_given_back() -> None:
    script = Script()
    encoder = Encoder()
    for number in range(400):
        stream_id = 2 * number + 1
        (event,) = script.feed(wire.headers(stream_id, post(None), ends=False, encoder=encoder))
        assert isinstance(event, RequestArrived)
        script.feed(wire.data(stream_id, bytes(16384)) + wire.data(stream_id, bytes(16384)))
        if number % 2:
            script.feed(wire.rst_stream(stream_id))
        else:
            script.http.answer(event.stream, 413, (), b"no")
            script.http.reset(event.stream, ErrorCode.NO_ERROR)
        script.http.release(event.stream)
        script.feed(wire.data(stream_id, bytes(16384)))  # on the way
    assert script.read().goaways == []
    assert 65535 + credit(script, 0) - 400 * 3 * 16384 >= CONNECTION_WINDOW_BYTES // 2


def test_an_unread_body_does_not_keep_others_from_getting_credit() -> None:
    script = Script()
    encoder = Encoder()
    for number in range(100):
        script.feed(wire.headers(2 * number + 1, post(None), ends=False, encoder=encoder))
        for size in (16384, 16384, 16384, 16383):
            script.feed(wire.data(2 * number + 1, bytes(size)))
    (event,) = script.feed(wire.headers(301, post(None), ends=False, encoder=encoder))
    assert isinstance(event, RequestArrived)
    script.http.open_body(event.stream)
    sent = 100 * 65535
    for _ in range(1000):
        assert 65535 + credit(script, 0) >= sent + 16384, "no window left for the body that is read"
        script.feed(wire.data(301, bytes(16384)))
        sent += 16384
        script.http.take_body(event.stream)


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


# -- answers ----------------------------------------------------------------------------------------------------------


def test_behind_an_answer_that_did_not_want_it_a_body_is_thrown_away() -> None:
    script = Script()
    stream = script.open(post(200_000), ends=False)
    script.feed(wire.data(1, bytes(16384)))
    script.http.answer(stream, 413, (), b"no")
    assert (script.read().bodies, script.reader.ended, script.reader.resets) == ({1: b"no"}, {1}, {})
    assert (stream.is_closed, stream.is_lingering, script.http.num_open_streams) == (True, True, 1)
    script.http.release(stream)
    sent = 16384
    while sent + 16384 < 200_000:
        assert 65535 + credit(script, 1) >= sent + 16384, "the client cannot go on"
        assert script.feed(wire.data(1, bytes(16384))) == []
        sent += 16384
    assert script.feed(wire.data(1, bytes(200_000 - sent), ends=True)) == []
    assert (script.http.num_open_streams, stream.is_lingering) == (0, False)
    assert script.read().resets == {}
    script.assert_alive()


def test_trailers_end_a_body_that_is_thrown_away() -> None:
    script = Script()
    encoder = Encoder()
    (event,) = script.feed(wire.headers(1, post(None), ends=False, encoder=encoder))
    assert isinstance(event, RequestArrived)
    script.http.answer(event.stream, 413, (), b"no")
    assert script.feed(wire.headers(1, [(b"x", b"y")], encoder=encoder)) == []
    assert script.http.num_open_streams == 0


def test_patience_with_an_unwanted_body_ends_with_a_reset_without_error() -> None:
    for give_up in ("bytes", "shell"):
        script = Script()
        stream = script.open(post(None), ends=False)
        script.http.answer(stream, 413, (), b"no")
        if give_up == "shell":
            script.http.reset(stream, ErrorCode.NO_ERROR)
        for _ in range(LINGER_BYTES // 16384):
            script.feed(wire.data(1, bytes(16384)))
        reader = script.read()
        assert (reader.bodies, reader.ended, reader.resets) == ({1: b"no"}, {1}, {1: ErrorCode.NO_ERROR})
        assert script.feed(wire.data(1, b"on the way")) == []
        script.assert_alive()


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


def test_tiny_windows_are_kept_to() -> None:
    script = Script(opening=wire.PREFACE + wire.settings({4: 3}))
    stream = script.open(get())
    script.http.answer(stream, 200, TEXT, b"0123456789")
    sizes = []
    while not stream.is_closed:
        before = len(script.reader.bodies.get(1, b""))
        script.read()
        sizes.append(len(script.reader.bodies[1]) - before)
        assert not script.http.has_output
        script.feed(wire.window_update(1, 2))
    assert script.reader.bodies[1] == b"0123456789"
    assert sizes == [3, 2, 2, 2, 1]


def test_a_window_made_smaller_may_go_negative() -> None:
    script = Script(opening=wire.PREFACE + wire.settings({4: 10}))
    stream = script.open(get())
    script.http.answer(stream, 200, TEXT, bytes(30))
    assert len(script.read().bodies[1]) == 10
    script.feed(wire.settings({4: 5}))
    assert stream.send_window == -5
    script.feed(wire.window_update(1, 5))
    assert len(script.read().bodies[1]) == 10
    script.feed(wire.window_update(1, 1))
    assert len(script.read().bodies[1]) == 11
    script.feed(wire.settings({4: 100}))
    assert len(script.read().bodies[1]) == 30


def test_a_stalled_stream_holds_up_no_other() -> None:
    script = Script(opening=wire.PREFACE + wire.settings({4: 0}))
    stalled = script.open(get())
    running = script.open(get(), stream_id=3)
    script.feed(wire.window_update(3, 1000))
    for stream in (stalled, running):
        script.http.answer(stream, 200, TEXT, bytes(1000))
    assert {stream_id: len(body) for stream_id, body in script.read().bodies.items()} == {3: 1000}


def test_the_end_of_an_answer_needs_no_window() -> None:
    script = Script(opening=wire.PREFACE + wire.settings({4: 3}))
    stream = script.open(get())
    script.http.begin_answer(stream, 200, TEXT)
    script.http.queue(stream, b"abc")
    script.read()
    script.http.end(stream)
    assert script.read().ended == {1}


def test_the_connection_window_stops_all_and_opens_for_all() -> None:
    script = Script(opening=wire.PREFACE + wire.settings({4: MAX_WINDOW}))
    streams = [script.open(get(), stream_id=stream_id) for stream_id in (1, 3)]
    for stream in streams:
        script.http.answer(stream, 200, TEXT, bytes(60_000))
    assert sum(map(len, script.read().bodies.values())) == 65535
    assert not script.http.has_output
    script.feed(wire.window_update(0, 120_000 - 65535))
    assert [len(script.read().bodies[stream_id]) for stream_id in (1, 3)] == [60_000, 60_000]


def test_streams_take_turns_a_frame_each() -> None:
    script = Script(opening=wire.PREFACE + wire.settings({4: MAX_WINDOW, 5: 2**24 - 1}) + wire.window_update(0, 2**30))
    streams = [script.open(get(), stream_id=2 * number + 1) for number in range(4)]
    for stream in streams:
        script.http.begin_answer(stream, 200, TEXT)
        script.http.queue(stream, bytes(100_000))
    frames = [frame for frame in script.read().frames if isinstance(frame, DataFrame)]
    assert max(len(frame.data) for frame in frames) == 16384
    for turn in range(6):
        assert [frame.stream_id for frame in frames[4 * turn : 4 * turn + 4]] == [1, 3, 5, 7]


def test_pieces_of_one_turn_share_a_frame() -> None:
    script = Script()
    stream = script.open(get())
    script.http.begin_answer(stream, 200, TEXT)
    assert [script.http.queue(stream, b"one,"), script.http.queue(stream, b"two")] == [False, True]
    script.http.hold_up(True)
    assert not script.http.queue(stream, b",three"), "bytes behind others that do not leave have their own deadline"
    frames = [frame for frame in script.read().frames if isinstance(frame, DataFrame)]
    assert [frame.data for frame in frames] == [b"one,two,three"]


def test_watched_streams_are_named_when_they_get_on() -> None:
    script = Script(opening=wire.PREFACE + wire.settings({4: 3}))
    stream = script.open(get())
    stream.is_watched = True
    script.http.answer(stream, 200, TEXT, b"abcdef")
    assert script.http.take_progressed() == []
    script.read()
    assert script.http.take_progressed() == [stream]
    assert (stream.num_queued, stream.num_sent) == (6, 3)
    script.feed(wire.rst_stream(1))
    assert script.http.take_progressed() == [stream]


# -- the end of a connection ------------------------------------------------------------------------------------------


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


def test_many_window_changes_in_one_frame_are_one() -> None:
    script = Script()
    encoder = Encoder()
    streams = []
    for number in range(MAX_CONCURRENT_STREAMS):
        (event,) = script.feed(wire.headers(2 * number + 1, get(), encoder=encoder))
        assert isinstance(event, RequestArrived)
        streams.append(event.stream)
    changes = b"".join(b"\x00\x04" + (number % 3).to_bytes(4, "big") for number in range(2730))
    script.feed(wire.raw(4, 0, 0, changes))
    assert {stream.send_window for stream in streams} == {2729 % 3}


def test_a_drain_goes_on_without_a_confirmation() -> None:
    script = Script()
    script.http.begin_drain()
    script.http.finish_drain()
    script.http.finish_drain()
    script.http.begin_drain()
    assert [last for last, _, _ in script.read().goaways] == [MAX_WINDOW, 0]


def test_the_time_of_an_incomplete_head_is_known() -> None:
    script = Script()
    script.now = 7.0
    script.feed(wire.raw(1, 1, 1, b"\x82"))
    script.now = 8.0
    script.feed(wire.raw(9, 0, 1, b"\x86"))
    assert script.http.block_began_at == 7.0
