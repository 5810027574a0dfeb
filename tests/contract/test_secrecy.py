"""No error answer carries what a client sent, where a file lies, or how the server failed."""

from __future__ import annotations

import json
import re

import pytest

from poot.engine.sequence import Event, GenerationRequest
from tests.contract.asking import OURS, Ask, Protocol, post, post_json
from tests.contract.checks import check_common_fields
from tests.contract.house import house
from tests.fakes.engine import FakeEngine

pytestmark = pytest.mark.anyio

MARK = b"zqmarker"
CHAT = b"/v1/chat/completions"


def message(**fields: object) -> dict[str, object]:
    return {"messages": [{"role": "user", "content": "hi", **fields}]}


ASKS = {
    "path": Ask(target=b"/" + MARK),
    "path with escapes": Ask(target=b"/%3Cscript%3E" + MARK),
    "query": Ask(target=b"/nowhere?" + MARK),
    "model path": Ask(target=b"/v1/models/" + MARK),
    "method": Ask(method=MARK.upper(), target=b"/health"),
    "host": post().but(authority=MARK.decode() + ".example"),
    "host with our port": post().but(authority="PORT"),
    "content type": post().with_field(b"content-type", b"text/" + MARK),
    "content length": post().with_field(b"content-length", MARK),
    "bearer": post(b"/v1/lora_adapters").with_field(b"authorization", b"Bearer " + MARK),
    "field name": Ask().with_field(MARK + b" ", b"x"),
    "field value": Ask().with_field(b"x", MARK + b"\x01"),
    "field value beyond ASCII": post().with_field(b"content-type", MARK + b"\xff\xfe"),
    "body that is not JSON": post(body=MARK),
    "body that is not UTF-8": post(body=b'{"prompt": "' + MARK + b'\xff"}'),
    "body cut short": post(body=b'{"prompt": "' + MARK),
    "bad escape": post(body=b'{"prompt": "' + MARK + b'\\q"}'),
    "string for a number": post_json({"prompt": "hi", "max_tokens": MARK.decode()}),
    "string for a bool": post_json({"prompt": "hi", "stream": MARK.decode()}),
    "string for an object": post_json({"prompt": "hi", "stream_options": MARK.decode()}),
    "value of a field that is not built": post_json({"prompt": "hi", "service_tier": MARK.decode()}),
    "object of a field that is not built": post_json({"prompt": "hi", "logit_bias": {MARK.decode(): 1}}),
    "model": post_json({"prompt": "hi", "model": MARK.decode()}),
    "prompt that is too long": post_json({"prompt": MARK.decode() * 20}),
    "role": post_json({"messages": [{"role": MARK.decode(), "content": "hi"}]}, CHAT),
    "name of a number": post_json(message(name=5, content=MARK.decode()), CHAT),
    "part type": post_json(message(content=[{"type": MARK.decode()}]), CHAT),
    "image": post_json(message(content=[{"type": "image_url", "image_url": {"url": MARK.decode()}}]), CHAT),
    "template": post_json({"messages": [{"role": "user", "content": "refuse me"}], "user": MARK.decode()}, CHAT),
    "response format": post_json({**message(), "response_format": {"type": MARK.decode()}}, CHAT),
    "tools": post_json({**message(), "tools": [{"type": MARK.decode()}]}, CHAT),
}


@pytest.mark.parametrize("ask", ASKS.values(), ids=ASKS)
async def test_an_error_does_not_quote_the_client(protocol: Protocol, ask: Ask) -> None:
    async with house(lora_admin_key="k") as served:
        if ask.authority == "PORT":
            ask = ask.but(authority=f"{MARK.decode()}:{served.port}")
        reply = await served.ask(protocol, ask)
        assert reply.status in range(400, 500)
        check_common_fields(reply)
        told = reply.body.lower() + repr(reply.fields).lower().encode()
        assert MARK not in told
        assert b"\\u" not in reply.body, "bytes that are not ASCII"


async def test_a_field_name_may_be_named_and_is_cut_to_a_length(protocol: Protocol) -> None:
    async with house() as served:
        reply = await served.ask(protocol, post_json({"prompt": "hi", MARK.decode() * 400: 1}))
        assert reply.status == 400
        assert reply.data["error"]["param"].startswith(MARK.decode())
        assert len(reply.body) < 1024


RAW = [
    b"GET /" + MARK + b"\xff HTTP/1.1\r\nHost: x\r\n\r\n",
    MARK + b"\r\n\r\n",
    b"GET / HTTP/" + MARK + b"\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: " + MARK + b"/\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: x\r\n" + MARK + b"\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: x\r\n" + MARK + b"\xc3\xa4: x\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: x\r\nX-Request-Id: " + MARK + b"\xff\r\n\x00",
    b"GET /" + MARK * 9000,
]


@pytest.mark.parametrize("raw", RAW, ids=range(len(RAW)))
async def test_a_malformed_head_is_not_quoted(raw: bytes) -> None:
    async with house() as served:
        peer = served.connect_http1()
        await peer.send(raw)
        answer = await peer.rest()
        assert answer.startswith(b"HTTP/1.1 4")
        assert MARK not in answer.lower()


SECRET = "/srv/models/secret.gguf"


def fail(request: GenerationRequest) -> list[Event]:
    raise RuntimeError(f"cannot read {SECRET}")


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_a_fault_of_ours_is_500_without_a_trace(
    protocol: Protocol, is_streamed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async with house(FakeEngine(fail)) as served:
        reply = await served.ask(protocol, post_json({"prompt": "hi", "stream": is_streamed}).but(authority=OURS))
        assert reply.status == 500
        error = reply.data["error"]
        assert (error["type"], error["param"], error["code"]) == ("server_error", None, None)
        assert not re.search(r"Traceback|RuntimeError|File|\.py|srv|secret", json.dumps(error))
        assert served.metric("requests", "/v1/completions", "500") == 1
        assert SECRET in caplog.text, "the log says it instead"
