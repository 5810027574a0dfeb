"""What goes out when: windows, turns, and the frames of one turn of the loop."""

from __future__ import annotations

from hyperframe.frame import DataFrame

from tests.net import h2_frames as wire
from tests.net.h2_frames import get
from tests.net.http.script import MAX_WINDOW, TEXT, Script


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
