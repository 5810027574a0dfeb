"""The API over a fake engine, with one call a request."""

from __future__ import annotations

import json
from typing import Any

from poot.api import Api
from poot.config import ApiConfig
from poot.metrics import Metrics
from poot.net.exchange import Endpoints
from tests.fakes.engine import FakeEngine
from tests.fakes.exchange import LOCAL, FakeExchange, make_head, post_head


class FakeService:
    """An `Api` with its engine and metrics."""

    def __init__(self, engine: FakeEngine | None = None, **config: Any) -> None:
        self.engine = engine or FakeEngine()
        self.metrics = Metrics()
        self.now = 1000.0
        self.api = Api(self.engine, ApiConfig(**config), self.metrics, clock=lambda: self.now)

    async def post(self, path: str, data: Any, **exchange: Any) -> FakeExchange:
        """Sends `data` as JSON, or as it is when it is bytes."""
        body = data if isinstance(data, bytes) else json.dumps(data).encode()
        return await FakeExchange(post_head(path, body), body, **exchange).run(self.api)

    async def complete(self, prompt: Any = "hi", **fields: Any) -> FakeExchange:
        return await self.post("/v1/completions", {"prompt": prompt, **fields})

    async def chat(self, content: Any = "hi", **fields: Any) -> FakeExchange:
        return await self.post("/v1/chat/completions", {"messages": [{"role": "user", "content": content}], **fields})

    async def get(
        self,
        path: str,
        *,
        query: str = "",
        method: str = "GET",
        endpoints: Endpoints = LOCAL,
        is_draining: bool = False,
    ) -> FakeExchange:
        head = make_head(method, path, query=query)
        return await FakeExchange(head, endpoints=endpoints, is_draining=is_draining).run(self.api)

    def metric(self, *names: str) -> Any:
        """A number of the JSON view of the metrics."""
        value: Any = self.metrics.as_json()
        for name in names:
            value = value[name]
        return value
