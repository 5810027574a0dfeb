"""The async shell of one HTTP/2 connection: an exchange for each stream, a writer, and one alarm for all deadlines.

    serve ── writer task: what the protocol has to send, joined, whenever there is something
     │    ── alarm task: sleeps until the earliest of the deadlines below
     └─ for each stream ── exchange scope: the application, then an answer for it if it failed

Bytes come in by `receive`, which the transport's reader calls; it decides everything at once and never waits. Nothing
is started or woken for a piece of an answer but the writer, once for all pieces that were queued before it runs.

Deadlines: a written byte has --write-timeout-secs to go out, flow control or not, else its stream is reset; a header
block and the time without an open stream have --request-timeout-secs, else the connection ends; a body behind an answer
that did not want it has `LINGER_SECONDS`, else its stream is reset.
"""

from __future__ import annotations

import math
import time

import anyio
import anyio.abc

from poot.errors import Draining, RequestError
from poot.log import get_logger
from poot.net.answers import choose_request_id, log_access
from poot.net.exchange import ClientGone, Endpoints, Head
from poot.net.http.frames import ErrorCode
from poot.net.http.http2 import Http2
from poot.net.http.http2_events import (
    BodyArrived,
    ConnectionEnded,
    DrainConfirmed,
    Http2Event,
    RequestArrived,
    RequestRefused,
    StreamEnded,
)
from poot.net.http.http2_stream import Stream
from poot.net.http2_exchange import Http2Exchange
from poot.net.run_exchange import answer_error, run_application
from poot.net.service import Service
from poot.net.transport import LINGER_SECONDS, Transport

logger = get_logger(__name__)

DRAIN_GRACE_SECONDS = 1.0
"""How long after the first GOAWAY new streams are still taken from a client that does not confirm it. A round trip."""


class Http2Connection:
    """Serves the streams of one connection over a transport whose reader is running.

    Args:
        transport: the connection's bytes.
        task_group: outlives this object; exchanges run in it.
        accepted_at: when the connection was accepted, on the event loop's clock.
        new_connection_grace_seconds: how lately it must have been accepted for a first request that comes after the
            drain began to count as one that was on its way.
    """

    def __init__(
        self,
        transport: Transport,
        task_group: anyio.abc.TaskGroup,
        endpoints: Endpoints,
        service: Service,
        *,
        accepted_at: float,
        new_connection_grace_seconds: float,
    ) -> None:
        self._transport = transport
        self._task_group = task_group
        self._endpoints = endpoints
        self._service = service
        self._accepted_at = accepted_at
        self._new_connection_grace_seconds = new_connection_grace_seconds
        self._http = Http2()
        self._exchanges: dict[Stream, Http2Exchange] = {}
        # Streams whose body nobody wanted, and when patience with it ends.
        self._lingering: dict[Stream, float] = {}
        self._has_served = False
        self._idle_since: float | None = accepted_at
        self._drained_at: float | None = None
        self._is_drain_confirmed = False
        self._end = anyio.Event()
        self._output = anyio.Event()
        self._alarm = anyio.Event()
        # What the alarm task sleeps until; it is woken for what is due earlier.
        self._alarm_at = -math.inf

    async def serve(self) -> None:
        """Serves until the client goes, breaks the protocol or is idle too long, or a drain is through."""
        self._task_group.start_soon(self._run_writer)
        self._task_group.start_soon(self._run_alarm)
        self._wake_writer()
        await self._end.wait()
        self.cancel_exchanges()
        try:
            while self._http.has_output:
                await self._transport.write(self._http.data_to_send())
            await self._transport.flush()
        except ClientGone:
            return
        await self._transport.linger()

    def receive(self, data: bytes) -> None:
        """Takes bytes from the client."""
        for event in self._http.receive(data, anyio.current_time()):
            self._handle(event)
        if self._http.has_output:
            self._wake_writer()
        if (began_at := self._http.block_began_at) is not None:
            self._set_alarm(began_at + self._service.request_timeout_seconds)
        self._end_if_done()

    def drain(self) -> None:
        """Lets the connection end as soon as the streams on it, and those on their way, are answered."""
        if self._drained_at is None:
            self._drained_at = anyio.current_time()
            self._http.begin_drain()
            self._wake_writer()
            self._set_alarm(self._drained_at + DRAIN_GRACE_SECONDS)

    def cancel_exchanges(self) -> None:
        """Cancels every application that is running."""
        for exchange in self._exchanges.values():
            exchange.scope.cancel()

    def lose(self) -> None:
        """The client is gone."""
        self._end.set()
        self.cancel_exchanges()

    def _handle(self, event: Http2Event) -> None:
        match event:
            case RequestArrived(stream=stream, head=head):
                self._begin(stream, head, None)
            case RequestRefused(stream=stream, error=error):
                self._begin(stream, None, error)
            case BodyArrived(stream=stream):
                exchange = self._exchanges.get(stream)
                if exchange is not None and exchange.body_event is not None:
                    exchange.body_event.set()
            case StreamEnded(stream=stream):
                if (exchange := self._exchanges.get(stream)) is not None:
                    exchange.scope.cancel()
            case DrainConfirmed():
                self._is_drain_confirmed = True
            case ConnectionEnded(error=error, reason=reason):
                logger.debug("HTTP/2 connection ended", error=error.name, reason=reason, peer=self._endpoints.peer_ip)
                self._end.set()
                self.cancel_exchanges()

    def _begin(self, stream: Stream, head: Head | None, error: RequestError | None) -> None:
        self._idle_since = None
        exchange = Http2Exchange(
            http=self._http,
            stream=stream,
            head=head,
            endpoints=self._endpoints,
            request_id=choose_request_id(head),
            deadline=anyio.current_time() + self._service.request_timeout_seconds,
            service=self._service,
            is_late=self._is_late(),
            on_output=self._wake_writer,
            on_deadline=self._set_alarm,
        )
        self._exchanges[stream] = exchange
        self._task_group.start_soon(self._serve_stream, exchange, error)

    def _is_late(self) -> bool:
        """Whether a request that arrives now came after the drain began, and not on the way in with it."""
        if self._drained_at is None or self._has_served:
            return False
        return self._accepted_at < self._drained_at - self._new_connection_grace_seconds

    async def _serve_stream(self, exchange: Http2Exchange, refusal: RequestError | None) -> None:
        """Runs one exchange and sees to its answer."""
        started = time.perf_counter()
        stream = exchange.stream_state
        try:
            with exchange.scope:
                error = refusal or await run_application(self._service.application, exchange)
                if error is not None:
                    await answer_error(exchange, error)
            if exchange.scope.cancelled_caught and exchange.status is None and not stream.is_closed:
                exchange.scope = anyio.CancelScope()
                with exchange.scope:
                    await answer_error(exchange, Draining("the server shut down before it answered"))
        finally:
            del self._exchanges[stream]
            self._http.release(stream)
            if stream.is_lingering:
                self._lingering[stream] = anyio.current_time() + LINGER_SECONDS
                self._set_alarm(self._lingering[stream])
            self._has_served = True
            self._wake_writer()
            if not self._exchanges:
                self._idle_since = anyio.current_time()
                self._set_alarm(self._idle_since + self._service.request_timeout_seconds)
                self._end_if_done()
            head = exchange.head if refusal is None else None
            if head is None and exchange.status is not None:
                self._service.count_refusal(exchange.status)
            log_access(
                head,
                status=exchange.status,
                is_complete=exchange.is_complete,
                num_bytes=stream.num_sent,
                seconds=time.perf_counter() - started,
                request_id=exchange.request_id,
                peer_ip=self._endpoints.peer_ip,
                annotations=exchange.annotations,
            )

    def _end_if_done(self) -> None:
        """Ends a drain once no stream is left that may still be answered."""
        if self._is_drain_confirmed and not self._exchanges:
            self._end.set()

    async def _run_writer(self) -> None:
        """Sends what there is, as soon as there is something, waiting only for a client that reads slowly."""
        http, transport = self._http, self._transport
        try:
            while True:
                await self._output.wait()
                self._output = anyio.Event()
                while http.has_output:
                    if data := http.data_to_send():
                        # Seen by others only if this waits.
                        http.hold_up(True)
                        await transport.write(data)
                        http.hold_up(False)
                    for stream in http.take_progressed():
                        exchange = self._exchanges.get(stream)
                        if exchange is not None and exchange.progress is not None:
                            exchange.progress.set()
        except ClientGone:
            self.lose()

    def _wake_writer(self) -> None:
        self._output.set()

    def _set_alarm(self, due: float) -> None:
        if due < self._alarm_at:
            self._alarm_at = due
            self._alarm.set()

    async def _run_alarm(self) -> None:
        self._alarm_at = self._next_due()
        # Not longer: what has ended the connection stays due while it lingers, and would fire without a pause.
        while not self._end.is_set():
            self._alarm = anyio.Event()
            with anyio.CancelScope(deadline=self._alarm_at) as scope:
                await self._alarm.wait()
            # An alarm stands even when what it was set for has been sent meanwhile: else every frame would set one.
            if scope.cancelled_caught:
                self._expire(anyio.current_time())
                self._alarm_at = self._next_due()

    def _next_due(self) -> float:
        dues = [due for exchange in self._exchanges.values() if (due := exchange.write_due) is not None]
        timeout = self._service.request_timeout_seconds
        if (began_at := self._http.block_began_at) is not None:
            dues.append(began_at + timeout)
        if self._lingering:
            dues.append(next(iter(self._lingering.values())))
        if self._idle_since is not None:
            dues.append(self._idle_since + timeout)
        if self._drained_at is not None and not self._is_drain_confirmed:
            dues.append(self._drained_at + DRAIN_GRACE_SECONDS)
        return min(dues, default=math.inf)

    def _expire(self, now: float) -> None:
        timeout = self._service.request_timeout_seconds
        for stream, exchange in tuple(self._exchanges.items()):
            if (due := exchange.write_due) is not None and due <= now:
                self._http.reset(stream, ErrorCode.CANCEL)
                exchange.scope.cancel()
        for stream, due in tuple(self._lingering.items()):
            if due <= now or not stream.is_lingering:
                # NO_ERROR: the answer stands (RFC 9113 section 8.1).
                self._http.reset(stream, ErrorCode.NO_ERROR)
                del self._lingering[stream]
        if self._drained_at is not None and not self._is_drain_confirmed:
            if self._drained_at + DRAIN_GRACE_SECONDS <= now:
                self._http.finish_drain()
                self._is_drain_confirmed = True
                self._end_if_done()
        if (began_at := self._http.block_began_at) is not None and began_at + timeout <= now:
            self._http.fail(ErrorCode.NO_ERROR, "the request head did not arrive in time")
            self._end.set()
        if self._idle_since is not None and self._idle_since + timeout <= now:
            self._http.finish_drain()
            self._end.set()
        self._wake_writer()
