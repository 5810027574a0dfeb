"""The async shell of one connection: request after request, each within its deadline and in a scope of its own.

    run ── reader task (transport.run_reader) ── bytes into the protocol, and the news that the peer is gone
     └─ cycles: wait for a head ── exchange scope: the application, then an answer for it if it failed ── again, or end

The reader runs all the time, so a client that goes away cancels the exchange's scope at once. Protocol decisions are
made in `http.http1`, socket matters in `transport`; here is the order of things and the time they may take.
"""

from __future__ import annotations

import socket
import time

import anyio

from poot.errors import Draining, EngineError, RequestError, RequestTimeout
from poot.log import get_logger
from poot.net.answers import choose_request_id, error_response, log_access
from poot.net.exchange import ClientGone, Endpoints
from poot.net.http.events import RequestArrived, RequestRefused
from poot.net.http.http1 import Http1
from poot.net.http1_exchange import Http1Exchange
from poot.net.service import Service
from poot.net.transport import Transport

logger = get_logger(__name__)

NEW_CONNECTION_GRACE_SECONDS = 1.0
"""How long a connection that has not carried a request yet may still send one when the drain begins, and how lately it
must have been accepted for that request to count as one that was on its way. Its client was let in and has no answer
to fall back on, so closing at once would fail a request in a rolling restart."""


class Connection:
    """Serves one accepted socket, which it owns from here on."""

    def __init__(self, connected: socket.socket, endpoints: Endpoints, service: Service) -> None:
        self._socket = connected
        self._endpoints = endpoints
        self._service = service
        self._accepted_at = anyio.current_time()
        self._http = Http1()
        self._transport: Transport | None = None
        self._exchange_scope: anyio.CancelScope | None = None
        self._is_between_requests = True
        self._has_served = False
        # Set by the drain: until when the next request's head has to be there.
        self._last_head_by: float | None = None

    async def run(self) -> None:
        """Serves requests until the connection ends. The socket is closed afterwards, also when cancelled."""
        try:
            async with anyio.create_task_group() as task_group:
                self._transport = transport = Transport(
                    self._socket,
                    task_group,
                    write_timeout_seconds=self._service.write_timeout_seconds,
                    on_gone=self.cancel_exchange,
                )
                task_group.start_soon(transport.run_reader, self._http.receive, lambda: self._http.num_buffered_bytes)
                await self._serve_requests(transport)
                task_group.cancel_scope.cancel()
        finally:
            self._socket.close()

    def drain(self) -> None:
        """Lets the connection end as soon as nothing is under way on it. `service.is_draining` is set already.

        A request whose head has arrived is served, one that is in the middle of its head is not, an idle connection
        closes; one that has not carried a request yet gets `NEW_CONNECTION_GRACE_SECONDS` to send it.
        """
        if not self._is_between_requests:
            return
        if self._transport is not None and (data := self._transport.receive_nowait()):
            self._http.receive(data)
        may_still_send = not self._has_served and not self._http.has_begun
        self._last_head_by = anyio.current_time() + (NEW_CONNECTION_GRACE_SECONDS if may_still_send else 0)
        if self._transport is not None:
            self._transport.interrupt()

    def cancel_exchange(self) -> None:
        """Cancels the application that is running, if one is."""
        if self._exchange_scope is not None:
            self._exchange_scope.cancel()

    async def _serve_requests(self, transport: Transport) -> None:
        deadline = self._accepted_at + self._service.request_timeout_seconds
        while (request := await self._next_request(transport, deadline)) is not None:
            self._is_between_requests = False
            is_complete = await self._serve(request, transport, deadline)
            if transport.is_gone or not is_complete:
                return
            if not self._http.is_reusable or self._service.is_draining:
                # Only bytes that were sent and not read can turn our close into a reset.
                if self._http.body_left != 0 or self._http.num_buffered_bytes or isinstance(request, RequestRefused):
                    await transport.linger()
                return
            self._http.next_cycle()
            self._has_served = True
            self._is_between_requests = True
            deadline = anyio.current_time() + self._service.request_timeout_seconds

    async def _next_request(self, transport: Transport, deadline: float) -> RequestArrived | RequestRefused | None:
        """The next request; None when the connection is to end without another word."""
        event = self._http.next_event()
        with anyio.CancelScope(deadline=deadline) as scope:
            while event is None and not transport.has_ended:
                if self._last_head_by is not None:
                    scope.deadline = min(deadline, self._last_head_by)
                await transport.wait_for_data()
                event = self._http.next_event()
        if scope.cancelled_caught and self._http.has_begun and self._last_head_by is None:
            return RequestRefused(RequestTimeout("the request head did not arrive in time", close=True))
        assert event is None or isinstance(event, RequestArrived | RequestRefused)
        return event

    async def _serve(self, request: RequestArrived | RequestRefused, transport: Transport, deadline: float) -> bool:
        """Runs one exchange and sees to its answer; says whether the answer was sent whole."""
        started = time.perf_counter()
        head = request.head if isinstance(request, RequestArrived) else None
        exchange = Http1Exchange(
            http=self._http,
            transport=transport,
            head=head,
            endpoints=self._endpoints,
            request_id=choose_request_id(head),
            deadline=deadline,
            service=self._service,
            is_late=self._is_late(),
        )
        try:
            # When the peer goes away or the drain deadline passes, this scope is cancelled.
            with anyio.CancelScope() as self._exchange_scope:
                if transport.has_ended:
                    # Its last bytes were this request. Perhaps it only shut down its sending side: an answer that
                    # needs no waiting reaches it then.
                    self._exchange_scope.cancel()
                error = request.error if isinstance(request, RequestRefused) else await self._run_application(exchange)
                if error is not None:
                    await self._answer_error(exchange, error)
            if self._exchange_scope.cancelled_caught and not transport.has_ended and exchange.status is None:
                await self._answer_error(exchange, Draining("the server shut down before it answered", close=True))
        finally:
            self._exchange_scope = None
            if head is None and exchange.status is not None:
                self._service.count_refusal(exchange.status)
            log_access(
                head,
                status=exchange.status,
                is_complete=exchange.is_complete,
                num_bytes=exchange.num_body_bytes,
                seconds=time.perf_counter() - started,
                request_id=exchange.request_id,
                peer_ip=self._endpoints.peer_ip,
                annotations=exchange.annotations,
            )
        return exchange.is_complete

    def _is_late(self) -> bool:
        """Whether the request that has just arrived came after the drain began, and not on the way in with it."""
        if self._last_head_by is None or self._last_head_by <= anyio.current_time():
            return False
        drained_at = self._last_head_by - NEW_CONNECTION_GRACE_SECONDS
        return self._accepted_at < drained_at - NEW_CONNECTION_GRACE_SECONDS

    async def _run_application(self, exchange: Http1Exchange) -> RequestError | None:
        """Runs the application; returns the error that it ended with, if that is to be answered or logged."""
        try:
            await self._service.application(exchange)
        except RequestError as error:
            return error
        except ClientGone:
            return None
        except Exception as error:
            # The border of the application: whatever it raised must end this exchange and nothing else.
            return self._translate(exchange, error)
        if exchange.status is None:
            logger.error("the application returned without an answer", request_id=exchange.request_id)
            return EngineError("the server failed on this request")
        return None

    def _translate(self, exchange: Http1Exchange, error: Exception) -> RequestError | None:
        if isinstance(error, ExceptionGroup):
            # A task group of the application wraps what its tasks raise; a single deliberate error keeps its meaning.
            _, unexpected = error.split((RequestError, ClientGone))
            if unexpected is None:
                leaf = _first_leaf(error)
                return leaf if isinstance(leaf, RequestError) else None
        logger.exception("the application failed", error, request_id=exchange.request_id)
        return EngineError("the server failed on this request")

    async def _answer_error(self, exchange: Http1Exchange, error: RequestError) -> None:
        if exchange.status is not None:
            # Too late for another answer: the connection closes and the client sees the first one cut off.
            logger.warn("failed after the answer began", error=str(error), request_id=exchange.request_id)
            return
        try:
            await exchange.send(error_response(error), close=error.close)
        except ClientGone:
            pass  # nobody is left to tell; the access log says so


def _first_leaf(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
