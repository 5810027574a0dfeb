"""What arrives on a connection, in the words of no particular protocol version.

A protocol object (`http1.Http1`, later its HTTP/2 sibling) takes bytes and yields these; the connection shell runs
one exchange for each `RequestArrived`. Over HTTP/1.1 there is one exchange at a time, so events carry no stream.
"""

from __future__ import annotations

from dataclasses import dataclass

from poot.errors import RequestError
from poot.net.exchange import Head


@dataclass(frozen=True, slots=True)
class RequestArrived:
    """A whole, well-formed head; the body, if there is one, follows as `BodyArrived` events.

    Attributes:
        head: the head.
        expects_continue: the client may be holding its body back until it sees 100 Continue.
    """

    head: Head
    expects_continue: bool


@dataclass(frozen=True, slots=True)
class RequestRefused:
    """The bytes are no request this server reads. `error` is the answer; the connection ends after it."""

    error: RequestError


@dataclass(frozen=True, slots=True)
class BodyArrived:
    """The next piece of the body, at least one byte."""

    data: bytes


@dataclass(frozen=True, slots=True)
class BodyEnded:
    """The body is complete. Comes for a request without a body too."""


Event = RequestArrived | RequestRefused | BodyArrived | BodyEnded
