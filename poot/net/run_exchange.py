"""One application run on one exchange, whatever the protocol: every way it can fail becomes an answer or a log line."""

from __future__ import annotations

from typing import Protocol

from poot.errors import EngineError, RequestError
from poot.log import get_logger
from poot.net.answers import error_response
from poot.net.exchange import Application, ClientGone, Exchange, Response

logger = get_logger(__name__)


class AnswerableExchange(Exchange, Protocol):
    """An exchange as the connection that made it sees it.

    Attributes:
        status: of the answer that was begun, None before.
    """

    status: int | None

    async def send(self, response: Response, *, close: bool = False) -> None: ...


async def run_application(application: Application, exchange: AnswerableExchange) -> RequestError | None:
    """Runs the application; returns the error that it ended with, if that is to be answered or logged."""
    try:
        await application(exchange)
    except RequestError as error:
        return error
    except ClientGone:
        return None
    except Exception as error:
        # The border of the application: whatever it raised must end this exchange and nothing else.
        return _translate(exchange, error)
    if exchange.status is None:
        logger.error("the application returned without an answer", request_id=exchange.request_id)
        return EngineError("the server failed on this request")
    return None


async def answer_error(exchange: AnswerableExchange, error: RequestError) -> None:
    """Answers with the error, unless another answer has begun."""
    if exchange.status is not None:
        # Too late for another answer: the first one is cut off, which the client sees.
        logger.warn("failed after the answer began", error=str(error), request_id=exchange.request_id)
        return
    try:
        await exchange.send(error_response(error), close=error.close)
    except ClientGone:
        pass  # nobody is left to tell; the access log says so


def _translate(exchange: AnswerableExchange, error: Exception) -> RequestError | None:
    if isinstance(error, ExceptionGroup):
        # A task group of the application wraps what its tasks raise; a single deliberate error keeps its meaning.
        _, unexpected = error.split((RequestError, ClientGone))
        if unexpected is None:
            leaf = _first_leaf(error)
            return leaf if isinstance(leaf, RequestError) else None
    logger.exception("the application failed", error, request_id=exchange.request_id)
    return EngineError("the server failed on this request")


def _first_leaf(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
