"""The server over real sockets: accepting, the cap, running out of descriptors, and every state of the drain."""

from __future__ import annotations

import errno
import json
import logging
import os
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
import anyio.abc
import pytest

import poot.net.listener as listener_module
from poot.config import Address, FdAddress, NetConfig, TcpAddress, UnixAddress
from poot.net.binding import Binding, bind
from poot.net.connection import NEW_CONNECTION_GRACE_SECONDS
from poot.net.exchange import Endpoints, Exchange, Response
from poot.net.listener import LAST_WORD_SECONDS, MAX_REFUSED_SOCKETS, Server, ServerStatistics
from tests.net.conftest import every_loop
from tests.net.peers import LOOPBACK, TEXT, Client, connect, hello, serving, settle, until

pytestmark = pytest.mark.anyio

GET = b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n"
POST = b"POST /p HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nbody"


DESCRIPTORS = "/proc/self/fd"


class Gated:
    """An application that answers /held only once it is released, and counts what runs."""

    def __init__(self) -> None:
        self.release = anyio.Event()
        self.running: list[str] = []
        self.ended: list[str] = []

    async def __call__(self, exchange: Exchange) -> None:
        self.running.append(exchange.head.path)
        try:
            if exchange.head.path == "/held":
                await self.release.wait()
            await hello(exchange)
        finally:
            self.ended.append(exchange.head.path)


HELD = GET.replace(b"/a", b"/held")


async def assert_closed(client: Client) -> None:
    """The server has closed this connection, without another byte."""
    assert await client.receive_rest() == b""


@every_loop
async def test_many_clients_are_served() -> None:
    async with serving() as running:
        clients = [running.connect() for _ in range(200)]
        for number, client in enumerate(clients):
            assert (await client.request(b"GET /%d HTTP/1.1\r\nHost: x\r\n\r\n" % number)).body == b"/%d" % number
        assert running.server.statistics() == ServerStatistics(
            num_open=200, num_accepted=200, num_refused=0, is_draining=False
        )
        view = running.metrics.as_json()
        assert (view["connections"]["http/1.1"], view["connections_open"]["http/1.1"]) == (200, 200)
        for client in clients:
            client.close()
        await until(lambda: running.server.statistics().num_open == 0)
        assert running.metrics.as_json()["connections_open"]["http/1.1"] == 0


async def test_the_application_sees_both_ends() -> None:
    seen: list[Endpoints] = []

    async def application(exchange: Exchange) -> None:
        seen.append(exchange.endpoints)
        await hello(exchange)

    async with serving(application) as running:
        await running.connect().request(GET)
        assert isinstance(running.address, TcpAddress)
        assert seen == [Endpoints(peer_ip="127.0.0.1", local_host="127.0.0.1", local_port=running.address.port)]


async def test_a_unix_socket_serves(tmp_path: Path) -> None:
    seen: list[Endpoints] = []

    async def application(exchange: Exchange) -> None:
        seen.append(exchange.endpoints)
        await hello(exchange)

    path = tmp_path / "socket"
    async with serving(application, address=UnixAddress(path=str(path))) as running:
        assert (await running.connect().request(GET)).body == b"/a"
        assert seen == [Endpoints(peer_ip="unix", local_host=None, local_port=None)]
    assert not path.exists()


async def test_an_inherited_socket_serves() -> None:
    inherited = socket.create_server(("127.0.0.1", 0))
    async with serving(address=FdAddress(fd=inherited.detach())) as running:
        assert (await running.connect().request(GET)).body == b"/a"


async def test_accepted_sockets_send_small_frames_at_once() -> None:
    async with serving() as running:
        await running.connect().request(GET)
        (connection,) = running.server._connections
        assert connection._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


async def test_requests_that_no_application_sees_are_counted() -> None:
    async with serving() as running:
        assert (await running.connect().request(b"nonsense\r\n\r\n")).status == 400
        assert (await running.connect().request(GET[:-1])).status == 408
        assert running.metrics.as_json()["requests"] == {"unknown": {"400": 1, "408": 1}}


# The cap


async def test_over_the_cap_a_connection_gets_a_short_503() -> None:
    async with serving(max_connections=2) as running:
        first, second = running.connect(), running.connect()
        for client in (first, second):
            await client.request(GET)
        over = running.connect()
        answer = await over.answer()
        assert (answer.status, answer.headers[b"connection"], answer.headers[b"retry-after"]) == (503, b"close", b"1")
        assert answer.headers[b"content-type"] == b"application/json"
        assert json.loads(answer.body)["error"]["type"] == "overloaded_error"
        await assert_closed(over)
        assert running.server.statistics().num_refused == 1
        assert running.metrics.as_json()["refused"]["connections"] == 1
        assert running.metrics.as_json()["connections"]["http/1.1"] == 2
        first.close()
        await until(lambda: running.server.statistics().num_open == 1)
        assert (await running.connect().request(GET)).status == 200


async def test_the_503_is_not_lost_when_the_request_was_sent_already() -> None:
    async with serving(max_connections=1) as running:
        await running.connect().request(GET)
        over = [running.connect() for _ in range(MAX_REFUSED_SOCKETS)]
        for client in over:
            await client.send(POST)
        for client in over:
            assert (await client.answer()).status == 503
            await assert_closed(client)  # and not reset


@pytest.mark.skipif(not os.path.isdir(DESCRIPTORS), reason="counts descriptors in /proc")
async def test_refused_connections_take_no_more_than_their_few_descriptors() -> None:
    async with serving(max_connections=1) as running:
        await running.connect().request(GET)
        before = len(os.listdir(DESCRIPTORS))
        for _ in range(4 * MAX_REFUSED_SOCKETS):
            over = connect(running.address)
            assert (await over.answer()).status == 503
            over.close()
        assert len(os.listdir(DESCRIPTORS)) - before <= MAX_REFUSED_SOCKETS


async def test_no_cap_is_no_cap() -> None:
    async with serving(max_connections=0) as running:
        clients = [running.connect() for _ in range(50)]
        assert [(await client.request(GET)).status for client in clients] == [200] * 50


async def test_running_out_of_descriptors_is_logged_and_survived_without_spinning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving() as running:
        num_calls = 0
        accept_waiting = running.server._accept_waiting

        def fails(*arguments: object) -> int:
            nonlocal num_calls
            num_calls += 1
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

        monkeypatch.setattr(running.server, "_accept_waiting", fails)
        client = running.connect()
        await anyio.sleep(10)
        # 0.05, 0.1, ... 0.8, then one a second.
        assert 10 <= num_calls <= 16
        assert "cannot accept connections" in caplog.text
        monkeypatch.setattr(running.server, "_accept_waiting", accept_waiting)
        assert (await client.request(GET)).status == 200


class BrokenListener:
    """A listening socket whose first accepts fail as given."""

    def __init__(self, listening: socket.socket, failures: list[int]) -> None:
        self._listening = listening
        self._failures = failures

    def accept(self) -> tuple[socket.socket, object]:
        if self._failures:
            number = self._failures.pop()
            raise OSError(number, os.strerror(number))
        return self._listening.accept()

    def __getattr__(self, name: str) -> object:
        return getattr(self._listening, name)


async def test_a_connection_lost_before_accept_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    async def bind_broken(address: Address) -> Binding:
        binding = await bind(address)
        object.__setattr__(binding, "listening", BrokenListener(binding.listening, [errno.ECONNABORTED, errno.EPROTO]))
        return binding

    monkeypatch.setattr(listener_module, "bind", bind_broken)
    async with serving() as running:
        assert (await running.connect().request(GET)).status == 200


async def test_a_fault_in_one_connection_leaves_the_others_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving() as running:
        healthy, faulty = running.connect(), running.connect()
        await healthy.request(GET)
        await until(lambda: running.server.statistics().num_open == 2)

        def fault() -> None:
            raise ZeroDivisionError

        (victim,) = [each for each in running.server._connections if not each._has_served]
        monkeypatch.setattr(victim._http, "next_event", fault)
        await faulty.send(GET)
        await assert_closed(faulty)
        assert "a connection failed" in caplog.text
        assert (await healthy.request(GET)).status == 200


async def test_cancelling_serve_closes_everything() -> None:
    application = Gated()
    async with serving(application) as running:
        client = connect(running.address)
        await client.send(HELD)
        await until(lambda: application.running == ["/held"])
    await assert_closed(client)
    client.close()
    assert application.ended == ["/held"]


# The drain


@every_loop
async def test_an_idle_server_drains_at_once() -> None:
    async with serving() as running:
        running.server.drain()
        await running.has_ended.wait()
        assert running.server.is_draining
        with pytest.raises(ConnectionRefusedError):
            connect(running.address)


async def test_draining_before_serving_ends_at_once() -> None:
    server = Server(NetConfig(address=LOOPBACK), hello)
    server.drain()
    await server.serve()


async def test_idle_connections_are_closed() -> None:
    async with serving() as running:
        client = running.connect()
        await client.request(GET)
        started = anyio.current_time()
        running.server.drain()
        await assert_closed(client)
        await running.has_ended.wait()
        assert anyio.current_time() == started


@pytest.mark.parametrize("has_served", [False, True])
async def test_a_connection_in_the_middle_of_a_head_is_closed(has_served: bool) -> None:
    async with serving() as running:
        client = running.connect()
        if has_served:
            await client.request(GET)
        await client.send(GET[:-2])
        await until(lambda: any(each._http.has_begun for each in running.server._connections))
        started = anyio.current_time()
        running.server.drain()
        await assert_closed(client)
        await running.has_ended.wait()
        assert anyio.current_time() == started


async def test_an_answer_under_way_is_finished_and_its_connection_closed() -> None:
    application = Gated()
    async with serving(application) as running:
        client = running.connect()
        await client.send(HELD + GET)
        await until(lambda: application.running == ["/held"])
        running.server.drain()
        await settle()
        assert not running.has_ended.is_set()
        application.release.set()
        answer = await client.answer()
        assert (answer.status, answer.body, answer.headers[b"connection"]) == (200, b"/held", b"close")
        await assert_closed(client)
        assert application.running == ["/held"], "a request behind it is not begun"
        await running.has_ended.wait()


async def test_a_stream_under_way_is_finished_and_its_connection_closed() -> None:
    release = anyio.Event()

    async def application(exchange: Exchange) -> None:
        async with exchange.stream(200, TEXT) as writer:
            await writer.write(b"one,")
            await release.wait()
            await writer.write(b"two")

    async with serving(application) as running:
        client = running.connect()
        await client.send(GET)
        await until(lambda: running.server.statistics().num_open == 1)
        await anyio.wait_readable(client.connected)
        started = anyio.current_time()
        running.server.drain()
        release.set()
        answer = await client.answer()
        assert (answer.body, answer.is_complete) == (b"one,two", True)
        assert b"connection" not in answer.headers, "its head was sent before the drain"
        await assert_closed(client)
        await running.has_ended.wait()
        assert anyio.current_time() == started


async def test_a_request_whose_head_has_arrived_may_finish_its_body() -> None:
    async with serving() as running:
        client = running.connect()
        await client.send(POST[:-1])
        await until(lambda: any(not each._is_between_requests for each in running.server._connections))
        running.server.drain()
        await settle()
        answer = await client.request(POST[-1:])
        assert (answer.status, answer.body, answer.headers[b"connection"]) == (200, b"/pbody", b"close")
        await running.has_ended.wait()


async def test_connections_the_kernel_has_queued_are_served() -> None:
    async with serving() as running:
        await settle()
        clients = [running.connect() for _ in range(100)]
        for client in clients[:50]:
            client.connected.send(GET)
        # Not one task has run since they connected.
        running.server.drain()
        assert running.server.statistics().num_accepted == 0
        await settle()
        for client in clients[50:]:
            client.connected.send(GET)
        answers = [await client.answer() for client in clients]
        assert {(answer.status, answer.headers[b"connection"]) for answer in answers} == {(200, b"close")}
        await running.has_ended.wait()


async def test_a_request_the_kernel_holds_on_an_open_connection_is_served() -> None:
    async with serving() as running:
        client = running.connect()
        await client.request(GET)
        await settle()
        client.connected.send(GET)
        running.server.drain()
        answer = await client.answer()
        assert (answer.status, answer.headers[b"connection"]) == (200, b"close")


def reports_draining() -> Callable[[Exchange], Awaitable[None]]:
    async def application(exchange: Exchange) -> None:
        await exchange.send(Response(status=200, headers=TEXT, body=b"%d" % exchange.is_draining))

    return application


@pytest.mark.parametrize(("age_seconds", "expected"), [(0.1, b"0"), (10, b"1")])
async def test_the_first_request_of_a_connection_after_the_drain_began(age_seconds: float, expected: bytes) -> None:
    async with serving(reports_draining()) as running:
        client = running.connect()
        await anyio.sleep(age_seconds)
        running.server.drain()
        await anyio.sleep(NEW_CONNECTION_GRACE_SECONDS / 2)
        answer = await client.request(GET)
        assert (answer.body, answer.headers[b"connection"]) == (expected, b"close")


async def test_a_connection_that_never_sent_anything_is_closed_after_its_grace() -> None:
    async with serving() as running:
        client = running.connect()
        await anyio.sleep(0.1)
        started = anyio.current_time()
        running.server.drain()
        await assert_closed(client)
        assert anyio.current_time() - started == pytest.approx(NEW_CONNECTION_GRACE_SECONDS, abs=0.1)


async def test_at_the_deadline_an_answer_not_begun_becomes_a_503() -> None:
    application = Gated()
    async with serving(application, drain_timeout_seconds=5) as running:
        client = running.connect()
        await client.send(HELD)
        await until(lambda: application.running == ["/held"])
        started = anyio.current_time()
        running.server.drain()
        answer = await client.answer()
        assert anyio.current_time() - started == pytest.approx(5 + LAST_WORD_SECONDS, abs=0.1)
        assert (answer.status, answer.headers[b"connection"]) == (503, b"close")
        assert json.loads(answer.body)["error"]["code"] == "draining"
        await running.has_ended.wait()


async def test_at_the_deadline_a_stream_is_cut_off() -> None:
    async def application(exchange: Exchange) -> None:
        async with exchange.stream(200, TEXT) as writer:
            while True:
                await writer.write(b"x")
                await anyio.sleep(1)

    async with serving(application, drain_timeout_seconds=5) as running:
        client = running.connect()
        await client.send(GET)
        await anyio.sleep(0.5)
        running.server.drain()
        answer = await client.answer()
        assert (answer.status, answer.is_complete) == (200, False)
        await running.has_ended.wait()
        assert running.server.statistics().num_open == 0


async def test_a_stream_that_ends_itself_at_the_deadline_is_not_cut_off() -> None:
    async def application(exchange: Exchange) -> None:
        async with exchange.stream(200, TEXT) as writer:
            await anyio.sleep(5.5)
            await writer.write(b"the last word")

    async with serving(application, drain_timeout_seconds=5) as running:
        client = running.connect()
        await client.send(GET)
        await until(lambda: running.server.statistics().num_open == 1)
        running.server.drain()
        answer = await client.answer()
        assert (answer.body, answer.is_complete) == (b"the last word", True)


async def test_an_application_that_ignores_its_cancellation_does_not_hold_up_the_end() -> None:
    async def application(exchange: Exchange) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(20)

    async with serving(application, drain_timeout_seconds=5) as running:
        client = running.connect()
        await client.send(GET)
        await anyio.sleep(0.1)
        started = anyio.current_time()
        running.server.drain()
        await running.has_ended.wait()
        assert anyio.current_time() - started <= 30


async def test_the_drain_deadline_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    application = Gated()
    async with serving(application, drain_timeout_seconds=5) as running:
        client = running.connect()
        await client.send(HELD)
        await until(lambda: application.running == ["/held"])
        running.server.drain()
        await running.has_ended.wait()
        assert [record.levelno for record in caplog.records if "drain deadline" in record.message] == [logging.WARNING]
