"""The other end of a connection under test: a client over a raw socket, and connections and servers to talk to."""

from __future__ import annotations

import socket
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio
import anyio.abc
import anyio.lowlevel
import h11

from poot.config import Address, NetConfig, TcpAddress, UnixAddress
from poot.metrics import Metrics
from poot.net.connection import Connection
from poot.net.exchange import Application, Endpoints, Exchange, Response
from poot.net.listener import Server
from poot.net.service import Service

TEXT = ((b"content-type", b"text/plain"),)


@dataclass
class Answer:
    """An answer as h11's client side read it. `is_complete` is false when the connection ended first."""

    status: int
    headers: dict[bytes, bytes]
    body: bytes = b""
    is_complete: bool = False


@dataclass
class Client:
    """A client that writes raw bytes and reads answers through h11, an independent reader of HTTP/1.1.

    `has_ended` is set, over a socket pair, when the connection's `run` has returned.
    """

    connected: socket.socket
    has_ended: anyio.Event = field(default_factory=anyio.Event)
    h11: h11.Connection = field(default_factory=lambda: h11.Connection(h11.CLIENT))

    async def send(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            try:
                view = view[self.connected.send(view) :]
            except BlockingIOError:
                await anyio.wait_writable(self.connected)

    async def receive(self, max_bytes: int = 65536) -> bytes:
        """The next bytes, b"" when the server closed.

        Raises:
            ConnectionResetError: the server reset the connection.
        """
        while True:
            try:
                return self.connected.recv(max_bytes)
            except BlockingIOError:
                await anyio.wait_readable(self.connected)

    async def receive_rest(self) -> bytes:
        """Everything until the server closes."""
        pieces = []
        while data := await self.receive():
            pieces.append(data)
        return b"".join(pieces)

    async def request(self, raw: bytes, method: str = "GET") -> Answer:
        """Sends a raw request and reads its answer."""
        await self.send(raw)
        return await self.answer(method)

    async def answer(self, method: str = "GET") -> Answer:
        """Reads the next final answer; `method` decides whether it has a body."""
        if self.h11.our_state is h11.DONE:
            self.h11.start_next_cycle()
        if self.h11.our_state is h11.IDLE:
            self.h11.send(h11.Request(method=method, target="/", headers=[("host", "x")]))
            self.h11.send(h11.EndOfMessage())
        answer: Answer | None = None
        while True:
            event = self.h11.next_event()
            if event is h11.NEED_DATA:
                data = await self.receive()
                if not data and answer is not None and self.h11.their_state is h11.SEND_BODY:
                    try:
                        self.h11.receive_data(b"")
                        event = self.h11.next_event()
                    except h11.RemoteProtocolError:
                        return answer
                else:
                    self.h11.receive_data(data)
                    continue
            if isinstance(event, h11.Response):
                answer = Answer(event.status_code, dict(event.headers))
            elif isinstance(event, h11.Data):
                assert answer is not None
                answer.body += event.data
            elif isinstance(event, h11.EndOfMessage):
                assert answer is not None
                answer.is_complete = True
                return answer
            elif isinstance(event, h11.ConnectionClosed):
                raise EOFError("the server closed before it answered")

    def close(self) -> None:
        self.connected.close()


async def hello(exchange: Exchange) -> None:
    """An application that answers with what it was asked."""
    body = await exchange.read_body(1 << 20)
    await exchange.send(Response(status=200, headers=TEXT, body=exchange.head.path.encode() + body))


@asynccontextmanager
async def connected(
    application: Application = hello,
    *,
    request_timeout_seconds: float = 30,
    write_timeout_seconds: float = 30,
    send_buffer_bytes: int | None = None,
) -> AsyncGenerator[tuple[Client, Connection, Service]]:
    """One connection over a socket pair, and the client at its other end. Both are closed on leaving.

    Args:
        send_buffer_bytes: a small kernel buffer towards the client, for tests of slow readers.
    """
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.setblocking(False)
    if send_buffer_bytes is not None:
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer_bytes)
    service = Service(
        application=application,
        request_timeout_seconds=request_timeout_seconds,
        write_timeout_seconds=write_timeout_seconds,
    )
    connection = Connection(ours, Endpoints(peer_ip="unix", local_host=None, local_port=None), service)
    client = Client(theirs)

    async def run() -> None:
        await connection.run()
        client.has_ended.set()

    with theirs:
        async with anyio.create_task_group() as task_group:
            task_group.start_soon(run)
            yield client, connection, service
            task_group.cancel_scope.cancel()
    assert ours.fileno() == -1, "the connection leaves its socket open"


def connect(address: Address) -> Client:
    """A client of a listening server."""
    family, name = socket_name(address)
    connected = socket.socket(family, socket.SOCK_STREAM)
    try:
        connected.connect(name)
    except OSError:
        connected.close()
        raise
    connected.setblocking(False)
    return Client(connected)


def socket_name(address: Address) -> tuple[int, str | tuple[str, int]]:
    """Family and name to connect to."""
    if isinstance(address, TcpAddress):
        return socket.AF_INET6 if ":" in address.host else socket.AF_INET, (address.host, address.port)
    assert isinstance(address, UnixAddress)
    return socket.AF_UNIX, address.path


@dataclass
class Running:
    """A server that listens, the address it reported, and what it counts."""

    server: Server
    address: Address
    metrics: Metrics
    has_ended: anyio.Event = field(default_factory=anyio.Event)
    clients: list[Client] = field(default_factory=list)

    def connect(self) -> Client:
        """A client that is closed with the server."""
        client = connect(self.address)
        self.clients.append(client)
        return client


LOOPBACK = TcpAddress(host="127.0.0.1", port=0)


@asynccontextmanager
async def serving(
    application: Application = hello, *, address: Address = LOOPBACK, **settings: int
) -> AsyncGenerator[Running]:
    """A server on `address` with settings of `NetConfig`; stopped at once on leaving."""
    metrics = Metrics()
    server = Server(NetConfig(address=address, **settings), application, metrics)

    async def run(*, task_status: anyio.abc.TaskStatus[Address]) -> None:
        await server.serve(task_status=task_status)
        running.has_ended.set()

    async with anyio.create_task_group() as task_group:
        # `serve` reports before it waits, so `run` cannot end before this name is bound.
        running = Running(server, await task_group.start(run), metrics)
        try:
            yield running
        finally:
            for client in running.clients:
                client.close()
            task_group.cancel_scope.cancel()


async def until(condition: Callable[[], bool]) -> None:
    """Lets other tasks run until the condition holds. Each turn is real progress of the loop, no time passes."""
    while not condition():
        await anyio.lowlevel.checkpoint()


async def settle() -> None:
    """Lets everything happen that can: a virtual clock moves only when no task can run and no socket is ready.

    `anyio.wait_all_tasks_blocked` would not do: on asyncio it takes a task whose socket is ready for a blocked one.
    """
    await anyio.sleep(0.001)
