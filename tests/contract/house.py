"""The server of the contract's tests: the real listener and the real API over an engine that plays scripts.

Leaving it checks the ledger: whatever a test did to the server, nothing may be held once its clients are gone.
"""

from __future__ import annotations

import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
import anyio.abc

from poot.api import Api
from poot.config import Address, ApiConfig, NetConfig, TcpAddress
from poot.metrics import Metrics
from poot.net.listener import Server
from tests.contract.asking import Ask, Protocol, Reply
from tests.contract.http1_peer import Http1Peer
from tests.contract.http2_peer import Http2Peer
from tests.fakes.engine import FakeEngine
from tests.net.peers import socket_name

LOOPBACK = TcpAddress(host="127.0.0.1", port=0)

Peer = Http1Peer | Http2Peer

TIME_LIMIT_SECONDS = 100_000.0
"""Of virtual time; a test that waits for what never comes fails at once."""


@dataclass
class Clock:
    """The clock of rate windows, in seconds; a test moves it."""

    seconds: float = 1000.0


@dataclass
class House:
    """A running server."""

    server: Server
    engine: FakeEngine
    metrics: Metrics
    address: Address = LOOPBACK
    clock: Clock = field(default_factory=Clock)
    has_ended: anyio.Event = field(default_factory=anyio.Event)
    peers: list[Peer] = field(default_factory=list)

    @property
    def port(self) -> int:
        """Where it listens."""
        assert isinstance(self.address, TcpAddress)
        return self.address.port

    @property
    def authority(self) -> str:
        """A Host that names it."""
        return f"localhost:{self.port}" if isinstance(self.address, TcpAddress) else "localhost"

    def connect(self, protocol: Protocol, *, receive_buffer_bytes: int | None = None) -> Peer:
        """A new connection, closed with the server.

        Args:
            receive_buffer_bytes: a small kernel buffer, for a client that does not read.
        """
        if protocol is Protocol.HTTP1:
            return self.connect_http1(receive_buffer_bytes=receive_buffer_bytes)
        return self.connect_http2()

    def connect_http1(self, *, receive_buffer_bytes: int | None = None, source: str | None = None) -> Http1Peer:
        """A new HTTP/1.1 connection; `source` is the local address it comes from."""
        connected = self._socket(receive_buffer_bytes, source)
        peer = Http1Peer(connected, self.authority)
        self.peers.append(peer)
        return peer

    def connect_http2(self, *, initial_window: int | None = None) -> Http2Peer:
        """A new HTTP/2 connection."""
        peer = Http2Peer(self._socket(None, None), self.authority, initial_window=initial_window)
        self.peers.append(peer)
        return peer

    async def ask(self, protocol: Protocol, ask: Ask) -> Reply:
        """The answer to a request on a connection of its own."""
        peer = self.connect(protocol)
        reply = await peer.ask(ask)
        peer.close()
        return reply

    def metric(self, *names: str) -> Any:
        """A number of the JSON view of the metrics."""
        value: Any = self.metrics.as_json()
        for name in names:
            value = value.get(name, 0) if isinstance(value, dict) else 0
        return value

    def ledger(self) -> dict[str, int]:
        """Everything that is held right now and not zero."""
        held = self.engine.statistics()
        metrics = self.metrics.as_json()
        entries = {
            "pending": metrics["admission_pending"],
            "receiving": metrics["admission_receiving"],
            "rows": held.rows_held,
            "blocks": held.kv_blocks_held,
            "waiting": held.waiting,
            "connections": self.server.statistics().num_open,
            **metrics["connections_open"],
        }
        return {name: count for name, count in entries.items() if count}

    def _socket(self, receive_buffer_bytes: int | None, source: str | None) -> socket.socket:
        family, name = socket_name(self.address)
        connected = socket.socket(family, socket.SOCK_STREAM)
        try:
            if receive_buffer_bytes is not None:
                connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
            if source is not None:
                connected.bind((source, 0))
            connected.connect(name)
        except OSError:
            connected.close()
            raise
        connected.setblocking(False)
        if family != socket.AF_UNIX:
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connected


_NET_SETTINGS = ("max_connections", "request_timeout_seconds", "write_timeout_seconds", "drain_timeout_seconds")


@asynccontextmanager
async def house(
    engine: FakeEngine | None = None, *, address: Address = LOOPBACK, **settings: Any
) -> AsyncGenerator[House]:
    """A server with these settings of `NetConfig` and `ApiConfig`; stopped on leaving, when its ledger must be zero."""
    engine = engine or FakeEngine()
    metrics = Metrics()
    net = {name: value for name, value in settings.items() if name in _NET_SETTINGS}
    api = {name: value for name, value in settings.items() if name not in _NET_SETTINGS}
    clock = Clock()
    application = Api(engine, ApiConfig(**api), metrics, clock=lambda: clock.seconds)
    running = House(Server(NetConfig(address=address, **net), application, metrics), engine, metrics, clock=clock)

    async def run(*, task_status: anyio.abc.TaskStatus[Address]) -> None:
        await running.server.serve(task_status=task_status)
        running.has_ended.set()

    async with anyio.create_task_group() as task_group:
        running.address = await task_group.start(run)
        try:
            with anyio.fail_after(TIME_LIMIT_SECONDS):
                yield running
        finally:
            for peer in running.peers:
                peer.close()
        await anyio.sleep(5)  # of virtual time: longer than a connection lingers
        assert running.ledger() == {}, "something is still held"
        task_group.cancel_scope.cancel()
