"""Chats: the answer's shape streamed and whole, byte for byte, and what reaches the engine."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from poot.engine.sequence import Delta, Finished, FinishReason, GenerationRequest, TokenLogprob
from tests.fakes.engine import TIMINGS, FakeEngine, FakeModel, say
from tests.fakes.exchange import FakeExchange
from tests.fakes.service import FakeService

pytestmark = pytest.mark.anyio

NOT_CACHED = {"prompt_tokens_details": {"cached_tokens": 0}}

ENVELOPE = re.compile(
    r'\{"id":"chatcmpl-[0-9a-f]{24}","object":"chat\.completion(\.chunk)?","created":[0-9]{10},"model":"fake-model",'
    r'"system_fingerprint":"fp_[0-9a-f]{12}",'
)


def split_envelope(exchange: FakeExchange) -> tuple[set[str], list[str]]:
    """The distinct envelopes of a stream's chunks, and what follows them, [DONE] included."""
    envelopes, rests = set(), []
    for event in exchange.events:
        found = ENVELOPE.match(event)
        if found is not None:
            envelopes.add(found[0])
        rests.append(event[found.end() :] if found is not None else event)
    return envelopes, rests


async def test_a_stream_is_one_role_delta_then_text_then_an_empty_delta_then_done() -> None:
    service = FakeService(FakeEngine(say("Hé", "", '"\n', "🙂")))
    exchange = await service.chat(stream=True)
    envelopes, rests = split_envelope(exchange)
    assert len(envelopes) == 1
    assert '"object":"chat.completion.chunk"' in envelopes.pop()
    start, end = '"choices":[{"index":0,"delta":', "}]}"
    going = ',"logprobs":null,"finish_reason":null'
    assert rests == [
        start + '{"role":"assistant","content":""}' + going + end,
        start + '{"content":"Hé"}' + going + end,
        start + '{"content":"\\"\\n"}' + going + end,
        start + '{"content":"🙂"}' + going + end,
        start + '{},"logprobs":null,"finish_reason":"stop"' + end,
        "[DONE]",
    ]
    assert exchange.stream_status == 200
    assert exchange.header(b"content-type") == b"text/event-stream; charset=utf-8"
    assert exchange.is_stream_ended


async def test_usage_comes_last_with_no_choices_and_is_null_before() -> None:
    service = FakeService(FakeEngine(say("a", "b")))
    exchange = await service.chat("xyz", stream=True, stream_options={"include_usage": True})
    *chunks, last = exchange.chunks
    assert all(chunk["usage"] is None for chunk in chunks)
    # Five prompt tokens: <|user|>, three bytes, <|assistant|>.
    assert last["choices"] == []
    assert last["usage"] == {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7, **NOT_CACHED}
    assert exchange.events[-1] == "[DONE]"
    assert len({chunk["id"] for chunk in exchange.chunks}) == 1


async def test_a_whole_answer_has_the_message_and_usage() -> None:
    service = FakeService(FakeEngine(say("Hé", "llo", reason=FinishReason.LENGTH)))
    answer = (await service.chat("xyz")).answer
    assert ENVELOPE.match(json.dumps(answer, separators=(",", ":")))
    assert answer["object"] == "chat.completion"
    assert answer["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Héllo", "refusal": None},
            "logprobs": None,
            "finish_reason": "length",
        }
    ]
    assert answer["usage"] == {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7, **NOT_CACHED}


def say_choice(request: GenerationRequest) -> list[Any]:
    return say(f"<{request.choice}", ">")(request)


async def test_every_choice_of_a_stream_has_its_role_and_its_end() -> None:
    exchange = await FakeService(FakeEngine(say_choice, model=FakeModel(rows=2))).chat(stream=True, n=5)
    by_choice: dict[int, list[Any]] = {}
    for chunk in exchange.chunks:
        (choice,) = chunk["choices"]
        by_choice.setdefault(choice["index"], []).append((choice["delta"], choice["finish_reason"]))
    assert by_choice == {
        index: [
            ({"role": "assistant", "content": ""}, None),
            ({"content": f"<{index}"}, None),
            ({"content": ">"}, None),
            ({}, "stop"),
        ]
        for index in range(5)
    }


async def test_choices_share_the_prompt_in_usage() -> None:
    answer = (await FakeService(FakeEngine(say("a", "b"))).chat("xyz", n=3)).answer
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    assert answer["usage"] == {"prompt_tokens": 5, "completion_tokens": 6, "total_tokens": 11, **NOT_CACHED}


def say_with_logprobs(request: GenerationRequest) -> list[Any]:
    smile = "🙂".encode()
    first = TokenLogprob(104, b"h", -0.5, ((104, b"h", -0.5), (105, b"i", -1.5)))
    half = TokenLogprob(1, smile[:2], -0.25, ((1, smile[:2], -0.25), (2, b"", float("-inf"))))
    rest = TokenLogprob(2, smile[2:], -0.125, ((2, smile[2:], -0.125),))
    return [
        Delta("h", (104,), (first,)),
        Delta("", (1,)),
        Delta("🙂", (2,), (half, rest)),
        Finished(FinishReason.STOP, len(request.prompt_ids), 3, TIMINGS),
    ]


LOGPROB_CONTENT = [
    {
        "token": "h",
        "logprob": -0.5,
        "bytes": [104],
        "top_logprobs": [
            {"token": "h", "logprob": -0.5, "bytes": [104]},
            {"token": "i", "logprob": -1.5, "bytes": [105]},
        ],
    },
    {
        "token": "\\xf0\\x9f",
        "logprob": -0.25,
        "bytes": [0xF0, 0x9F],
        "top_logprobs": [
            {"token": "\\xf0\\x9f", "logprob": -0.25, "bytes": [0xF0, 0x9F]},
            {"token": "", "logprob": -9999.0, "bytes": []},
        ],
    },
    {
        "token": "\\x99\\x82",
        "logprob": -0.125,
        "bytes": [0x99, 0x82],
        "top_logprobs": [{"token": "\\x99\\x82", "logprob": -0.125, "bytes": [0x99, 0x82]}],
    },
]


async def test_logprobs_of_a_whole_answer_are_openais_content_list() -> None:
    service = FakeService(FakeEngine(say_with_logprobs))
    answer = (await service.chat(logprobs=True, top_logprobs=2)).answer
    assert answer["choices"][0]["logprobs"] == {"content": LOGPROB_CONTENT, "refusal": None}
    assert service.engine.requests[0].sampling.num_logprobs == 2


async def test_logprobs_of_a_stream_join_to_those_of_the_whole_answer() -> None:
    exchange = await FakeService(FakeEngine(say_with_logprobs)).chat(logprobs=True, top_logprobs=2, stream=True)
    content = [
        entry for chunk in exchange.chunks for entry in ((chunk["choices"][0]["logprobs"] or {}).get("content") or [])
    ]
    assert content == LOGPROB_CONTENT


async def test_the_conversation_is_rendered_and_a_users_special_tokens_stay_text() -> None:
    service = FakeService()
    await service.chat("a</s>")
    # <|user|>, the five characters as bytes, <|assistant|>
    assert service.engine.requests[0].prompt_ids == (258, *b"a</s>", 259)


async def test_without_a_limit_a_chat_may_fill_max_seq() -> None:
    service = FakeService()
    await service.chat("xyz")
    assert service.engine.requests[0].max_tokens == 64 - 5


async def test_a_template_that_refuses_answers_400_in_its_own_words() -> None:
    exchange = await FakeService().chat("refuse me")
    assert exchange.status == 400
    assert exchange.answer["error"]["message"] == "the template says no"


async def test_a_model_without_a_template_cannot_chat() -> None:
    exchange = await FakeService(FakeEngine(has_chat=False)).chat()
    assert (exchange.status, exchange.answer["error"]["code"]) == (400, "unsupported_capability")


async def test_a_conversation_over_the_context_is_refused_with_both_counts() -> None:
    exchange = await FakeService().chat("x" * 62)
    error = exchange.answer["error"]
    assert (exchange.status, error["code"], error["param"]) == (400, "context_length_exceeded", "messages")
    assert "64 tokens" in error["message"]
    assert "at most 63" in error["message"]
    assert (await FakeService().chat("x" * 61)).status == 200
