"""What all connections of one server share."""

from __future__ import annotations

from dataclasses import dataclass, field

from poot.net.answers import DateField
from poot.net.exchange import Application


@dataclass(kw_only=True, slots=True)
class Service:
    """The application, and the rules its connections keep.

    Attributes:
        request_timeout_seconds: head and body have to be there this long after accept, or after the last answer.
        write_timeout_seconds: how long one write may take, however slowly the client reads.
        is_draining: set once, by the server; an answer that begins later ends its connection.
    """

    application: Application
    request_timeout_seconds: float
    write_timeout_seconds: float
    is_draining: bool = False
    date: DateField = field(default_factory=DateField)
