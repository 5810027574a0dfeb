"""Completions: the answer's shape streamed and whole, byte for byte, and what reaches the engine."""

from __future__ import annotations

import re
from typing import Any

import pytest

from poot.engine.sequence import Delta, Finished, FinishReason, GenerationRequest, SamplingParams, TokenLogprob
from tests.fakes.engine import TIMINGS, FakeEngine, FakeModel, say
from tests.fakes.service import FakeService
from tests.fakes.tokenizer import BOS_ID, byte_tokenizer

pytestmark = pytest.mark.anyio

NOT_CACHED = {"prompt_tokens_details": {"cached_tokens": 0}}


async def test_a_stream_is_text_then_an_end_then_done() -> None:
    exchange = await FakeService(FakeEngine(say("Hé", "", '"\n'))).complete(stream=True)
    envelope = re.match(
        r'\{"id":"cmpl-[0-9a-f]{24}","object":"text_completion","created":[0-9]{10},"model":"fake-model",'
        r'"system_fingerprint":"fp_[0-9a-f]{12}",',
        exchange.events[0],
    )
    assert envelope is not None
    start = envelope[0] + '"choices":[{"index":0,"text":'
    assert exchange.events == [
        start + '"Hé","logprobs":null,"finish_reason":null}]}',
        start + '"\\"\\n","logprobs":null,"finish_reason":null}]}',
        start + '"","logprobs":null,"finish_reason":"stop"}]}',
        "[DONE]",
    ]
    assert exchange.is_stream_ended


async def test_usage_comes_last_with_no_choices_and_is_null_before() -> None:
    exchange = await FakeService(FakeEngine(say("a", "b"))).complete(
        "xyz", stream=True, stream_options={"include_usage": True}
    )
    *chunks, last = exchange.chunks
    assert all(chunk["usage"] is None for chunk in chunks)
    assert last["choices"] == []
    assert last["usage"] == {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5, **NOT_CACHED}


async def test_a_whole_answer_has_text_and_usage() -> None:
    answer = (await FakeService(FakeEngine(say("Hé", "llo"))).complete("xyz")).answer
    assert answer["object"] == "text_completion"
    assert answer["choices"] == [{"index": 0, "text": "Héllo", "logprobs": None, "finish_reason": "stop"}]
    assert answer["usage"] == {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5, **NOT_CACHED}


def say_prompt_and_choice(request: GenerationRequest) -> list[Any]:
    return say(bytes(request.prompt_ids).decode(), str(request.choice))(request)


async def test_choices_of_several_prompts_come_prompt_by_prompt() -> None:
    service = FakeService(FakeEngine(say_prompt_and_choice))
    answer = (await service.complete(["a", "bc"], n=2)).answer
    assert [(choice["index"], choice["text"]) for choice in answer["choices"]] == [
        (0, "a0"),
        (1, "a1"),
        (2, "bc0"),
        (3, "bc1"),
    ]
    assert answer["usage"] == {"prompt_tokens": 3, "completion_tokens": 8, "total_tokens": 11, **NOT_CACHED}


async def test_a_stream_of_several_prompts_adds_up_to_the_whole_answer() -> None:
    exchange = await FakeService(FakeEngine(say_prompt_and_choice, model=FakeModel(rows=1))).complete(
        ["a", "bc"], n=2, stream=True
    )
    texts: dict[int, str] = {}
    for chunk in exchange.chunks:
        (choice,) = chunk["choices"]
        texts[choice["index"]] = texts.get(choice["index"], "") + choice["text"]
    assert texts == {0: "a0", 1: "a1", 2: "bc0", 3: "bc1"}


@pytest.mark.parametrize(
    ("prompt", "ids"),
    [
        ("ab", [(97, 98)]),
        (["a", "é"], [(97,), (0xC3, 0xA9)]),
        ([5, 260], [(5, 260)]),
        ([[5], [6, 7]], [(5,), (6, 7)]),
        ("<|user|>a", [(258, 97)]),  # a raw prompt may spell special tokens
    ],
)
async def test_every_form_of_a_prompt_becomes_token_ids(prompt: Any, ids: list[tuple[int, ...]]) -> None:
    service = FakeService()
    await service.complete(prompt)
    assert sorted(request.prompt_ids for request in service.engine.requests) == ids


async def test_a_bos_is_put_before_text_and_not_before_token_ids() -> None:
    service = FakeService(FakeEngine(tokenizer=byte_tokenizer(adds_bos=True)))
    await service.complete(["a", ""])
    await service.complete([97])
    assert sorted(request.prompt_ids for request in service.engine.requests) == [(97,), (BOS_ID,), (BOS_ID, 97)]


@pytest.mark.parametrize(
    ("prompt", "param"),
    [("", "prompt"), (["a", ""], "prompt[1]"), ([[]], "prompt[0]"), ([[1], []], "prompt[1]")],
)
async def test_an_empty_prompt_is_refused(prompt: Any, param: str) -> None:
    exchange = await FakeService().complete(prompt)
    assert (exchange.status, exchange.answer["error"]["param"]) == (400, param)
    assert "empty" in exchange.answer["error"]["message"]


@pytest.mark.parametrize(
    ("prompt", "param"), [([261], "prompt[0]"), ([0, -1], "prompt[1]"), ([[0], [1, 10**30]], "prompt[1][1]")]
)
async def test_a_token_the_model_does_not_have_is_refused(prompt: Any, param: str) -> None:
    exchange = await FakeService().complete(prompt)
    assert (exchange.status, exchange.answer["error"]["param"]) == (400, param)


@pytest.mark.parametrize("prompt", ["x" * 64, [1] * 64, ["a", "x" * 64]])
async def test_a_prompt_over_the_context_is_refused_with_both_counts(prompt: Any) -> None:
    exchange = await FakeService().complete(prompt)
    error = exchange.answer["error"]
    assert (exchange.status, error["code"]) == (400, "context_length_exceeded")
    assert "64 tokens" in error["message"]
    assert "at most 63" in error["message"]


@pytest.mark.parametrize(
    ("fields", "max_tokens", "min_tokens"),
    [
        ({}, 16, 0),
        ({"max_tokens": 1}, 1, 0),
        ({"max_completion_tokens": 20}, 20, 0),
        ({"max_tokens": 54}, 54, 0),
        ({"max_tokens": 55}, 54, 0),
        ({"max_tokens": 10**18, "min_tokens": 10**17}, 54, 54),
        ({"min_tokens": 3}, 16, 3),
        ({"min_tokens": 100}, 16, 16),
    ],
)
async def test_the_limit_is_cut_to_what_max_seq_leaves(fields: Any, max_tokens: int, min_tokens: int) -> None:
    service = FakeService()
    assert (await service.complete("x" * 10, **fields)).status == 200
    (request,) = service.engine.requests
    assert (request.max_tokens, request.min_tokens) == (max_tokens, min_tokens)


async def test_sampling_fields_reach_the_engine() -> None:
    service = FakeService()
    await service.complete(
        temperature=0.5, top_p=0.9, top_k=40, min_p=0.05, seed=-1, logprobs=3, stop=["a", "b"], ignore_eos=True
    )
    (request,) = service.engine.requests
    assert request.sampling == SamplingParams(
        temperature=0.5, top_p=0.9, top_k=40, min_p=0.05, seed=2**64 - 1, num_logprobs=3
    )
    assert (request.stop, request.ignore_eos) == (("a", "b"), True)


async def test_unset_sampling_is_openais() -> None:
    service = FakeService()
    await service.complete()
    sampling = service.engine.requests[0].sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (1.0, 1.0, 0, 0.0)
    assert sampling.num_logprobs is None


async def test_a_seed_counts_for_each_prompt_alike_and_choices_differ_by_their_number() -> None:
    service = FakeService()
    await service.complete(["a", "a"], n=2, seed=7, temperature=0)
    asked = [(request.sampling.seed, request.choice) for request in service.engine.requests]
    assert sorted(asked) == [(7, 0), (7, 0), (7, 1), (7, 1)]


async def test_without_a_seed_each_prompt_draws_its_own() -> None:
    service = FakeService()
    await service.complete(["a", "a"], n=2)
    seeds = sorted(request.sampling.seed for request in service.engine.requests)
    assert seeds[0] == seeds[1] != seeds[2] == seeds[3]


async def test_a_top_k_over_the_vocabulary_is_the_vocabulary() -> None:
    service = FakeService()
    await service.complete(top_k=10**18)
    assert service.engine.requests[0].sampling.top_k == 261


def say_with_logprobs(request: GenerationRequest) -> list[Any]:
    """Text "hé!" from tokens h, half an é, the other half with "!"."""
    tokens = [
        TokenLogprob(104, b"h", -0.5, ((104, b"h", -0.5), (105, b"i", -1.5))),
        TokenLogprob(1, b"\xc3", -2.0, ((3, b"x", -0.25),)),
        TokenLogprob(2, b"\xa9!", float("-inf"), ()),
    ]
    return [
        Delta("h", (104,), (tokens[0],)),
        Delta("", (1,)),
        Delta("é!", (2,), (tokens[1], tokens[2])),
        Finished(FinishReason.LENGTH, len(request.prompt_ids), 3, TIMINGS),
    ]


LOGPROBS = {
    "tokens": ["h", "bytes:\\xc3", "bytes:\\xa9!".replace("!", "\\x21")],
    "token_logprobs": [-0.5, -2.0, -9999.0],
    "top_logprobs": [
        {"h": -0.5, "i": -1.5},
        {"x": -0.25, "bytes:\\xc3": -2.0},  # the drawn token beside the likelier one
        {"bytes:\\xa9\\x21": -9999.0},
    ],
    "text_offset": [0, 1, 1],
}


async def test_logprobs_of_a_whole_answer_are_four_parallel_lists() -> None:
    exchange = await FakeService(FakeEngine(say_with_logprobs)).complete(logprobs=1)
    assert exchange.answer["choices"][0]["logprobs"] == LOGPROBS
    assert list(exchange.answer["choices"][0]["logprobs"]["top_logprobs"][0]) == ["h", "i"]


async def test_logprobs_of_a_stream_join_to_those_of_the_whole_answer() -> None:
    exchange = await FakeService(FakeEngine(say_with_logprobs)).complete(logprobs=1, stream=True)
    joined: dict[str, list[Any]] = {name: [] for name in LOGPROBS}
    for chunk in exchange.chunks:
        for name, values in (chunk["choices"][0]["logprobs"] or {}).items():
            joined[name] += values
    assert joined == LOGPROBS
