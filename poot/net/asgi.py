"""The application as an ASGI 3 application, for a host server that adds what poot does not speak: TLS and HTTP/3.

    lifespan ── opens the application, keeps it until shutdown, drains ── the exchanges that are under way
    http ── exchange scope: the application, then an answer for it if it failed
             └─ reader task (`asgi_exchange`) ── the body, and the news that the client is gone
    websocket ── refused

The host owns sockets, bytes and signals. Held here as in `connection`: the checks of the head that a scope still shows
(`asgi_scope` says which), body limits, Content-Length against the body, the time for head and body (counted from the
scope's start, since the host has read the head), the time for a write, X-Request-Id, the access log, and everything the
application decides. The host's: --max-connections, idle connections, the time for a head, keep-alive, Date, chunking,
100 Continue, limits on HTTP/2 abuse, and when a drain begins; a host tells the application only at its end, when it has
ended or cut off the connections.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from contextlib import AbstractAsyncContextManager

import anyio

from poot.config import NetConfig
from poot.errors import Draining, Overloaded, PootError, RequestError
from poot.log import get_logger
from poot.metrics import Metrics
from poot.net.answers import choose_request_id, log_access
from poot.net.asgi_exchange import AsgiExchange, Receive, Send
from poot.net.asgi_scope import Scope, read_endpoints, read_head
from poot.net.exchange import Application, Exchange, Head
from poot.net.run_exchange import answer_error, run_application
from poot.net.service import Service

logger = get_logger(__name__)

LAST_WORD_SECONDS = 1.0
"""How long an answer that the drain deadline cancels may take to say so."""


class AsgiApplication:
    """An ASGI 3 application; runs on asyncio and on trio, in as many lifespans one after another as the host likes.

    Args:
        open_application: entered at the lifespan's startup, in a task that lives until its shutdown.
        config: timeouts; the address and `max_connections` are not read.
        metrics: where requests are counted that no application sees, if anywhere.
        names: hosts, without port, that the server is reached by, such as those in its certificate. The application's
            Host check passes them beside localhost, loopback and the address the connection came in on.
    """

    def __init__(
        self,
        open_application: Callable[[], AbstractAsyncContextManager[Application]],
        config: NetConfig,
        *,
        metrics: Metrics | None = None,
        names: Collection[str] = (),
    ) -> None:
        self._open_application = open_application
        self._drain_timeout_seconds = config.drain_timeout_seconds
        self._names = frozenset(name.lower() for name in names)
        self._application: Application | None = None
        self._service = Service(
            application=self._apply,
            request_timeout_seconds=config.request_timeout_seconds,
            write_timeout_seconds=config.write_timeout_seconds,
            metrics=metrics,
        )
        self._exchanges: set[AsgiExchange] = set()
        self._emptied: anyio.Event | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one scope.

        Raises:
            NotImplementedError: a scope type that does not exist yet; ASGI wants that of applications.
        """
        if scope["type"] == "http":
            await self._serve(scope, receive, send)
        elif scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close"})  # before an accept: the host answers the handshake with 403
        else:
            raise NotImplementedError(f"ASGI scope type {scope['type']!r}")

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()  # lifespan.startup
        has_started = False
        try:
            async with self._open_application() as application:
                self._application = application
                self._service.is_draining = False
                has_started = True
                await send({"type": "lifespan.startup.complete"})
                await receive()  # lifespan.shutdown
                await self._drain()
        except PootError as error:
            if has_started:
                raise
            await send({"type": "lifespan.startup.failed", "message": str(error)})
            return
        finally:
            self._application = None
        await send({"type": "lifespan.shutdown.complete"})

    async def _drain(self) -> None:
        """Refuses new requests, lets those under way finish, and cancels them at the drain deadline."""
        self._service.is_draining = True
        if await self._wait_until_empty(self._drain_timeout_seconds):
            return
        logger.warn("drain deadline passed", num_requests=len(self._exchanges))
        for exchange in tuple(self._exchanges):
            exchange.scope.cancel()
        await self._wait_until_empty(LAST_WORD_SECONDS)

    async def _wait_until_empty(self, seconds: float) -> bool:
        """Waits for the last exchange to end, at most so long; says whether it has."""
        self._emptied = anyio.Event()
        with anyio.move_on_after(seconds):
            if self._exchanges:
                await self._emptied.wait()
        return not self._exchanges

    async def _apply(self, exchange: Exchange) -> None:
        if self._application is None:
            raise Overloaded("the server has not started or has stopped (its host runs no ASGI lifespan)", close=True)
        await self._application(exchange)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = time.perf_counter()
        deadline = anyio.current_time() + self._service.request_timeout_seconds
        head: Head | None = None
        refusal: RequestError | None = None
        try:
            head = read_head(scope)
        except RequestError as error:
            refusal = error
        async with anyio.create_task_group() as task_group:
            exchange = AsgiExchange(
                receive=receive,
                send=send,
                task_group=task_group,
                head=head,
                endpoints=read_endpoints(scope, head, self._names),
                request_id=choose_request_id(head),
                http_version=scope["http_version"],
                deadline=deadline,
                service=self._service,
                is_late=self._service.is_draining,
            )
            self._exchanges.add(exchange)
            try:
                await self._answer(exchange, head, refusal)
            finally:
                self._exchanges.discard(exchange)
                if self._emptied is not None and not self._exchanges:
                    self._emptied.set()
                if head is None and exchange.status is not None:
                    self._service.count_refusal(exchange.status)
                log_access(
                    head,
                    status=exchange.status,
                    is_complete=exchange.is_complete,
                    num_bytes=exchange.num_body_bytes,
                    seconds=time.perf_counter() - started,
                    request_id=exchange.request_id,
                    peer_ip=exchange.endpoints.peer_ip,
                    annotations=exchange.annotations,
                )
            task_group.cancel_scope.cancel()

    async def _answer(self, exchange: AsgiExchange, head: Head | None, refusal: RequestError | None) -> None:
        """Runs the application in the exchange's scope, which ends with the client or at the drain deadline."""
        with exchange.scope:
            if head is not None and head.get(b"expect") is None:
                exchange.start_reader()
            error = refusal or await run_application(self._service.application, exchange)
            if error is not None:
                await answer_error(exchange, error)
        if exchange.scope.cancelled_caught and not exchange.is_gone and exchange.status is None:
            await answer_error(exchange, Draining("the server shut down before it answered", close=True))
