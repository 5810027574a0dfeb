"""Header blocks in one frame and in many."""

from __future__ import annotations

from hpack import Encoder

from poot.net.http import http2_limits
from poot.net.http.frames import ErrorCode
from poot.net.http.http2_events import (
    RequestArrived,
)
from tests.net import h2_frames as wire
from tests.net.h2_frames import get
from tests.net.http.script import Script


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


def test_the_time_of_an_incomplete_head_is_known() -> None:
    script = Script()
    script.now = 7.0
    script.feed(wire.raw(1, 1, 1, b"\x82"))
    script.now = 8.0
    script.feed(wire.raw(9, 0, 1, b"\x86"))
    assert script.http.block_began_at == 7.0
