"""The list of one model."""

from __future__ import annotations

import pytest

from tests.fakes.engine import FakeEngine, FakeModel
from tests.fakes.service import FakeService

pytestmark = pytest.mark.anyio


async def test_the_served_model_is_listed_with_our_facts() -> None:
    answer = (await FakeService().get("/v1/models")).answer
    assert answer["object"] == "list"
    (model,) = answer["data"]
    assert (model["id"], model["object"], model["owned_by"]) == ("fake-model", "model", "poot")
    assert model["created"] == 1_700_000_000
    assert (model["task"], model["max_seq"], model["rows"]) == ("generate", 64, 4)
    assert model["sampling_defaults"]["temperature"] == 1.0


@pytest.mark.parametrize("path", ["/v1/models/org/a model", "/v1/models/org%2Fa%20model"])
async def test_a_model_is_found_by_its_id_plain_or_percent_encoded(path: str) -> None:
    service = FakeService(FakeEngine(model=FakeModel(model_id="org/a model")))
    exchange = await service.get(path)
    assert exchange.status == 200
    assert exchange.answer == (await service.get("/v1/models")).answer["data"][0]


async def test_another_id_is_404() -> None:
    exchange = await FakeService().get("/v1/models/gpt-4o")
    assert (exchange.status, exchange.answer["error"]["code"]) == (404, "model_not_found")
    assert exchange.answer["error"]["param"] == "model"


async def test_a_request_for_another_model_is_404() -> None:
    exchange = await FakeService().complete(model="gpt-4o")
    assert (exchange.status, exchange.answer["error"]["code"]) == (404, "model_not_found")
    assert (await FakeService().complete(model="fake-model")).status == 200
