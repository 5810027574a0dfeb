"""What answers carry, and the forms of a request that are served: HEAD, HTTP/1.0, pipelines, Expect, Upgrade."""

from __future__ import annotations

import json
from email.utils import parsedate_to_datetime

import anyio
import pytest

from tests.contract.asking import Ask, Protocol, post, post_json
from tests.contract.checks import check_closes, check_common_fields, check_lives
from tests.contract.house import house
from tests.contract.http1_peer import Http1Peer, head_bytes
from tests.contract.http2_peer import Http2Call
from tests.fakes.engine import FakeEngine, say

pytestmark = pytest.mark.anyio

GET_ROUTES = [b"/health", b"/metrics", b"/metrics/prometheus", b"/v1/models", b"/v1/models/fake-model"]
STREAM = post_json({"prompt": "hi", "stream": True})


@pytest.mark.parametrize("target", GET_ROUTES)
async def test_head_is_get_without_the_body(protocol: Protocol, target: bytes) -> None:
    async with house() as served:
        peer = served.connect(protocol)
        got = await peer.ask(Ask(target=target))
        told = await peer.ask(Ask(method=b"HEAD", target=target))
        assert (told.status, told.body) == (200, b"")
        assert told.get(b"content-type") == got.get(b"content-type")
        if b"metrics" not in target:  # which count the requests before them
            assert told.get(b"content-length") == str(len(got.body)).encode()
        await check_lives(peer)


async def test_head_of_an_error_has_no_body_either(protocol: Protocol) -> None:
    async with house() as served:
        peer = served.connect(protocol)
        told = await peer.ask(Ask(method=b"HEAD", target=b"/nowhere"))
        assert (told.status, told.body, told.get(b"content-type")) == (404, b"", b"application/json")
        await check_lives(peer)


async def test_answers_carry_date_type_length_and_request_id(protocol: Protocol) -> None:
    async with house() as served:
        for ask in (Ask(), post(), post(body=b"{"), Ask(target=b"/nowhere")):
            reply = await served.ask(protocol, ask)
            check_common_fields(reply)
            assert reply.get(b"content-type") == b"application/json"
            assert reply.get(b"content-length") == str(len(reply.body)).encode()
            date = reply.get(b"date")
            assert date is not None
            assert parsedate_to_datetime(date.decode()).tzinfo is not None


@pytest.mark.parametrize(
    ("sent", "is_kept"),
    [
        ([b"a"], True),
        ([b"7b1c4e-90_x.Y~!#$%&'*+^`|"], True),
        ([b"a" * 128], True),
        ([b"a" * 129], False),
        ([b""], False),
        ([b"a b"], False),
        ([b"a,b"], False),
        ([b'"a"'], False),
        ([b"a/b"], False),
        ([b"\xc3\xa4"], False),
        ([b"a", b"a"], False),
        ([b"a", b"b"], False),
    ],
)
async def test_the_clients_request_id_comes_back_if_it_is_one_plain_token(
    protocol: Protocol, sent: list[bytes], is_kept: bool
) -> None:
    async with house() as served:
        peer = served.connect(protocol)
        for ask, status in [(Ask(), 200), (Ask(target=b"/nowhere"), 404)]:
            reply = await peer.ask(ask.with_field(b"x-request-id", *sent))
            given = reply.get(b"x-request-id")
            assert reply.status == status
            assert given
            assert (given == sent[0]) is is_kept


async def test_every_request_id_of_ours_is_another(protocol: Protocol) -> None:
    async with house() as served:
        peer = served.connect(protocol)
        ids = {(await peer.ask(Ask())).get(b"x-request-id") for _ in range(5)}
        assert len(ids) == 5


@pytest.mark.parametrize("ask", [Ask(), post(), STREAM, Ask(target=b"/nowhere")], ids=["get", "post", "stream", "404"])
@pytest.mark.parametrize("asks_for_more", [False, True])
async def test_http_1_0_is_answered_without_chunks_and_closed(ask: Ask, asks_for_more: bool) -> None:
    async with house() as served:
        peer = served.connect_http1()
        ask = ask.but(version=b"HTTP/1.0")
        reply = await peer.ask(ask.with_field(b"connection", b"keep-alive") if asks_for_more else ask)
        assert reply.is_complete
        assert reply.get(b"transfer-encoding") is None
        await check_closes(peer, reply)
        if ask.body == STREAM.body:
            assert reply.events[-1] == "[DONE]"


async def test_http_1_0_is_not_told_to_continue() -> None:
    async with house() as served:
        ask = post().but(version=b"HTTP/1.0").with_field(b"expect", b"100-continue")
        reply = await served.connect_http1().ask(ask)
        assert (reply.status, reply.informational) == (200, [])


@pytest.mark.parametrize("value", [b"close", b"Close", b"keep-alive, close"])
async def test_a_client_that_asks_to_close_is_closed(value: bytes) -> None:
    async with house() as served:
        peer = served.connect_http1()
        await check_closes(peer, await peer.ask(Ask().with_field(b"connection", value)))


async def test_a_stream_is_chunked_and_its_connection_lives(protocol: Protocol) -> None:
    async with house() as served:
        peer = served.connect(protocol)
        for _ in range(2):
            reply = await peer.ask(STREAM)
            assert reply.is_complete
            assert reply.get(b"content-type") == b"text/event-stream; charset=utf-8"
            assert reply.get(b"content-length") is None
            assert reply.get(b"transfer-encoding") == (b"chunked" if protocol is Protocol.HTTP1 else None)
            assert reply.events[-1] == "[DONE]"
            texts = [json.loads(event)["choices"][0]["text"] for event in reply.events[:-1]]
            assert "".join(texts) == "Hello world"
        await check_lives(peer)


async def test_continue_comes_when_the_body_is_about_to_be_read(protocol: Protocol) -> None:
    async with house() as served:
        peer = served.connect(protocol)
        ask = post()
        call = await peer.begin(ask.with_field(b"expect", b"100-Continue"))
        if isinstance(peer, Http1Peer):
            assert await peer.seen() == b"HTTP/1.1 100 Continue\r\n\r\n"
        else:
            assert not await peer.is_closed()
            assert isinstance(call, Http2Call)
            assert call.informational == [100]
        assert served.ledger()["receiving"] == 1
        await call.send(ask.body)
        reply = await call.reply()
        assert (reply.status, reply.informational) == (200, [100])
        await check_lives(peer)


async def test_no_continue_for_a_body_that_has_come_already() -> None:
    async with house() as served:
        peer = served.connect_http1()
        ask = post().with_field(b"expect", b"100-continue")
        await peer.send(head_bytes(ask, served.authority) + ask.body)
        reply = await peer.reply()
        assert (reply.status, reply.informational) == (200, [])


async def test_no_continue_for_a_client_that_does_not_ask(protocol: Protocol) -> None:
    async with house() as served:
        call = await served.connect(protocol).begin(post())
        await anyio.sleep(1)
        await call.send(post().body)
        reply = await call.reply()
        assert (reply.status, reply.informational) == (200, [])


async def test_pipelined_requests_are_answered_in_their_order() -> None:
    async with house() as served:
        peer = served.connect_http1()
        host = b"\r\nhost: %b\r\n" % served.authority.encode()
        fields = b"content-type: application/json\r\ncontent-length: 16\r\n\r\n"
        complete = b"POST /v1/completions HTTP/1.1" + host + fields + b'{"prompt": "hi"}'
        await peer.send(
            complete
            + b"GET /nowhere HTTP/1.1" + host + b"\r\n"
            + complete
            + b"HEAD /health HTTP/1.1" + host + b"\r\n"
            + b"GET /health HTTP/1.1" + host + b"connection: close\r\n\r\n"
            + complete
        )  # fmt: skip
        statuses = [(await peer.reply(has_body=has_body)).status for has_body in (True, True, True, False, True)]
        assert statuses == [200, 404, 200, 200, 200]
        assert await peer.is_closed()
        assert len(served.engine.requests) == 2, "nothing behind a request that closes is read"


async def test_pipelined_requests_behind_a_refusal_that_closes_are_not_read() -> None:
    async with house() as served:
        peer = served.connect_http1()
        await peer.ask(post().with_field(b"content-type"))
        await peer.send(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
        assert await peer.rest() == b""


async def test_an_upgrade_to_h2c_is_ignored_and_its_body_is_intact() -> None:
    async with house() as served:
        peer = served.connect_http1()
        ask = post_json({"prompt": "intact"})
        ask = ask.with_field(b"connection", b"Upgrade, HTTP2-Settings").with_field(b"upgrade", b"h2c")
        reply = await peer.ask(ask.with_field(b"http2-settings", b"AAMAAABkAAQAoAAAAAIAAAAA"))
        assert (reply.status, reply.informational, reply.get(b"upgrade")) == (200, [], None)
        assert [bytes(request.prompt_ids) for request in served.engine.requests] == [b"intact"]
        await check_lives(peer)


async def test_the_preface_of_http2_may_come_byte_by_byte() -> None:
    async with house() as served:
        peer = served.connect_http2()
        for byte in peer.h2.data_to_send():
            await peer.send(bytes([byte]))
            await anyio.sleep(0.001)
        await check_lives(peer)


async def test_a_frame_is_on_the_wire_before_the_next_token(protocol: Protocol) -> None:
    engine = FakeEngine(say("one", "two"), is_stepped=True)
    async with house(engine) as served:
        peer = served.connect(protocol)
        call = await peer.begin(STREAM)
        await call.send(STREAM.body)
        await anyio.sleep(0.001)
        engine.step()
        await anyio.sleep(0.001)
        assert b'"one"' in await peer.seen()
        engine.step()
        engine.step()
        assert (await call.reply()).events[-1] == "[DONE]"
