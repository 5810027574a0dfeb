"""What all connections of one server share."""

from __future__ import annotations

from dataclasses import dataclass, field

from poot.metrics import Metrics
from poot.net.answers import DateField
from poot.net.exchange import Application

UNKNOWN_ROUTE = "unknown"
"""The `route` label of a request whose head could not be read; the application uses it for paths it does not have."""

HTTP1 = "http/1.1"
HTTP2 = "h2"
"""Values of the `protocol` label of the connection metrics."""


@dataclass(kw_only=True, slots=True)
class Service:
    """The application, and the rules its connections keep.

    Attributes:
        request_timeout_seconds: head and body have to be there this long after accept, or after the last answer.
        write_timeout_seconds: how long one write may take, however slowly the client reads.
        metrics: where requests are counted that no application sees, if anywhere.
        is_draining: set once, by the server; an answer that begins later ends its connection.
    """

    application: Application
    request_timeout_seconds: float
    write_timeout_seconds: float
    metrics: Metrics | None = None
    is_draining: bool = False
    date: DateField = field(default_factory=DateField)

    def count_refusal(self, status: int) -> None:
        """Counts a request that was answered without the application."""
        if self.metrics is not None:
            self.metrics.count_request(UNKNOWN_ROUTE, str(status))

    def count_http2(self) -> None:
        """Counts a connection, so far one of HTTP/1.1, that has sent the preface of HTTP/2."""
        if self.metrics is not None:
            self.metrics.connections.labels(HTTP2).inc()
            self.metrics.connections_open.labels(HTTP1).dec()
            self.metrics.connections_open.labels(HTTP2).inc()
