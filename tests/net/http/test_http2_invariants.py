"""What holds of an HTTP/2 connection whatever arrives on it, in whatever pieces, and however its streams are answered.

Invariant: `receive` returns events and raises nothing; what is held unread stays within the windows; every byte of the
connection's window is held unread, given back or waiting to be; what is sent is a sequence of whole frames that an
independent reader takes, within the connection's window; and after the last release nothing is left.
"""

from __future__ import annotations

from hpack import Encoder
from hypothesis import given, settings
from hypothesis import strategies as st

from poot.net.http.frames import ErrorCode
from poot.net.http.http2 import Http2
from poot.net.http.http2_events import ConnectionEnded, RequestArrived, RequestRefused
from poot.net.http.http2_inbox import BODY_WINDOW_BYTES, CONNECTION_WINDOW_BYTES
from poot.net.http.http2_stream import Stream
from tests.net import h2_frames as wire

ids = st.sampled_from([1, 3, 5, 7, 9, 2])
sizes = st.sampled_from([0, 1, 5, 100, 16384])

requests = st.builds(
    lambda fields, ends, pieces: ("request", fields, ends, pieces),
    st.sampled_from(
        [wire.get(), wire.post(None), wire.post(0), wire.post(100), wire.get(b"/", (b"A", b"b")), [(b"x", b"y")]]
    ),
    st.booleans(),
    st.sampled_from([1, 1, 3]),
)
frames = st.one_of(
    st.builds(
        lambda stream_id, size, ends, padding: wire.data(stream_id, bytes(size), ends=ends, padding=padding),
        ids,
        sizes,
        st.booleans(),
        st.sampled_from([None, None, 0, 200]),
    ),
    st.builds(wire.window_update, st.sampled_from([0, 1, 3, 5]), st.sampled_from([1, 1000, 65535, 2**31 - 1])),
    st.builds(wire.rst_stream, ids),
    st.builds(
        lambda code, value: wire.settings({code: value}),
        st.integers(1, 7),
        st.sampled_from([0, 1, 100, 16384, 65535, 2**31 - 1, 2**31]),
    ),
    st.builds(lambda is_ack: wire.ping(ack=is_ack), st.booleans()),
    st.builds(wire.raw, st.integers(0, 12), st.integers(0, 255), st.sampled_from([0, 1, 3]), st.binary(max_size=20)),
    st.binary(max_size=12),
)
answers = st.tuples(
    st.sampled_from(["open_body", "take_body", "answer", "begin", "queue", "end", "release", "reset", "drain", "send"]),
    st.integers(0, 5),
    sizes,
)


class Shell:
    """Does to a connection what its shell may do, and checks what must hold."""

    def __init__(self) -> None:
        self.http = Http2()
        self.reader = wire.AnswerReader()
        self.streams: list[Stream] = []
        self.held: set[Stream] = set()
        self.answered: set[Stream] = set()
        self.has_ended = False

    def receive(self, data: bytes, now: float) -> None:
        for event in self.http.receive(data, now):
            assert not self.has_ended, "an event behind the end"
            if isinstance(event, RequestArrived | RequestRefused):
                self.streams.append(event.stream)
                self.held.add(event.stream)
            self.has_ended = isinstance(event, ConnectionEnded)

    def act(self, what: str, index: int, size: int) -> None:
        if what == "drain":
            self.http.begin_drain()
        elif what == "send":
            self.send()
        elif self.streams:
            self.act_on(self.streams[index % len(self.streams)], what, size)

    def act_on(self, stream: Stream, what: str, size: int) -> None:
        if stream not in self.held:
            return
        if what == "release":
            self.held.discard(stream)
            self.http.release(stream)
        elif what == "open_body":
            self.http.open_body(stream)
        elif what == "take_body":
            self.http.take_body(stream)
        elif what == "reset":
            self.http.reset(stream, ErrorCode.CANCEL)
        elif what in ("answer", "begin") and stream not in self.answered:
            self.answered.add(stream)
            if what == "answer":
                self.http.answer(stream, 200, (), bytes(5 * size))
            else:
                self.http.begin_answer(stream, 200, ())
        elif stream in self.answered and not stream.ends_after_queue:
            if what == "queue":
                self.http.queue(stream, bytes(size))
            elif what == "end":
                self.http.end(stream)

    def send(self) -> None:
        for _ in range(10_000):
            if not self.http.has_output:
                return
            self.reader.feed(self.http.data_to_send())
        raise AssertionError("there is always more to send")

    def check(self) -> None:
        inbox = self.http._inbox
        unread = sum(len(piece) for stream in self.streams for piece in stream.unread)
        assert all(sum(map(len, stream.unread)) <= BODY_WINDOW_BYTES for stream in self.streams)
        assert self.http._outbox.window >= 0
        if not self.has_ended:
            assert inbox._window + inbox._consumed + unread == CONNECTION_WINDOW_BYTES


@settings(deadline=None, max_examples=300)
@given(
    script=st.lists(st.one_of(requests, frames, answers), max_size=40),
    window=st.sampled_from([0, 1, 10, 65535]),
    cut=st.integers(1, 5000),
)
def test_whatever_arrives_the_invariant_holds(
    script: list[bytes | tuple[str, list[tuple[bytes, bytes]], bool, int] | tuple[str, int, int]], window: int, cut: int
) -> None:
    shell = Shell()
    encoder = Encoder()
    stream_id = 1
    shell.receive(wire.PREFACE + wire.settings({4: window}), 0.0)
    for now, step in enumerate(script):
        if isinstance(step, bytes):
            data = step
        elif len(step) == 4:
            _, fields, ends, pieces = step
            data = wire.headers(stream_id, fields, ends=ends, encoder=encoder, pieces=pieces)
            stream_id += 2
        else:
            shell.act(*step)
            data = b""
        for start in range(0, len(data), cut):
            shell.receive(data[start : start + cut], float(now))
        shell.check()
    shell.send()
    for stream in tuple(shell.held):
        shell.http.release(stream)
    for stream in shell.streams:
        shell.http.reset(stream, ErrorCode.NO_ERROR)
    shell.send()
    assert shell.http.num_open_streams == 0
    assert shell.http._num_held == 0
