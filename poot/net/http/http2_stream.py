"""One HTTP/2 stream's state, as `http2` keeps it, and what may be known of it outside."""

from __future__ import annotations

from poot.net.http.frames import INITIAL_WINDOW_BYTES


class Stream:
    """A request and its answer. Only `http2.Http2` changes it; the shell keeps it as the key of its exchange.

    Attributes:
        sends_body: whether the answer's body goes on the wire; not for HEAD.
        expects_continue: the client may be holding its body back until it sees 100 Continue.
        expected_bytes: the body's length as the head gave it, None when it did not or not readably.
        received_bytes: how much body has arrived.
        has_request_ended: the client has sent all of it.
        is_closed: nothing can be sent any more: the answer is out, or one side has reset the stream.
        is_lingering: the answer is out, and the body that nobody wanted may still be coming.
        num_queued, num_sent: bytes of the answer's body so far, given and put into frames.
        is_watched: the shell wants `Http2.take_progressed` to name the stream when `num_sent` grows or it closes.
    """

    __slots__ = (
        "consumed",
        "ends_after_queue",
        "expected_bytes",
        "expects_continue",
        "has_request_ended",
        "id",
        "is_closed",
        "is_in_line",
        "is_lingering",
        "is_padded",
        "is_watched",
        "linger_bytes",
        "num_queued",
        "num_sent",
        "queue",
        "receive_window",
        "received_bytes",
        "send_window",
        "sends_body",
        "target_window",
        "unread",
    )

    def __init__(self, stream_id: int, *, send_window: int) -> None:
        self.id = stream_id
        self.sends_body = True
        self.expects_continue = False
        self.expected_bytes: int | None = None
        self.received_bytes = 0
        self.has_request_ended = False
        self.is_closed = False
        self.is_lingering = False
        self.linger_bytes = 0
        self.num_queued = 0
        self.num_sent = 0
        self.is_watched = False
        # What is left of the windows, in bytes. The send window may be negative (RFC 9113 section 6.9.2).
        self.send_window = send_window
        self.receive_window = INITIAL_WINDOW_BYTES
        self.target_window = INITIAL_WINDOW_BYTES
        self.consumed = 0
        self.is_padded = False
        self.unread: list[bytes] = []
        self.queue = bytearray()
        self.ends_after_queue = False
        self.is_in_line = False
