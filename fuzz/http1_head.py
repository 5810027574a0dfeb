"""Invariant: bytes on an HTTP/1.1 connection give the same events however they are cut, each head that arrives is one
that no second parser can read differently, and what is no request is refused once, with 400 or 431 and a close.

Every request is answered as soon as its body has arrived, so that what follows it is read as the next one.
"""

from __future__ import annotations

import re

from poot.net.exchange import Head
from poot.net.http.events import BodyArrived, BodyEnded, RequestArrived, RequestRefused
from poot.net.http.http1 import Http1

_TOKEN = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_CONTROL = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")

# Byte by byte up to here; a longer input is cut into pieces of this many bytes divided by a prime.
_MAX_BYTEWISE = 4096

Seen = tuple[object, ...]


def check(data: bytes) -> None:
    """Raises AssertionError when the invariant is broken; anything else that is raised breaks it too."""
    step = 1 if len(data) <= _MAX_BYTEWISE else len(data) // 997
    pieces = [data[start : start + step] for start in range(0, len(data), step)]
    assert _run([data]) == _run(pieces)


def _run(pieces: list[bytes]) -> list[Seen]:
    http = Http1()
    seen: list[Seen] = []
    for piece in pieces:
        http.receive(piece)
        while (event := http.next_event()) is not None:
            match event:
                case RequestArrived(head=head, expects_continue=expects_continue):
                    _check_head(head)
                    seen.append(("head", head, expects_continue))
                    if http.body_left is None:
                        seen.append(("answer", _answer(http)))
                case BodyArrived(data=data):
                    assert data
                    if seen[-1][0] == "body":
                        data = bytes(seen.pop()[1]) + data  # type: ignore[call-overload] # set below
                    seen.append(("body", data))
                case BodyEnded():
                    seen.append(("answer", _answer(http)))
                    if http.is_reusable:
                        http.next_cycle()
                case RequestRefused(error=error):
                    assert error.status in (400, 431)
                    assert error.close
                    seen.append(("refused", error.status, error.message, _answer(http)))
                    assert not http.is_reusable
                    assert http.next_event() is None
    return seen


def _answer(http: Http1) -> bytes:
    answer = http.answer(200, ((b"content-type", b"text/plain"),), b"ok", close=False)
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    return answer


def _check_head(head: Head) -> None:
    assert _TOKEN.fullmatch(head.method.encode("ascii"))
    assert head.http_version in ("1.0", "1.1")
    assert head.path.startswith("/") or head.path == "*"
    assert head.path.isascii()
    assert head.query.isascii()
    assert len(head.get_all(b"host")) <= 1
    for name, value in head.headers:
        assert _TOKEN.fullmatch(name)
        assert name == name.lower()
        assert value == value.strip(b" \t")
        assert not _CONTROL.search(value)
