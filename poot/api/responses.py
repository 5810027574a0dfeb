"""Whole answers of data as JSON. Errors become answers in `poot.net`, which closes the connection where they say so."""

from __future__ import annotations

from typing import Any

import msgspec

from poot.net.exchange import Response

JSON_CONTENT_TYPE = b"application/json"


def json_response(data: Any, *, status: int = 200) -> Response:
    """An answer with `data` as its JSON body."""
    return Response(status=status, headers=((b"content-type", JSON_CONTENT_TYPE),), body=msgspec.json.encode(data))
