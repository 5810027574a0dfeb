"""One HTTP/1.1 request and its answer, as the application sees it: `poot.net.exchange.Exchange` over one connection.

Lives for one cycle. The connection that makes it also answers for an application that failed, through the same object.
"""

from __future__ import annotations

from types import TracebackType

import anyio

from poot.errors import BadRequest, ContentTooLarge, RequestTimeout
from poot.net.exchange import ClientGone, Endpoints, Head, Headers, Response
from poot.net.exchange_base import ExchangeBase
from poot.net.http.events import BodyArrived, BodyEnded
from poot.net.http.http1 import Http1
from poot.net.service import Service
from poot.net.transport import Transport


class Http1Exchange(ExchangeBase):
    """See `poot.net.exchange.Exchange` for what the application may do with it.

    Args:
        http: the connection's protocol state, at the beginning of a cycle.
        transport: the connection's bytes.
        head: None for a request that could not be read; such an exchange only carries its refusal.
        deadline: when the body has to be complete, on the event loop's clock.
        service: what the server's connections share; once it drains, answers end their connection.
        is_late: whether the request came after the drain began.
    """

    def __init__(
        self,
        *,
        http: Http1,
        transport: Transport,
        head: Head | None,
        endpoints: Endpoints,
        request_id: str,
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
        self._http = http
        self._transport = transport
        self._has_read_body = False
        self.num_body_bytes = 0

    async def read_body(self, max_bytes: int) -> bytes:
        if self._has_read_body:
            raise RuntimeError("the body of this exchange has been read already")
        self._has_read_body = True
        length = self._http.body_left
        if length is None:
            raise BadRequest("the length of the body cannot be told from the head", close=True)
        if length > max_bytes:
            raise ContentTooLarge(f"the body is over the limit of {max_bytes} bytes", close=True)
        pieces: list[bytes] = []
        # A body that came with its head costs no scope and no wait.
        if not self._take_body(pieces):
            with anyio.CancelScope(deadline=self._deadline) as scope:
                if request_for_body := self._http.ask_for_body():
                    await self._transport.write(request_for_body)
                while not self._take_body(pieces):
                    if self._transport.has_ended:
                        raise ClientGone
                    await self._transport.wait_for_data()
            if scope.cancelled_caught:
                raise RequestTimeout("the request body did not arrive in time", close=True)
        return b"".join(pieces)

    async def send(self, response: Response, *, close: bool = False) -> None:
        fields = self._fields(response.headers)
        data = self._http.answer(response.status, fields, response.body, close=close or self._service.is_draining)
        self.status = response.status
        self.num_body_bytes = len(response.body) if self._http.sends_body else 0
        await self._transport.write(data)
        await self._transport.flush()
        self.is_complete = True

    def stream(self, status: int, headers: Headers) -> Http1Stream:
        data = self._http.begin_answer(status, self._fields(headers), close=self._service.is_draining)
        self.status = status
        return Http1Stream(self, self._http, self._transport, data)

    def _fields(self, headers: Headers) -> Headers:
        if self.status is not None:
            raise RuntimeError("this exchange has been answered already")
        return (*headers, (b"date", self._service.date()), (b"x-request-id", self._request_id.encode("ascii")))

    def _take_body(self, pieces: list[bytes]) -> bool:
        """Moves the body bytes that are there to `pieces`; says whether that is all of them."""
        while (event := self._http.next_event()) is not None:
            if isinstance(event, BodyArrived):
                pieces.append(event.data)
            elif isinstance(event, BodyEnded):
                return True
        return False


class Http1Stream:
    """The streamed answer of one exchange: the head on entering, frames, the end on leaving.

    Left by an exception the answer is not ended, so that no client takes it for complete; the connection closes.
    """

    def __init__(self, exchange: Http1Exchange, http: Http1, transport: Transport, head: bytes) -> None:
        self._exchange = exchange
        self._http = http
        self._transport = transport
        self._head = head

    async def __aenter__(self) -> Http1Stream:
        await self._transport.write(self._head)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None:
            return
        await self._transport.write(self._http.end_answer())
        await self._transport.flush()
        self._exchange.is_complete = True

    async def write(self, frame: bytes) -> None:
        if data := self._http.piece(frame):
            self._exchange.num_body_bytes += len(frame)
            if not self._transport.write_nowait(data):
                await self._transport.wait_for_room()
        elif self._transport.is_gone:
            raise ClientGone
