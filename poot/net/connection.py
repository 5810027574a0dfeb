"""The async shell of one connection: request after request, each within its deadline and in a scope of its own.

    run ── reader task (transport.run_reader) ── bytes into the protocol, and the news that the peer is gone
     ├─ cycles: wait for a head ── exchange scope: the application, then an answer for it if it failed ── again, or end
     └─ or, if the first bytes are the preface of HTTP/2, an `Http2Connection` for all the rest

The reader runs all the time, so a client that goes away cancels the exchange's scope at once. Protocol decisions are
made in `http.http1`, socket matters in `transport`; here is the order of things and the time they may take.
"""

from __future__ import annotations

import socket
import time

import anyio
import anyio.abc

from poot.errors import Draining, RequestError, RequestTimeout
from poot.net.answers import choose_request_id, log_access
from poot.net.exchange import Endpoints
from poot.net.http.events import Event, RequestArrived, RequestRefused
from poot.net.http.frames import PREFACE
from poot.net.http.http1 import Http1
from poot.net.http1_exchange import Http1Exchange
from poot.net.http2_connection import Http2Connection
from poot.net.run_exchange import answer_error, run_application
from poot.net.service import HTTP1, HTTP2, Service
from poot.net.transport import Transport

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
        self._is_protocol_known = False
        self._http2: Http2Connection | None = None
        self._task_group: anyio.abc.TaskGroup | None = None

    @property
    def protocol(self) -> str:
        """The `protocol` label of the connection metrics."""
        return HTTP1 if self._http2 is None else HTTP2

    async def run(self) -> None:
        """Serves requests until the connection ends. The socket is closed afterwards, also when cancelled."""
        try:
            async with anyio.create_task_group() as self._task_group:
                self._transport = transport = Transport(
                    self._socket,
                    self._task_group,
                    write_timeout_seconds=self._service.write_timeout_seconds,
                    on_gone=self._lose,
                )
                self._task_group.start_soon(transport.run_reader, self._receive, lambda: self._http.num_buffered_bytes)
                await self._serve_requests(transport)
                if self._http2 is not None:
                    await self._http2.serve()
                self._task_group.cancel_scope.cancel()
        finally:
            self._socket.close()

    def drain(self) -> None:
        """Lets the connection end as soon as nothing is under way on it. `service.is_draining` is set already.

        A request whose head has arrived is served, one that is in the middle of its head is not, an idle connection
        closes; one that has not carried a request yet gets `NEW_CONNECTION_GRACE_SECONDS` to send it.
        """
        if self._http2 is not None:
            self._http2.drain()
            return
        if not self._is_between_requests:
            return
        if self._transport is not None and (data := self._transport.receive_nowait()):
            self._http.receive(data)
        may_still_send = not self._has_served and not self._http.has_begun
        self._last_head_by = anyio.current_time() + (NEW_CONNECTION_GRACE_SECONDS if may_still_send else 0)
        if self._transport is not None:
            self._transport.interrupt()

    def cancel_exchange(self) -> None:
        """Cancels the application that is running, if one is; over HTTP/2 all that are."""
        if self._http2 is not None:
            self._http2.cancel_exchanges()
        elif self._exchange_scope is not None:
            self._exchange_scope.cancel()

    def _receive(self, data: bytes) -> None:
        if self._http2 is not None:
            self._http2.receive(data)
        else:
            self._http.receive(data)

    def _lose(self) -> None:
        if self._http2 is not None:
            self._http2.lose()
        else:
            self.cancel_exchange()

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
        event = self._next_event()
        with anyio.CancelScope(deadline=deadline) as scope:
            while event is None and not transport.has_ended and self._http2 is None:
                if self._last_head_by is not None:
                    scope.deadline = min(deadline, self._last_head_by)
                await transport.wait_for_data()
                event = self._next_event()
        if scope.cancelled_caught and self._http.has_begun and self._last_head_by is None:
            return RequestRefused(RequestTimeout("the request head did not arrive in time", close=True))
        assert event is None or isinstance(event, RequestArrived | RequestRefused)
        return event

    def _next_event(self) -> Event | None:
        """The next event of HTTP/1.1, once the first bytes are known not to be the preface of HTTP/2."""
        if not self._is_protocol_known:
            begins = self._http.begins_with(PREFACE)
            if begins is None:
                return None
            self._is_protocol_known = True
            if begins:
                self._begin_http2()
                return None
        return self._http.next_event()

    def _begin_http2(self) -> None:
        assert self._task_group is not None
        assert self._transport is not None
        self._service.count_http2()
        self._http2 = Http2Connection(
            self._transport,
            self._task_group,
            self._endpoints,
            self._service,
            accepted_at=self._accepted_at,
            new_connection_grace_seconds=NEW_CONNECTION_GRACE_SECONDS,
        )
        if self._last_head_by is not None:
            self._http2.drain()
        self._http2.receive(self._http.take_received())
        if self._transport.has_ended:
            self._http2.lose()

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
                if isinstance(request, RequestRefused):
                    error: RequestError | None = request.error
                else:
                    error = await run_application(self._service.application, exchange)
                if error is not None:
                    await answer_error(exchange, error)
            if self._exchange_scope.cancelled_caught and not transport.has_ended and exchange.status is None:
                await answer_error(exchange, Draining("the server shut down before it answered", close=True))
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
