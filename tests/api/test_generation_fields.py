"""Fields that change an answer beyond its text, and those that only reach the engine; defaults of the model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from poot.engine.sampling.defaults import SamplingDefaults
from poot.engine.sequence import (
    Delta,
    Event,
    Finished,
    FinishReason,
    GenerationRequest,
    PromptScored,
    SamplingParams,
    TokenLogprob,
)
from poot.engine.text.fim_tokens import FimTokens
from tests.fakes.engine import TIMINGS, FakeEngine, FakeModel, say
from tests.fakes.service import FakeService
from tests.fakes.tokenizer import BOS_ID, SPECIAL, byte_tokenizer

pytestmark = pytest.mark.anyio

USER, ASSISTANT = SPECIAL["<|user|>"], SPECIAL["<|assistant|>"]


async def sampling_of(**fields: Any) -> SamplingParams:
    service = FakeService()
    assert (await service.complete(**fields)).status == 200
    (request,) = service.engine.requests
    return request.sampling


async def test_penalties_and_biases_reach_the_engine() -> None:
    sampling = await sampling_of(
        presence_penalty=-2, frequency_penalty=0.5, repetition_penalty=1.3, logit_bias={"5": -100, "260": 2.5}
    )
    assert (sampling.presence_penalty, sampling.frequency_penalty, sampling.repetition_penalty) == (-2, 0.5, 1.3)
    assert sampling.logit_bias == ((5, -100), (260, 2.5))
    assert not (await sampling_of()).has_penalties


async def test_stop_fields_reach_the_engine() -> None:
    service = FakeService()
    await service.complete(stop_token_ids=[4, 4, 7], include_stop_str_in_output=True, skip_special_tokens=False)
    await service.complete()
    asked, unset = service.engine.requests
    assert (asked.stop_token_ids, asked.includes_stop, asked.skips_special) == (frozenset({4, 7}), True, False)
    assert (unset.stop_token_ids, unset.includes_stop, unset.skips_special) == (frozenset(), False, True)


@pytest.mark.parametrize(
    ("fields", "param"),
    [({"logit_bias": {"3": 1, "261": 1}}, "logit_bias.261"), ({"stop_token_ids": [1, 261]}, "stop_token_ids[1]")],
)
async def test_a_token_the_model_does_not_have_is_refused(fields: Any, param: str) -> None:
    for exchange in (await FakeService().complete(**fields), await FakeService().chat(**fields)):
        assert (exchange.status, exchange.answer["error"]["param"]) == (400, param)


# Defaults


DEFAULTS = SamplingDefaults(temperature=0.6, top_p=0.95, top_k=20, min_p=0.1, repetition_penalty=1.05)


async def test_unset_sampling_is_the_models_field_by_field() -> None:
    service = FakeService(FakeEngine(model=FakeModel(sampling_defaults=DEFAULTS)))
    await service.complete(seed=1)
    await service.chat(seed=1, top_k=0, temperature=0, repetition_penalty=1)
    unset, given = (request.sampling for request in service.engine.requests)
    assert unset == SamplingParams(temperature=0.6, top_p=0.95, top_k=20, min_p=0.1, repetition_penalty=1.05, seed=1)
    assert given == SamplingParams(temperature=0, top_p=0.95, top_k=0, min_p=0.1, repetition_penalty=1, seed=1)
    (model,) = (await service.get("/v1/models")).answer["data"]
    assert model["sampling_defaults"] == {
        "temperature": 0.6,
        "top_p": 0.95,
        "top_k": 20,
        "min_p": 0.1,
        "repetition_penalty": 1.05,
        "max_tokens": {"completions": 16, "chat": None},
    }


# Echo


def say_scored(request: GenerationRequest) -> list[Event]:
    """Log-probability -i for the prompt's token i, then "!" with -9."""
    events: list[Event] = []
    if request.num_prompt_logprobs is not None:
        first, *rest = (bytes([token]) if token < 256 else b"" for token in request.prompt_ids)
        tokens = [TokenLogprob(0, piece, -float(i), ((0, piece, -float(i)),)) for i, piece in enumerate(rest, start=1)]
        events.append(PromptScored(first, tuple(tokens)))
    if request.max_tokens:
        logprobs = (TokenLogprob(33, b"!", -9.0, ()),) if request.sampling.num_logprobs is not None else ()
        events.append(Delta("!", (33,), logprobs))
    return [*events, Finished(FinishReason.LENGTH, len(request.prompt_ids), len(events[-1:]), TIMINGS)]


def join(chunks: list[Any]) -> dict[str, Any]:
    """Text and lists of a stream of one choice."""
    joined: dict[str, Any] = {"text": "", "logprobs": {}}
    for chunk in chunks:
        for choice in chunk["choices"]:
            joined["text"] += choice["text"]
            for name, values in (choice["logprobs"] or {}).items():
                joined["logprobs"][name] = joined["logprobs"].get(name, []) + values
    return joined


async def test_an_echo_is_the_prompt_before_the_text_of_every_choice() -> None:
    service = FakeService(FakeEngine(say_scored))
    answer = (await service.complete(["hé", "b"], echo=True, n=2)).answer
    assert [choice["text"] for choice in answer["choices"]] == ["hé!", "hé!", "b!", "b!"]
    assert all(choice["logprobs"] is None for choice in answer["choices"])
    assert all(request.num_prompt_logprobs is None for request in service.engine.requests)
    assert (await service.complete([104, 105, BOS_ID], echo=True)).answer["choices"][0]["text"] == "hi!"
    assert (await service.complete("hi", echo=False)).answer["choices"][0]["text"] == "!"


async def test_an_echo_in_a_stream_comes_first() -> None:
    exchange = await FakeService(FakeEngine(say_scored)).complete("hi", echo=True, stream=True)
    assert [chunk["choices"][0]["text"] for chunk in exchange.chunks] == ["hi", "!", ""]


@pytest.mark.parametrize("stream", [False, True])
async def test_the_logprobs_of_an_echo_begin_with_null(stream: bool) -> None:
    service = FakeService(FakeEngine(say_scored))
    exchange = await service.complete("héy", echo=True, logprobs=1, stream=stream)
    got = join(exchange.chunks) if stream else exchange.answer["choices"][0]
    assert got["text"] == "héy!"
    assert got["logprobs"] == {
        "tokens": ["h", "bytes:\\xc3", "bytes:\\xa9", "y", "!"],
        "token_logprobs": [None, -1.0, -2.0, -3.0, -9.0],
        "top_logprobs": [None, {"bytes:\\xc3": -1.0}, {"bytes:\\xa9": -2.0}, {"y": -3.0}, {"!": -9.0}],
        "text_offset": [0, 1, 1, 2, 3],
    }
    assert service.engine.requests[0].num_prompt_logprobs == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_a_prompt_alone_is_echoed_with_its_logprobs(stream: bool) -> None:
    exchange = await FakeService(FakeEngine(say_scored)).complete(
        "hey", echo=True, logprobs=0, max_tokens=0, stream=stream
    )
    got = join(exchange.chunks) if stream else exchange.answer["choices"][0]
    assert (got["text"], got["logprobs"]["token_logprobs"]) == ("hey", [None, -1.0, -2.0])


async def test_a_bos_in_an_echo_has_no_text_and_no_place() -> None:
    service = FakeService(FakeEngine(say_scored, tokenizer=byte_tokenizer(adds_bos=True)))
    logprobs = (await service.complete("hi", echo=True, logprobs=0, max_tokens=0)).answer["choices"][0]["logprobs"]
    assert logprobs["text_offset"] == [0, 0, 1]
    assert logprobs["token_logprobs"] == [None, -1.0, -2.0]


# Suffix


def with_fim(*, adds_bos: bool = False) -> FakeEngine:
    engine = FakeEngine(tokenizer=byte_tokenizer(adds_bos=adds_bos))
    engine.tokenizer.fim = FimTokens(258, 259, 260)
    return engine


async def test_a_suffix_makes_a_prompt_in_the_order_prefix_suffix_middle() -> None:
    for adds_bos, front in ((False, ()), (True, (BOS_ID,))):
        service = FakeService(with_fim(adds_bos=adds_bos))
        await service.complete("ab", suffix="cd")
        await service.complete([97], suffix="c")
        text, ids = (request.prompt_ids for request in service.engine.requests)
        assert text == (*front, 258, 97, 98, 259, 99, 100, 260)
        assert ids == (258, 97, 259, 99, 260)


async def test_a_suffix_needs_a_model_with_marks_for_it() -> None:
    exchange = await FakeService().complete("ab", suffix="cd")
    assert (exchange.status, exchange.answer["error"]["param"]) == (400, "suffix")
    assert (await FakeService().complete("ab", suffix="")).status == 200
    exchange = await FakeService(with_fim()).complete("a" * 30, suffix="b" * 31)
    assert exchange.answer["error"]["code"] == "context_length_exceeded"


# best_of


def say_likely(request: GenerationRequest) -> list[Event]:
    """Choice c says c, with a mean log-probability of -3, -1, -2, -1 for c = 0 to 3."""
    text = str(request.choice)
    num_tokens = 1 + request.choice
    cumulative = [-3.0, -1.0, -2.0, -1.0][request.choice] * num_tokens
    assert request.sampling.num_logprobs is not None
    end = Finished(FinishReason.STOP, len(request.prompt_ids), num_tokens, TIMINGS, cumulative)
    return [Delta(text, (1,) * num_tokens, (TokenLogprob(1, text.encode(), -1.0, ()),)), end]


@pytest.mark.parametrize("logprobs", [None, 0])
async def test_the_best_are_those_with_the_highest_logprob_per_token(logprobs: int | None) -> None:
    service = FakeService(FakeEngine(say_likely))
    answer = (await service.complete(["a", "b"], n=2, best_of=4, logprobs=logprobs)).answer
    assert [(choice["index"], choice["text"]) for choice in answer["choices"]] == [
        (0, "1"),
        (1, "3"),
        (2, "1"),
        (3, "3"),
    ]
    assert all((choice["logprobs"] is None) == (logprobs is None) for choice in answer["choices"])
    assert len(service.engine.requests) == 8
    assert answer["usage"]["completion_tokens"] == 2 * (1 + 2 + 3 + 4)
    assert answer["usage"]["prompt_tokens"] == 2


# Token ids, timings, usage


async def test_token_ids_stand_beside_the_text() -> None:
    service = FakeService(FakeEngine(say("a", "", "b")))
    (choice,) = (await service.complete("xy", return_token_ids=True)).answer["choices"]
    assert (choice["prompt_token_ids"], choice["token_ids"]) == ([120, 121], [0, 1, 2])
    answer = (await service.chat("x", return_token_ids=True)).answer
    assert answer["prompt_token_ids"] == [USER, 120, ASSISTANT]
    assert answer["choices"][0]["token_ids"] == [0, 1, 2]
    assert "token_ids" not in (await service.complete("xy")).answer["choices"][0]


@pytest.mark.parametrize("fields", [{}, {"stream_options": {"include_usage": True}}], ids=["plain", "usage"])
async def test_token_ids_of_a_stream_join_to_those_of_the_whole(fields: Any) -> None:
    service = FakeService(FakeEngine(say("a", "", "b")))
    for path_ids, exchange in (
        ([120], await service.complete("x", stream=True, return_token_ids=True, **fields)),
        ([USER, 120, ASSISTANT], await service.chat("x", stream=True, return_token_ids=True, **fields)),
    ):
        ids: list[int] = []
        prompts = []
        for chunk in exchange.chunks:
            prompts += [chunk["prompt_token_ids"]] if "prompt_token_ids" in chunk else []
            for choice in chunk["choices"]:
                prompts += [choice["prompt_token_ids"]] if "prompt_token_ids" in choice else []
                ids += choice.get("token_ids") or []
        assert ids == [0, 1, 2]
        assert prompts == [path_ids]


def say_counted(request: GenerationRequest) -> list[Event]:
    end = Finished(FinishReason.STOP, len(request.prompt_ids), 1, TIMINGS)
    return [Delta("a", (1,)), replace(end, num_cached_tokens=2, num_drafted_tokens=5, num_accepted_tokens=3)]


TIMES = {"queue_ms": 250.0, "prefill_ms": 500.0, "decode_ms": 2000.0}


async def test_timings_come_where_they_are_asked_for() -> None:
    service = FakeService(FakeEngine(say_counted))
    draft = {"draft_proposed_tokens": 5, "draft_accepted_tokens": 3}
    for ask in (service.complete, service.chat):
        answer = (await ask("xyz", return_timings=True, seed=-1)).answer
        assert answer["timings"] == {**TIMES, "cached_prompt_tokens": 2, **draft, "seed": 2**64 - 1}
        assert answer["usage"]["prompt_tokens_details"] == {"cached_tokens": 2}
        assert "timings" not in (await ask("xyz")).answer
        exchange = await ask("xyz", return_timings=True, seed=5, stream=True, stream_options={"include_usage": True})
        *_, timed, usage = exchange.chunks
        assert (timed["timings"]["seed"], timed["choices"], timed["usage"]) == (5, [], None)
        assert usage["usage"]["prompt_tokens_details"] == {"cached_tokens": 2}


async def test_the_drawn_seed_is_told_and_draws_the_same_again() -> None:
    service = FakeService(FakeEngine(say_counted))
    answer = (await service.complete(["x", "y"], n=2, return_timings=True)).answer
    seeds = answer["timings"]["seed"]
    assert all(0 <= seed < 2**53 for seed in seeds)
    asked = sorted((request.sampling.seed, request.choice) for request in service.engine.requests)
    assert asked == sorted((seed, choice) for seed in seeds for choice in range(2))
    # Each prompt's cached tokens count once, whatever n is; what was drafted counts for every choice.
    assert answer["timings"]["cached_prompt_tokens"] == 4
    assert answer["timings"]["draft_proposed_tokens"] == 20


# Chats


async def chat_ids(*messages: Any, **fields: Any) -> list[int]:
    service = FakeService()
    exchange = await service.post("/v1/chat/completions", {"messages": list(messages), **fields})
    assert exchange.status == 200, exchange.answer
    return list(service.engine.requests[0].prompt_ids)


ASK = {"role": "user", "content": "a"}
BEGUN = {"role": "assistant", "content": "b "}


async def test_the_generation_prompt_can_be_left_out_and_the_last_message_continued() -> None:
    assert await chat_ids(ASK) == [USER, 97, ASSISTANT]
    assert await chat_ids(ASK, add_generation_prompt=False) == [USER, 97]
    assert await chat_ids(ASK, BEGUN) == [USER, 97, ASSISTANT, 98, 32, ASSISTANT]
    assert await chat_ids(ASK, BEGUN, continue_final_message=True) == [USER, 97, ASSISTANT, 98, 32]


async def test_a_message_without_content_cannot_be_continued() -> None:
    call = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f"}}]}
    for last in (call, {"role": "assistant", "content": ""}):
        body = {"messages": [ASK, last], "continue_final_message": True}
        exchange = await FakeService().post("/v1/chat/completions", body)
        assert (exchange.status, exchange.answer["error"]["param"]) == (400, "continue_final_message")


# The official client's types


async def test_the_official_client_reads_what_is_beside_its_own_fields() -> None:
    service = FakeService(FakeEngine(say_scored))
    fields = {"return_timings": True, "return_token_ids": True}
    # The null of an echo's first token is OpenAI's and not in the client's types, which it does not enforce.
    Completion.model_validate((await service.complete("hi", echo=True, **fields)).answer)
    completion = Completion.model_validate((await service.complete("hi", logprobs=1, **fields)).answer)
    assert completion.usage is not None
    assert completion.usage.prompt_tokens_details is not None
    assert completion.usage.prompt_tokens_details.cached_tokens == 0
    chat = ChatCompletion.model_validate((await service.chat("hi", logprobs=True, top_logprobs=1, **fields)).answer)
    assert chat.choices[0].logprobs is not None
    assert chat.choices[0].logprobs.content is not None
    assert chat.choices[0].logprobs.content[0].bytes == [33]
    for chunk in (await service.chat("hi", stream=True, **fields)).chunks:
        ChatCompletionChunk.model_validate(chunk)
