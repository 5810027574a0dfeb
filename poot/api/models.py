"""GET /v1/models and /v1/models/{id}: the one model that is served, in OpenAI's shape with our own facts beside it."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any
from urllib.parse import unquote

from poot.api.gate import RouteMatch
from poot.api.responses import json_response
from poot.api.schema.completions import DEFAULT_MAX_TOKENS
from poot.api.served import ServedEngine, ServedModel
from poot.errors import NotFound
from poot.net.exchange import Exchange


def describe(model: ServedModel) -> dict[str, Any]:
    """The model object. `max_model_len` is vLLM's name of max_seq, which some clients read."""
    return {
        "id": model.model_id,
        "object": "model",
        "created": model.created,
        "owned_by": "poot",
        "task": model.task,
        "max_seq": model.max_seq,
        "max_model_len": model.max_seq,
        "rows": model.rows,
        "sampling_defaults": {
            **asdict(model.sampling_defaults),
            "max_tokens": {"completions": DEFAULT_MAX_TOKENS, "chat": None},
        },
    }


class Models:
    """The handlers of both routes."""

    def __init__(self, engine: ServedEngine) -> None:
        self._engine = engine

    async def list(self, exchange: Exchange, match: RouteMatch) -> int:
        await exchange.send(json_response({"object": "list", "data": [describe(self._engine.model)]}))
        return 200

    async def show(self, exchange: Exchange, match: RouteMatch) -> int:
        """Answers for the served id, which may hold slashes, as they are or percent-encoded.

        Raises:
            NotFound: another id.
        """
        model_id = unquote(match.rest)
        model = self._engine.model
        if model_id != model.model_id:
            raise NotFound(
                f"no such model; this server serves {model.model_id!r}", param="model", code="model_not_found"
            )
        await exchange.send(json_response(describe(model)))
        return 200
