"""One connection over a socket pair: cycles, bodies, answers, failures, and every deadline on a virtual clock."""

from __future__ import annotations

import contextlib
import json
import logging
import re
import socket
from collections.abc import Awaitable, Callable
from email.utils import parsedate_to_datetime

import anyio
import pytest

from poot.errors import BadRequest, MethodNotAllowed, RequestTimeout
from poot.net.exchange import ClientGone, Exchange, Response
from poot.net.transport import LINGER_BYTES, LINGER_SECONDS, READ_AHEAD_BYTES, WRITE_BUFFER_BYTES
from tests.net.conftest import every_loop
from tests.net.peers import TEXT, connected, hello, settle

pytestmark = pytest.mark.anyio

GET = b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n"


def post(body: bytes, *fields: bytes, path: bytes = b"/p") -> bytes:
    lines = [b"POST " + path + b" HTTP/1.1", b"Host: x", b"Content-Length: %d" % len(body), *fields]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def raises(error: Exception) -> Callable[[Exchange], Awaitable[None]]:
    async def application(exchange: Exchange) -> None:
        raise error

    return application


def streams(*frames: bytes) -> Callable[[Exchange], Awaitable[None]]:
    async def application(exchange: Exchange) -> None:
        async with exchange.stream(200, TEXT) as writer:
            for frame in frames:
                await writer.write(frame)

    return application


async def waits(exchange: Exchange) -> None:
    await anyio.sleep_forever()


@every_loop
async def test_requests_follow_each_other_on_one_connection() -> None:
    async with connected() as (client, _, _):
        for number in range(3):
            answer = await client.request(b"GET /%d HTTP/1.1\r\nHost: x\r\n\r\n" % number)
            assert (answer.status, answer.body) == (200, b"/%d" % number)
        answer = await client.request(post(b"body"))
        assert answer.body == b"/pbody"


async def test_a_request_fed_byte_by_byte_is_answered() -> None:
    async with connected() as (client, _, _):
        for byte in post(b"hello"):
            await client.send(bytes([byte]))
            await settle()
        assert (await client.answer()).body == b"/phello"


@every_loop
async def test_pipelined_requests_are_answered_in_order() -> None:
    async with connected() as (client, _, _):
        await client.send(GET + post(b"one") + GET.replace(b"/a", b"/b") + post(b"two"))
        assert [(await client.answer()).body for _ in range(4)] == [b"/a", b"/pone", b"/b", b"/ptwo"]


async def test_a_pipelined_request_waits_for_the_answer_before_it() -> None:
    started: list[str] = []
    release = anyio.Event()

    async def application(exchange: Exchange) -> None:
        started.append(exchange.head.path)
        await release.wait()
        await hello(exchange)

    async with connected(application) as (client, _, _):
        await client.send(GET + GET.replace(b"/a", b"/b"))
        await settle()
        assert started == ["/a"]
        release.set()
        assert [(await client.answer()).body for _ in range(2)] == [b"/a", b"/b"]


async def test_what_is_sent_ahead_is_held_only_up_to_a_bound() -> None:
    async with connected(waits) as (client, connection, _):
        await client.send(GET)
        sent = 0
        with anyio.move_on_after(5) as scope:
            while sent < 64 * READ_AHEAD_BYTES:
                await client.send(GET * 100)
                sent += 100 * len(GET)
        assert scope.cancelled_caught, "the client could send without end"
        assert connection._http.num_buffered_bytes < 3 * READ_AHEAD_BYTES


async def test_a_body_larger_than_the_read_ahead_is_read_whole() -> None:
    body = bytes(range(256)) * (3 * READ_AHEAD_BYTES // 256)

    async def application(exchange: Exchange) -> None:
        await anyio.sleep(1)  # the reader fills its buffer and pauses
        await exchange.send(Response(status=200, headers=TEXT, body=await exchange.read_body(len(body))))

    async with connected(application) as (client, _, _), anyio.create_task_group() as task_group:
        task_group.start_soon(client.send, post(body))
        answer = await client.answer()
        assert answer.body == body


async def test_answers_carry_date_length_and_request_id() -> None:
    async with connected() as (client, _, _):
        answer = await client.request(GET)
        assert answer.headers[b"content-length"] == b"2"
        assert answer.headers[b"content-type"] == b"text/plain"
        assert parsedate_to_datetime(answer.headers[b"date"].decode()).tzinfo is not None
        assert answer.headers[b"date"].endswith(b" GMT")
        first = answer.headers[b"x-request-id"]
        assert re.fullmatch(rb"[0-9a-f]{32}", first)
        assert (await client.request(GET)).headers[b"x-request-id"] != first


@pytest.mark.parametrize(
    ("sent", "is_kept"),
    [
        (b"abc-123_X.y", True),
        (b"a" * 128, True),
        (b"a" * 129, False),
        (b"two words", False),
        (b"a\xe9", False),
        (b'a"b', False),
        (b"", False),
        (b"a\r\nX-Request-Id: b", False),
    ],
)
async def test_the_clients_request_id_is_kept_if_it_is_one_plain_token(sent: bytes, is_kept: bool) -> None:
    async with connected() as (client, _, _):
        answer = await client.request(b"GET / HTTP/1.1\r\nHost: x\r\nX-Request-Id: " + sent + b"\r\n\r\n")
        assert (answer.headers[b"x-request-id"] == sent) is is_kept


async def test_head_gets_the_answer_of_get_without_its_body() -> None:
    async with connected() as (client, _, _):
        answer = await client.request(GET.replace(b"GET", b"HEAD"), "HEAD")
        assert (answer.body, answer.headers[b"content-length"], answer.is_complete) == (b"", b"2", True)
        assert (await client.request(GET)).body == b"/a"


async def test_http_1_0_is_answered_and_closed() -> None:
    async with connected() as (client, _, _):
        await client.send(b"GET /a HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
        raw = await client.receive_rest()
        assert raw.startswith(b"HTTP/1.1 200 OK\r\n")
        assert b"\r\nconnection: close\r\n" in raw.lower()
        assert raw.endswith(b"\r\n\r\n/a")


async def test_a_stream_to_http_1_0_has_no_chunks() -> None:
    async with connected(streams(b"one,", b"two")) as (client, _, _):
        await client.send(b"GET / HTTP/1.0\r\n\r\n")
        raw = await client.receive_rest()
        assert b"transfer-encoding" not in raw.lower()
        assert raw.endswith(b"\r\n\r\none,two")


async def test_connection_close_is_honoured() -> None:
    async with connected() as (client, _, _):
        await client.send(GET.replace(b"Host", b"Connection: close\r\nHost") + GET)
        answer = await client.answer()
        assert answer.headers[b"connection"] == b"close"
        assert await client.receive_rest() == b"", "a request behind the last one is answered"


@every_loop
async def test_a_stream_is_chunked_and_the_connection_goes_on() -> None:
    async with connected(streams(b"one,", b"", b"two")) as (client, _, _):
        for _ in range(2):
            answer = await client.request(GET)
            assert answer.headers[b"transfer-encoding"] == b"chunked"
            assert (answer.body, answer.is_complete) == (b"one,two", True)


async def test_a_frame_is_on_the_wire_when_it_is_written() -> None:
    release = anyio.Event()

    async def application(exchange: Exchange) -> None:
        async with exchange.stream(200, TEXT) as writer:
            await writer.write(b"one")
            await release.wait()

    async with connected(application) as (client, _, _):
        await client.send(GET)
        await settle()
        assert (await client.receive()).endswith(b"\r\n\r\n3\r\none\r\n")
        release.set()
        assert await client.receive() == b"0\r\n\r\n"


async def test_continue_is_sent_when_the_body_is_about_to_be_read() -> None:
    reads = anyio.Event()

    async def application(exchange: Exchange) -> None:
        await reads.wait()
        await hello(exchange)

    async with connected(application) as (client, _, _):
        head, body = post(b"hello", b"Expect: 100-continue").split(b"hello")[0], b"hello"
        await client.send(head)
        await settle()
        with pytest.raises(BlockingIOError):
            client.connected.recv(1)
        reads.set()
        assert await client.receive() == b"HTTP/1.1 100 Continue\r\n\r\n"
        assert (await client.request(body)).body == b"/phello"
        assert (await client.request(GET)).body == b"/a"


async def test_a_refused_request_is_not_asked_for_its_body() -> None:
    async with connected(raises(BadRequest("no"))) as (client, _, _):
        answer = await client.request(post(b"x", b"Expect: 100-continue")[:-1])
        assert (answer.status, answer.headers[b"connection"]) == (400, b"close")


async def test_a_request_error_is_its_answer() -> None:
    error = MethodNotAllowed("not that", param="a.b", code="c", headers=(("Allow", "GET, HEAD"),))
    async with connected(raises(error)) as (client, _, _):
        for _ in range(2):
            answer = await client.request(GET)
            assert (answer.status, answer.headers[b"allow"]) == (405, b"GET, HEAD")
            assert answer.headers[b"content-type"] == b"application/json"
            assert json.loads(answer.body) == {
                "error": {"message": "not that", "type": "invalid_request_error", "param": "a.b", "code": "c"}
            }


async def test_an_error_that_closes_closes() -> None:
    async with connected(raises(BadRequest("no", close=True))) as (client, _, _):
        answer = await client.request(GET)
        assert answer.headers[b"connection"] == b"close"
        assert await client.receive_rest() == b""


async def test_a_request_error_from_inside_a_task_group_keeps_its_meaning() -> None:
    async def fail() -> None:
        raise BadRequest("from a task")

    async def application(exchange: Exchange) -> None:
        async with anyio.create_task_group() as task_group:
            task_group.start_soon(fail)

    async with connected(application) as (client, _, _):
        answer = await client.request(GET)
        assert (answer.status, json.loads(answer.body)["error"]["message"]) == (400, "from a task")


@pytest.mark.parametrize("is_wrapped", [False, True])
async def test_any_other_exception_is_logged_and_answered_500(
    is_wrapped: bool, caplog: pytest.LogCaptureFixture
) -> None:
    error: Exception = ValueError("secret detail")
    if is_wrapped:
        error = ExceptionGroup("several", [error, BadRequest("no")])
    async with connected(raises(error)) as (client, _, _):
        answer = await client.request(GET)
        assert answer.status == 500
        assert json.loads(answer.body)["error"]["type"] == "server_error"
        assert b"secret" not in answer.body
        (record,) = [record for record in caplog.records if record.levelno == logging.ERROR]
        assert record.exc_info is not None
        assert record.exc_info[1] is error
        assert (await client.request(GET)).status == 500, "the connection goes on"


async def test_an_application_that_does_not_answer_is_answered_500(caplog: pytest.LogCaptureFixture) -> None:
    async def application(exchange: Exchange) -> None:
        pass

    async with connected(application) as (client, _, _):
        assert (await client.request(GET)).status == 500
        assert "without an answer" in caplog.text


async def test_answering_twice_is_the_applications_bug(caplog: pytest.LogCaptureFixture) -> None:
    async def application(exchange: Exchange) -> None:
        await hello(exchange)
        await exchange.send(Response(status=200, headers=TEXT, body=b"again"))

    async with connected(application) as (client, _, _):
        await client.send(GET)
        raw = await client.receive()
        assert raw.count(b"HTTP/1.1") == 1
        assert "answered already" in caplog.text


async def test_reading_the_body_twice_is_the_applications_bug(caplog: pytest.LogCaptureFixture) -> None:
    async def application(exchange: Exchange) -> None:
        await exchange.read_body(10)
        await exchange.read_body(10)

    async with connected(application) as (client, _, _):
        assert (await client.request(post(b"x"))).status == 500
        assert "read already" in caplog.text


@pytest.mark.parametrize("error", [ValueError("x"), BadRequest("x")])
async def test_a_failure_after_the_head_cuts_the_answer_off(error: Exception) -> None:
    async def application(exchange: Exchange) -> None:
        async with exchange.stream(200, TEXT) as writer:
            await writer.write(b"one")
            raise error

    async with connected(application) as (client, _, _):
        answer = await client.request(GET)
        assert (answer.status, answer.body, answer.is_complete) == (200, b"one", False)


async def test_read_body_refuses_a_body_over_its_cap_unread() -> None:
    async def application(exchange: Exchange) -> None:
        await exchange.read_body(4)

    async with connected(application) as (client, _, _):
        answer = await client.request(post(b"hello", b"Expect: 100-continue").removesuffix(b"hello"))
        assert (answer.status, answer.headers[b"connection"]) == (413, b"close")


@pytest.mark.parametrize("field", [b"Transfer-Encoding: chunked", b"Content-Length: 1, 1"])
async def test_a_body_that_cannot_be_framed_is_refused_by_read_body(field: bytes) -> None:
    async with connected() as (client, _, _):
        answer = await client.request(b"POST / HTTP/1.1\r\nHost: x\r\n" + field + b"\r\n\r\n0\r\n\r\n")
        assert (answer.status, answer.headers[b"connection"]) == (400, b"close")


async def test_a_malformed_head_is_answered_and_closed() -> None:
    async with connected() as (client, _, _):
        started = anyio.current_time()
        answer = await client.request(b"GET / HTTP/1.1\r\nHost : x\r\n\r\n" + GET)
        assert (answer.status, answer.headers[b"connection"]) == (400, b"close")
        assert json.loads(answer.body)["error"]["message"] == (
            "malformed request: white space before a header field's colon"
        )
        assert await client.receive_rest() == b""
        assert anyio.current_time() - started < 0.1, "the end comes with the answer, however long we go on reading"


async def test_a_head_over_64_kib_is_answered_431_though_the_client_goes_on_sending() -> None:
    async with connected() as (client, _, _), anyio.create_task_group() as task_group:
        task_group.start_soon(client.send, b"GET / HTTP/1.1\r\nHost: x\r\nA: " + b"a" * 200_000)
        answer = await client.answer()
        assert (answer.status, answer.headers[b"connection"]) == (431, b"close")


async def test_the_answer_to_an_unread_body_is_not_lost() -> None:
    async with connected(raises(BadRequest("no"))) as (client, _, _), anyio.create_task_group() as task_group:
        task_group.start_soon(client.send, post(b"x" * 200_000))
        answer = await client.answer()
        assert (answer.status, answer.headers[b"connection"], answer.is_complete) == (400, b"close", True)


async def test_lingering_ends_by_itself() -> None:
    async with connected(raises(BadRequest("no"))) as (client, _, _):
        await client.request(post(b"x" * 10)[:-5])
        started = anyio.current_time()
        await client.has_ended.wait()
        assert anyio.current_time() - started == pytest.approx(LINGER_SECONDS, abs=0.1)


async def test_lingering_reads_no_more_than_its_bound() -> None:
    async with connected(raises(BadRequest("no"))) as (client, _, _), anyio.create_task_group() as task_group:
        num_sent = 0

        async def send_without_end() -> None:
            nonlocal num_sent
            with contextlib.suppress(OSError):
                while True:
                    await client.send(b"x" * 10_000)
                    num_sent += 10_000

        task_group.start_soon(send_without_end)
        started = anyio.current_time()
        await client.send(post(b"x" * 10)[:-10].replace(b"10", b"1000000000"))
        await client.has_ended.wait()
        assert anyio.current_time() - started < LINGER_SECONDS
        assert num_sent < LINGER_BYTES + READ_AHEAD_BYTES + 2_000_000  # and what the kernel holds
        task_group.cancel_scope.cancel()


async def test_a_large_last_answer_arrives_whole() -> None:
    async def application(exchange: Exchange) -> None:
        await exchange.send(Response(status=200, headers=TEXT, body=b"x" * 500_000))

    async with connected(application, send_buffer_bytes=4096) as (client, _, _):
        answer = await client.request(GET.replace(b"Host", b"Connection: close\r\nHost"))
        assert (len(answer.body), answer.is_complete) == (500_000, True)


# Deadlines


async def test_an_idle_connection_is_closed_in_silence() -> None:
    async with connected(request_timeout_seconds=30) as (client, _, _):
        started = anyio.current_time()
        assert await client.receive_rest() == b""
        assert anyio.current_time() - started == pytest.approx(30, abs=0.1)


async def test_the_time_of_a_kept_alive_connection_runs_from_the_last_answer() -> None:
    async with connected(request_timeout_seconds=30) as (client, _, _):
        await anyio.sleep(20)
        await client.request(GET)
        await anyio.sleep(20)
        assert (await client.request(GET)).status == 200
        started = anyio.current_time()
        assert await client.receive_rest() == b""
        assert anyio.current_time() - started == pytest.approx(30, abs=0.1)


@pytest.mark.parametrize("begun", [b"G", GET[:-1], b"\r\nGET"])
async def test_a_head_that_does_not_end_is_answered_408(begun: bytes) -> None:
    async with connected(request_timeout_seconds=30) as (client, _, _):
        started = anyio.current_time()
        answer = await client.request(begun)
        assert anyio.current_time() - started == pytest.approx(30, abs=0.1)
        assert (answer.status, answer.headers[b"connection"]) == (408, b"close")


async def test_pacing_does_not_stretch_the_time_for_a_request() -> None:
    async with connected(request_timeout_seconds=30) as (client, _, _):

        async def trickle() -> None:
            for byte in post(b"x" * 100):
                await client.send(bytes([byte]))
                await anyio.sleep(0.5)

        started = anyio.current_time()
        async with anyio.create_task_group() as task_group:
            task_group.start_soon(trickle)
            answer = await client.answer()
            assert anyio.current_time() - started == pytest.approx(30, abs=0.1)
            assert (answer.status, answer.headers[b"connection"]) == (408, b"close")
            task_group.cancel_scope.cancel()


async def test_the_body_shares_the_time_of_its_head() -> None:
    async with connected(request_timeout_seconds=30) as (client, _, _):
        started = anyio.current_time()
        await anyio.sleep(20)
        answer = await client.request(post(b"hello")[:-1])
        assert anyio.current_time() - started == pytest.approx(30, abs=0.1)
        assert (answer.status, answer.headers[b"connection"]) == (408, b"close")
        assert json.loads(answer.body)["error"]["type"] == RequestTimeout.type


async def test_an_answer_may_take_longer_than_a_request() -> None:
    async def application(exchange: Exchange) -> None:
        await anyio.sleep(1000)
        await hello(exchange)

    async with connected(application, request_timeout_seconds=30) as (client, _, _):
        assert (await client.request(post(b"x"))).status == 200


# Clients that go away, and clients that read slowly


@every_loop
async def test_a_client_that_leaves_cancels_the_application_at_once() -> None:
    running, ended = anyio.Event(), anyio.Event()

    async def application(exchange: Exchange) -> None:
        running.set()
        try:
            await anyio.sleep_forever()
        finally:
            ended.set()

    async with connected(application) as (client, _, _):
        await client.send(GET)
        await running.wait()
        client.close()
        await ended.wait()


async def test_a_client_that_leaves_in_the_middle_of_a_stream_cancels_it() -> None:
    ended = anyio.Event()

    async def application(exchange: Exchange) -> None:
        try:
            async with exchange.stream(200, TEXT) as writer:
                while True:
                    await writer.write(b"frame")
                    await anyio.sleep(1)
        finally:
            ended.set()

    async with connected(application) as (client, _, _):
        await client.send(GET)
        await client.receive()
        client.close()
        started = anyio.current_time()
        await ended.wait()
        assert anyio.current_time() == started, "it took until the next write"


async def test_a_client_that_leaves_in_the_middle_of_its_body_ends_the_exchange() -> None:
    outcome: list[str] = []

    async def application(exchange: Exchange) -> None:
        try:
            await exchange.read_body(100)
        except ClientGone:
            outcome.append("gone")
            raise
        except anyio.get_cancelled_exc_class():
            outcome.append("cancelled")
            raise
        outcome.append("read")

    async with connected(application) as (client, _, _):
        await client.send(post(b"hello")[:-1])
        await settle()
        client.close()
        await client.has_ended.wait()
        assert outcome in (["gone"], ["cancelled"])


@every_loop
async def test_a_client_that_only_ends_its_sending_side_gets_a_quick_answer() -> None:
    async with connected() as (client, _, _):
        await client.send(GET)
        client.connected.shutdown(socket.SHUT_WR)
        assert (await client.answer()).body == b"/a"


async def test_a_client_that_does_not_read_hits_the_write_timeout() -> None:
    ended: list[float] = []

    async def application(exchange: Exchange) -> None:
        try:
            async with exchange.stream(200, TEXT) as writer:
                while True:
                    await writer.write(b"x" * 1000)
        finally:
            ended.append(anyio.current_time())

    async with connected(application, write_timeout_seconds=7, send_buffer_bytes=4096) as (client, _, _):
        await client.send(GET)
        started = anyio.current_time()
        await anyio.sleep(6)
        assert ended == []
        await anyio.sleep(2)
        assert ended == [pytest.approx(started + 7, abs=0.1)]
        assert client.has_ended.is_set()


async def test_a_whole_answer_has_the_write_timeout_too() -> None:
    async def application(exchange: Exchange) -> None:
        await exchange.send(Response(status=200, headers=TEXT, body=b"x" * 1_000_000))

    async with connected(application, write_timeout_seconds=7, send_buffer_bytes=4096) as (client, _, _):
        await client.send(GET)

        async def trickle() -> None:
            while True:
                await client.receive(1000)
                await anyio.sleep(1)

        async with anyio.create_task_group() as task_group:
            task_group.start_soon(trickle)
            await anyio.sleep(6.5)
            assert not client.has_ended.is_set()
            await anyio.sleep(1)
            assert client.has_ended.is_set(), "reading a little must not stretch the time of one write"
            task_group.cancel_scope.cancel()


async def test_a_slow_reader_that_keeps_up_with_each_write_is_served() -> None:
    frames = [b"%08d" % number for number in range(20_000)]

    async with connected(streams(*frames), write_timeout_seconds=7, send_buffer_bytes=4096) as (client, _, _):
        await client.send(GET)
        raw = b""
        while not raw.endswith(b"\r\n0\r\n\r\n"):
            raw += await client.receive(16384)
            await anyio.sleep(0.25)
        assert raw.count(b"8\r\n0") == len(frames)


async def test_a_writer_waits_once_the_buffer_is_full() -> None:
    num_written = 0

    async def application(exchange: Exchange) -> None:
        nonlocal num_written
        async with exchange.stream(200, TEXT) as writer:
            while True:
                await writer.write(b"x" * 100)
                num_written += 100

    async with connected(application, send_buffer_bytes=4096) as (client, _, _):
        await client.send(GET)
        await settle()
        assert num_written < 2 * WRITE_BUFFER_BYTES + 65536


async def test_frames_written_while_the_client_is_behind_are_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    release = anyio.Event()

    async def application(exchange: Exchange) -> None:
        async with exchange.stream(200, TEXT) as writer:
            await writer.write(b"x" * 100_000)
            for _ in range(100):
                await writer.write(b"small")
            await release.wait()

    async with connected(application, send_buffer_bytes=4096) as (client, connection, _):
        await client.send(GET)
        await settle()
        sizes: list[int] = []
        transport = connection._transport
        assert transport is not None
        send = transport._send

        def counting_send(data: bytes) -> int:
            sizes.append(len(data))
            return send(data)

        monkeypatch.setattr(transport, "_send", counting_send)
        raw = b""
        while raw.count(b"small") < 100:
            raw += await client.receive()
        assert len(sizes) < 100, "each frame took a system call of its own"
        release.set()


@every_loop
async def test_nothing_is_begun_for_a_client_that_has_left() -> None:
    # The request and the end behind it become readable in the same turn of the loop, in either order.
    for _ in range(20):
        async with connected(waits) as (client, _, _):
            await client.send(GET)
            client.connected.shutdown(socket.SHUT_WR)
            await client.has_ended.wait()


# Drain, where it is decided by the connection alone


async def test_the_drain_looks_for_a_request_that_the_kernel_holds() -> None:
    async with connected() as (client, connection, service):
        await client.request(GET)
        await settle()
        client.connected.send(GET)
        service.is_draining = True
        connection.drain()
        assert connection._http.num_buffered_bytes == len(GET)
        answer = await client.answer()
        assert (answer.status, answer.headers[b"connection"]) == (200, b"close")


async def test_a_stream_that_begins_during_the_drain_ends_its_connection() -> None:
    async def application(exchange: Exchange) -> None:
        await anyio.sleep(1)
        async with exchange.stream(200, TEXT) as writer:
            await writer.write(b"x")

    async with connected(application) as (client, connection, service):
        await client.send(GET)
        await settle()
        service.is_draining = True
        connection.drain()
        answer = await client.answer()
        assert (answer.is_complete, answer.headers[b"connection"]) == (True, b"close")
        await client.has_ended.wait()


# The access log


async def test_one_access_line_a_request(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "poot.access")

    async def application(exchange: Exchange) -> None:
        exchange.annotate(queue_ms=1.5, tokens=3)
        await hello(exchange)

    async with connected(application) as (client, _, _):
        await client.request(b"GET /path?secret=1 HTTP/1.1\r\nHost: x\r\nX-Request-Id: abc\r\n\r\n")
        (record,) = caplog.records
        fields = record.__dict__["fields"]
        assert fields.pop("ms") >= 0
        assert fields == {
            "method": "GET",
            "path": "/path",
            "status": 200,
            "bytes": 5,
            "peer": "unix",
            "request_id": "abc",
            "queue_ms": 1.5,
            "tokens": 3,
        }


async def test_the_access_log_counts_the_body_that_was_sent(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "poot.access")
    async with connected(streams(b"one", b"two!")) as (client, _, _):
        await client.request(GET)
        await client.request(GET.replace(b"GET", b"HEAD"), "HEAD")
    async with connected() as (client, _, _):
        await client.request(GET.replace(b"GET", b"HEAD"), "HEAD")
    assert [record.__dict__["fields"]["bytes"] for record in caplog.records] == [7, 0, 0]


async def test_refused_and_abandoned_requests_are_in_the_access_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "poot.access")
    async with connected() as (client, _, _):
        await client.request(b"nonsense\r\n\r\n")
    async with connected(waits) as (client, _, _):
        await client.send(GET)
        await settle()
        client.close()
        await client.has_ended.wait()
    refused, abandoned = (record.__dict__["fields"] for record in caplog.records)
    assert (refused["method"], refused["path"], refused["status"]) == ("-", "-", 400)
    assert (abandoned["path"], abandoned["status"], abandoned["ended"]) == ("/a", "-", "early")
