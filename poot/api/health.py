"""GET /health, /metrics and /metrics/prometheus: how the server is, for probes, people and scrapers."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs

from poot import __version__
from poot.api.gate import RouteMatch
from poot.api.responses import json_response
from poot.api.served import ServedEngine
from poot.engine.plan import Plan
from poot.metrics import PROMETHEUS_CONTENT_TYPE, Metrics
from poot.net.exchange import Exchange, Response


class Health:
    """The handlers of the three routes. They hold no place and are never refused, draining or not."""

    def __init__(self, engine: ServedEngine, metrics: Metrics, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._engine = engine
        self._metrics = metrics
        self._clock = clock
        self._started = clock()

    async def health(self, exchange: Exchange, match: RouteMatch) -> int:
        """200 and "serving", or 503 and "draining".

        `?verbose=1` adds the plan's terms, what they were fitted to, and what is held now.
        """
        model = self._engine.model
        is_draining = exchange.is_draining or self._engine.is_draining
        facts: dict[str, Any] = {
            "status": "draining" if is_draining else "serving",
            "model": model.model_id,
            "task": model.task,
            "backend": model.backend,
            "device": model.device,
            "rows": model.rows,
            "max_seq": model.max_seq,
            "context_limit": model.context_limit,
            "vocab_size": model.vocab_size,
            "weight_bytes": model.weight_bytes,
            "kv_bytes": model.kv_bytes,
            "version": __version__,
            "uptime_seconds": round(self._clock() - self._started, 3),
        }
        query = exchange.head.query
        if query and parse_qs(query).get("verbose", ["0"])[-1] not in ("0", "false"):
            held = self._engine.statistics()
            facts["plan"] = dict(model.terms)
            if model.plan is not None:
                facts["fit"] = _fit_facts(model.plan)
            facts["held"] = {
                "rows": held.rows_held,
                "kv_blocks": held.kv_blocks_held,
                "waiting": held.waiting,
            }
        status = 503 if is_draining else 200
        await exchange.send(json_response(facts, status=status))
        return status

    async def metrics(self, exchange: Exchange, match: RouteMatch) -> int:
        await exchange.send(json_response(self._metrics.as_json()))
        return 200

    async def prometheus(self, exchange: Exchange, match: RouteMatch) -> int:
        headers = ((b"content-type", PROMETHEUS_CONTENT_TYPE.encode("ascii")),)
        await exchange.send(Response(status=200, headers=headers, body=self._metrics.as_prometheus()))
        return 200


def _fit_facts(plan: Plan) -> dict[str, Any]:
    return {
        "asked": {"rows": plan.asked_rows, "max_seq": plan.asked_max_seq},
        "settled": {"rows": plan.num_rows, "max_seq": plan.max_seq},
        "total_bytes": plan.total_bytes,
        "available_bytes": plan.available_bytes,
    }
