"""HTTP/2 through a whole server over TCP: what is counted, other clients than h2's, and the drain."""

from __future__ import annotations

import shutil

import anyio
import httpx
import pytest

from poot.config import TcpAddress
from poot.net.exchange import Exchange
from tests.net.conftest import every_loop
from tests.net.h2_peer import Peer
from tests.net.peers import TEXT, Running, hello, serving, until

pytestmark = pytest.mark.anyio

in_real_time = pytest.mark.parametrize("anyio_backend", ["uvloop"], indirect=True)


async def connect(running: Running) -> Peer:
    peer = Peer(running.connect())
    await peer.start()
    return peer


def open_connections(running: Running) -> dict[str, float]:
    gauge = running.metrics.connections_open
    return {protocol: gauge.labels(protocol)._value.get() for protocol in ("http/1.1", "h2")}


def url(running: Running) -> str:
    assert isinstance(running.address, TcpAddress)
    return f"http://{running.address.host}:{running.address.port}"


@every_loop
async def test_connections_are_counted_as_what_they_turn_out_to_be() -> None:
    async with serving() as running:
        plain = running.connect()
        await until(lambda: running.server.statistics().num_open == 1)
        assert open_connections(running) == {"http/1.1": 1, "h2": 0}
        peer = await connect(running)
        assert (await peer.get("/a")).body == b"/a"
        assert open_connections(running) == {"http/1.1": 1, "h2": 1}
        peer.client.close()
        plain.close()
        await until(lambda: running.server.statistics().num_open == 0)
        assert open_connections(running) == {"http/1.1": 0, "h2": 0}
        assert running.metrics.connections.labels("h2")._value.get() == 1


@in_real_time
async def test_httpx_speaks_with_us() -> None:
    async def application(exchange: Exchange) -> None:
        if exchange.head.path != "/stream":
            await hello(exchange)
            return
        async with exchange.stream(200, TEXT) as writer:
            for number in range(2000):
                await writer.write(b"%d," % number)

    async with serving(application) as running:
        async with httpx.AsyncClient(http1=False, http2=True, base_url=url(running), trust_env=False) as client:

            async def ask(number: int) -> None:
                body = b"x" * 2000 * number
                posted = await client.post("/p", content=body)
                assert (posted.content, posted.http_version) == (b"/p" + body, "HTTP/2")
                streamed = await client.get("/stream")
                assert streamed.content == b"".join(b"%d," % count for count in range(2000))
                assert (await client.head("/h")).headers["content-length"] == "2"

            async with anyio.create_task_group() as task_group:
                for number in range(20):
                    task_group.start_soon(ask, number)
        assert running.server.statistics().num_accepted == 1


@in_real_time
async def test_curl_speaks_with_us() -> None:
    curl = shutil.which("curl")
    if curl is None or b"HTTP2" not in (await anyio.run_process([curl, "-V"])).stdout:
        pytest.skip("no curl with HTTP/2 here")

    async with serving() as running:

        async def ask(*arguments: str, protocol: str = "--http2-prior-knowledge") -> list[str]:
            command = [curl, "-sS", "-m", "20", protocol, "-w", "\n%{http_version} %{http_code}", *arguments]
            return (await anyio.run_process(command)).stdout.decode().split("\n")

        here = url(running)
        assert await ask(f"{here}/a") == ["/a", "2 200"]
        assert await ask("-d", "body", f"{here}/p") == ["/pbody", "2 200"]
        assert await ask("-d", "body", "-H", "Expect: 100-continue", f"{here}/p") == ["/pbody", "2 200"]
        assert (await ask("-d", "x" * 100_000, f"{here}/p"))[0] == "/p" + "x" * 100_000
        assert (await ask("-I", f"{here}/a"))[-1] == "2 200"
        # An upgrade is ignored, its body intact.
        assert await ask("-d", "body", f"{here}/p", protocol="--http2") == ["/pbody", "1.1 200"]


@every_loop
async def test_a_drain_under_load_fails_no_stream() -> None:
    num_answered = 0
    is_under_load = anyio.Event()

    async def application(exchange: Exchange) -> None:
        await anyio.sleep(0.01)
        await hello(exchange)

    async with serving(application, drain_timeout_seconds=20) as running:

        async def load(peer: Peer) -> None:
            nonlocal num_answered
            while not peer.goaways:
                streams = [await peer.request(f"/{number}") for number in range(10)]
                try:
                    for stream_id in streams:
                        answer = await peer.answer(stream_id)
                        assert (answer.status, answer.reset) == (200, None)
                        num_answered += 1
                        if num_answered > 200:
                            is_under_load.set()
                except EOFError:
                    # GOAWAY says that these were not looked at, so a client may send them elsewhere.
                    last = peer.goaways[-1].last_stream_id
                    unanswered = [stream_id for stream_id in streams if not peer.answers[stream_id].is_complete]
                    assert min(unanswered) > last

        async with anyio.create_task_group() as task_group:
            for _ in range(5):
                task_group.start_soon(load, await connect(running))
            await is_under_load.wait()
            running.server.drain()
        for client in running.clients:
            client.close()
        await running.has_ended.wait()
        assert running.server.statistics().num_open == 0


async def test_the_drain_deadline_cancels_streams() -> None:
    ended: list[str] = []

    async def application(exchange: Exchange) -> None:
        try:
            if exchange.head.path == "/stream":
                async with exchange.stream(200, TEXT) as writer:
                    await writer.write(b"begun,")
                    await anyio.sleep_forever()
            await anyio.sleep_forever()
        finally:
            ended.append(exchange.head.path)

    async with serving(application, drain_timeout_seconds=3) as running:
        peer = await connect(running)
        waiting, stream = await peer.request("/waits"), await peer.request("/stream")
        await peer.ping()
        running.server.drain()
        answer = await peer.answer(waiting)
        assert (answer.status, b"draining" in answer.body) == (503, True)
        answer = await peer.answer(stream)
        assert (answer.body, answer.is_complete, answer.reset is not None) == (b"begun,", False, True)
        await peer.read_rest()
        peer.client.close()
        await running.has_ended.wait()
        assert sorted(ended) == ["/stream", "/waits"]
        assert 3 <= anyio.current_time() <= 6


@every_loop
async def test_idle_connections_do_not_hold_up_the_drain() -> None:
    async with serving() as running:
        peers = [await connect(running) for _ in range(20)]
        for peer in peers:
            await peer.get("/a")
        running.server.drain()
        for peer in peers:
            await peer.read_rest()
            peer.client.close()
        await running.has_ended.wait()
