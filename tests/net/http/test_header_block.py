"""Header blocks: ours read by hpack, hpack's read by us, and what cannot be read."""

from __future__ import annotations

import pytest
from hpack import Encoder

from poot.net.http.frames import ErrorCode
from poot.net.http.http2_events import (
    RequestArrived,
)
from tests.net import h2_frames as wire
from tests.net.h2_frames import get
from tests.net.http.script import TEXT, Script


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


def test_an_expanding_header_block_ends_the_connection() -> None:
    script = Script()
    # One entry of 4,000 bytes, named by a byte each time (a bomb: 1,000 bytes make 4 MB).
    block = Encoder().encode(get(b"/", (b"x", b"v" * 3900))) + b"\xbe" * 1000
    script.feed(wire.header_block(1, block))
    script.assert_ended(ErrorCode.ENHANCE_YOUR_CALM)


@pytest.mark.parametrize(
    "block", [b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", b"\x80", b"\xfe", b"\x40", b"\x3f\xe2\x1f"]
)
def test_an_undecodable_header_block_ends_the_connection(block: bytes) -> None:
    script = Script()
    script.feed(wire.header_block(1, block))
    script.assert_ended(ErrorCode.COMPRESSION_ERROR)
