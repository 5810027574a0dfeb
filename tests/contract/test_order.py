"""The order of the rows: a request that several rows could refuse gets the answer of the first."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import anyio
import pytest

from tests.contract.asking import Ask, Protocol, Reply, post, post_json
from tests.contract.checks import check_error
from tests.contract.house import House, Peer, house
from tests.fakes.engine import FakeEngine, FakeModel

pytestmark = pytest.mark.anyio

LATE_AFTER_SECONDS = 1.5
"""How old a connection has to be that nothing was on its way when the drain began; the server counts 1 s."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One row of the table, as far as a head or the server's state violates it.

    Attributes:
        violate: makes a request violate it.
        settings: of a server at which the request violates it.
        is_http1_only: HTTP/2 cannot violate it.
    """

    name: str
    status: int
    words: str
    violate: Callable[[Ask], Ask] = lambda ask: ask
    settings: tuple[tuple[str, Any], ...] = ()
    is_http1_only: bool = False
    code: str | None = None


def repeat_length(ask: Ask) -> Ask:
    lengths = [value for name, value in ask.fields if name == b"content-length"]
    return ask.with_field(b"content-length", *lengths, *lengths)


TABLE = [
    Row(name="large head", status=431, words="65536", violate=lambda ask: ask.with_field(b"a", b"b" * 66000)),
    Row(name="malformed head", status=400, words="^malformed", violate=lambda ask: ask.with_field(b"b c", b"d")),
    Row(name="path", status=404, words="path", violate=lambda ask: ask.but(target=b"/nowhere")),
    Row(name="method", status=405, words="method", violate=lambda ask: ask.but(method=b"PUT")),
    Row(name="host", status=421, words="Host", violate=lambda ask: ask.but(authority="example.com")),
    Row(name="rate", status=429, words="rate limit", settings=(("rate_limit_rpm", 1),)),
    Row(
        name="bearer",
        status=401,
        words="bearer token",
        violate=lambda ask: ask.but(target=b"/v1/lora_adapters"),
        settings=(("lora_admin_key", "k"),),
    ),
    Row(
        name="media type",
        status=415,
        words="Content-Type",
        violate=lambda ask: ask.with_field(b"content-type", b"text/plain"),
    ),
    Row(
        name="transfer coding",
        status=400,
        words="exclude",
        violate=lambda ask: ask.with_field(b"transfer-encoding", b"chunked"),
        is_http1_only=True,
    ),
    Row(name="length", status=400, words="sent once", violate=repeat_length),
    Row(
        name="cap", status=413, words="limit of", violate=lambda ask: ask.with_field(b"content-length", b"99999999999")
    ),
    Row(name="draining", status=503, words="shutting down", code="draining"),
    Row(name="admission place", status=429, words="admits 1 ", settings=(("max_pending_requests", 1),)),
    Row(name="receiving place", status=429, words="receives 1 ", settings=(("max_receiving_requests", 1),)),
]
ON_ADAPTERS = [row for row in TABLE if row.name not in ("admission place", "receiving place")]
"""The adapter route takes no place."""
ON_MODELS = [row for row in TABLE if row.name != "bearer"]


async def refusal(served: House, protocol: Protocol, rows: list[Row]) -> Reply:
    """The answer to the head of a request that violates all these rows."""
    names = [row.name for row in rows]
    if "rate" in names:
        assert (await served.ask(protocol, post())).status == 200
    peer: Peer = served.connect(protocol)
    if "admission place" in names or "receiving place" in names:
        # From another peer address, whose rate is not spent, so that it is let in.
        await served.connect_http1(source="127.0.0.7").begin(post())
        await anyio.sleep(0.001)
        assert served.ledger()["receiving"] == 1
    if "draining" in names:
        await anyio.sleep(LATE_AFTER_SECONDS)
        served.server.drain()
        await anyio.sleep(0.001)
    ask = post()
    # The last row first: what an earlier one changes stays changed.
    for row in reversed(rows):
        ask = row.violate(ask)
    return await (await peer.begin(ask)).reply()


def suffixes() -> list[Any]:
    """For each protocol and kind of route: every row with all rows that follow it."""
    cases = []
    for protocol in Protocol:
        for route, table in [("models", ON_MODELS), ("adapters", ON_ADAPTERS)]:
            rows = [row for row in table if protocol is Protocol.HTTP1 or not row.is_http1_only]
            for index, row in enumerate(rows):
                name = f"{protocol.value}-{route}-{row.name.replace(' ', '-')}"
                cases.append(pytest.param(protocol, rows[index:], id=name))
    return cases


@pytest.mark.parametrize(("protocol", "rows"), suffixes())
async def test_a_row_comes_before_all_that_follow_it(protocol: Protocol, rows: list[Row]) -> None:
    row = rows[0]
    for violated in (rows, rows[:2]):
        settings = dict(setting for each in violated for setting in each.settings)
        async with house(**settings) as served:
            reply = await refusal(served, protocol, violated)
            check_error(reply, row.status, row.words, code=row.code)
            assert reply.informational == []


LONG = "x" * 64  # more than the fake model's max_seq - 1

BODIES = [
    ("not-utf8", b'{"prompt": "\xff', "not UTF-8", None, None),
    ("not-json", b'{"messages": [', "not valid JSON", None, None),
    ("field", json.dumps({"messages": [{"role": "user", "content": LONG}], "nonsense": 1}).encode(), "unknown field",
     "nonsense", None),
    ("capability", json.dumps({"messages": [{"role": "user", "content": LONG}]}).encode(), "no chat template", None,
     "unsupported_capability"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("body", "words", "param", "code"), [row[1:] for row in BODIES], ids=[row[0] for row in BODIES]
)
async def test_bodies_are_judged_in_the_order_of_the_table(
    protocol: Protocol, body: bytes, words: str, param: str | None, code: str | None
) -> None:
    async with house(FakeEngine(has_chat=False)) as served:
        reply = await served.ask(protocol, post(b"/v1/chat/completions", body))
        check_error(reply, 400, words, param=param, code=code)
        assert served.engine.requests == []


async def test_a_prompt_that_is_too_long_is_refused_without_queueing(protocol: Protocol) -> None:
    async with house(FakeEngine(model=FakeModel(rows=0))) as served:
        reply = await served.ask(protocol, post_json({"prompt": LONG}))
        check_error(reply, 400, "64 tokens.*63", param="prompt", code="context_length_exceeded")
