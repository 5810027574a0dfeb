"""The real API, over a fake engine, hosted by Hypercorn on both its workers, asked by httpx over both protocols.

Sockets and clocks are real: Hypercorn and the clients bring their own.
"""

from __future__ import annotations

import json
import socket
import ssl
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import anyio
import httpx
import hypercorn.asyncio
import hypercorn.config
import hypercorn.trio
import pytest
import trustme

from poot.api import Api
from poot.config import ApiConfig, NetConfig, TcpAddress
from poot.metrics import Metrics
from poot.net.asgi import AsgiApplication
from poot.net.exchange import Application
from tests.fakes.engine import FakeEngine, say
from tests.net.peers import connect, until

pytestmark = pytest.mark.anyio

LIMIT_SECONDS = 30.0


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    """Both workers, on the real clock."""
    return str(request.param)


@dataclass(frozen=True, kw_only=True)
class Tls:
    """A certificate for localhost, and the authority that clients trust for it."""

    authority: trustme.CA
    certificate: str
    key: str


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Tls:
    folder = tmp_path_factory.mktemp("tls")
    authority = trustme.CA()
    issued = authority.issue_cert("localhost")
    issued.private_key_pem.write_to_path(folder / "key.pem")
    for blob in issued.cert_chain_pems:
        blob.write_to_path(folder / "certificate.pem", append=True)
    return Tls(authority=authority, certificate=str(folder / "certificate.pem"), key=str(folder / "key.pem"))


@dataclass(frozen=True, kw_only=True)
class Way:
    """How a client talks to the host. Over TLS the version is agreed on by ALPN, else HTTP/2 is known beforehand."""

    is_encrypted: bool
    version: str

    def __str__(self) -> str:
        return f"{'tls-' if self.is_encrypted else ''}{self.version}"


HTTP1 = Way(is_encrypted=False, version="HTTP/1.1")
WAYS = [
    HTTP1,
    Way(is_encrypted=False, version="HTTP/2"),
    Way(is_encrypted=True, version="HTTP/1.1"),
    Way(is_encrypted=True, version="HTTP/2"),
]
every_way = pytest.mark.parametrize("way", WAYS, ids=str)


@dataclass(kw_only=True)
class Host:
    """A Hypercorn that serves, and a client of it."""

    engine: FakeEngine
    port: int
    client: httpx.AsyncClient
    closing: anyio.Event

    async def complete(self, **fields: Any) -> httpx.Response:
        return await self.client.post("/v1/completions", json={"prompt": "hi", **fields})

    def stream(self) -> Any:
        return self.client.stream("POST", "/v1/completions", json={"prompt": "hi", "stream": True})


@asynccontextmanager
async def hosted(
    worker: str, way: Way, tls: Tls, *, engine: FakeEngine | None = None, **limits: Any
) -> AsyncGenerator[Host]:
    """Hypercorn on a free port, serving the API over `engine` with `limits`; has shut down on leaving."""
    engine = engine or FakeEngine()
    metrics = Metrics()
    has_closed = anyio.Event()

    @asynccontextmanager
    async def opened() -> AsyncGenerator[Application]:
        yield Api(engine, ApiConfig(**limits), metrics)
        has_closed.set()

    listening = socket.create_server(("127.0.0.1", 0))
    port = listening.getsockname()[1]
    config = hypercorn.config.Config()
    config.bind = [f"fd://{listening.detach()}"]
    config.errorlog = None
    config.graceful_timeout = 1
    if way.is_encrypted:
        config.certfile, config.keyfile = tls.certificate, tls.key
    closing = anyio.Event()
    # Hypercorn types scopes and messages as dictionaries of its own.
    application: Any = AsgiApplication(opened, NetConfig(), metrics=metrics)
    serve: Any = hypercorn.trio.serve if worker == "trio" else hypercorn.asyncio.serve
    trusting = ssl.create_default_context()
    tls.authority.configure_trust(trusting)
    with anyio.fail_after(LIMIT_SECONDS):
        async with anyio.create_task_group() as task_group:
            task_group.start_soon(partial(serve, application, config, shutdown_trigger=closing.wait))
            async with httpx.AsyncClient(
                base_url=f"{'https' if way.is_encrypted else 'http'}://localhost:{port}",
                http1=way.version == "HTTP/1.1",
                http2=way.version == "HTTP/2",
                verify=trusting,
                timeout=LIMIT_SECONDS,
                trust_env=False,
            ) as client:
                yield Host(engine=engine, port=port, client=client, closing=closing)
            closing.set()
    assert has_closed.is_set(), "the lifespan has not ended"


async def next_event(lines: AsyncIterator[str]) -> str:
    """The data of the next server-sent event."""
    async for line in lines:
        if line:
            return line.removeprefix("data: ")
    raise EOFError("the stream ended")


def text_of(event: str) -> str:
    text = json.loads(event)["choices"][0]["text"]
    assert isinstance(text, str)
    return text


@every_way
async def test_a_completion_is_answered_whole(anyio_backend_name: str, way: Way, tls: Tls) -> None:
    async with hosted(anyio_backend_name, way, tls) as host:
        answer = await host.complete()
        assert answer.status_code == 200
        assert answer.http_version == way.version
        assert answer.json()["choices"][0]["text"] == "Hello world"
        assert len(answer.headers.get_list("date")) == 1
        assert len(answer.headers["x-request-id"]) == 32


@every_way
async def test_each_token_of_a_stream_arrives_before_the_next_is_made(
    anyio_backend_name: str, way: Way, tls: Tls
) -> None:
    engine = FakeEngine(say("Hello", " world"), is_stepped=True)
    async with hosted(anyio_backend_name, way, tls, engine=engine) as host, host.stream() as answer:
        assert answer.http_version == way.version
        assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
        lines = answer.aiter_lines()
        for text in ("Hello", " world", ""):
            engine.step()
            assert text_of(await next_event(lines)) == text
        assert [line async for line in lines if line] == ["data: [DONE]"]


@every_way
async def test_a_client_that_disconnects_cancels_its_stream(anyio_backend_name: str, way: Way, tls: Tls) -> None:
    engine = FakeEngine(say(*["again"] * 50), is_stepped=True)
    async with hosted(anyio_backend_name, way, tls, engine=engine) as host:
        async with host.stream() as answer:
            assert answer.status_code == 200
            engine.step()
            assert engine.statistics().rows_held == 1
            # The whole connection, also over HTTP/2, where httpx does not reset a stream that is left.
            await host.client.aclose()
        await until(lambda: engine.num_cancelled == 1)
        assert engine.statistics().rows_held == 0


@every_way
async def test_a_body_over_the_limit_is_refused(anyio_backend_name: str, way: Way, tls: Tls) -> None:
    async with hosted(anyio_backend_name, way, tls, max_body_bytes=1000) as host:
        answer = await host.complete(prompt="x" * 1000)
        assert answer.status_code == 413
        assert "limit of 1000 bytes" in answer.json()["error"]["message"]
        assert host.engine.requests == []
        assert (await host.complete()).status_code == 200


@every_way
async def test_a_wrong_field_is_named(anyio_backend_name: str, way: Way, tls: Tls) -> None:
    async with hosted(anyio_backend_name, way, tls) as host:
        answer = await host.complete(temperature="hot")
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == "temperature"


async def test_a_refusal_is_read_whole_by_a_client_that_sends_on(anyio_backend_name: str, tls: Tls) -> None:
    async with hosted(anyio_backend_name, HTTP1, tls, max_body_bytes=1000) as host:
        client = connect(TcpAddress(host="127.0.0.1", port=host.port))
        try:
            await client.send(
                b"POST /v1/completions HTTP/1.1\r\nHost: localhost:%d\r\nContent-Type: application/json\r\n"
                b"Content-Length: 200000\r\n\r\n" % host.port
            )
            # More pieces than fit Hypercorn's queue.
            for _ in range(20):
                await client.send(b"x" * 10_000)
            answer = await client.answer("POST")
            assert answer.status == 413
            assert answer.is_complete
            assert answer.headers[b"connection"] == b"close"
            assert await client.receive() == b""
        finally:
            client.close()


async def test_head_is_answered_as_get_without_a_body(anyio_backend_name: str, tls: Tls) -> None:
    async with hosted(anyio_backend_name, HTTP1, tls) as host:
        answer = await host.client.head("/v1/models")
        whole = await host.client.get("/v1/models")
        assert answer.status_code == 200
        assert answer.content == b""
        assert answer.headers["content-length"] == whole.headers["content-length"] == str(len(whole.content))


async def test_a_websocket_is_refused(anyio_backend_name: str, tls: Tls) -> None:
    async with hosted(anyio_backend_name, HTTP1, tls) as host:
        answer = await host.client.get(
            "/v1/models",
            headers={
                "Connection": "Upgrade",
                "Upgrade": "websocket",
                "Sec-WebSocket-Version": "13",
                "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
            },
        )
        assert answer.status_code == 403


async def test_a_stream_under_way_at_shutdown_ends_whole(anyio_backend_name: str, tls: Tls) -> None:
    engine = FakeEngine(say("Hello", " world"), is_stepped=True)
    async with hosted(anyio_backend_name, HTTP1, tls, engine=engine) as host, host.stream() as answer:
        host.closing.set()
        lines = answer.aiter_lines()
        for text in ("Hello", " world", ""):
            engine.step()
            assert text_of(await next_event(lines)) == text
        assert [line async for line in lines if line] == ["data: [DONE]"]
