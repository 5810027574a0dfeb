"""Bodies that are read, that are not, and that nobody wanted: windows and credit."""

from __future__ import annotations

from hpack import Encoder

from poot.net.http.frames import ErrorCode
from poot.net.http.http2 import (
    MAX_CONCURRENT_STREAMS,
)
from poot.net.http.http2_events import (
    BodyArrived,
    RequestArrived,
    StreamEnded,
)
from poot.net.http.http2_inbox import BODY_WINDOW_BYTES, CONNECTION_WINDOW_BYTES, LINGER_BYTES
from tests.net import h2_frames as wire
from tests.net.h2_frames import post
from tests.net.http.script import Script, credit


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
