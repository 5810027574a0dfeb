"""The application: which handler answers which path, and what holds for every request around its handler."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

from poot.api import chat, completions
from poot.api.answer import GenerationEndpoint, Generator
from poot.api.embeddings import EmbeddingsEndpoint
from poot.api.gate import Gate, Handler, Route, RouteMatch
from poot.api.health import Health
from poot.api.limits import Places, RateWindow
from poot.api.models import Models
from poot.api.rerank import RerankEndpoint
from poot.api.served import ServedEngine
from poot.config import ApiConfig
from poot.errors import EngineError, RequestError, UnsupportedCapability
from poot.metrics import Metrics
from poot.net.exchange import ClientGone, Exchange

UNKNOWN_ROUTE = "unknown"
"""The `route` label of every path poot does not have, so that a scan of paths does not fill the registry."""

MAX_LOGGED_CHARS = 200
"""How much of a refusal's message goes to the access log; some quote the client."""

NO_ANSWER = "none"
"""The `status` label of a request whose client went away, or that was cancelled, before its answer began."""


class Api:
    """The `Application` of the HTTP server: answers every exchange it is called with.

    Args:
        engine: what generates; also its model, tokenizer and chat template.
        config: limits.
        metrics: where requests, places and refusals are counted.
        clock: seconds of a clock that never goes back, for rate windows and uptime.
    """

    def __init__(
        self,
        engine: ServedEngine,
        config: ApiConfig,
        metrics: Metrics,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._metrics = metrics
        refused = metrics.refused
        self._pending = Places(
            name="admits",
            flag="--max-pending-requests",
            num_places=config.max_pending_requests,
            gauge=metrics.admission_pending,
            refused=refused.labels("pending"),
        )
        receiving = Places(
            name="receives",
            flag="--max-receiving-requests",
            num_places=config.max_receiving_requests,
            gauge=metrics.admission_receiving,
            refused=refused.labels("receiving"),
        )
        generator = Generator(engine=engine, config=config, metrics=metrics)
        complete = GenerationEndpoint(
            generator, receiving, prepare=completions.prepare, new_shape=completions.new_shape
        )
        converse = GenerationEndpoint(generator, receiving, prepare=chat.prepare, new_shape=chat.new_shape)
        rerank = RerankEndpoint(engine, receiving)
        models = Models(engine)
        health = Health(engine, metrics, clock=clock)

        def model_route(path: str, handler: Handler) -> Route:
            return Route(
                path=path, methods={"POST": handler}, is_model_request=True, max_body_bytes=config.max_body_bytes
            )

        routes = (
            model_route("/v1/completions", complete),
            model_route("/v1/chat/completions", converse),
            model_route("/v1/embeddings", EmbeddingsEndpoint(engine, receiving)),
            model_route("/v1/rerank", rerank),
            model_route("/rerank", rerank),
            Route(path="/v1/models", methods={"GET": models.list}),
            Route(path="/v1/models/", methods={"GET": models.show}, has_id=True),
            Route(path="/health", methods={"GET": health.health}),
            Route(path="/metrics", methods={"GET": health.metrics}),
            Route(path="/metrics/prometheus", methods={"GET": health.prometheus}),
            Route(
                path="/v1/lora_adapters",
                methods=dict.fromkeys(("GET", "POST", "DELETE"), _refuse("LoRA adapters are")),
                checks_host=True,
                is_admin=True,
                max_body_bytes=config.max_body_bytes,
            ),
        )
        rate = RateWindow(requests_per_window=config.rate_limit_rpm, clock=clock, refused=refused.labels("rate_limit"))
        self._gate = Gate(routes, rate, count_draining=refused.labels("draining").inc, admin_key=config.lora_admin_key)
        for route in routes:
            metrics.requests.labels(route.label, "200")

    async def __call__(self, exchange: Exchange) -> None:
        """Answers one exchange, or raises what the connection is to answer it with.

        Raises:
            RequestError: the request is refused, or failed, and nothing has been sent.
            ClientGone: the client went away; there is nobody to answer.
        """
        match = self._gate.find(exchange.head.path)
        label = match.route.label if match is not None else UNKNOWN_ROUTE
        status = NO_ANSWER
        try:
            status = str(await self._answer(exchange))
        except RequestError as error:
            status = str(error.status)
            exchange.annotate(error=error.message[:MAX_LOGGED_CHARS])
            raise
        except ClientGone:
            raise
        except Exception:
            status = str(EngineError.status)  # what the connection answers an error of ours with, and logs it
            raise
        finally:
            self._metrics.count_request(label, status)

    async def _answer(self, exchange: Exchange) -> int:
        """Status of the answer that was sent, after the gate and, for a model request, with an admission place.

        Raises:
            RequestError: what is to be answered instead.
        """
        match = self._gate.check(exchange.head, exchange.endpoints, is_draining=exchange.is_draining)
        handler = match.route.methods["GET" if exchange.head.method == "HEAD" else exchange.head.method]
        with self._pending.hold() if match.route.is_model_request else contextlib.nullcontext():
            return await handler(exchange, match)


def _refuse(subject: str) -> Handler:
    async def refuse(exchange: Exchange, match: RouteMatch) -> int:
        raise UnsupportedCapability(f"{subject} not available yet on this server")

    return refuse
