"""Bodies an HTTP/2 connection receives, and the flow-control credit that lets the client send them.

Credit comes back as a body is read (RFC 9113 section 5.2.2), so what lies here unread is bounded by the windows: for a
stream 64 KiB until its body is wanted, for the connection all those together.
"""

from __future__ import annotations

from poot.net.http import frames
from poot.net.http.frames import INITIAL_WINDOW_BYTES, MAX_FRAME_BYTES
from poot.net.http.http2_outbox import Outbox
from poot.net.http.http2_stream import Stream

CONNECTION_WINDOW_BYTES = 8 * 1024 * 1024
"""Body bytes a client may have under way on all streams together: every stream's initial window, so that a body which
nobody reads holds up no other one. What is held in memory unread is bounded by it too."""

BODY_WINDOW_BYTES = 1024 * 1024
"""A stream's window once its body is being read, and thus memory the request was admitted for: 64 KiB a round trip
would take 30 s for a large image from afar. Go announces 1 MiB too."""

LINGER_BYTES = 4 * 1024 * 1024
"""Most of a body that is taken and thrown away behind an answer that did not want it, before the stream is reset: the
default --max-body-mib. Clients that are still sending lose the answer to a reset (curl 7.88), or go on waiting for a
window that no reset opens (httpx 0.28)."""


class Inbox:
    """Unread bodies, and what is left of the windows.

    Args:
        outbox: takes the WINDOW_UPDATE frames.
    """

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._window = CONNECTION_WINDOW_BYTES
        self._consumed = 0
        outbox.put(frames.window_update(0, CONNECTION_WINDOW_BYTES - INITIAL_WINDOW_BYTES))

    def receive(self, num_bytes: int) -> bool:
        """Counts a DATA frame, padding included, whatever becomes of it; says whether the window had room for it."""
        self._window -= num_bytes
        return self._window >= 0

    def credit(self, num_bytes: int) -> None:
        """Gives bytes back to the connection that count for no stream any more."""
        self._consumed += num_bytes
        # Seldom, but soon when bodies that nobody reads hold most of the window: the others must not wait for them.
        if self._consumed and self._consumed >= min(CONNECTION_WINDOW_BYTES // 2, self._window):
            self._outbox.reply(frames.window_update(0, self._consumed))
            self._window += self._consumed
            self._consumed = 0

    def open(self, stream: Stream) -> None:
        """Widens the window of a stream whose body is wanted."""
        stream.target_window = BODY_WINDOW_BYTES
        widened = BODY_WINDOW_BYTES
        if stream.expected_bytes is not None:
            widened = min(widened, stream.expected_bytes - stream.received_bytes)
        if widened > stream.receive_window:
            self._outbox.reply(frames.window_update(stream.id, widened - stream.receive_window))
            stream.receive_window = widened

    def take(self, stream: Stream) -> list[bytes]:
        """The unread pieces, whose credit goes back."""
        pieces = stream.unread
        if pieces:
            stream.unread = []
            self.consume(stream, sum(map(len, pieces)))
        return pieces

    def consume(self, stream: Stream, num_bytes: int) -> None:
        """Gives bytes back to the connection and, if it needs them for the rest of its body, to their stream."""
        self.credit(num_bytes)
        if stream.is_closed or stream.has_request_ended:
            return
        stream.consumed += num_bytes
        window = stream.receive_window
        # The rest fits, unless padding takes the room.
        if (
            stream.expected_bytes is not None
            and stream.expected_bytes - stream.received_bytes <= window
            and not stream.is_padded
        ):
            return
        if 2 * stream.consumed >= stream.target_window or window < MAX_FRAME_BYTES:
            self._credit_stream(stream)

    def linger(self, stream: Stream) -> None:
        """From now on what arrives on the stream is thrown away."""
        stream.is_lingering = True
        stream.linger_bytes = LINGER_BYTES
        num_bytes = sum(map(len, stream.unread))
        stream.unread = []
        self.credit(num_bytes)
        stream.consumed += num_bytes
        if stream.consumed:
            self._credit_stream(stream)

    def discard(self, stream: Stream, num_bytes: int) -> bool:
        """Throws away what arrived on a lingering stream; says whether there is patience for more."""
        self.credit(num_bytes)
        stream.linger_bytes -= num_bytes
        stream.consumed += num_bytes
        if stream.linger_bytes <= 0 or stream.receive_window < 0:
            return False
        if stream.consumed >= MAX_FRAME_BYTES:
            self._credit_stream(stream)
        return True

    def forget(self, stream: Stream) -> None:
        """The stream has closed: nobody reads what is left."""
        if stream.unread:
            self.credit(sum(map(len, stream.unread)))
            stream.unread = []

    def _credit_stream(self, stream: Stream) -> None:
        self._outbox.reply(frames.window_update(stream.id, stream.consumed))
        stream.receive_window += stream.consumed
        stream.consumed = 0
