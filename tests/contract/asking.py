"""A request as a client means it and an answer as a client reads it, whatever the protocol they travel in."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

Fields = tuple[tuple[bytes, bytes], ...]

OURS = "ours"
"""As `Ask.authority`: the address of the server that is asked."""


class Protocol(Enum):
    HTTP1 = "http1"
    HTTP2 = "http2"


@dataclass(frozen=True, kw_only=True)
class Ask:
    """A request.

    Attributes:
        authority: Host, or `:authority`; None for none.
        fields: beside it, in order. Names are written as they stand here.
        version: of the request line; HTTP/2 has none.
    """

    method: bytes = b"GET"
    target: bytes = b"/health"
    authority: str | None = OURS
    fields: Fields = ()
    body: bytes = b""
    version: bytes = b"HTTP/1.1"

    def but(self, **changes: Any) -> Ask:
        """This request with other attributes."""
        return replace(self, **changes)

    def with_field(self, name: bytes, *values: bytes) -> Ask:
        """This request with one field set to `values`, one line each; without it when there are none."""
        others = tuple((key, value) for key, value in self.fields if key != name)
        return replace(self, fields=(*others, *((name, value) for value in values)))


def post(path: bytes = b"/v1/completions", body: bytes = b'{"prompt": "hi"}') -> Ask:
    """A POST that nothing is wrong with."""
    length = str(len(body)).encode()
    fields = ((b"content-type", b"application/json"), (b"content-length", length))
    return Ask(method=b"POST", target=path, fields=fields, body=body)


def post_json(data: Any, path: bytes = b"/v1/completions") -> Ask:
    """A POST of `data`."""
    return post(path, json.dumps(data).encode())


@dataclass(kw_only=True)
class Reply:
    """An answer.

    Attributes:
        fields: with the names in lower case.
        informational: the statuses of 1xx answers that came before it.
        is_complete: false when the connection or the stream ended in the middle of it.
        reset: over HTTP/2, the error code of the RST_STREAM that followed, if one has.
    """

    status: int
    fields: Fields
    body: bytes = b""
    informational: list[int] = field(default_factory=list)
    is_complete: bool = False
    reset: int | None = None

    def get(self, name: bytes) -> bytes | None:
        """A field that is there once at most."""
        values = [value for key, value in self.fields if key == name]
        assert len(values) <= 1, f"{name!r} is there {len(values)} times"
        return values[0] if values else None

    @property
    def data(self) -> Any:
        """The JSON of the body."""
        assert self.get(b"content-type") == b"application/json"
        return json.loads(self.body)

    @property
    def events(self) -> list[str]:
        """The data of each server-sent event of the body."""
        assert self.body.endswith(b"\n\n")
        return [event.removeprefix("data: ") for event in self.body.decode().removesuffix("\n\n").split("\n\n")]


class Gone(Exception):
    """The server ended the connection, or reset the stream, without an answer.

    Attributes:
        reset: over HTTP/2, the error code.
    """

    def __init__(self, reset: int | None = None) -> None:
        super().__init__(f"ended without an answer (reset {reset})")
        self.reset = reset
