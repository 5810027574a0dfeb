"""The application as a whole: routes, places, counting, and refusals that carry what their answer needs."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from poot.engine.sequence import Event, GenerationRequest
from poot.net.exchange import Endpoints
from tests.fakes.engine import FakeEngine, FakeModel, say
from tests.fakes.exchange import FakeExchange, make_head, post_head
from tests.fakes.service import FakeService

pytestmark = pytest.mark.anyio

BODY = b'{"prompt": "x"}'


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/health", 200),
        ("HEAD", "/health", 200),
        ("GET", "/metrics", 200),
        ("GET", "/metrics/prometheus", 200),
        ("GET", "/v1/models", 200),
        ("GET", "/v1/models/fake-model", 200),
        ("GET", "/v1/models/other", 404),
        ("GET", "/nowhere", 404),
        ("GET", "/v1/completions", 405),
        ("PUT", "/health", 405),
    ],
)
async def test_every_answer_is_counted_by_route_and_status(method: str, path: str, status: int) -> None:
    service = FakeService()
    exchange = await service.get(path, method=method)
    assert exchange.status == status
    route = {"/nowhere": "unknown", "/v1/models/fake-model": "/v1/models/{id}", "/v1/models/other": "/v1/models/{id}"}
    assert service.metric("requests", route.get(path, path), str(status)) == 1


async def test_paths_that_do_not_exist_share_one_label() -> None:
    service = FakeService()
    for number in range(20):
        await service.get(f"/scan/{number}")
    assert service.metric("requests", "unknown") == {"404": 20}


async def test_errors_are_openais_object() -> None:
    exchange = await FakeService().complete(temperature=3)
    assert exchange.header(b"content-type") == b"application/json"
    assert exchange.answer == {
        "error": {
            "message": "temperature: expected `float` <= 2.0",
            "type": "invalid_request_error",
            "param": "temperature",
            "code": None,
        }
    }
    assert exchange.annotations == {"error": "temperature: expected `float` <= 2.0"}


async def test_what_is_not_built_says_so() -> None:
    exchange = await FakeService().post("/v1/lora_adapters", {"input": "x"})
    assert (exchange.status, exchange.answer["error"]["code"]) == (400, "unsupported_capability")
    assert "not available yet" in exchange.answer["error"]["message"]


async def test_a_refusal_by_the_head_reads_no_body() -> None:
    async def never() -> None:
        pytest.fail("the body was read")

    exchange = FakeExchange(make_head("POST", "/v1/completions"), before_body=never)
    assert (await exchange.run(FakeService().api)).status == 415


async def run_with_one_in_flight(service: FakeService, status: int, reason: str) -> FakeExchange:
    """Sends a second request while one is admitted and reading its body."""
    arrived, go_on = anyio.Event(), anyio.Event()

    async def slow() -> None:
        arrived.set()
        await go_on.wait()

    first = FakeExchange(post_head("/v1/completions", BODY), BODY, before_body=slow)
    async with anyio.create_task_group() as group:
        group.start_soon(first.run, service.api)
        await arrived.wait()
        second = await service.complete("y")
        go_on.set()
    assert first.status == 200
    assert second.status == status
    assert service.metric("refused", reason) == 1
    assert (await service.complete("z")).status == 200
    return second


@pytest.mark.parametrize(
    ("config", "reason"), [({"max_pending_requests": 1}, "pending"), ({"max_receiving_requests": 1}, "receiving")]
)
async def test_one_request_too_many_is_429_before_its_body_is_read(config: Any, reason: str) -> None:
    second = await run_with_one_in_flight(FakeService(**config), 429, reason)
    assert second.header(b"retry-after") == b"1"
    assert second.answer["error"]["type"] == "rate_limit_error"


async def test_a_place_is_held_while_the_request_waits_and_runs() -> None:
    service = FakeService(FakeEngine(model=FakeModel(rows=1), is_stepped=True), max_pending_requests=2)
    async with anyio.create_task_group() as group:
        for _ in range(2):
            group.start_soon(FakeExchange(post_head("/v1/completions", BODY), BODY).run, service.api)
        await anyio.wait_all_tasks_blocked()
        assert service.metric("admission_pending") == 2
        assert (await service.complete()).status == 429
        assert (await service.get("/v1/models")).status == 200
        group.cancel_scope.cancel()
    assert service.metric("admission_pending") == 0


async def test_the_rate_limit_is_per_peer_and_names_the_seconds_left() -> None:
    service = FakeService(rate_limit_rpm=1)
    elsewhere = Endpoints(peer_ip="10.0.0.1", local_host="127.0.0.1", local_port=8080)
    assert (await service.complete()).status == 200
    service.now += 15
    refused = await service.complete()
    assert (refused.status, refused.header(b"retry-after")) == (429, b"45")
    body = {"prompt": "x"}
    assert (await service.post("/v1/completions", body, endpoints=elsewhere)).status == 200
    assert (await service.get("/health")).status == 200
    assert service.metric("refused", "rate_limit") == 1
    service.now += 45
    assert (await service.complete()).status == 200


async def test_a_draining_server_refuses_new_work_and_still_says_how_it_is() -> None:
    service = FakeService()
    refused = await service.post("/v1/completions", {"prompt": "x"}, is_draining=True)
    assert (refused.status, refused.answer["error"]["code"]) == (503, "draining")
    assert refused.error is not None
    assert refused.error.close
    health = await service.get("/health", is_draining=True)
    assert (health.status, health.answer["status"]) == (503, "draining")
    assert (await service.get("/metrics", is_draining=True)).status == 200
    assert service.metric("refused", "draining") == 1


async def test_an_error_of_ours_is_counted_as_500_and_left_to_the_connection() -> None:
    def broken(request: GenerationRequest) -> list[Event]:
        raise ZeroDivisionError

    service = FakeService(FakeEngine(broken))
    with pytest.raises(ZeroDivisionError):
        await service.complete()
    assert service.metric("requests", "/v1/completions", "500") == 1
    assert service.metric("admission_pending") == 0


async def test_many_at_once_all_get_their_answer_and_nothing_is_held_afterwards() -> None:
    service = FakeService(FakeEngine(say("a", "b"), model=FakeModel(rows=2)))
    statuses: list[int] = []

    async def ask(number: int) -> None:
        fields = {"n": 1 + number % 3, "stream": number % 2 == 0}
        statuses.append((await service.complete("x", **fields)).status)

    async with anyio.create_task_group() as group:
        for number in range(30):
            group.start_soon(ask, number)
    assert statuses == [200] * 30
    held = service.engine.statistics()
    assert held.rows_held == held.waiting == service.metric("admission_pending") == 0
