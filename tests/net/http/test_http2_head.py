"""Which fields make a request, and what is wrong with those that do not."""

from __future__ import annotations

import pytest
from hpack import Encoder

from poot.errors import BadRequest, HeadersTooLarge
from poot.net.http.http2_events import (
    RequestArrived,
    RequestRefused,
)
from tests.net import h2_frames as wire
from tests.net.h2_frames import get, post
from tests.net.http.script import Script


def without(name: bytes) -> list[tuple[bytes, bytes]]:
    return [field for field in get() if field[0] != name]


MALFORMED: dict[str, list[tuple[bytes, bytes]]] = {
    "no method": without(b":method"),
    "no scheme": without(b":scheme"),
    "no path": without(b":path"),
    "empty path": [*without(b":path"), (b":path", b"")],
    "absolute path": [*without(b":path"), (b":path", b"http://poot/")],
    "path with space": [*without(b":path"), (b":path", b"/a b")],
    "path with fragment": [*without(b":path"), (b":path", b"/a#b")],
    "relative path": [*without(b":path"), (b":path", b"a")],
    "star for GET": [*without(b":path"), (b":path", b"*")],
    "method no token": [*without(b":method"), (b":method", b"G T")],
    "CONNECT": [(b":method", b"CONNECT"), (b":authority", b"poot:80")],
    "other scheme": [*without(b":scheme"), (b":scheme", b"ftp")],
    "twice": [*get(), (b":path", b"/")],
    "unknown": [*get(), (b":protocol", b"websocket")],
    "status": [*get(), (b":status", b"200")],
    "pseudo behind regular": [*without(b":path"), (b"x", b"y"), (b":path", b"/")],
    "upper case": get(b"/", (b"X-Upper", b"1")),
    "space in name": get(b"/", (b"x y", b"1")),
    "empty name": get(b"/", (b"", b"1")),
    "colon in name": get(b"/", (b"x:y", b"1")),
    "LF in value": get(b"/", (b"x", b"a\nb")),
    "CR in value": get(b"/", (b"x", b"a\rb")),
    "NUL in value": get(b"/", (b"x", b"a\x00b")),
    "DEL in value": get(b"/", (b"x", b"a\x7fb")),
    "leading space": get(b"/", (b"x", b" a")),
    "trailing tab": get(b"/", (b"x", b"a\t")),
    "connection": get(b"/", (b"connection", b"close")),
    "keep-alive": get(b"/", (b"keep-alive", b"1")),
    "proxy-connection": get(b"/", (b"proxy-connection", b"close")),
    "transfer-encoding": get(b"/", (b"transfer-encoding", b"chunked")),
    "upgrade": get(b"/", (b"upgrade", b"h2c")),
    "te": get(b"/", (b"te", b"gzip")),
    "two hosts": get(b"/", (b"host", b"poot:80"), (b"host", b"poot:80")),
    "other host": get(b"/", (b"host", b"other")),
    "authority with user": [*without(b":authority"), (b":authority", b"me@poot")],
    "host no host": [*without(b":authority"), (b"host", b"a/b")],
    "length without body": post(5),
}


@pytest.mark.parametrize("fields", MALFORMED.values(), ids=MALFORMED.keys())
def test_a_malformed_request_is_refused_on_its_stream(fields: wire.Fields) -> None:
    script = Script()
    (event,) = script.feed(wire.headers(1, fields))
    assert isinstance(event, RequestRefused)
    assert type(event.error) is BadRequest
    script.http.answer(event.stream, 400, (), b"no")
    assert script.read().bodies == {1: b"no"}
    script.open(get(), stream_id=3)


@pytest.mark.parametrize(
    ("fields", "authority"),
    [
        (get(b"/", (b"host", b"poot:80")), "poot:80"),
        ([*without(b":authority"), (b"host", b"other:1")], "other:1"),
        (without(b":authority"), None),
        (get(b"/", (b"te", b"trailers")), "poot:80"),
    ],
)
def test_authority_is_what_was_asked_for(fields: wire.Fields, authority: str | None) -> None:
    (event,) = Script().feed(wire.headers(1, fields))
    assert isinstance(event, RequestArrived)
    assert event.head.authority == authority


def test_a_header_list_over_the_cap_is_431() -> None:
    # RFC 9113 section 6.5.2: a field counts its name, its value and 32.
    def padded(total: int) -> wire.Fields:
        base = sum(len(name) + len(value) + 32 for name, value in get())
        return get(b"/", (b"x", b"v" * (total - base - 33)))

    script = Script()
    encoder = Encoder()
    (at_cap,) = script.feed(wire.headers(1, padded(65536), encoder=encoder, pieces=8))
    assert isinstance(at_cap, RequestArrived)
    (over,) = script.feed(wire.headers(3, padded(65537), encoder=encoder, pieces=8))
    assert isinstance(over, RequestRefused)
    assert type(over.error) is HeadersTooLarge
    script.http.answer(over.stream, 431, (), b"no")
    assert script.read().status(3) == 431
    script.assert_alive()
