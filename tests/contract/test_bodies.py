"""The rows about a body that has come whole: what is JSON, what is a field, and what the model can do."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.contract.asking import Protocol, post, post_json
from tests.contract.checks import check_error, check_lives
from tests.contract.house import House, house
from tests.fakes.engine import FakeEngine

pytestmark = pytest.mark.anyio

COMPLETIONS, CHAT = b"/v1/completions", b"/v1/chat/completions"
DEEPEST = 128


async def check_body_refused(
    served: House,
    protocol: Protocol,
    body: bytes,
    words: str,
    *,
    path: bytes = COMPLETIONS,
    status: int = 400,
    param: str | None = None,
    code: str | None = None,
) -> None:
    """Checks that a body is refused, that the connection lives, and that nothing reached the engine."""
    peer = served.connect(protocol)
    reply = await peer.ask(post(path, body))
    check_error(reply, status, words, param=param, code=code)
    assert reply.get(b"connection") is None
    assert served.engine.requests == []
    await check_lives(peer)


def nested(depth: int) -> bytes:
    """A completion whose `metadata`, which takes any value, makes the body nest so deep."""
    return b'{"prompt": "hi", "metadata": ' + b"[" * (depth - 1) + b"]" * (depth - 1) + b"}"


NOT_JSON = {
    "nothing": (b"", "not valid JSON"),
    "white space": (b" \r\n", "not valid JSON"),
    "text": (b"prompt=hi", "not valid JSON"),
    "cut short": (b'{"prompt": "hi"', "not valid JSON"),
    "two texts": (b'{"prompt": "hi"}{}', "not valid JSON"),
    "text behind it": (b'{"prompt": "hi"} x', "not valid JSON"),
    "a trailing comma": (b'{"prompt": "hi",}', "not valid JSON"),
    "single quotes": (b"{'prompt': 'hi'}", "not valid JSON"),
    "a name without quotes": (b'{prompt: "hi"}', "not valid JSON"),
    "a comment": (b'{"prompt": "hi" /* x */}', "not valid JSON"),
    "NaN": (b'{"prompt": "hi", "temperature": NaN}', "not valid JSON"),
    "Infinity": (b'{"prompt": "hi", "temperature": Infinity}', "not valid JSON"),
    "-Infinity": (b'{"prompt": "hi", "temperature": -Infinity}', "not valid JSON"),
    "a number with a leading zero": (b'{"prompt": "hi", "temperature": 01}', "not valid JSON"),
    "a number with a plus": (b'{"prompt": "hi", "temperature": +1}', "not valid JSON"),
    "a hexadecimal number": (b'{"prompt": "hi", "top_k": 0x10}', "not valid JSON"),
    "a raw line end in a string": (b'{"prompt": "h\ni"}', "not valid JSON"),
    "a raw NUL in a string": (b'{"prompt": "h\0i"}', "not valid JSON"),
    "an unknown escape": (b'{"prompt": "\\x41"}', "not valid JSON"),
    "a lone high surrogate": (b'{"prompt": "\\ud83d"}', "not valid JSON"),
    "a lone low surrogate": (b'{"prompt": "\\ude00"}', "not valid JSON"),
    "a BOM": (b'\xef\xbb\xbf{"prompt": "hi"}', "not valid JSON"),
    "UTF-16": ('{"prompt": "hi"}'.encode("utf-16"), "not UTF-8"),
    "Latin-1": ('{"prompt": "ä"}'.encode("latin-1"), "not UTF-8"),
    "an overlong form": (b'{"prompt": "\xc0\xaf"}', "not UTF-8"),
    "a surrogate in UTF-8": (b'{"prompt": "\xed\xa0\x80"}', "not UTF-8"),
    "above U+10FFFF": (b'{"prompt": "\xf4\x90\x80\x80"}', "not UTF-8"),
    "a character cut short": (b'{"prompt": "\xe2\x82"}', "not UTF-8"),
    "not UTF-8 where nobody looks": (b'{"prompt": "hi", "user": "\xff"}', "not UTF-8"),
    "a list": (b'["hi"]', "object"),
    "a string": (b'"hi"', "object"),
    "a number": (b"5", "object"),
    "null": (b"null", "object"),
    "nested too deep": (nested(DEEPEST + 1), "more than 128 deep"),
    "opened and never closed": (b"[" * 1000, "more than 128 deep"),
    "objects opened and never closed": (b'{"a":' * 500, "more than 128 deep"),
}


@pytest.mark.parametrize(("body", "words"), NOT_JSON.values(), ids=NOT_JSON)
async def test_a_body_that_is_no_json_object_is_400(protocol: Protocol, body: bytes, words: str) -> None:
    async with house() as served:
        await check_body_refused(served, protocol, body, words)


@pytest.mark.parametrize(
    ("prompt", "characters"), [(b'"a\\"b"', 'a"b'), (b'"\\ud83d\\ude00"', "😀"), (b'"[{[{"', "[{[{")]
)
async def test_escapes_pairs_and_brackets_in_strings_are_text(
    protocol: Protocol, prompt: bytes, characters: str
) -> None:
    async with house() as served:
        assert (await served.ask(protocol, post(body=b'{"prompt": ' + prompt + b"}"))).status == 200
        assert bytes(served.engine.requests[0].prompt_ids).decode() == characters


async def test_a_body_nested_as_deep_as_may_be_gets_to_its_fields(protocol: Protocol) -> None:
    async with house() as served:
        await check_body_refused(served, protocol, nested(DEEPEST), "metadata", param="metadata")


async def test_of_a_repeated_key_the_last_wins(protocol: Protocol) -> None:
    async with house() as served:
        body = b'{"prompt": "first", "max_tokens": 3, "prompt": "last", "max_tokens": 4}'
        assert (await served.ask(protocol, post(body=body))).status == 200
        request = served.engine.requests[-1]
        assert (bytes(request.prompt_ids), request.max_tokens) == (b"last", 4)


async def test_a_number_outside_f64_is_400(protocol: Protocol) -> None:
    async with house() as served:
        body = b'{"prompt": "hi", "temperature": 1e999}'
        await check_body_refused(served, protocol, body, "out of range", param="temperature")


HI = [{"role": "user", "content": "hi"}]
FIELDS: list[tuple[bytes, dict[str, Any], str, str]] = [
    (COMPLETIONS, {"prompt": "hi", "nonsense": 1}, "nonsense", "unknown field"),
    (COMPLETIONS, {"prompt": "hi", "stream_options": {"x": 1}}, "stream_options.x", "unknown field"),
    (CHAT, {"messages": [{"role": "user", "content": "hi", "x": 1}]}, "messages[0].x", "unknown field"),
    (COMPLETIONS, {}, "prompt", "required"),
    (CHAT, {}, "messages", "required"),
    (COMPLETIONS, {"prompt": 5}, "prompt", "expected"),
    (COMPLETIONS, {"prompt": "hi", "max_tokens": 5.0}, "max_tokens", "int"),
    (COMPLETIONS, {"prompt": "hi", "max_tokens": "5"}, "max_tokens", "int"),
    (COMPLETIONS, {"prompt": "hi", "max_tokens": True}, "max_tokens", "int"),
    (COMPLETIONS, {"prompt": "hi", "max_tokens": 0}, "max_tokens", "at least 1"),
    (COMPLETIONS, {"prompt": "hi", "max_tokens": -1}, "max_tokens", ">= 0"),
    (COMPLETIONS, {"prompt": "hi", "temperature": 2.1}, "temperature", "<= 2"),
    (COMPLETIONS, {"prompt": "hi", "temperature": -0.1}, "temperature", ">= 0"),
    (COMPLETIONS, {"prompt": "hi", "temperature": "1"}, "temperature", "float"),
    (COMPLETIONS, {"prompt": "hi", "top_p": 0}, "top_p", "> 0"),
    (COMPLETIONS, {"prompt": "hi", "top_p": 1.1}, "top_p", "<= 1"),
    (COMPLETIONS, {"prompt": "hi", "top_k": -1}, "top_k", ">= 0"),
    (COMPLETIONS, {"prompt": "hi", "min_p": 1.1}, "min_p", "<= 1"),
    (COMPLETIONS, {"prompt": "hi", "n": 0}, "n", ">= 1"),
    (COMPLETIONS, {"prompt": "hi", "n": 129}, "n", "<= 128"),
    (COMPLETIONS, {"prompt": "hi", "stop": [str(number) for number in range(17)]}, "stop", "16"),
    (COMPLETIONS, {"prompt": "hi", "stream": 1}, "stream", "bool"),
    (COMPLETIONS, {"prompt": "hi", "seed": 2**64}, "seed", "seed"),
    (COMPLETIONS, {"prompt": ""}, "prompt", "empty"),
    (COMPLETIONS, {"prompt": []}, "prompt", "empty"),
    (COMPLETIONS, {"prompt": [5, "x"]}, "prompt[1]", "mixed"),
    (COMPLETIONS, {"prompt": [5, 261]}, "prompt[1]", "0 to 260"),
    (CHAT, {"messages": []}, "messages", "."),
    (CHAT, {"messages": [*HI, {"role": "nobody", "content": "hi"}]}, "messages[1].role", "none of the values"),
    (CHAT, {"messages": HI, "top_logprobs": 21, "logprobs": True}, "top_logprobs", "<= 20"),
]


@pytest.mark.parametrize(
    ("path", "data", "param", "words"),
    FIELDS,
    ids=[f"{row[2]}={json.dumps(row[1].get(row[2]))[:20]}" for row in FIELDS],
)
async def test_a_field_that_is_unknown_or_wrong_is_400_and_named(
    protocol: Protocol, path: bytes, data: dict[str, Any], param: str, words: str
) -> None:
    async with house() as served:
        await check_body_refused(served, protocol, json.dumps(data).encode(), words, path=path, param=param)


async def test_another_model_is_404(protocol: Protocol) -> None:
    async with house() as served:
        body = b'{"prompt": "hi", "model": "other"}'
        await check_body_refused(
            served, protocol, body, "serves 'fake-model'", status=404, param="model", code="model_not_found"
        )


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (b"/v1/embeddings", b'{"input": "hi"}'),
        (b"/v1/rerank", b'{"query": "hi", "documents": ["ho"]}'),
        (b"/rerank", b'{"query": "hi", "texts": ["ho"]}'),
    ],
)
async def test_a_task_the_model_cannot_do_is_400(protocol: Protocol, path: bytes, body: bytes) -> None:
    async with house() as served:
        reply = await served.ask(protocol, post(path, body))
        check_error(reply, 400, "this model", code="unsupported_capability")


async def test_a_chat_without_a_template_is_400(protocol: Protocol) -> None:
    async with house(FakeEngine(has_chat=False)) as served:
        body = json.dumps({"messages": HI}).encode()
        await check_body_refused(served, protocol, body, "no chat template", path=CHAT, code="unsupported_capability")


async def test_an_image_sent_to_a_text_model_is_400(protocol: Protocol) -> None:
    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    body = json.dumps({"messages": [{"role": "user", "content": [part]}]}).encode()
    async with house() as served:
        reply = await served.ask(protocol, post(CHAT, body))
        error = reply.data["error"]
        assert (reply.status, error["code"], served.engine.requests) == (400, "unsupported_capability", [])
        assert error["param"].startswith("messages[0].content")


async def test_a_prompt_that_leaves_no_position_is_400_with_both_counts(protocol: Protocol) -> None:
    async with house() as served:
        body = json.dumps({"prompt": "x" * 64}).encode()
        await check_body_refused(
            served, protocol, body, "64 tokens.* 63 ", param="prompt", code="context_length_exceeded"
        )
        assert (await served.ask(protocol, post_json({"prompt": "x" * 63}))).status == 200


async def test_every_answer_to_a_whole_request_counts_against_the_rate_limit(protocol: Protocol) -> None:
    async with house(rate_limit_rpm=4) as served:
        bodies = [b"\xff", b"{", b'{"nonsense": 1}', json.dumps({"prompt": "x" * 64}).encode()]
        assert [(await served.ask(protocol, post(body=body))).status for body in bodies] == [400] * 4
        assert (await served.ask(protocol, post())).status == 429
