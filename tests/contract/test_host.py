"""The rows about Host: one that is missing is 400, one that names another server 421, and the target may replace it."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from poot.config import Address, TcpAddress, UnixAddress
from tests.contract.asking import Ask, Protocol, post
from tests.contract.checks import check_closes, check_error, check_lives, check_refused_unread
from tests.contract.house import LOOPBACK, House, house

pytestmark = pytest.mark.anyio

WILDCARD = TcpAddress(host="0.0.0.0", port=0)
LOOPBACK_V6 = TcpAddress(host="::1", port=0)
OTHER_LOOPBACK = TcpAddress(host="127.0.0.2", port=0)


def has_ipv6() -> bool:
    with socket.socket(socket.AF_INET6) as probe:
        try:
            probe.bind(("::1", 0))
        except OSError:
            return False
    return True


needs_ipv6 = pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6 loopback")


def authority(served: House, written: str) -> str:
    """`written` with PORT as the server's port and OTHER as a port that is not."""
    return written.replace("PORT", str(served.port)).replace("OTHER", str(served.port ^ 1))


@pytest.mark.parametrize(
    ("address", "written"),
    [
        (LOOPBACK, "localhost:PORT"),
        (LOOPBACK, "LocalHost:PORT"),
        (LOOPBACK, "127.0.0.1:PORT"),
        (LOOPBACK, "[::1]:PORT"),
        (LOOPBACK, "[0:0:0:0:0:0:0:1]:PORT"),
        (OTHER_LOOPBACK, "127.0.0.2:PORT"),
        (OTHER_LOOPBACK, "localhost:PORT"),
        pytest.param(LOOPBACK_V6, "[::1]:PORT", marks=needs_ipv6),
        pytest.param(LOOPBACK_V6, "localhost:PORT", marks=needs_ipv6),
        (WILDCARD, "example.com:PORT"),
        (WILDCARD, "10.1.2.3:PORT"),
    ],
)
async def test_a_host_that_names_the_listener_is_served(protocol: Protocol, address: Address, written: str) -> None:
    async with house(address=address) as served:
        reply = await served.ask(protocol, post().but(authority=authority(served, written)))
        assert reply.status == 200, reply.body


@pytest.mark.parametrize(
    ("address", "written"),
    [
        (LOOPBACK, "example.com:PORT"),
        (LOOPBACK, "localhost.example.com:PORT"),
        (LOOPBACK, "localhost.:PORT"),
        (LOOPBACK, "127.0.0.2:PORT"),
        (LOOPBACK, "127.1:PORT"),
        (LOOPBACK, "0.0.0.0:PORT"),
        (LOOPBACK, "[::ffff:127.0.0.1]:PORT"),
        (LOOPBACK, ":PORT"),
        (LOOPBACK, "localhost:OTHER"),
        (LOOPBACK, "localhost"),
        (LOOPBACK, "localhost:"),
        (LOOPBACK, "localhost:80"),
        (WILDCARD, "example.com"),
        (WILDCARD, "localhost:OTHER"),
        pytest.param(LOOPBACK_V6, "[::2]:PORT", marks=needs_ipv6),
    ],
)
async def test_a_host_that_names_another_server_is_421(protocol: Protocol, address: Address, written: str) -> None:
    async with house(address=address, rate_limit_rpm=1) as served:
        ask = post().but(authority=authority(served, written))
        await check_refused_unread(served, protocol, ask, 421, "^Host ", spends=False)


async def test_on_a_unix_socket_any_host_is_served(protocol: Protocol, tmp_path: Path) -> None:
    async with house(address=UnixAddress(path=str(tmp_path / "s"))) as served:
        assert (await served.ask(protocol, post().but(authority="anything:1"))).status == 200


@pytest.mark.parametrize("version", [b"HTTP/1.1", b"HTTP/1.0"])
@pytest.mark.parametrize("given", [None, ""])
async def test_a_post_without_a_host_is_400(version: bytes, given: str | None) -> None:
    async with house(rate_limit_rpm=1) as served:
        ask = post().but(authority=given, version=version)
        await check_refused_unread(served, Protocol.HTTP1, ask, 400, "Host", spends=False)


async def test_a_post_without_an_authority_is_400() -> None:
    async with house(rate_limit_rpm=1) as served:
        await check_refused_unread(served, Protocol.HTTP2, post().but(authority=None), 400, "Host", spends=False)


async def test_host_may_stand_for_the_authority_over_http2() -> None:
    async with house() as served:
        ask = post().but(authority=None).with_field(b"host", served.authority.encode())
        assert (await served.ask(Protocol.HTTP2, ask)).status == 200


@pytest.mark.parametrize("target", [b"/health", b"/v1/models", b"/metrics/prometheus", b"http://x/health"])
async def test_a_get_over_http_1_1_without_a_host_is_400(target: bytes) -> None:
    async with house() as served:
        peer = served.connect_http1()
        reply = await peer.ask(Ask(target=target, authority=None))
        check_error(reply, 400, "Host")
        await check_closes(peer, reply)


async def test_a_path_that_does_not_exist_is_404_without_a_host_too() -> None:
    async with house() as served:
        assert (await served.ask(Protocol.HTTP1, Ask(target=b"/nowhere", authority=None))).status == 404


async def test_http_1_0_and_http2_may_get_without_a_host() -> None:
    async with house() as served:
        assert (await served.ask(Protocol.HTTP1, Ask(authority=None, version=b"HTTP/1.0"))).status == 200
        assert (await served.ask(Protocol.HTTP2, Ask(authority=None))).status == 200


@pytest.mark.parametrize("given", ["example.com", "localhost:1", ""])
async def test_a_get_may_name_any_host(protocol: Protocol, given: str) -> None:
    async with house() as served:
        peer = served.connect(protocol)
        assert (await peer.ask(Ask(authority=given))).status == 200
        await check_lives(peer)


@pytest.mark.parametrize("method", [b"GET", b"HEAD", b"DELETE"])
async def test_the_adapter_route_checks_host_for_every_method(protocol: Protocol, method: bytes) -> None:
    async with house() as served:
        peer = served.connect(protocol)
        reply = await peer.ask(Ask(method=method, target=b"/v1/lora_adapters", authority="example.com"))
        assert reply.status == 421
        await check_lives(peer)


async def test_the_authority_of_an_absolute_target_replaces_host() -> None:
    async with house(rate_limit_rpm=2) as served:
        ours, other = served.authority.encode(), b"example.com"
        ask = post(b"http://" + ours + b"/v1/completions").but(authority="example.com")
        assert (await served.ask(Protocol.HTTP1, ask)).status == 200
        ask = post(b"http://" + other + b"/v1/completions")
        assert (await served.ask(Protocol.HTTP1, ask)).status == 421
        ask = post(b"http://" + ours + b"/v1/completions").but(authority=None)
        check_error(await served.ask(Protocol.HTTP1, ask), 400, "Host")  # RFC 9112 section 3.2: needed all the same


async def test_x_forwarded_host_and_forwarded_name_nobody(protocol: Protocol) -> None:
    async with house(rate_limit_rpm=1) as served:
        ours = served.authority.encode()
        ask = post().but(authority="example.com")
        ask = ask.with_field(b"x-forwarded-host", ours).with_field(b"forwarded", b"host=" + ours)
        await check_refused_unread(served, protocol, ask, 421, "Host", spends=False)
