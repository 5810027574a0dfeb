"""The ASGI application as scripts: what the host gives and what it gets, with time that costs nothing."""

from __future__ import annotations

import json
import logging
from typing import Any

import anyio
import pytest

from poot.errors import BadRequest, StartupError
from poot.net.exchange import Application, ClientGone, Exchange, Response
from poot.net.transport import LINGER_BYTES, READ_AHEAD_BYTES
from tests.net.asgi_host import Call, Host, hosting, http_scope, post_scope
from tests.net.peers import TEXT, hello, settle

pytestmark = pytest.mark.anyio


async def answer(application: Application, call: Call, **settings: Any) -> Call:
    """Runs one call of a started application, fed already, and returns it."""
    async with hosting(application, **settings) as (host, _):
        await call.run(host.asgi)
    return call


def message_of(call: Call) -> str:
    text = json.loads(call.content)["error"]["message"]
    assert isinstance(text, str)
    return text


async def stream_two(exchange: Exchange) -> None:
    async with exchange.stream(200, TEXT) as writer:
        await writer.write(b"one")
        await writer.write(b"two")


async def test_a_whole_answer_has_its_length_and_the_body() -> None:
    call = Call(post_scope(6))
    call.body(b"abc", more=True)
    call.body(b"def")
    await answer(hello, call)
    assert call.status == 200
    assert call.content == b"/abcdef"
    assert call.headers[b"content-length"] == b"7"
    assert b"connection" not in call.headers
    assert b"date" not in call.headers, "hosts add it"
    assert call.is_ended


async def test_a_streamed_answer_is_a_message_a_frame() -> None:
    call = Call(http_scope())
    call.body(b"")
    await answer(stream_two, call)
    assert [message.get("body") for message in call.sent] == [None, b"one", b"two", b""]
    assert b"content-length" not in call.headers
    assert call.is_ended


@pytest.mark.parametrize("application", [hello, stream_two])
async def test_head_has_the_fields_and_no_body(application: Application) -> None:
    call = Call(http_scope("HEAD"))
    call.body(b"")
    await answer(application, call)
    assert call.status == 200
    assert call.content == b""
    assert call.is_ended


async def test_the_request_id_is_the_clients_or_ours() -> None:
    theirs = await answer(hello, Call(http_scope(fields=[(b"x-request-id", b"abc-1")])))
    ours = await answer(hello, Call(http_scope(fields=[(b"x-request-id", b"not a token")])))
    assert theirs.headers[b"x-request-id"] == b"abc-1"
    assert len(ours.headers[b"x-request-id"]) == 32


async def test_the_access_log_has_a_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "poot.access")
    call = Call(http_scope(path="/x", fields=[(b"x-request-id", b"abc-1")]))
    await answer(hello, call)
    (record,) = [record for record in caplog.records if record.name == "poot.access"]
    fields = record.__dict__["fields"]
    assert {key: fields[key] for key in ("method", "path", "status", "bytes", "peer", "request_id")} == {
        "method": "GET",
        "path": "/x",
        "status": 200,
        "bytes": 2,
        "peer": "10.0.0.1",
        "request_id": "abc-1",
    }
    assert "ended" not in fields


async def test_a_malformed_head_is_answered_without_the_application() -> None:
    async with hosting(hello) as (host, _):
        call = Call(http_scope(headers=[(b"host", b"a b")]))
        call.body(b"")
        await call.run(host.asgi)
        assert call.status == 400
        assert call.headers[b"connection"] == b"close"
        assert host.metrics.as_json()["requests"]["unknown"]["400"] == 1


@pytest.mark.parametrize(
    ("announced", "sent", "status"),
    [(5, b"1234", 400), (5, b"123456", 400), (2000, b"", 413), (1000, b"x" * 1000, 200)],
)
async def test_a_body_must_be_as_long_as_announced_and_within_the_limit(
    announced: int, sent: bytes, status: int
) -> None:
    bodies = []

    async def read(exchange: Exchange) -> None:
        bodies.append(await exchange.read_body(1000))
        await exchange.send(Response(status=200, headers=TEXT, body=b""))

    call = Call(post_scope(announced))
    call.body(sent)
    await answer(read, call)
    assert call.status == status
    assert len(bodies) == (1 if status == 200 else 0)


@pytest.mark.parametrize("fields", [[(b"transfer-encoding", b"chunked")], [(b"content-length", b"1")] * 2])
async def test_a_body_whose_length_cannot_be_told_is_not_read(fields: list[tuple[bytes, bytes]]) -> None:
    call = Call(http_scope("POST", fields=fields))
    call.body(b"1")
    assert (await answer(hello, call)).status == 400


async def test_a_body_that_trickles_is_answered_408_at_the_deadline() -> None:
    async with hosting(hello, request_timeout_seconds=30) as (host, task_group):
        call = Call(post_scope(100))
        task_group.start_soon(call.run, host.asgi)
        for _ in range(29):
            await anyio.sleep(1)
            call.body(b"x", more=True)
        assert call.sent == []
        await anyio.sleep(1.01)
        assert call.status == 408
        assert call.headers[b"connection"] == b"close"


async def test_connection_fields_are_for_http_1_only() -> None:
    call = Call(post_scope(2000, http_version="2"))
    call.body(b"")
    await answer(lambda exchange: exchange.read_body(1000), call)  # type: ignore[arg-type,return-value]  # never returns
    assert call.status == 413
    assert b"connection" not in call.headers


async def test_a_client_that_leaves_while_it_sends_cancels_the_application() -> None:
    call = Call(post_scope(100))
    call.body(b"x", more=True)
    call.feed("http.disconnect")
    await answer(hello, call)
    assert call.sent == []


async def test_a_client_that_leaves_cancels_the_application_that_works_for_it() -> None:
    ended = []

    async def work(exchange: Exchange) -> None:
        await exchange.read_body(100)
        try:
            await anyio.sleep_forever()
        finally:
            ended.append(anyio.current_time())

    async with hosting(work) as (host, task_group):
        call = Call(post_scope(1))
        call.body(b"x")
        task_group.start_soon(call.run, host.asgi)
        await anyio.sleep(5)
        assert ended == []
        left = anyio.current_time()
        call.feed("http.disconnect")
        await anyio.sleep(5)
    assert ended == [pytest.approx(left, abs=0.01)]
    assert call.sent == []


async def test_a_host_that_says_disconnect_while_it_takes_the_end_cancels_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "poot.access")
    call = Call(http_scope())
    call.body(b"")

    async def disconnect(message: dict[str, Any]) -> None:
        if message.get("more_body") is False:
            call.feed("http.disconnect")
            await anyio.sleep(1)

    call.before_send = disconnect
    await answer(stream_two, call)
    assert call.is_ended
    (record,) = [record for record in caplog.records if record.name == "poot.access"]
    assert "ended" not in record.__dict__["fields"]


async def test_a_client_that_does_not_read_is_given_up_after_the_write_timeout() -> None:
    ended = []

    async def stream_forever(exchange: Exchange) -> None:
        try:
            async with exchange.stream(200, TEXT) as writer:
                while True:
                    await writer.write(b"x")
        except ClientGone:
            await anyio.sleep_forever()  # the scope is cancelled too
        finally:
            ended.append(anyio.current_time())

    call = Call(http_scope())
    call.body(b"")

    async def stall(message: dict[str, Any]) -> None:
        if len(call.sent) == 3:
            await anyio.sleep_forever()

    call.before_send = stall
    started = anyio.current_time()
    await answer(stream_forever, call, write_timeout_seconds=7)
    assert ended == [pytest.approx(started + 7, abs=0.01)]
    assert len(call.sent) == 3
    assert not call.is_ended


async def test_a_send_that_fails_ends_the_exchange(caplog: pytest.LogCaptureFixture) -> None:
    call = Call(http_scope())
    call.body(b"")

    async def stream_on(exchange: Exchange) -> None:
        with pytest.raises(ClientGone):
            await stream_two(exchange)
        await anyio.sleep_forever()

    async def fail(message: dict[str, Any]) -> None:
        raise OSError("the client is gone")

    call.before_send = fail
    await answer(stream_on, call)
    assert call.sent == []
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


async def test_an_error_is_answered_and_a_fault_says_no_more_than_that() -> None:
    async def refuse(exchange: Exchange) -> None:
        raise BadRequest("no", param="x", headers=(("Retry-After", "3"),))

    async def fail(exchange: Exchange) -> None:
        raise ValueError("/secret/path")

    refused = await answer(refuse, Call(http_scope()))
    assert (refused.status, message_of(refused)) == (400, "no")
    assert refused.headers[b"retry-after"] == b"3"
    failed = await answer(fail, Call(http_scope()))
    assert failed.status == 500
    assert b"secret" not in failed.content


async def test_a_fault_in_a_stream_leaves_it_without_an_end() -> None:
    async def fail(exchange: Exchange) -> None:
        async with exchange.stream(200, TEXT) as writer:
            await writer.write(b"one")
            raise ValueError

    call = await answer(fail, Call(http_scope()))
    assert call.content == b"one"
    assert not call.is_ended


async def test_an_application_answers_once() -> None:
    async def answer_twice(exchange: Exchange) -> None:
        await hello(exchange)
        with pytest.raises(RuntimeError, match="answered already"):
            await exchange.send(Response(status=200, headers=(), body=b""))

    assert (await answer(answer_twice, Call(http_scope()))).content == b"/"


async def test_nothing_is_received_before_the_body_is_wanted_of_a_client_that_waits_to_be_asked() -> None:
    async def wait_then_read(exchange: Exchange) -> None:
        await anyio.sleep(5)
        assert call.num_received == 0
        await exchange.send(Response(status=200, headers=TEXT, body=await exchange.read_body(10)))

    call = Call(http_scope("POST", fields=[(b"content-length", b"1"), (b"expect", b"100-continue")]))
    call.body(b"x")
    await answer(wait_then_read, call)
    assert call.content == b"x"


async def test_a_body_that_nobody_reads_is_not_taken_in() -> None:
    piece = READ_AHEAD_BYTES // 2

    async def wait_then_read(exchange: Exchange) -> None:
        await anyio.sleep(5)
        assert call.num_received == 2
        body = await exchange.read_body(10 * piece)
        await exchange.send(Response(status=200, headers=TEXT, body=b"%d" % len(body)))

    call = Call(post_scope(10 * piece))
    for index in range(10):
        call.body(b"x" * piece, more=index < 9)
    await answer(wait_then_read, call)
    assert int(call.content) == 10 * piece


async def refuse_unread(exchange: Exchange) -> None:
    raise BadRequest("no", close=True)


async def test_a_refusal_ends_when_the_body_it_did_not_want_has_ended() -> None:
    async with hosting(refuse_unread) as (host, task_group):
        call = Call(post_scope(300))
        task_group.start_soon(call.run, host.asgi)
        await anyio.sleep(1)
        assert message_of(call) == "no"
        assert not call.is_ended
        for _ in range(3):
            call.body(b"x" * 100, more=True)
        call.body(b"")
        await settle()
        assert call.is_ended
        assert call.num_received == 4


async def test_a_client_that_leaves_once_it_has_read_its_refusal_was_answered(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "poot.access")
    async with hosting(refuse_unread) as (host, task_group):
        call = Call(post_scope(300))
        task_group.start_soon(call.run, host.asgi)
        await settle()
        call.feed("http.disconnect")
    assert message_of(call) == "no"
    (record,) = [record for record in caplog.records if record.name == "poot.access"]
    assert "ended" not in record.__dict__["fields"]


@pytest.mark.parametrize(("num_pieces", "seconds"), [(0, 2.0), (5, 0.0)])
async def test_a_refusal_waits_for_a_body_so_long_and_so_far(num_pieces: int, seconds: float) -> None:
    call = Call(post_scope(10 * LINGER_BYTES))
    for _ in range(num_pieces):
        call.body(b"x" * (LINGER_BYTES // 4), more=True)
    started = anyio.current_time()
    await answer(refuse_unread, call)
    assert call.is_ended
    assert anyio.current_time() - started == pytest.approx(seconds, abs=0.01)


async def test_without_a_lifespan_requests_are_refused() -> None:
    call = Call(http_scope())
    call.body(b"")
    await call.run(Host(hello).asgi)
    assert call.status == 503
    assert "not started" in message_of(call)


async def test_a_failure_to_start_is_told_to_the_host() -> None:
    host = Host(hello, failure=StartupError("no such file"))
    host.lifespan.feed("lifespan.startup")
    await host.lifespan.run(host.asgi)
    assert host.lifespan.sent == [{"type": "lifespan.startup.failed", "message": "no such file"}]


async def slow(exchange: Exchange) -> None:
    """Takes 10 s; answers whether the request came after the drain began."""
    await anyio.sleep(10)
    await exchange.send(Response(status=200, headers=TEXT, body=b"%d" % exchange.is_draining))


async def test_a_shutdown_waits_for_what_is_under_way_and_tells_late_requests_apart() -> None:
    early, late = Call(http_scope()), Call(http_scope())
    async with hosting(slow, drain_timeout_seconds=60) as (host, task_group):
        task_group.start_soon(early.run, host.asgi)
        await anyio.sleep(1)
        host.lifespan.feed("lifespan.shutdown")
        await anyio.sleep(1)
        assert host.is_open
        task_group.start_soon(late.run, host.asgi)
        await anyio.sleep(8.5)
        assert early.content == b"0"
        assert early.headers[b"connection"] == b"close"
        assert host.lifespan.kinds == ["lifespan.startup.complete"]
        await anyio.sleep(2)
        assert late.content == b"1"
        assert host.lifespan.kinds[1:] == ["lifespan.shutdown.complete"]


async def test_a_shutdown_cancels_what_takes_longer_than_the_drain_timeout() -> None:
    call = Call(http_scope())
    async with hosting(slow, drain_timeout_seconds=3) as (host, task_group):
        task_group.start_soon(call.run, host.asgi)
        await anyio.sleep(1)
    assert call.status == 503
    assert json.loads(call.content)["error"]["code"] == "draining"


async def test_a_lifespan_may_follow_another() -> None:
    host = Host(hello)
    for _ in range(2):
        host.lifespan = Call({"type": "lifespan"})
        async with anyio.create_task_group() as task_group:
            task_group.start_soon(host.lifespan.run, host.asgi)
            host.lifespan.feed("lifespan.startup")
            await anyio.sleep(1)
            call = Call(http_scope())
            await call.run(host.asgi)
            assert b"connection" not in call.headers
            assert call.status == 200
            host.lifespan.feed("lifespan.shutdown")


async def test_a_websocket_is_closed_before_it_opens() -> None:
    call = Call({"type": "websocket"})
    call.feed("websocket.connect")
    assert (await answer(hello, call)).kinds == ["websocket.close"]


async def test_an_unknown_scope_raises_as_asgi_wants() -> None:
    with pytest.raises(NotImplementedError, match="'smoke-signal'"):
        await Call({"type": "smoke-signal"}).run(Host(hello).asgi)
