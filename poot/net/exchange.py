"""What the application sees of one request, and what it answers with: the seam between `net` and whatever it serves.

The connection passes an `Exchange` to the application it was given; the application reads the body when it wants it
and answers exactly once. `net` knows nothing of paths or models, the application nothing of sockets or protocols.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

Headers = tuple[tuple[bytes, bytes], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Head:
    """A request head that passed the wire's own checks.

    Attributes:
        method: upper case ASCII.
        path: the path of the target as sent, without the query; never percent-decoded.
        query: the raw query without `?`, or "".
        authority: Host, or the authority of an absolute-form target; None where HTTP/1.0 sent none.
        headers: field names in lower case, values stripped of outer white space, in order.
        http_version: "1.0", "1.1" or "2".
    """

    method: str
    path: str
    query: str
    authority: str | None
    headers: Headers
    http_version: str

    def get(self, name: bytes) -> bytes | None:
        """The first value of a field, by its lower-case name."""
        for key, value in self.headers:
            if key == name:
                return value
        return None

    def get_all(self, name: bytes) -> list[bytes]:
        """Every value of a field, in order."""
        return [value for key, value in self.headers if key == name]


@dataclass(frozen=True, kw_only=True, slots=True)
class Endpoints:
    """Both ends of a connection.

    Attributes:
        peer_ip: the peer's IP address without zone, "unix" for a Unix socket.
        local_host: the address the listener is bound to as configured (may be a wildcard), None for a Unix socket.
        local_port: the bound port, None for a Unix socket.
    """

    peer_ip: str
    local_host: str | None
    local_port: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Response:
    """A whole answer. `net` adds Date, Content-Length, Connection and X-Request-Id."""

    status: int
    headers: Headers
    body: bytes


class StreamWriter(Protocol):
    """The body of a streamed answer."""

    async def write(self, frame: bytes) -> None:
        """Sends one frame within the write timeout; frames may be joined when the client reads slowly.

        Raises:
            ClientGone: the client went away or read too slowly. The exchange's scope is cancelled as well.
        """


class ClientGone(Exception):
    """The peer disconnected, reset the stream or read too slowly. Ends the exchange, never the server."""


class Exchange(Protocol):
    """One request and its one answer.

    The scope the application runs in is cancelled when the client goes away, and when the drain deadline passes.
    """

    @property
    def head(self) -> Head: ...

    @property
    def endpoints(self) -> Endpoints: ...

    @property
    def request_id(self) -> str:
        """The client's X-Request-Id if it is a plain token of at most 128 characters, else one of ours."""

    @property
    def is_draining(self) -> bool:
        """Whether this request came after the server stopped taking new ones. One that came before may finish."""

    def annotate(self, **fields: object) -> None:
        """Adds fields to this request's line in the access log, such as the times and tokens of a generation."""

    async def read_body(self, max_bytes: int) -> bytes:
        """The whole body, after a 100 Continue where the client waits for one.

        The head's Content-Length was checked by the application's gate; a body that is short of it ends the exchange.

        Raises:
            RequestTimeout: the body was not complete in time.
            ContentTooLarge: the body is over `max_bytes`.
            ClientGone: the peer closed before the body ended.
        """

    async def send(self, response: Response) -> None:
        """Answers whole.

        Raises:
            ClientGone: the answer could not be written within the write timeout.
        """

    def stream(self, status: int, headers: Headers) -> AbstractAsyncContextManager[StreamWriter]:
        """Answers with a body of unknown length: the head now, then frames, then the end on leaving the block."""


Application = Callable[[Exchange], Awaitable[None]]
