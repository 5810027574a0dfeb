"""One request and its answer without a connection: what a test says comes in, what the application sends is kept."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from poot.errors import ContentTooLarge, RequestError
from poot.net.answers import error_response
from poot.net.exchange import Application, ClientGone, Endpoints, Head, Headers, Response

LOCAL = Endpoints(peer_ip="127.0.0.1", local_host="127.0.0.1", local_port=8080)


def make_head(
    method: str = "GET",
    path: str = "/health",
    *,
    query: str = "",
    authority: str | None = "localhost:8080",
    headers: Headers = (),
) -> Head:
    """A head as the connection passes it on."""
    return Head(method=method, path=path, query=query, authority=authority, headers=headers, http_version="1.1")


def post_head(path: str, body: bytes) -> Head:
    """The head of a well-formed POST with this body."""
    length = str(len(body)).encode()
    return make_head("POST", path, headers=((b"content-type", b"application/json"), (b"content-length", length)))


class FakeExchange:
    """An `Exchange` that keeps what it was answered.

    Args:
        before_body: awaited while the body is read.
        gone_after_writes: the client goes away with this write of the stream, counted from 0.
        on_write: called after each write.
    """

    def __init__(
        self,
        head: Head,
        body: bytes = b"",
        *,
        endpoints: Endpoints = LOCAL,
        is_draining: bool = False,
        before_body: Callable[[], Awaitable[None]] | None = None,
        gone_after_writes: int | None = None,
        on_write: Callable[[bytes], None] | None = None,
    ) -> None:
        self.head = head
        self.endpoints = endpoints
        self.is_draining = is_draining
        self.request_id = "a-request"
        self.error: RequestError | None = None
        self.response: Response | None = None
        self.stream_status: int | None = None
        self.stream_headers: Headers = ()
        self.frames: list[bytes] = []
        self.is_stream_ended = False
        self.is_gone = False
        self.annotations: dict[str, object] = {}
        self._body = body
        self._before_body = before_body
        self._gone_after_writes = gone_after_writes
        self._on_write = on_write

    def annotate(self, **fields: object) -> None:
        self.annotations.update(fields)

    async def read_body(self, max_bytes: int) -> bytes:
        if self._before_body is not None:
            await self._before_body()
        if len(self._body) > max_bytes:
            raise ContentTooLarge("the body is too large")
        return self._body

    async def run(self, application: Application) -> FakeExchange:
        """Runs the application and, as the connection does, answers the error it raised; returns itself."""
        try:
            await application(self)
        except RequestError as error:
            self.error = error
            await self.send(error_response(error))
        except ClientGone:
            self.is_gone = True
        return self

    async def send(self, response: Response) -> None:
        assert self.response is None, "answered twice"
        assert self.stream_status is None, "answered twice"
        self.response = response

    @asynccontextmanager
    async def stream(self, status: int, headers: Headers) -> AsyncGenerator[FakeExchange]:
        assert self.response is None, "answered twice"
        assert self.stream_status is None, "answered twice"
        self.stream_status, self.stream_headers = status, headers
        yield self
        self.is_stream_ended = True

    async def write(self, frame: bytes) -> None:
        assert frame, "an empty frame would end a chunked body"
        if self._gone_after_writes is not None and len(self.frames) >= self._gone_after_writes:
            raise ClientGone("the client went away")
        self.frames.append(frame)
        if self._on_write is not None:
            self._on_write(frame)

    @property
    def status(self) -> int:
        """Status of the answer, whichever way it was sent."""
        if self.stream_status is not None:
            return self.stream_status
        assert self.response is not None, "not answered"
        return self.response.status

    @property
    def answer(self) -> Any:
        """The JSON of a whole answer."""
        assert self.response is not None, "not answered whole"
        return json.loads(self.response.body)

    @property
    def events(self) -> list[str]:
        """The data of each server-sent event of a streamed answer."""
        text = b"".join(self.frames).decode()
        assert text.endswith("\n\n")
        events = text.removesuffix("\n\n").split("\n\n")
        assert all(event.startswith("data: ") and "\n" not in event for event in events)
        return [event.removeprefix("data: ") for event in events]

    @property
    def chunks(self) -> list[Any]:
        """The JSON of each server-sent event that has some."""
        return [json.loads(event) for event in self.events if event != "[DONE]"]

    def header(self, name: bytes) -> bytes | None:
        """A header field of the answer."""
        headers = self.response.headers if self.response is not None else self.stream_headers
        return dict(headers).get(name)
