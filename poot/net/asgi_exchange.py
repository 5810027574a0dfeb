"""One request that an ASGI host server received, and its answer: `poot.net.exchange.Exchange` over two callables.

`receive` is called by a reader task, so that a client that goes away cancels the exchange at once; the reader pauses
when nobody wants the body. It starts with the exchange, but where the client waits for 100 Continue only when the body
is asked for: hosts send that with the first `receive` (Hypercorn already before).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any

import anyio
import anyio.abc

from poot.errors import BadRequest, ContentTooLarge, RequestTimeout
from poot.net.asgi_scope import Scope
from poot.net.exchange import ClientGone, Endpoints, Head, Headers, Response
from poot.net.exchange_base import ExchangeBase
from poot.net.http.head import body_length
from poot.net.service import Service
from poot.net.transport import LINGER_BYTES, LINGER_SECONDS, READ_AHEAD_BYTES

Message = Scope
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class AsgiExchange(ExchangeBase):
    """See `poot.net.exchange.Exchange` for what the application may do with it.

    Args:
        receive, send: the host's, for this request.
        task_group: the reader runs in it; to be cancelled when the exchange is over.
        head: None for a request that could not be read; such an exchange only carries its refusal.
        deadline: when the body has to be complete, on the event loop's clock.
        is_late: whether the request came after the drain began.

    Attributes:
        scope: cancelled to end the application.
    """

    def __init__(
        self,
        *,
        receive: Receive,
        send: Send,
        task_group: anyio.abc.TaskGroup,
        head: Head | None,
        endpoints: Endpoints,
        request_id: str,
        http_version: str,
        deadline: float,
        service: Service,
        is_late: bool,
    ) -> None:
        super().__init__(
            head=head,
            endpoints=endpoints,
            request_id=request_id,
            deadline=deadline,
            service=service,
            is_late=is_late,
        )
        self._receive = receive
        self._send = send
        self._task_group = task_group
        self._is_http1 = http_version.startswith("1")
        self._expected_bytes = body_length(head) if head is not None else None
        self._sends_body = head is None or head.method != "HEAD"
        self._has_body_ended = self._expected_bytes == 0
        self._body: list[bytes] = []
        self._num_received = 0
        self._has_reader = False
        self._is_body_wanted = False
        self._is_discarding = False
        self._is_ending = False
        self._arrival: anyio.Event | None = None
        self._resumption: anyio.Event | None = None
        self.scope = anyio.CancelScope()
        self.is_gone = False
        self.num_body_bytes = 0

    async def read_body(self, max_bytes: int) -> bytes:
        if self._is_body_wanted:
            raise RuntimeError("the body of this exchange has been read already")
        self._is_body_wanted = True
        expected = self._expected_bytes
        if expected is None:
            raise BadRequest("the length of the body cannot be told from the head", close=True)
        if expected > max_bytes:
            raise ContentTooLarge(f"the body is over the limit of {max_bytes} bytes", close=True)
        self.start_reader()
        with anyio.CancelScope(deadline=self._deadline) as scope:
            while not self._has_body_ended and self._num_received <= expected:
                if self.is_gone:
                    raise ClientGone
                await self._wait_for_message()
        if scope.cancelled_caught:
            raise RequestTimeout("the request body did not arrive in time", close=True)
        if self._num_received != expected:
            # Hosts check this themselves, or should: a body cut short must never be taken for a whole one.
            raise BadRequest("the body is not as long as Content-Length says", close=True)
        body = b"".join(self._body)
        self._body = []
        return body

    async def send(self, response: Response, *, close: bool = False) -> None:
        body = response.body if self._sends_body else b""
        length = (b"content-length", b"%d" % len(response.body))
        start = self._start(response.status, (*response.headers, length), close=close)
        self.num_body_bytes = len(body)
        if self._has_body_ended:
            self._is_ending = True
            await self._write(start, _body(body, more=False))
        else:
            await self._write(start, _body(body, more=True))
            self._is_ending = True
            await self._linger()
            # A client that has read as much as Content-Length said may leave: it has the answer.
            if not self.is_gone:
                await self._write(_body(b"", more=False))
        self.is_complete = True

    def stream(self, status: int, headers: Headers) -> AsgiStream:
        return AsgiStream(self, self._start(status, headers))

    async def begin(self, start: Message) -> None:
        """Sends the head of a streamed answer."""
        await self._write(start)
        self._discard()

    async def write(self, frame: bytes) -> None:
        """Sends a piece of a streamed answer's body."""
        if self._sends_body and frame:
            self.num_body_bytes += len(frame)
            await self._write(_body(frame, more=True))
        elif self.is_gone:
            raise ClientGone

    async def finish(self) -> None:
        """Ends a streamed answer."""
        self._is_ending = True
        await self._write(_body(b"", more=False))
        self.is_complete = True

    def start_reader(self) -> None:
        """Begins to receive, if that has not begun."""
        if not self._has_reader:
            self._has_reader = True
            self._task_group.start_soon(self._read)

    def _start(self, status: int, headers: Headers, *, close: bool = False) -> Message:
        if self.status is not None:
            raise RuntimeError("this exchange has been answered already")
        self.status = status
        fields = [*headers, (b"x-request-id", self._request_id.encode("ascii"))]
        if (close or self._service.is_draining) and self._is_http1:
            fields.append((b"connection", b"close"))
        return {"type": "http.response.start", "status": status, "headers": fields}

    async def _write(self, *messages: Message) -> None:
        """Passes messages to the host, all of them within the write timeout.

        Raises:
            ClientGone: the client is gone or reads too slowly.
        """
        if self.is_gone:
            raise ClientGone
        with anyio.move_on_after(self._service.write_timeout_seconds) as scope:
            try:
                for message in messages:
                    await self._send(message)
            except OSError as error:  # what ASGI has `send` raise once the client is gone
                self._lose()
                raise ClientGone from error
        if scope.cancelled_caught:
            self._lose()
            raise ClientGone

    def _lose(self) -> None:
        self.is_gone = True
        self.scope.cancel()

    async def _linger(self) -> None:
        """Drops what the client still sends of a body that nobody wants, within the limits of `Transport.linger`.

        Hosts close an HTTP/1.1 connection with the last message of such an answer, and closing it on a client that
        sends would reset it and could take the answer with it. Until that message the host also has to get rid of
        what it received: Hypercorn's queue is short, and it waits for room; and over HTTP/2 Hypercorn 0.18 fails on
        DATA for a stream that it has answered, on asyncio with that connection, on trio with the whole server.
        """
        self._discard()
        with anyio.move_on_after(LINGER_SECONDS):
            while not self._has_body_ended and self._num_received <= LINGER_BYTES and not self.is_gone:
                await self._wait_for_message()

    def _discard(self) -> None:
        self._is_discarding = not self._has_body_ended
        self._resume()
        self.start_reader()

    async def _read(self) -> None:
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                self.is_gone = True
                self._wake()
                # Hosts say this too when they have sent the answer, before they return from the sending of it.
                if not self._is_ending:
                    self.scope.cancel()
                return
            data = message.get("body", b"")
            self._num_received += len(data)
            if data and not self._is_discarding:
                self._body.append(data)
            if not message.get("more_body", False):
                self._has_body_ended = True
            self._wake()
            while self._is_far_ahead():
                self._resumption = anyio.Event()
                await self._resumption.wait()

    def _is_far_ahead(self) -> bool:
        if self._is_discarding or self._has_body_ended or self._num_received < READ_AHEAD_BYTES:
            return False
        # More than was announced is never wanted.
        return not self._is_body_wanted or self._num_received > (self._expected_bytes or 0)

    async def _wait_for_message(self) -> None:
        self._resume()
        self._arrival = anyio.Event()
        try:
            await self._arrival.wait()
        finally:
            self._arrival = None

    def _wake(self) -> None:
        if self._arrival is not None:
            self._arrival.set()

    def _resume(self) -> None:
        if self._resumption is not None:
            self._resumption.set()
            self._resumption = None


class AsgiStream:
    """The streamed answer of one exchange: the head on entering, frames, the end on leaving.

    Left by an exception the answer is not ended. Hosts then close the connection, so that no client takes it for
    complete; Hypercorn leaves a stream of HTTP/2 open, which the client has to give up.
    """

    def __init__(self, exchange: AsgiExchange, start: Message) -> None:
        self._exchange = exchange
        self._start = start

    async def __aenter__(self) -> AsgiStream:
        await self._exchange.begin(self._start)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            await self._exchange.finish()

    async def write(self, frame: bytes) -> None:
        await self._exchange.write(frame)


def _body(data: bytes, *, more: bool) -> dict[str, Any]:
    return {"type": "http.response.body", "body": data, "more_body": more}
