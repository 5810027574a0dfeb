"""What an exchange holds whatever protocol it came by: the request's facts, and what became of its answer."""

from __future__ import annotations

from poot.net.exchange import Endpoints, Head
from poot.net.service import Service


class ExchangeBase:
    """The half of `poot.net.exchange.Exchange` that touches no bytes.

    Args:
        head: None for a request that could not be read; such an exchange only carries its refusal.
        deadline: when the body has to be complete, on the event loop's clock.
        service: what the server's connections share.
        is_late: whether the request came after the drain began.

    Attributes:
        status: of the answer that was begun, None before.
        is_complete: whether the answer was sent whole.
        annotations: fields for the access log.
    """

    def __init__(
        self,
        *,
        head: Head | None,
        endpoints: Endpoints,
        request_id: str,
        deadline: float,
        service: Service,
        is_late: bool,
    ) -> None:
        self._head = head
        self._endpoints = endpoints
        self._request_id = request_id
        self._deadline = deadline
        self._service = service
        self._is_late = is_late
        self.status: int | None = None
        self.is_complete = False
        self.annotations: dict[str, object] = {}

    @property
    def head(self) -> Head:
        assert self._head is not None  # no application sees an exchange without a head
        return self._head

    @property
    def endpoints(self) -> Endpoints:
        return self._endpoints

    @property
    def request_id(self) -> str:
        return self._request_id

    @property
    def is_draining(self) -> bool:
        return self._is_late

    def annotate(self, **fields: object) -> None:
        self.annotations.update(fields)
