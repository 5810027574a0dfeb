"""Rows of the contract that are decided by the bytes of a head, before anyone looks at what it asks for."""

from __future__ import annotations

import pytest

from tests.contract.asking import OURS, Ask, Protocol, post
from tests.contract.checks import check_closes, check_error, check_lives, check_refused_unread
from tests.contract.house import house
from tests.contract.http2_peer import pseudo_fields
from tests.fakes.engine import FakeEngine

pytestmark = pytest.mark.anyio

KIB = 1024


def http1_head(num_bytes: int) -> Ask:
    """A GET whose head takes exactly so many bytes over HTTP/1.1, its Host being "x"."""
    rest = len(b"GET /health HTTP/1.1\r\nhost: x\r\nfiller: \r\n\r\n")
    return Ask(authority="x", fields=((b"filler", b"a" * (num_bytes - rest)),))


def http2_head(num_bytes: int) -> Ask:
    """A GET whose header list is exactly so large by the measure of RFC 9113 section 6.5.2, its authority being "x"."""
    fields = [*pseudo_fields(Ask(), "x"), (b"filler", b"")]
    rest = sum(len(name) + len(value) + 32 for name, value in fields)
    return Ask(authority="x", fields=((b"filler", b"a" * (num_bytes - rest)),))


def head_of(protocol: Protocol, num_bytes: int) -> Ask:
    return http1_head(num_bytes) if protocol is Protocol.HTTP1 else http2_head(num_bytes)


async def test_a_head_over_64_kib_is_431_and_one_of_64_kib_is_served(protocol: Protocol) -> None:
    async with house(rate_limit_rpm=1) as served:
        reply = await served.ask(protocol, head_of(protocol, 64 * KIB))
        assert reply.status == 200
        await check_refused_unread(served, protocol, head_of(protocol, 64 * KIB + 1), 431, "65536 bytes", spends=False)


@pytest.mark.parametrize("begun", [b"GET /" + b"a" * 65600, b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 11000])
async def test_a_head_over_64_kib_is_431_before_it_ends(begun: bytes) -> None:
    async with house() as served:
        peer = served.connect_http1()
        await peer.send(begun)
        reply = await peer.reply()
        check_error(reply, 431, "65536 bytes")
        await check_closes(peer, reply)


GOOD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 2\r\n"

MALFORMED_HTTP1 = {
    "bare LF ends the request line": b"GET /health HTTP/1.1\nHost: x\r\n\r\n",
    "bare LF ends a field": GOOD + b"A: b\n\r\n",
    "bare LF ends the head": GOOD + b"\n",
    "bare CR in a value": GOOD + b"A: b\rc\r\n\r\n",
    "bare CR in the request line": b"GET /health\rHTTP/1.1\r\nHost: x\r\n\r\n",
    "NUL in a value": GOOD + b"A: b\0c\r\n\r\n",
    "NUL in a name": GOOD + b"A\0: b\r\n\r\n",
    "another control character in a value": GOOD + b"A: b\x01c\r\n\r\n",
    "DEL in a value": GOOD + b"A: b\x7fc\r\n\r\n",
    "a space before a colon": GOOD + b"A : b\r\n\r\n",
    "a tab before a colon": GOOD + b"A\t: b\r\n\r\n",
    "a field folded with a space": GOOD + b"A: b\r\n c\r\n\r\n",
    "a field folded with a tab": GOOD + b"A: b\r\n\tc\r\n\r\n",
    "white space before the first field": b"GET /health HTTP/1.1\r\n Host: x\r\n\r\n",
    "a field without a colon": GOOD + b"A\r\n\r\n",
    "a field without a name": GOOD + b": b\r\n\r\n",
    "a name that is no token": GOOD + b"A(): b\r\n\r\n",
    "a name beyond ASCII": GOOD + b"\xc3\xa4: b\r\n\r\n",
    "a method that is no token": b"G(T /health HTTP/1.1\r\nHost: x\r\n\r\n",
    "no method": b" /health HTTP/1.1\r\nHost: x\r\n\r\n",
    "two spaces in the request line": b"GET  /health HTTP/1.1\r\nHost: x\r\n\r\n",
    "a space at the end of the request line": b"GET /health HTTP/1.1 \r\nHost: x\r\n\r\n",
    "no version": b"GET /health\r\nHost: x\r\n\r\n",
    "HTTP/0.9": b"GET /health HTTP/0.9\r\nHost: x\r\n\r\n",
    "HTTP/1.2": b"GET /health HTTP/1.2\r\nHost: x\r\n\r\n",
    "HTTP/2.0 without the preface": b"GET /health HTTP/2.0\r\nHost: x\r\n\r\n",
    "a version in lower case": b"GET /health http/1.1\r\nHost: x\r\n\r\n",
    "a relative target": b"GET health HTTP/1.1\r\nHost: x\r\n\r\n",
    "a fragment in the target": b"GET /health#a HTTP/1.1\r\nHost: x\r\n\r\n",
    "a broken percent-encoding": b"GET /heal%2 HTTP/1.1\r\nHost: x\r\n\r\n",
    "a byte beyond ASCII in the target": b"GET /h\xc3\xa4lth HTTP/1.1\r\nHost: x\r\n\r\n",
    "a space in the target": b"GET /hea lth HTTP/1.1\r\nHost: x\r\n\r\n",
    "an authority-form target": b"CONNECT localhost:80 HTTP/1.1\r\nHost: localhost:80\r\n\r\n",
    "an absolute target of another scheme": b"GET ftp://localhost/health HTTP/1.1\r\nHost: x\r\n\r\n",
    "an absolute target with userinfo": b"GET http://me@localhost/health HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "an absolute target without authority": b"GET http:///health HTTP/1.1\r\nHost: x\r\n\r\n",
    "an asterisk for a GET": b"GET * HTTP/1.1\r\nHost: x\r\n\r\n",
    "two Hosts": b"GET /health HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n",
    "two equal Hosts": b"GET /health HTTP/1.1\r\nHost: x\r\nhost: x\r\n\r\n",
    "a Host with a path": b"GET /health HTTP/1.1\r\nHost: x/y\r\n\r\n",
    "a Host with userinfo": b"GET /health HTTP/1.1\r\nHost: me@x\r\n\r\n",
    "two hosts in one Host": b"GET /health HTTP/1.1\r\nHost: x, y\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
    "the preface of HTTP/2 cut short": b"PRI * HTTP/2.0\r\n\r\nSN\r\n\r\n",
}


@pytest.mark.parametrize("raw", MALFORMED_HTTP1.values(), ids=MALFORMED_HTTP1)
async def test_a_malformed_head_is_400_and_closes(raw: bytes) -> None:
    async with house(rate_limit_rpm=1) as served:
        peer = served.connect_http1()
        await peer.send(raw)
        reply = await peer.reply()
        check_error(reply, 400, "^malformed request: ")
        await check_closes(peer, reply)
        assert served.engine.requests == []
        assert (await served.ask(Protocol.HTTP1, post())).status == 200, "no rate was spent"


PSEUDO = pseudo_fields(Ask(), "localhost")

MALFORMED_HTTP2 = {
    "no method": [field for field in PSEUDO if field[0] != b":method"],
    "no path": [field for field in PSEUDO if field[0] != b":path"],
    "no scheme": [field for field in PSEUDO if field[0] != b":scheme"],
    "an empty path": [(name, b"" if name == b":path" else value) for name, value in PSEUDO],
    "a relative path": [(name, b"health" if name == b":path" else value) for name, value in PSEUDO],
    "a fragment in the path": [(name, b"/health#a" if name == b":path" else value) for name, value in PSEUDO],
    "another scheme": [(name, b"ftp" if name == b":scheme" else value) for name, value in PSEUDO],
    "a method that is no token": [(name, b"G(T" if name == b":method" else value) for name, value in PSEUDO],
    "a CONNECT": [(b":method", b"CONNECT"), (b":authority", b"localhost:80")],
    "a pseudo-header field twice": [*PSEUDO, (b":path", b"/health")],
    "an unknown pseudo-header field": [*PSEUDO, (b":protocol", b"websocket")],
    "a pseudo-header field of an answer": [*PSEUDO, (b":status", b"200")],
    "a pseudo-header field behind a field": [*PSEUDO[:-1], (b"a", b"b"), PSEUDO[-1]],
    "a name in upper case": [*PSEUDO, (b"Accept", b"b")],
    "a name that is no token": [*PSEUDO, (b"a b", b"b")],
    "a name with a colon": [*PSEUDO, (b"a:", b"b")],
    "no name": [*PSEUDO, (b"", b"b")],
    "CR in a value": [*PSEUDO, (b"a", b"b\rc")],
    "LF in a value": [*PSEUDO, (b"a", b"b\nc: d")],
    "NUL in a value": [*PSEUDO, (b"a", b"b\0")],
    "a value with white space before it": [*PSEUDO, (b"a", b" b")],
    "a value with white space behind it": [*PSEUDO, (b"a", b"b\t")],
    "Connection": [*PSEUDO, (b"connection", b"close")],
    "Keep-Alive": [*PSEUDO, (b"keep-alive", b"timeout=5")],
    "Proxy-Connection": [*PSEUDO, (b"proxy-connection", b"keep-alive")],
    "Transfer-Encoding": [*PSEUDO, (b"transfer-encoding", b"chunked")],
    "Upgrade": [*PSEUDO, (b"upgrade", b"h2c")],
    "TE for anything but trailers": [*PSEUDO, (b"te", b"gzip")],
    "two Hosts": [*PSEUDO[:-1], (b"host", b"x"), (b"host", b"x")],
    "a Host that contradicts the authority": [*PSEUDO, (b"host", b"other")],
    "an authority with userinfo": [*PSEUDO[:-1], (b":authority", b"me@localhost")],
    "a Content-Length without a body": [*PSEUDO, (b"content-length", b"5")],
}


@pytest.mark.parametrize("fields", MALFORMED_HTTP2.values(), ids=MALFORMED_HTTP2)
async def test_a_malformed_header_list_is_400_on_its_stream(fields: list[tuple[bytes, bytes]]) -> None:
    async with house(rate_limit_rpm=1) as served:
        peer = served.connect_http2()
        call = await peer.begin_with(fields, ends=True)
        check_error(await call.reply(), 400, "^malformed request: ")
        await check_lives(peer)
        assert served.engine.requests == []
        assert (await served.ask(Protocol.HTTP2, post())).status == 200, "no rate was spent"


@pytest.mark.parametrize(
    "target", [b"/", b"/v1", b"/v1/", b"/v1/completions/", b"/V1/completions", b"//health", b"/v1/completion%73"]
)
async def test_an_unknown_path_is_404(protocol: Protocol, target: bytes) -> None:
    async with house(rate_limit_rpm=1) as served:
        await check_refused_unread(served, protocol, post(target), 404, "no such path", spends=False)


METHODS_OF_ROUTES = [
    (b"GET", b"/v1/completions", b"POST"),
    (b"HEAD", b"/v1/completions", b"POST"),
    (b"PUT", b"/v1/chat/completions", b"POST"),
    (b"OPTIONS", b"/v1/embeddings", b"POST"),
    (b"PURGE", b"/v1/rerank", b"POST"),
    (b"POST", b"/health", b"GET, HEAD"),
    (b"DELETE", b"/metrics", b"GET, HEAD"),
    (b"PATCH", b"/metrics/prometheus", b"GET, HEAD"),
    (b"TRACE", b"/v1/models", b"GET, HEAD"),
    (b"get", b"/v1/models/fake-model", b"GET, HEAD"),
    (b"PUT", b"/v1/lora_adapters", b"DELETE, GET, HEAD, POST"),
]


@pytest.mark.parametrize(("method", "target", "allow"), METHODS_OF_ROUTES)
async def test_another_method_is_405_with_allow(protocol: Protocol, method: bytes, target: bytes, allow: bytes) -> None:
    ask = Ask(method=method, target=target, authority=OURS)
    async with house() as served:
        peer = served.connect(protocol)
        reply = await peer.ask(ask)
        assert (reply.status, reply.get(b"allow")) == (405, allow)
        if method != b"HEAD":
            check_error(reply, 405, "takes ")
        await check_lives(peer)


async def test_a_405_leaves_the_rate_alone_and_its_body_unread(protocol: Protocol) -> None:
    async with house(rate_limit_rpm=1) as served:
        fields = {b"allow": b"GET, HEAD"}
        await check_refused_unread(served, protocol, post(b"/health"), 405, "GET, HEAD", spends=False, fields=fields)


async def test_a_path_is_looked_for_before_its_method_and_its_host(protocol: Protocol) -> None:
    async with house(FakeEngine()) as served:
        nowhere = Ask(method=b"PUT", target=b"/nowhere", authority="elsewhere")
        assert (await served.ask(protocol, nowhere)).status == 404
        assert (await served.ask(protocol, nowhere.but(target=b"/v1/completions"))).status == 405
