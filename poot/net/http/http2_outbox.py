"""What an HTTP/2 connection has to send, and in which order: replies and heads at once, bodies in turn.

Bodies go out as flow control lets them (RFC 9113 section 5.2): a stream at a time gives one frame and goes to the end
of the line, a stream whose window is spent leaves the line until the window opens, so it holds up no other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from poot.net.http import frames
from poot.net.http.frames import INITIAL_WINDOW_BYTES, MAX_FRAME_BYTES
from poot.net.http.header_block import NO_TABLE
from poot.net.http.http2_stream import Stream

BATCH_BYTES = 64 * 1024
"""How much is put into frames at a time; more would decide the order of streams long before the bytes can leave."""

SMALL_BODY_BYTES = MAX_FRAME_BYTES
"""A whole body up to this goes out right behind its head, if the windows take it and not much is waiting already."""


class Outbox:
    """Frames that wait for `take`, and the streams whose bodies do.

    Args:
        on_finished: called when the last frame of an answer has been put together.

    Attributes:
        window: flow-control bytes left to the connection.
        is_held_up: set by the shell while the client takes no bytes.
        num_reply_bytes: what waits that is neither head nor body.
        num_data_frames: DATA frames ever put together.
    """

    def __init__(self, on_finished: Callable[[Stream], None]) -> None:
        self._on_finished = on_finished
        self._parts: list[bytes] = []
        self._num_bytes = 0
        self._line: deque[Stream] = deque()
        self._progressed: list[Stream] = []
        self._has_sent_block = False
        self.window = INITIAL_WINDOW_BYTES
        self.is_held_up = False
        self.num_reply_bytes = 0
        self.num_data_frames = 0

    @property
    def has_output(self) -> bool:
        """Whether `take` may return something."""
        return bool(self._parts) or bool(self._line and self.window > 0)

    def put(self, data: bytes) -> None:
        """Adds frames that are not flow-controlled."""
        self._parts.append(data)
        self._num_bytes += len(data)

    def reply(self, data: bytes) -> None:
        """As `put`, for what the client made us say; see `num_reply_bytes`."""
        self.put(data)
        self.num_reply_bytes += len(data)

    def put_head(self, stream: Stream, block: bytes, *, ends: bool) -> None:
        """Adds HEADERS."""
        if not self._has_sent_block:
            self._has_sent_block = True
            block = NO_TABLE + block
        self.put(frames.headers(stream.id, block, end_stream=ends))

    def put_body(self, stream: Stream, body: bytes) -> None:
        """Adds a whole body of at least one byte."""
        length = len(body)
        stream.num_queued += length
        if length <= min(SMALL_BODY_BYTES, stream.send_window, self.window) and self._num_bytes <= BATCH_BYTES:
            self.window -= length
            stream.num_sent += length
            self.put(frames.data(stream.id, body, end_stream=True))
            self.num_data_frames += 1
            self._on_finished(stream)
        else:
            stream.queue += body
            stream.ends_after_queue = True
            self.line_up(stream)

    def queue(self, stream: Stream, data: bytes) -> bool:
        """Adds to a body; says whether it joined bytes that only wait for the next `take`."""
        stream.queue += data
        stream.num_queued += len(data)
        if stream.is_in_line:
            return self.window > 0 and not self.is_held_up
        self.line_up(stream)
        return False

    def end(self, stream: Stream) -> None:
        """A body is complete. An end without bytes is not flow-controlled."""
        if stream.queue:
            stream.ends_after_queue = True
        else:
            self.put(frames.data(stream.id, b"", end_stream=True))
            self._on_finished(stream)

    def line_up(self, stream: Stream) -> None:
        """Puts a stream in line if it has something to send and may."""
        if stream.queue and not stream.is_in_line and stream.send_window > 0:
            stream.is_in_line = True
            self._line.append(stream)

    def note_progress(self, stream: Stream) -> None:
        """Makes `take_progressed` name a stream, if it is watched."""
        if stream.is_watched:
            self._progressed.append(stream)

    def take_progressed(self) -> list[Stream]:
        """Watched streams that have sent bytes or closed since the last call; one may be named twice."""
        progressed = self._progressed
        if progressed:
            self._progressed = []
        return progressed

    def take(self) -> bytes:
        """What goes out next: all but bodies, then about `BATCH_BYTES` of bodies, a frame of each stream in turn."""
        parts = self._parts
        room = BATCH_BYTES
        line = self._line
        while line and room > 0 and self.window > 0:
            stream = line.popleft()
            queue = stream.queue
            length = min(len(queue), MAX_FRAME_BYTES, stream.send_window, self.window)
            if stream.is_closed or length <= 0:
                stream.is_in_line = False
                continue
            if length == len(queue):
                payload = queue
                stream.queue = bytearray()
                stream.is_in_line = False
                is_last = stream.ends_after_queue
            else:
                payload = queue[:length]
                del queue[:length]
                line.append(stream)
                is_last = False
            parts.append(frames.data(stream.id, payload, end_stream=is_last))
            self.num_data_frames += 1
            room -= length
            self.window -= length
            stream.send_window -= length
            stream.num_sent += length
            self.note_progress(stream)
            if is_last:
                self._on_finished(stream)
        self._parts = []
        self._num_bytes = self.num_reply_bytes = 0
        return b"".join(parts)
