"""Health and metrics as probes and scrapers read them."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from poot import __version__
from poot.engine.plan import Plan
from tests.fakes.engine import FakeEngine, FakeModel
from tests.fakes.service import FakeService

pytestmark = pytest.mark.anyio


async def test_health_says_what_the_plan_settled_on() -> None:
    service = FakeService(FakeEngine(model=FakeModel(rows=2, max_seq=512)))
    service.now += 12.5
    exchange = await service.get("/health")
    assert exchange.status == 200
    assert exchange.answer == {
        "status": "serving",
        "model": "fake-model",
        "task": "generate",
        "backend": "fake",
        "device": "a test",
        "rows": 2,
        "max_seq": 512,
        "context_limit": 128,
        "vocab_size": 261,
        "weight_bytes": 1000,
        "kv_bytes": 2000,
        "version": __version__,
        "uptime_seconds": 12.5,
    }


@pytest.mark.parametrize(
    ("query", "is_verbose"),
    [
        ("verbose=1", True),
        ("verbose=true", True),
        ("a=b&verbose=1", True),
        ("verbose=0", False),
        ("verbose", False),
        ("", False),
    ],
)
async def test_verbose_adds_the_terms_of_the_plan_and_what_is_held(query: str, is_verbose: bool) -> None:
    answer = (await FakeService().get("/health", query=query)).answer
    assert ("plan" in answer) is ("held" in answer) is is_verbose
    if is_verbose:
        assert answer["plan"] == {"weights": 1000, "kv": 2000}
        assert answer["held"] == {"rows": 0, "kv_blocks": 0, "waiting": 0}


async def test_verbose_says_what_was_asked_for_and_what_it_was_fitted_to() -> None:
    plan = Plan(
        num_rows=1,
        max_seq=2048,
        asked_rows=4,
        asked_max_seq=4096,
        terms={"weights": 1000, "kv": 2000, "step": 30, "encode": 4},
        available_bytes=3100,
    )
    service = FakeService(FakeEngine(model=FakeModel(rows=1, max_seq=2048, terms=plan.terms, plan=plan)))
    answer = (await service.get("/health", query="verbose=1")).answer
    assert answer["plan"] == {"weights": 1000, "kv": 2000, "step": 30, "encode": 4}
    assert answer["fit"] == {
        "asked": {"rows": 4, "max_seq": 4096},
        "settled": {"rows": 1, "max_seq": 2048},
        "total_bytes": 3034,
        "available_bytes": 3100,
    }
    assert "fit" not in (await service.get("/health")).answer


async def test_an_engine_that_drains_is_a_draining_server() -> None:
    service = FakeService()
    service.engine.is_draining = True
    exchange = await service.get("/health")
    assert (exchange.status, exchange.answer["status"]) == (503, "draining")


async def test_metrics_are_json() -> None:
    service = FakeService()
    await service.complete()
    exchange = await service.get("/metrics")
    assert exchange.header(b"content-type") == b"application/json"
    assert exchange.answer["requests"]["/v1/completions"] == {"200": 1}
    assert exchange.answer["device_timing"]["device_seconds"] is None


async def test_prometheus_text_parses_and_has_every_route_from_the_first_scrape() -> None:
    exchange = await FakeService().get("/metrics/prometheus")
    assert exchange.header(b"content-type") == b"text/plain; version=0.0.4; charset=utf-8"
    assert exchange.response is not None
    families = {family.name: family for family in text_string_to_metric_families(exchange.response.body.decode())}
    routes = {sample.labels["route"] for sample in families["poot_requests"].samples}
    assert {"/v1/completions", "/v1/chat/completions", "/v1/models", "/v1/models/{id}", "/health"} <= routes
