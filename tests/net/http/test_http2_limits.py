"""Every budget with the attack it is there for, and with a client that only needs a lot."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hpack import Encoder

from poot.net.http.frames import ErrorCode
from poot.net.http.http2 import (
    MAX_CONCURRENT_STREAMS,
    MAX_REPLY_BYTES,
)
from poot.net.http.http2_events import (
    ConnectionEnded,
    RequestArrived,
)
from poot.net.http.http2_limits import WINDOW_SECONDS, Abuse
from tests.net import h2_frames as wire
from tests.net.h2_frames import get, post
from tests.net.http.script import TEXT, Script


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
