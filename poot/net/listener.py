"""The server: accepts connections up to a cap, runs a task for each, and drains.

serve ── connections (task group) ── one task for each connection
 └─ accept loop, ended by the drain; the connections are then told, waited for, and cancelled at the deadline
"""

from __future__ import annotations

import errno
import json
import socket
from collections import deque
from dataclasses import dataclass

import anyio
import anyio.abc

from poot.config import Address, NetConfig
from poot.errors import Overloaded
from poot.log import get_logger
from poot.metrics import Metrics
from poot.net.binding import BACKLOG, Binding, bind, release
from poot.net.connection import Connection
from poot.net.exchange import Application, Endpoints
from poot.net.service import HTTP1, Service

logger = get_logger(__name__)

ACCEPT_BATCH = 64
"""Connections accepted in a row before other tasks get their turn."""

ACCEPT_BACKOFF_SECONDS = (0.05, 1.0)
"""First and longest pause after an accept that failed for want of descriptors or memory: the listener stays readable
then, and trying again at once would spin. nginx pauses 0.5 s."""

LAST_WORD_SECONDS = 1.0
"""At the drain deadline the engine ends its sequences; answers get this long to say so before they are cancelled."""

MAX_REFUSED_SOCKETS = 32
"""Refused connections kept half-open so that their 503 is not lost to a reset; the oldest makes room for the next."""

_OUT_OF_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerStatistics:
    """Counts since the start, and what is open now."""

    num_open: int
    num_accepted: int
    num_refused: int
    is_draining: bool


class Server:
    """Serves one application on one address. `serve` runs once.

    Args:
        config: address, cap and timeouts.
        application: answers every request.
        metrics: where connections are counted, if anywhere.
    """

    def __init__(self, config: NetConfig, application: Application, metrics: Metrics | None = None) -> None:
        self._config = config
        self._metrics = metrics
        self._service = Service(
            application=application,
            request_timeout_seconds=config.request_timeout_seconds,
            write_timeout_seconds=config.write_timeout_seconds,
            metrics=metrics,
        )
        self._connections: set[Connection] = set()
        self._refused: deque[socket.socket] = deque()
        self._num_accepted = 0
        self._num_refused = 0
        self._accept_scope: anyio.CancelScope | None = None
        self._emptied: anyio.Event | None = None

    @property
    def is_draining(self) -> bool:
        return self._service.is_draining

    def statistics(self) -> ServerStatistics:
        return ServerStatistics(
            num_open=len(self._connections),
            num_accepted=self._num_accepted,
            num_refused=self._num_refused,
            is_draining=self.is_draining,
        )

    def drain(self) -> None:
        """Begins the end: `serve` stops accepting, lets what is under way finish, and returns. Never waits."""
        self._service.is_draining = True
        if self._accept_scope is not None:
            self._accept_scope.cancel()

    async def serve(self, *, task_status: anyio.abc.TaskStatus[Address] = anyio.TASK_STATUS_IGNORED) -> None:
        """Listens until `drain`, then until the last connection has ended or the drain deadline has cancelled it.

        Reports the bound address when the listener is open. Cancelled itself, it closes every connection at once.

        Raises:
            StartupError: the address cannot be listened on.
        """
        binding = await bind(self._config.address)
        try:
            async with anyio.create_task_group() as connections:
                with release(binding):
                    task_status.started(binding.address)
                    with anyio.CancelScope() as self._accept_scope:
                        if self.is_draining:
                            self._accept_scope.cancel()
                        await self._accept(binding, connections)
                    self._accept_queued(binding, connections)
                await self._finish_connections()
                connections.cancel_scope.cancel()
        finally:
            while self._refused:
                self._refused.popleft().close()

    async def _accept(self, binding: Binding, connections: anyio.abc.TaskGroup) -> None:
        pause, longest = ACCEPT_BACKOFF_SECONDS
        while True:
            await anyio.wait_readable(binding.listening)
            try:
                self._accept_waiting(binding, connections)
            except OSError as error:
                if error.errno not in _OUT_OF_RESOURCES:
                    raise
                logger.error("cannot accept connections", error=error.strerror, retry_seconds=pause)
                await anyio.sleep(pause)
                pause = min(2 * pause, longest)
            else:
                pause, _ = ACCEPT_BACKOFF_SECONDS

    def _accept_waiting(self, binding: Binding, connections: anyio.abc.TaskGroup) -> int:
        """Takes up to `ACCEPT_BATCH` connections from the kernel's queue; returns how many.

        Raises:
            OSError: the process or the system is out of something.
        """
        for count in range(ACCEPT_BATCH):
            try:
                connected, peer = binding.listening.accept()
            except BlockingIOError:
                return count
            except OSError as error:
                if error.errno in (*_OUT_OF_RESOURCES, errno.EBADF, errno.EINVAL):
                    raise
                # Linux hands the new connection's own network errors to accept(2): that connection is gone, no more.
                logger.debug("a connection was lost before accept", error=error.strerror)
                continue
            if self._config.max_connections and len(self._connections) >= self._config.max_connections:
                self._refuse(connected)
            else:
                self._admit(connected, binding.endpoints(peer), connections)
        return ACCEPT_BATCH

    def _accept_queued(self, binding: Binding, connections: anyio.abc.TaskGroup) -> None:
        """Takes what the kernel has queued: it has answered these clients, and closing the listener resets them."""
        try:
            for _ in range(BACKLOG // ACCEPT_BATCH):
                if self._accept_waiting(binding, connections) < ACCEPT_BATCH:
                    return
        except OSError as error:
            logger.error("cannot accept the connections queued before the drain", error=error.strerror)

    def _admit(self, connected: socket.socket, endpoints: Endpoints, connections: anyio.abc.TaskGroup) -> None:
        connected.setblocking(False)
        if connected.family != socket.AF_UNIX:
            # Frames are small and each is wanted at once; Nagle's algorithm would hold them for an acknowledgement.
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = Connection(connected, endpoints, self._service)
        self._connections.add(connection)
        self._num_accepted += 1
        if self._metrics is not None:
            self._metrics.connections.labels(HTTP1).inc()
            self._metrics.connections_open.labels(HTTP1).inc()
        connections.start_soon(self._run_connection, connection)

    async def _run_connection(self, connection: Connection) -> None:
        try:
            await connection.run()
        except Exception as error:
            # The border of one connection: a fault of ours on it must not take the others along.
            logger.exception("a connection failed", error)
        finally:
            self._connections.discard(connection)
            if self._metrics is not None:
                self._metrics.connections_open.labels(connection.protocol).dec()
            if self._emptied is not None and not self._connections:
                self._emptied.set()

    def _refuse(self, connected: socket.socket) -> None:
        """Answers a connection over the cap without a task for it."""
        self._num_refused += 1
        if self._metrics is not None:
            self._metrics.refused.labels("connections").inc()
        logger.warn("connection refused, the cap is reached", max_connections=self._config.max_connections)
        connected.setblocking(False)
        try:
            connected.send(_refusal(self._service.date()))
            connected.shutdown(socket.SHUT_WR)
        except OSError:
            connected.close()
            return
        self._refused.append(connected)
        if len(self._refused) > MAX_REFUSED_SOCKETS:
            self._refused.popleft().close()

    async def _finish_connections(self) -> None:
        for connection in tuple(self._connections):
            connection.drain()
        if await self._wait_until_empty(self._config.drain_timeout_seconds):
            return
        logger.warn("drain deadline passed", num_connections=len(self._connections))
        if await self._wait_until_empty(LAST_WORD_SECONDS):
            return
        for connection in tuple(self._connections):
            connection.cancel_exchange()
        await self._wait_until_empty(LAST_WORD_SECONDS)

    async def _wait_until_empty(self, seconds: float) -> bool:
        """Waits for the last connection to end, at most so long; says whether it has."""
        self._emptied = anyio.Event()
        with anyio.move_on_after(seconds):
            if self._connections:
                await self._emptied.wait()
        return not self._connections


def _refusal(date: bytes) -> bytes:
    error = Overloaded("the server holds as many connections as it may (--max-connections); try again shortly")
    body = json.dumps(error.body()).encode("utf-8")
    return (
        b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\ncontent-length: %d\r\ndate: %b\r\n"
        b"retry-after: 1\r\nconnection: close\r\n\r\n%b" % (len(body), date, body)
    )
