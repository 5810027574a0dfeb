"""The rows about time: a request has to arrive, and an answer has to be taken, however either is paced."""

from __future__ import annotations

from collections.abc import Iterator

import anyio
import pytest

from poot.engine.sequence import Event, GenerationRequest
from tests.contract.asking import Ask, Gone, Protocol, post, post_json
from tests.contract.checks import check_closes, check_error, check_lives, check_stream_ends
from tests.contract.house import house
from tests.contract.http1_peer import head_bytes
from tests.fakes.engine import FakeEngine, say

pytestmark = pytest.mark.anyio

TIMEOUT = 30
LONG_TEXTS = ["x" * 65536] * 160
"""10 MiB: more than the kernel keeps for a connection on loopback whose client does not read."""
CANCEL = 8
"""The error code (RFC 9113 section 7)."""
STREAM = post_json({"prompt": "hi", "stream": True})


def drip(data: bytes, num_pieces: int) -> Iterator[bytes]:
    """`data` in so many pieces of about one size."""
    size = max(1, len(data) // num_pieces)
    for start in range(0, len(data), size):
        yield data[start : start + size]


@pytest.mark.parametrize("seconds_between", [3.0, 29.0])
async def test_a_head_that_comes_byte_by_byte_is_408_after_the_timeout(seconds_between: float) -> None:
    async with house(request_timeout_seconds=TIMEOUT) as served:
        began = anyio.current_time()
        peer = served.connect_http1()
        async with anyio.create_task_group() as task_group:

            async def send() -> None:
                for piece in drip(head_bytes(Ask(), "x"), 30):
                    await peer.send(piece)
                    await anyio.sleep(seconds_between)

            task_group.start_soon(send)
            reply = await peer.reply()
            task_group.cancel_scope.cancel()
        assert anyio.current_time() - began == pytest.approx(TIMEOUT, abs=0.01)
        check_error(reply, 408, "head did not arrive in time")
        await check_closes(peer, reply)


@pytest.mark.parametrize("seconds_between", [3.0, 14.0])
async def test_a_body_that_comes_byte_by_byte_is_408_after_the_timeout(
    protocol: Protocol, seconds_between: float
) -> None:
    async with house(request_timeout_seconds=TIMEOUT, rate_limit_rpm=1) as served:
        began = anyio.current_time()
        peer = served.connect(protocol)
        call = await peer.begin(post())
        async with anyio.create_task_group() as task_group:

            async def send() -> None:
                for byte in post().body:
                    await call.send(bytes([byte]), ends=False)
                    await anyio.sleep(seconds_between)

            task_group.start_soon(send)
            reply = await call.reply()
            task_group.cancel_scope.cancel()
        assert anyio.current_time() - began == pytest.approx(TIMEOUT, abs=0.01)
        check_error(reply, 408, "body did not arrive in time")
        assert served.engine.requests == []
        if protocol is Protocol.HTTP1:
            await check_closes(peer, reply)
        else:
            await check_stream_ends(call)
            await check_lives(peer)
        assert (await served.ask(protocol, post())).status == 429, "it counts against the rate limit"


async def test_a_body_that_comes_just_in_time_is_served(protocol: Protocol) -> None:
    async with house(request_timeout_seconds=TIMEOUT) as served:
        call = await served.connect(protocol).begin(post())
        await anyio.sleep(TIMEOUT - 0.1)
        await call.send(post().body)
        assert (await call.reply()).status == 200


async def test_head_and_body_share_one_timeout() -> None:
    async with house(request_timeout_seconds=TIMEOUT) as served:
        peer = served.connect_http1()
        await anyio.sleep(20)
        call = await peer.begin(post())
        await anyio.sleep(9.9)
        assert await peer.seen() == b""
        reply = await call.reply()
        check_error(reply, 408, "body")


async def test_a_kept_alive_connection_has_the_timeout_anew_after_every_answer() -> None:
    async with house(request_timeout_seconds=TIMEOUT) as served:
        peer = served.connect_http1()
        for _ in range(4):
            await anyio.sleep(20)
            await check_lives(peer)


async def test_the_timeout_of_a_stream_runs_from_its_own_head() -> None:
    async with house(request_timeout_seconds=TIMEOUT) as served:
        peer = served.connect_http2()
        for _ in range(3):
            call = await peer.begin(post())
            await anyio.sleep(20)
            await call.send(post().body)
            assert (await call.reply()).status == 200


async def test_a_slow_stream_holds_up_no_other() -> None:
    async with house(request_timeout_seconds=TIMEOUT) as served:
        peer = served.connect_http2()
        slow = await peer.begin(post())
        await anyio.sleep(20)
        await check_lives(peer)
        reply = await slow.reply()
        check_error(reply, 408, "body")
        await check_lives(peer)


async def test_an_idle_connection_is_closed_in_silence(protocol: Protocol) -> None:
    async with house(request_timeout_seconds=TIMEOUT) as served:
        peer = served.connect(protocol)
        await check_lives(peer)
        await anyio.sleep(TIMEOUT - 0.1)
        assert not await peer.is_closed()
        await anyio.sleep(0.2)
        assert await peer.is_closed()


@pytest.mark.parametrize("sent", [b"", b"PRI * HTTP/2.0\r\n", b"\r\n"])
async def test_a_connection_that_sends_no_request_is_closed(sent: bytes) -> None:
    async with house(request_timeout_seconds=TIMEOUT) as served:
        peer = served.connect_http1()
        await peer.send(sent)
        await anyio.sleep(TIMEOUT - 0.1)
        assert await peer.seen() == b""
        assert served.server.statistics().num_open == 1
        await anyio.sleep(3)
        assert served.server.statistics().num_open == 0


async def test_a_header_block_that_does_not_end_closes_its_connection() -> None:
    async with house(request_timeout_seconds=TIMEOUT) as served:
        peer = served.connect_http2()
        await check_lives(peer)
        await peer.send(bytes.fromhex("000003 01 01 00000003 828684"))  # HEADERS without END_HEADERS
        await anyio.sleep(TIMEOUT - 0.1)
        assert not await peer.is_closed()
        await anyio.sleep(0.2)
        assert await peer.is_closed()


async def test_a_long_answer_is_no_slow_request(protocol: Protocol) -> None:
    engine = FakeEngine(is_stepped=True)
    async with house(engine, request_timeout_seconds=1) as served:
        call = await served.connect(protocol).begin(post())
        await call.send(post().body)
        await anyio.sleep(1000)
        for _ in range(3):
            engine.step()
        assert (await call.reply()).status == 200


async def test_a_reader_that_stops_is_cut_off_after_the_write_timeout() -> None:
    async with house(FakeEngine(say(*LONG_TEXTS)), write_timeout_seconds=TIMEOUT) as served:
        peer = served.connect_http1(receive_buffer_bytes=4096)
        call = await peer.begin(STREAM)
        await call.send(STREAM.body)
        await anyio.sleep(TIMEOUT - 1)
        assert served.ledger()["pending"] == 1
        await anyio.sleep(2)
        assert served.ledger() == {}
        assert served.engine.num_cancelled == 0, "the engine never waits for a reader"


async def test_a_reader_that_gives_no_credit_loses_its_stream_after_the_write_timeout() -> None:
    async with house(FakeEngine(say(*LONG_TEXTS)), write_timeout_seconds=TIMEOUT) as served:
        peer = served.connect_http2()
        call = await peer.begin(STREAM)
        call.gives_credit = False
        await call.send(STREAM.body)
        await anyio.sleep(TIMEOUT - 1)
        await peer.is_closed()
        assert (call.num_received, call.reset, served.ledger()["pending"]) == (65535, None, 1)
        with_credit = await peer.begin(Ask())
        await peer.grant(65536)
        assert (await with_credit.reply()).status == 200, "another stream goes on"
        await anyio.sleep(2)
        await peer.is_closed()
        assert call.reset == CANCEL
        assert set(served.ledger()) == {"connections", "h2"}
        await check_lives(peer)


async def test_a_client_that_reads_nothing_loses_an_answer_that_is_not_streamed(protocol: Protocol) -> None:
    async with house(FakeEngine(say(*LONG_TEXTS)), write_timeout_seconds=TIMEOUT) as served:
        if protocol is Protocol.HTTP1:
            peer = served.connect_http1(receive_buffer_bytes=4096)
            await (await peer.begin(post())).send(post().body)
            await anyio.sleep(TIMEOUT + 1)
            assert served.ledger() == {}
            return
        http2 = served.connect_http2()
        call = await http2.begin(post())
        call.gives_credit = False
        await call.send(post().body)
        await anyio.sleep(TIMEOUT + 1)
        reply = await call.reply()
        assert (reply.is_complete, reply.reset) == (False, CANCEL)


async def test_a_slow_reader_that_takes_each_write_in_time_is_served(protocol: Protocol) -> None:
    texts = [str(number) for number in range(9)]
    engine = FakeEngine(say(*texts), is_stepped=True)
    async with house(engine, write_timeout_seconds=1, request_timeout_seconds=1) as served:
        call = await served.connect(protocol).begin(STREAM)
        await call.send(STREAM.body)
        for _ in range(10):
            await anyio.sleep(20)
            engine.step()
        assert len((await call.reply()).events) == 9 + 1 + 1


def refuse_to_open(request: GenerationRequest) -> list[Event]:
    pytest.fail("the request reached the engine")


@pytest.mark.parametrize("num_sent", [0, 1, 15])
async def test_a_body_that_ends_short_closes_and_reaches_nothing(protocol: Protocol, num_sent: int) -> None:
    async with house(FakeEngine(refuse_to_open)) as served:
        body = post().body
        if protocol is Protocol.HTTP1:
            peer = served.connect_http1()
            await (await peer.begin(post())).send(body[:num_sent])
            peer.end_sending()
            assert await peer.rest() == b"", "no answer"
            await anyio.sleep(0.001)
            assert served.ledger() == {}
            return
        http2 = served.connect_http2()
        call = await http2.begin(post())
        await call.send(body[:num_sent])
        with pytest.raises(Gone) as gone:
            await call.reply()
        assert gone.value.reset == 1, "PROTOCOL_ERROR, RFC 9113 section 8.1.1"
        await check_lives(http2)


async def test_a_body_longer_than_its_content_length_is_no_body() -> None:
    async with house() as served:
        http1 = served.connect_http1()
        await (await http1.begin(post())).send(post().body + b"more")
        assert (await http1.reply()).status == 200
        assert await http1.seen() == b"", "the rest is the beginning of another request"
    async with house(FakeEngine(refuse_to_open)) as served:
        http2 = served.connect_http2()
        call = await http2.begin(post())
        await call.send(post().body + b" ")
        with pytest.raises(Gone) as gone:
            await call.reply()
        assert gone.value.reset == 1
        await check_lives(http2)
