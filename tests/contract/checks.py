"""What every refusal of the contract has in common, checked in one place."""

from __future__ import annotations

import re
from email.utils import parsedate_to_datetime
from typing import Any

import anyio

from tests.contract.asking import Ask, Protocol, Reply, post
from tests.contract.house import House, Peer
from tests.contract.http1_peer import Http1Call
from tests.contract.http2_peer import Http2Call

TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    411: "invalid_request_error",
    413: "invalid_request_error",
    415: "invalid_request_error",
    421: "invalid_request_error",
    429: "rate_limit_error",
    431: "invalid_request_error",
    503: "overloaded_error",
}
"""The `type` of each status. OpenAI's names where it has one; its API reference, section "Error codes"."""


def check_error(
    reply: Reply, status: int, words: str, *, param: str | None = None, code: str | None = None
) -> dict[str, Any]:
    """Checks an error of OpenAI's shape, whose message has to hold the pattern `words`, and returns it."""
    assert reply.status == status, reply.body
    assert reply.is_complete
    assert reply.get(b"content-length") == str(len(reply.body)).encode()
    check_common_fields(reply)
    assert set(reply.data) == {"error"}
    error: dict[str, Any] = reply.data["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert re.search(words, error["message"]), error["message"]
    assert "\n" not in error["message"]
    assert (error["type"], error["param"], error["code"]) == (TYPES[status], param, code)
    return error


def check_common_fields(reply: Reply) -> None:
    """Checks what every answer carries."""
    date = reply.get(b"date")
    assert date is not None
    assert date.endswith(b" GMT")
    parsedate_to_datetime(date.decode())
    assert re.fullmatch(rb"[!-~]{1,128}", reply.get(b"x-request-id") or b"")


async def check_lives(peer: Peer) -> None:
    """Checks that the connection takes another request."""
    reply = await peer.ask(Ask())
    assert (reply.status, reply.data["status"]) == (200, "serving")


async def check_closes(peer: Peer, reply: Reply) -> None:
    """Checks that an HTTP/1.1 answer ends its connection, and says so."""
    assert reply.get(b"connection") == b"close"
    assert await peer.is_closed()


async def check_stream_ends(call: Http1Call | Http2Call) -> None:
    """Checks that an HTTP/2 answer to a request whose body is not wanted is followed by RST_STREAM(NO_ERROR)."""
    assert isinstance(call, Http2Call)
    began = anyio.current_time()
    assert await call.ends_with() == 0
    assert anyio.current_time() - began < 5


async def check_refused_unread(
    served: House,
    protocol: Protocol,
    ask: Ask,
    status: int,
    words: str,
    *,
    param: str | None = None,
    code: str | None = None,
    spends: bool,
    fields: dict[bytes, bytes] | None = None,
    lives: bool = False,
) -> Reply:
    """Sends the head of a request and checks its refusal: the body, which the client holds back, was not needed.

    The server has to have `rate_limit_rpm=1` and no request before this one.

    Args:
        spends: whether the refusal counts against the rate limit.
        fields: header fields of the answer.
        lives: whether the HTTP/1.1 connection goes on, because no body was announced; HTTP/2's always does.
    """
    peer = served.connect(protocol)
    call = await peer.begin(ask.with_field(b"expect", b"100-continue") if ask.body else ask)
    reply = await call.reply()
    check_error(reply, status, words, param=param, code=code)
    for name, value in (fields or {}).items():
        assert reply.get(name) == value
    assert reply.informational == [], "the client was told to send the body"
    assert served.engine.requests == [], "the request reached the engine"
    if protocol is Protocol.HTTP2:
        if ask.body:
            await check_stream_ends(call)
        assert reply.get(b"connection") is None
        await check_lives(peer)
    elif lives:
        assert reply.get(b"connection") is None
        await check_lives(peer)
    else:
        await check_closes(peer, reply)
    next_status = (await served.ask(protocol, post())).status
    assert next_status == (429 if spends else 200), "whether the refusal counted against the rate limit"
    return reply
