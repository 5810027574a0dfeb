"""What every answer carries beside what the application gave it, and the line about it in the access log."""

from __future__ import annotations

import json
import logging
import os
import random
import re
import time
from collections.abc import Mapping
from email.utils import formatdate

from poot.errors import RequestError
from poot.log import get_logger
from poot.net.exchange import Head, Response

_access = get_logger("poot.access")
_PLAIN_REQUEST_ID = re.compile(rb"[A-Za-z0-9!#$%&'*+\-.^_`|~]{1,128}")
_MAX_LOGGED_PATH = 256
# For ids that have to differ and need not be secret: the kernel is asked for a seed once, not for every request.
_random = random.Random()
os.register_at_fork(after_in_child=_random.seed)


class DateField:
    """The current value of Date (RFC 9110 section 6.6.1), put together once a second."""

    def __init__(self) -> None:
        self._second = -1
        self._value = b""

    def __call__(self) -> bytes:
        second = int(time.time())
        if second != self._second:
            self._second = second
            self._value = formatdate(second, usegmt=True).encode("ascii")
        return self._value


def choose_request_id(head: Head | None) -> str:
    """The client's X-Request-Id if it sent exactly one plain token of at most 128 characters, else a random one."""
    if head is not None:
        values = head.get_all(b"x-request-id")
        if len(values) == 1 and _PLAIN_REQUEST_ID.fullmatch(values[0]):
            return values[0].decode("ascii")
    return f"{_random.getrandbits(128):032x}"


def error_response(error: RequestError) -> Response:
    """The JSON answer of an error."""
    fields = tuple((name.lower().encode("ascii"), value.encode("ascii")) for name, value in error.headers)
    return Response(
        status=error.status,
        headers=((b"content-type", b"application/json"), *fields),
        body=json.dumps(error.body()).encode("utf-8"),
    )


def log_access(
    head: Head | None,
    *,
    status: int | None,
    is_complete: bool,
    num_bytes: int,
    seconds: float,
    request_id: str,
    peer_ip: str,
    annotations: Mapping[str, object],
) -> None:
    """Writes one line about a request.

    Args:
        head: None when it could not be read.
        status: None when no answer was begun.
        is_complete: whether the answer was sent whole.
        num_bytes: size of the body that was sent, without its chunk framing.
        seconds: from the head's arrival to the end of the answer.
        annotations: more fields, from the application.
    """
    if not _access.is_enabled(logging.INFO):
        return
    _access.info(
        "request",
        method=head.method if head is not None else "-",
        path=head.path[:_MAX_LOGGED_PATH] if head is not None else "-",
        status=status if status is not None else "-",
        bytes=num_bytes,
        ms=seconds * 1000,
        peer=peer_ip,
        request_id=request_id,
        **({} if is_complete else {"ended": "early"}),
        **annotations,
    )
