"""What arrives on an HTTP/2 connection. The same words as for HTTP/1.1 (`events`), each with the stream it is about."""

from __future__ import annotations

from dataclasses import dataclass

from poot.errors import RequestError
from poot.net.exchange import Head
from poot.net.http.frames import ErrorCode
from poot.net.http.http2_stream import Stream


@dataclass(frozen=True, slots=True)
class RequestArrived:
    """A whole, well-formed head; the body, if there is one, follows as `BodyArrived` events."""

    stream: Stream
    head: Head


@dataclass(frozen=True, slots=True)
class RequestRefused:
    """The fields are no request this server reads. `error` is the answer; the connection goes on."""

    stream: Stream
    error: RequestError


@dataclass(frozen=True, slots=True)
class BodyArrived:
    """There is more of the body to take, or it is complete."""

    stream: Stream


@dataclass(frozen=True, slots=True)
class StreamEnded:
    """The stream was reset, by the client or for a fault of its. Nothing can be sent on it."""

    stream: Stream


@dataclass(frozen=True, slots=True)
class DrainConfirmed:
    """The client has seen the first GOAWAY of a drain, and the second has been queued."""


@dataclass(frozen=True, slots=True)
class ConnectionEnded:
    """The client broke the protocol or spent a budget; GOAWAY has been queued and nothing more is read."""

    error: ErrorCode
    reason: str


Http2Event = RequestArrived | RequestRefused | BodyArrived | StreamEnded | DrainConfirmed | ConnectionEnded
