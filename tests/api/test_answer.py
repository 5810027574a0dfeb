"""The order of things in an answer: stream = fold, errors before and after the head, and nothing held afterwards."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from poot.api.answer import INLINE_BODY_BYTES
from poot.engine.sequence import Delta, Event, Failed, Finished, FinishReason, GenerationRequest, TokenLogprob
from poot.errors import RequestTimeout
from tests.fakes.engine import TIMINGS, FakeEngine, FakeModel, say
from tests.fakes.exchange import FakeExchange, post_head
from tests.fakes.service import FakeService

pytestmark = pytest.mark.anyio

deltas = st.lists(
    st.builds(
        lambda text, tokens: Delta(
            text, (1,), tuple(TokenLogprob(token, bytes([token]), -float(token), ()) for token in tokens)
        ),
        st.text(max_size=4),
        st.lists(st.integers(0, 255), max_size=3),
    ),
    max_size=6,
)


def fold_stream(chunks: list[Any]) -> dict[int, Any]:
    """Text, logprobs and finish reason of each choice, from chunks of either endpoint."""
    folded: dict[int, Any] = {}
    for chunk in chunks:
        for choice in chunk["choices"]:
            entry = folded.setdefault(choice["index"], {"text": "", "logprobs": {}, "finish_reason": None})
            entry["text"] += choice.get("text") or choice.get("delta", {}).get("content") or ""
            entry["finish_reason"] = choice["finish_reason"] or entry["finish_reason"]
            for name, values in (choice["logprobs"] or {}).items():
                entry["logprobs"][name] = entry["logprobs"].get(name, []) + (values or [])
    return folded


def fold_whole(answer: Any) -> dict[int, Any]:
    return {
        choice["index"]: {
            "text": choice["text"] if "text" in choice else choice["message"]["content"],
            "logprobs": {name: values or [] for name, values in choice["logprobs"].items()},
            "finish_reason": choice["finish_reason"],
        }
        for choice in answer["choices"]
    }


@settings(max_examples=40)
@given(st.lists(deltas, min_size=1, max_size=3), st.sampled_from(FinishReason))
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_a_whole_answer_is_the_fold_of_the_stream(path: str, scripts: list[list[Delta]], reason: FinishReason) -> None:
    def script(request: GenerationRequest) -> list[Event]:
        mine = scripts[request.choice]
        return [*mine, Finished(reason, len(request.prompt_ids), len(mine), TIMINGS)]

    async def ask() -> tuple[FakeExchange, FakeExchange]:
        service = FakeService(FakeEngine(script, model=FakeModel(rows=2)))
        fields: dict[str, Any] = {"n": len(scripts), "logprobs": True if "chat" in path else 1}
        if "chat" in path:
            fields["messages"] = [{"role": "user", "content": "x"}]
        else:
            fields["prompt"] = "x"
        options = {"stream": True, "stream_options": {"include_usage": True}}
        return await service.post(path, fields), await service.post(path, {**fields, **options})

    whole, streamed = anyio.run(ask)
    assert streamed.chunks[-1]["usage"] == whole.answer["usage"]
    folded, expected = fold_stream(streamed.chunks), fold_whole(whole.answer)
    assert {index: (entry["text"], entry["finish_reason"]) for index, entry in folded.items()} == {
        index: (entry["text"], entry["finish_reason"]) for index, entry in expected.items()
    }
    for index, entry in folded.items():
        for name, values in expected[index]["logprobs"].items():
            assert entry["logprobs"].get(name, []) == values


async def test_the_head_of_a_stream_waits_for_a_row() -> None:
    service = FakeService(FakeEngine(say("a"), model=FakeModel(rows=1), is_stepped=True))
    body = b'{"prompt": "x", "stream": true}'
    first, second = (FakeExchange(post_head("/v1/completions", body), body) for _ in range(2))
    async with anyio.create_task_group() as group:
        group.start_soon(first.run, service.api)
        await anyio.wait_all_tasks_blocked()
        group.start_soon(second.run, service.api)
        await anyio.wait_all_tasks_blocked()
        assert (first.stream_status, second.stream_status) == (200, None)
        service.engine.step()
        service.engine.step()
        await anyio.wait_all_tasks_blocked()
        assert first.is_stream_ended
        assert second.stream_status == 200
        service.engine.step()
        service.engine.step()
    assert second.events[-1] == "[DONE]"


async def test_a_delta_is_written_when_it_comes() -> None:
    service = FakeService(FakeEngine(say("a", "b"), is_stepped=True))
    body = b'{"prompt": "x", "stream": true}'
    exchange = FakeExchange(post_head("/v1/completions", body), body)
    async with anyio.create_task_group() as group:
        group.start_soon(exchange.run, service.api)
        for num_frames in (0, 1, 2, 3):
            await anyio.wait_all_tasks_blocked()
            assert len(exchange.frames) == num_frames
            service.engine.step()
    assert exchange.is_stream_ended


async def test_what_has_piled_up_is_written_at_once() -> None:
    exchange = await FakeService(FakeEngine(say("a", "b", "c"))).complete(stream=True)
    assert len(exchange.frames) == 1
    assert len(exchange.chunks) == 4


def failing(draining: bool) -> Callable[[GenerationRequest], list[Event]]:
    return lambda request: [Delta("so far", (1,)), Failed("it broke", draining)]


@pytest.mark.parametrize(
    ("draining", "status", "kind", "code"),
    [(True, 503, "overloaded_error", "draining"), (False, 500, "server_error", None)],
)
async def test_a_failure_is_a_status_of_a_whole_answer_and_an_event_of_a_stream(
    draining: bool, status: int, kind: str, code: str | None
) -> None:
    service = FakeService(FakeEngine(failing(draining)))
    error = {"message": "it broke", "type": kind, "param": None, "code": code}
    whole = await service.complete()
    assert (whole.status, whole.answer) == (status, {"error": error})
    streamed = await service.complete(stream=True)
    assert streamed.status == 200
    assert [chunk["choices"][0]["text"] for chunk in streamed.chunks[:-1]] == ["so far"]
    assert streamed.chunks[-1] == {"error": error}
    assert streamed.events[-1] != "[DONE]"
    assert streamed.is_stream_ended


async def test_one_failed_choice_ends_the_whole_stream() -> None:
    def script(request: GenerationRequest) -> list[Event]:
        return failing(False)(request) if request.choice == 1 else say(*"going on")(request)

    exchange = await FakeService(FakeEngine(script)).chat(n=3, stream=True)
    assert "error" in exchange.chunks[-1]
    assert sum("error" in chunk for chunk in exchange.chunks) == 1


async def test_our_own_error_in_a_stream_is_an_event_that_says_no_more() -> None:
    def script(request: GenerationRequest) -> list[Event]:
        return [Delta(object(), (1,))]  # type: ignore[arg-type] # what a bug would do

    exchange = await FakeService(FakeEngine(script)).complete(stream=True)
    assert exchange.chunks == [
        {
            "error": {
                "message": "the server failed while it answered this request",
                "type": "server_error",
                "param": None,
                "code": None,
            }
        }
    ]


@pytest.mark.parametrize("n", [1, 3])
async def test_a_client_that_goes_away_releases_its_rows_and_places(n: int) -> None:
    service = FakeService(FakeEngine(say(*"a long story"), is_stepped=True))
    body = json.dumps({"prompt": "x", "stream": True, "n": n}).encode()
    exchange = FakeExchange(post_head("/v1/completions", body), body)
    async with anyio.create_task_group() as group:
        group.start_soon(exchange.run, service.api)
        await anyio.wait_all_tasks_blocked()
        service.engine.step()
        await anyio.wait_all_tasks_blocked()
        assert exchange.frames
        assert service.engine.statistics().rows_held == n
        assert service.metric("admission_pending") == 1
        group.cancel_scope.cancel()
    assert service.engine.statistics().rows_held == 0
    assert service.metric("admission_pending") == 0
    assert service.metric("requests", "/v1/completions", "none") == 1


@pytest.mark.parametrize("n", [1, 3])
async def test_a_write_that_finds_the_client_gone_releases_its_rows(n: int, caplog: pytest.LogCaptureFixture) -> None:
    service = FakeService(FakeEngine(say("a", "b")))
    exchange = await service.post("/v1/completions", {"prompt": "x", "stream": True, "n": n}, gone_after_writes=0)
    assert exchange.is_gone
    assert not caplog.records  # a client that leaves is no error of ours
    assert not exchange.is_stream_ended
    assert service.engine.statistics().rows_held == service.metric("admission_pending") == 0


async def test_the_queue_wait_answers_503_with_retry_after_also_to_a_stream() -> None:
    service = FakeService(FakeEngine(model=FakeModel(rows=0)), max_queue_wait_seconds=0.01)
    for stream in (False, True):
        exchange = await service.complete(stream=stream)
        assert (exchange.status, exchange.header(b"retry-after")) == (503, b"10")
        assert exchange.answer["error"]["type"] == "overloaded_error"
    assert service.metric("refused", "queue_wait") == 2
    assert service.engine.statistics().waiting == 0


async def test_a_body_that_does_not_arrive_holds_no_place_afterwards() -> None:
    service = FakeService()

    async def time_out() -> None:
        assert (service.metric("admission_pending"), service.metric("admission_receiving")) == (1, 1)
        raise RequestTimeout("too slow")

    exchange = await service.post("/v1/completions", {"prompt": "x"}, before_body=time_out)
    assert exchange.status == 408
    assert (service.metric("admission_pending"), service.metric("admission_receiving")) == (0, 0)


async def test_the_receiving_place_is_held_only_while_the_body_is_read() -> None:
    service = FakeService(FakeEngine(model=FakeModel(rows=0)), max_queue_wait_seconds=0.01)
    seen: list[tuple[int, int]] = []

    def look() -> tuple[int, int]:
        return service.metric("admission_pending"), service.metric("admission_receiving")

    async def body() -> None:
        seen.append(look())

    async with anyio.create_task_group() as group:

        async def ask() -> None:
            await service.post("/v1/completions", {"prompt": "x"}, before_body=body)

        group.start_soon(ask)
        await anyio.lowlevel.checkpoint()
        while not service.engine.statistics().waiting:
            await anyio.lowlevel.checkpoint()
        seen.append(look())
    assert seen == [(1, 1), (1, 0)]


@pytest.mark.parametrize("size", [INLINE_BODY_BYTES - 100, INLINE_BODY_BYTES + 100, 300_000])
async def test_small_and_large_bodies_get_the_same_answer(size: int) -> None:
    service = FakeService(FakeEngine(model=FakeModel(max_seq=1_000_000)))
    exchange = await service.complete("x" * size)
    assert exchange.answer["usage"]["prompt_tokens"] == size
    assert len(service.engine.requests[0].prompt_ids) == size


async def test_a_large_body_is_refused_as_a_small_one_is() -> None:
    exchange = await FakeService().complete("x" * 100_000)
    assert exchange.answer["error"]["code"] == "context_length_exceeded"


async def test_times_and_tokens_go_to_the_access_log() -> None:
    service = FakeService(FakeEngine(say("a", "b")))
    expected = {
        "queue_ms": 250.0,
        "prefill_ms": 500.0,
        "decode_ms": 2000.0,
        "prompt_tokens": 2,
        "generated_tokens": 4,
    }
    for stream in (False, True):
        exchange = await service.complete("xy", n=2, stream=stream)
        assert exchange.annotations == expected
