"""One HTTP/2 stream's request and answer, as the application sees it: `poot.net.exchange.Exchange`.

What is written is queued with the protocol and sent by the connection's writer; here is when to wait for it, and when
what was written should have been sent.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from types import TracebackType

import anyio

from poot.errors import ContentTooLarge, RequestTimeout
from poot.net.exchange import ClientGone, Endpoints, Head, Headers, Response
from poot.net.exchange_base import ExchangeBase
from poot.net.http.http2 import Http2
from poot.net.http.http2_stream import Stream
from poot.net.service import Service

STREAM_BUFFER_BYTES = 64 * 1024
"""Bytes of a streamed answer that may wait to be sent before its writer waits too; as for HTTP/1.1."""


class Http2Exchange(ExchangeBase):
    """See `poot.net.exchange.Exchange` for what the application may do with it.

    Args:
        http: the connection's protocol state.
        stream: the stream, whose head has arrived.
        head: None for a request that could not be read; such an exchange only carries its refusal.
        deadline: when the body has to be complete, on the event loop's clock.
        is_late: whether the request came after the drain began.
        on_output: called when there is something to send.
        on_deadline: called with the time by which something written has to be sent.

    Attributes:
        scope: cancelled to end the application.
        body_event: set by the connection when more of the body has arrived.
        progress: set by the connection when bytes of a watched stream have been sent.
    """

    def __init__(
        self,
        *,
        http: Http2,
        stream: Stream,
        head: Head | None,
        endpoints: Endpoints,
        request_id: str,
        deadline: float,
        service: Service,
        is_late: bool,
        on_output: Callable[[], None],
        on_deadline: Callable[[float], None],
    ) -> None:
        super().__init__(
            head=head,
            endpoints=endpoints,
            request_id=request_id,
            deadline=deadline,
            service=service,
            is_late=is_late,
        )
        self._http = http
        self.stream_state = stream
        self._on_output = on_output
        self._on_deadline = on_deadline
        self._has_read_body = False
        # For each write that is not known to be sent: the count of bytes at which it is, and when it has to be.
        self._deadlines: deque[tuple[int, float]] = deque()
        self.scope = anyio.CancelScope()
        self.body_event: anyio.Event | None = None
        self.progress: anyio.Event | None = None

    @property
    def write_due(self) -> float | None:
        """When the oldest write that has not been sent has to be."""
        self._forget_sent()
        return self._deadlines[0][1] if self._deadlines else None

    async def read_body(self, max_bytes: int) -> bytes:
        if self._has_read_body:
            raise RuntimeError("the body of this exchange has been read already")
        self._has_read_body = True
        stream = self.stream_state
        if stream.expected_bytes is not None and stream.expected_bytes > max_bytes:
            raise _too_large(max_bytes)
        if stream.has_request_ended:
            # A body that came with its head costs no scope and no wait.
            return _join(self._http.take_body(stream), max_bytes)
        pieces: list[bytes] = []
        num_bytes = 0
        with anyio.CancelScope(deadline=self._deadline) as scope:
            while True:
                for piece in self._http.take_body(stream):
                    num_bytes += len(piece)
                    pieces.append(piece)
                if num_bytes > max_bytes or stream.has_request_ended:
                    return _join(pieces, max_bytes)
                if stream.is_closed:
                    raise ClientGone
                self._http.open_body(stream)
                if self._http.has_output:
                    self._on_output()
                self.body_event = anyio.Event()
                await self.body_event.wait()
        assert scope.cancelled_caught
        raise RequestTimeout("the request body did not arrive in time", close=True)

    async def send(self, response: Response, *, close: bool = False) -> None:
        """Answers whole. `close` is for HTTP/1.1: here the other streams go on."""
        fields = self._fields(response.headers)
        stream = self.stream_state
        if stream.is_closed:
            raise ClientGone
        self._http.answer(stream, response.status, fields, response.body)
        self.status = response.status
        self._on_output()
        if stream.num_sent < stream.num_queued:
            self._note_write()
            await self._wait_until_waiting(0)
        self.is_complete = True

    def stream(self, status: int, headers: Headers) -> Http2Stream:
        fields = self._fields(headers)
        self._http.begin_answer(self.stream_state, status, fields)
        self.status = status
        return Http2Stream(self)

    def write(self, frame: bytes) -> int:
        """Queues a piece of the answer's body; returns how many bytes are waiting now.

        Raises:
            ClientGone: the stream has ended.
        """
        stream = self.stream_state
        if stream.is_closed:
            raise ClientGone
        # What joins bytes that were queued in the same turn of the loop goes out with them, and shares their deadline.
        if not self._http.queue(stream, frame):
            self._note_write()
            self._on_output()
        return stream.num_queued - stream.num_sent

    async def finish(self) -> None:
        """Ends a streamed answer and waits until all of it has been sent.

        Raises:
            ClientGone: the stream has ended before.
        """
        stream = self.stream_state
        if stream.is_closed:
            raise ClientGone
        self._http.end(stream)
        self._on_output()
        if stream.num_sent < stream.num_queued:
            await self._wait_until_waiting(0)
        self.is_complete = True

    async def _wait_until_waiting(self, num_bytes: int) -> None:
        """Waits until at most so many bytes are waiting to be sent.

        Raises:
            ClientGone: the stream ended before.
        """
        stream = self.stream_state
        stream.is_watched = True
        try:
            while stream.num_queued - stream.num_sent > num_bytes:
                if stream.is_closed:
                    raise ClientGone
                self.progress = anyio.Event()
                await self.progress.wait()
        finally:
            stream.is_watched = False

    async def wait_for_room(self) -> None:
        """Waits until less than `STREAM_BUFFER_BYTES` are waiting to be sent."""
        await self._wait_until_waiting(STREAM_BUFFER_BYTES)

    def _fields(self, headers: Headers) -> Headers:
        if self.status is not None:
            raise RuntimeError("this exchange has been answered already")
        return (*headers, (b"date", self._service.date()), (b"x-request-id", self._request_id.encode("ascii")))

    def _note_write(self) -> None:
        due = anyio.current_time() + self._service.write_timeout_seconds
        self._forget_sent()
        self._deadlines.append((self.stream_state.num_queued, due))
        self._on_deadline(due)

    def _forget_sent(self) -> None:
        deadlines, num_sent = self._deadlines, self.stream_state.num_sent
        while deadlines and deadlines[0][0] <= num_sent:
            deadlines.popleft()


class Http2Stream:
    """The streamed answer of one exchange: its head is on the way, then frames, the end on leaving.

    Left by an exception the answer is not ended; the connection resets the stream, so that no client takes it for
    complete.
    """

    def __init__(self, exchange: Http2Exchange) -> None:
        self._exchange = exchange

    async def __aenter__(self) -> Http2Stream:
        self._exchange.write(b"")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            await self._exchange.finish()

    async def write(self, frame: bytes) -> None:
        if self._exchange.write(frame) > STREAM_BUFFER_BYTES:
            await self._exchange.wait_for_room()


def _join(pieces: list[bytes], max_bytes: int) -> bytes:
    body = b"".join(pieces)
    if len(body) > max_bytes:
        raise _too_large(max_bytes)
    return body


def _too_large(max_bytes: int) -> ContentTooLarge:
    return ContentTooLarge(f"the body is over the limit of {max_bytes} bytes", close=True)
