"""Rows that a head is refused for once it has found its route and named this server: rate, media type, length."""

from __future__ import annotations

import pytest

from tests.contract.asking import Ask, Protocol, post
from tests.contract.checks import check_closes, check_error, check_lives, check_refused_unread
from tests.contract.house import house

pytestmark = pytest.mark.anyio

POST_ROUTES = [b"/v1/completions", b"/v1/chat/completions", b"/v1/embeddings", b"/v1/rerank", b"/v1/lora_adapters"]


async def test_a_spent_rate_is_429_until_its_window_is_over(protocol: Protocol) -> None:
    async with house(rate_limit_rpm=2) as served:
        begun = served.clock.seconds
        assert (await served.ask(protocol, post())).status == 200
        served.clock.seconds = begun + 30
        assert (await served.ask(protocol, post())).status == 200
        for seconds, left in [(30.0, b"30"), (30.5, b"30"), (59.0, b"1"), (59.9, b"1")]:
            served.clock.seconds = begun + seconds
            peer = served.connect(protocol)
            call = await peer.begin(post().with_field(b"expect", b"100-continue"))
            reply = await call.reply()
            check_error(reply, 429, "2 requests in 60 seconds")
            assert (reply.get(b"retry-after"), reply.informational) == (left, [])
            if protocol is Protocol.HTTP1:
                await check_closes(peer, reply)
            else:
                await check_lives(peer)
        assert len(served.engine.requests) == 2
        served.clock.seconds = begun + 60
        statuses = [(await served.ask(protocol, post())).status for _ in range(3)]
        assert statuses == [200, 200, 429], "a window is fixed: the next one begins with the next request"
        assert served.metric("refused", "rate_limit") == 5


@pytest.mark.parametrize("path", POST_ROUTES)
async def test_every_post_spends_from_one_rate(protocol: Protocol, path: bytes) -> None:
    async with house(rate_limit_rpm=1) as served:
        await served.ask(protocol, post(path))
        assert (await served.ask(protocol, post())).status == 429


async def test_both_protocols_spend_from_one_rate() -> None:
    async with house(rate_limit_rpm=1) as served:
        assert (await served.ask(Protocol.HTTP1, post())).status == 200
        assert (await served.ask(Protocol.HTTP2, post())).status == 429


@pytest.mark.parametrize("target", [b"/health", b"/metrics", b"/metrics/prometheus", b"/v1/models"])
async def test_gets_neither_spend_nor_heed_the_rate(protocol: Protocol, target: bytes) -> None:
    async with house(rate_limit_rpm=1) as served:
        for _ in range(3):
            assert (await served.ask(protocol, Ask(target=target))).status == 200
        assert (await served.ask(protocol, post())).status == 200
        assert (await served.ask(protocol, Ask(target=target))).status == 200


async def test_the_rate_is_the_peers_whatever_it_says_of_itself() -> None:
    async with house(rate_limit_rpm=1) as served:
        for number, status in enumerate([200, 429, 429]):
            name = b"10.0.0.%d" % number
            ask = post().with_field(b"x-forwarded-for", name).with_field(b"forwarded", b"for=" + name)
            assert (await served.ask(Protocol.HTTP1, ask.with_field(b"x-real-ip", name))).status == status
        other = served.connect_http1(source="127.0.0.9")
        assert (await other.ask(post())).status == 200, "another peer has its own window"


@pytest.mark.parametrize(
    "values",
    [
        [],
        [b""],
        [b"text/plain"],
        [b"application/x-www-form-urlencoded"],
        [b"application/jsonp"],
        [b"application/problem+json"],
        [b"application/json; charset=latin-1"],
        [b"application/json; charset=utf-16"],
        [b"application/json; boundary=x"],
        [b"application/json, application/json"],
        [b"application/json", b"application/json"],
    ],
)
async def test_another_content_type_is_415(protocol: Protocol, values: list[bytes]) -> None:
    async with house(rate_limit_rpm=1) as served:
        ask = post().with_field(b"content-type", *values)
        await check_refused_unread(served, protocol, ask, 415, "application/json", spends=True)


@pytest.mark.parametrize(
    "value",
    [
        b"application/json;charset=utf-8",
        b"application/json; charset=UTF-8",
        b'application/json; charset="utf-8"',
        b"Application/JSON",
    ],
)
async def test_json_with_its_charset_is_served(protocol: Protocol, value: bytes) -> None:
    async with house() as served:
        assert (await served.ask(protocol, post().with_field(b"content-type", value))).status == 200


CODINGS = [[b"chunked"], [b"Chunked"], [b"gzip, chunked"], [b"identity"], [b""], [b"chunked", b"chunked"]]


@pytest.mark.parametrize("codings", CODINGS)
async def test_transfer_encoding_is_411_without_a_length_and_400_beside_one(codings: list[bytes]) -> None:
    ask = post().with_field(b"transfer-encoding", *codings)
    async with house(rate_limit_rpm=1) as served:
        alone = ask.with_field(b"content-length")
        await check_refused_unread(served, Protocol.HTTP1, alone, 411, "Transfer-Encoding", spends=True)
    async with house(rate_limit_rpm=1) as served:
        await check_refused_unread(served, Protocol.HTTP1, ask, 400, "exclude each other", spends=True)


async def test_a_chunked_body_is_never_taken_for_a_request() -> None:
    smuggled = b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n"
    async with house() as served:
        peer = served.connect_http1()
        ask = post().with_field(b"content-length").with_field(b"transfer-encoding", b"chunked")
        reply = await peer.ask(ask.but(body=b"%x\r\n%b\r\n0\r\n\r\n" % (len(smuggled), smuggled) + smuggled))
        assert reply.status == 411
        assert await peer.rest() == b"", "nothing behind it is answered"
        assert served.metric("requests", "/metrics", "200") == 0


async def test_a_missing_content_length_is_411(protocol: Protocol) -> None:
    async with house(rate_limit_rpm=1) as served:
        ask = post().with_field(b"content-length")
        await check_refused_unread(served, protocol, ask, 411, "Content-Length is missing", spends=True)


async def test_a_post_without_a_body_needs_a_content_length_too(protocol: Protocol) -> None:
    async with house(rate_limit_rpm=1) as served:
        ask = post(body=b"").with_field(b"content-length")
        await check_refused_unread(served, protocol, ask, 411, "Content-Length is missing", spends=True)


BAD_LENGTHS = [
    [b""],
    [b"+15"],
    [b"-1"],
    [b"-0"],
    [b"0x0f"],
    [b"15.0"],
    [b"1e1"],
    [b"1 5"],
    [b"15,15"],
    [b"15, 15"],
    [b"15;"],
    [b"fifteen"],
    [b"1_5"],
    ["١٥".encode()],
    [b"15", b"15"],
    [b"15", b"16"],
    [b"15", b""],
]


@pytest.mark.parametrize("values", BAD_LENGTHS)
async def test_a_malformed_or_repeated_content_length_is_400(protocol: Protocol, values: list[bytes]) -> None:
    async with house(rate_limit_rpm=1) as served:
        ask = post().with_field(b"content-length", *values)
        await check_refused_unread(served, protocol, ask, 400, "Content-Length must be one decimal number", spends=True)


@pytest.mark.parametrize(
    "length", [b"1048577", b"01048577", b"4294967296", b"18446744073709551616", b"9" * 19, b"1" + b"0" * 5000]
)
async def test_a_content_length_over_the_cap_is_413(protocol: Protocol, length: bytes) -> None:
    async with house(rate_limit_rpm=1, max_body_bytes=1024 * 1024) as served:
        ask = post().with_field(b"content-length", length)
        await check_refused_unread(served, protocol, ask, 413, "1048576 bytes", spends=True)


async def test_a_body_of_exactly_the_cap_is_served(protocol: Protocol) -> None:
    async with house(max_body_bytes=1024) as served:
        body = b'{"prompt": "hi"}'
        assert (await served.ask(protocol, post(body=body + b" " * (1024 - len(body))))).status == 200
        assert (await served.ask(protocol, post(body=body + b" " * (1025 - len(body))))).status == 413


async def test_leading_zeros_in_a_content_length_are_decimal_digits(protocol: Protocol) -> None:
    async with house() as served:
        ask = post()
        assert (await served.ask(protocol, ask.with_field(b"content-length", b"000%d" % len(ask.body)))).status == 200
