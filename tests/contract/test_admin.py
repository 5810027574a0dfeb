"""The row about /v1/lora_adapters: a bearer token where there is one to have, and this machine alone where not."""

from __future__ import annotations

from pathlib import Path

import pytest

from poot.config import TcpAddress, UnixAddress
from tests.contract.asking import Ask, Protocol, post
from tests.contract.checks import check_error, check_lives, check_refused_unread
from tests.contract.house import house

pytestmark = pytest.mark.anyio

ROUTE = b"/v1/lora_adapters"
KEY = "sesame-0123456789"
CHALLENGE = {b"www-authenticate": b'Bearer realm="poot"'}

WRONG = [
    [],
    [b""],
    [b"Bearer"],
    [b"Bearer sesame"],
    [b"Bearer sesame-0123456789x"],
    [b"Bearer SESAME-0123456789"],
    [b'Bearer "sesame-0123456789"'],
    [b"Bearer sesame-0123456789, Bearer x"],
    [b"Bearer " + "ä".encode()],
    [b"Basic sesame-0123456789"],
    [b"Basic c2VzYW1lLTAxMjM0NTY3ODk="],
    [b"sesame-0123456789"],
    [b"Bearer sesame-0123456789", b"Bearer sesame-0123456789"],
]


@pytest.mark.parametrize("values", WRONG)
async def test_a_missing_or_wrong_bearer_is_401_and_says_what_is_asked_for(
    protocol: Protocol, values: list[bytes]
) -> None:
    async with house(rate_limit_rpm=1, lora_admin_key=KEY) as served:
        ask = post(ROUTE).with_field(b"authorization", *values)
        await check_refused_unread(served, protocol, ask, 401, "--lora-admin-key-file", spends=True, fields=CHALLENGE)


@pytest.mark.parametrize("method", [b"GET", b"HEAD", b"DELETE"])
async def test_every_method_needs_the_bearer(protocol: Protocol, method: bytes) -> None:
    async with house(lora_admin_key=KEY) as served:
        peer = served.connect(protocol)
        reply = await peer.ask(Ask(method=method, target=ROUTE))
        assert (reply.status, reply.get(b"www-authenticate")) == (401, CHALLENGE[b"www-authenticate"])
        await check_lives(peer)


@pytest.mark.parametrize("scheme", [b"Bearer ", b"bearer ", b"BEARER  "])
async def test_the_right_bearer_passes(protocol: Protocol, scheme: bytes) -> None:
    async with house(lora_admin_key=KEY) as served:
        ask = post(ROUTE).with_field(b"authorization", scheme + KEY.encode())
        # What comes next in the table for a route whose feature is not built.
        check_error(await served.ask(protocol, ask), 400, "not available yet", code="unsupported_capability")


async def test_inference_needs_no_bearer(protocol: Protocol) -> None:
    async with house(lora_admin_key=KEY) as served:
        assert (await served.ask(protocol, post())).status == 200
        assert (await served.ask(protocol, post().with_field(b"authorization", b"Bearer x"))).status == 200


async def test_without_a_key_a_listener_that_is_not_on_loopback_answers_403(protocol: Protocol) -> None:
    async with house(address=TcpAddress(host="0.0.0.0", port=0), rate_limit_rpm=1) as served:
        ask = post(ROUTE).with_field(b"authorization", b"Bearer x")
        await check_refused_unread(served, protocol, ask, 403, "loopback", code="admin_key_unset", spends=True)


async def test_without_a_key_a_local_listener_lets_everybody_in(protocol: Protocol, tmp_path: Path) -> None:
    for address in (
        TcpAddress(host="127.0.0.1", port=0),
        TcpAddress(host="127.0.0.5", port=0),
        TcpAddress(host="localhost", port=0),
        UnixAddress(path=str(tmp_path / "s")),
    ):
        async with house(address=address) as served:
            check_error(await served.ask(protocol, post(ROUTE)), 400, "not available", code="unsupported_capability")
