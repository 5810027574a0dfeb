"""Whole answers: JSON of data, and the one place where an error becomes an answer."""

from __future__ import annotations

from typing import Any

import msgspec

from poot.errors import RequestError
from poot.net.exchange import Response

JSON_CONTENT_TYPE = b"application/json"


def json_response(data: Any, *, status: int = 200) -> Response:
    """An answer with `data` as its JSON body."""
    return Response(status=status, headers=((b"content-type", JSON_CONTENT_TYPE),), body=msgspec.json.encode(data))


def error_response(error: RequestError) -> Response:
    """The OpenAI-shaped answer to a request that is refused or failed, with the headers the error carries."""
    headers = [(b"content-type", JSON_CONTENT_TYPE)]
    headers += [(name.lower().encode("ascii"), value.encode("ascii")) for name, value in error.headers]
    if error.close:
        headers.append((b"connection", b"close"))
    return Response(status=error.status, headers=tuple(headers), body=msgspec.json.encode(error.body()))
