"""The raw head checks: RFC 9112 for what is malformed, h11 as the second reader of what is accepted."""

from __future__ import annotations

import time

import h11
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from poot.errors import BadRequest, HeadersTooLarge, RequestError
from poot.net.exchange import Head
from poot.net.http.head import MAX_HEAD_BYTES, body_length, find_head_end, parse_head


def read(raw: bytes) -> Head | None:
    """The head at the start of `raw`, None when it is not whole."""
    end = find_head_end(raw, 0)
    return parse_head(raw[:end]) if end is not None else None


MALFORMED = {
    "bare LF after the request line": b"GET / HTTP/1.1\nHost: x\r\n\r\n",
    "bare LF only": b"GET / HTTP/1.1\nHost: x\n\n",
    "bare LF in front": b"\nGET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "bare LF after a field": b"GET / HTTP/1.1\r\nHost: x\nA: b\r\n\r\n",
    "bare CR in a value": b"GET / HTTP/1.1\r\nHost: x\r\nA: b\rc\r\n\r\n",
    "bare CR in the request line": b"GET /\r HTTP/1.1\r\nHost: x\r\n\r\n",
    "CR CR LF": b"GET / HTTP/1.1\r\r\nHost: x\r\n\r\n",
    "NUL in a value": b"GET / HTTP/1.1\r\nHost: x\r\nA: \0\r\n\r\n",
    "NUL in the target": b"GET /\0 HTTP/1.1\r\nHost: x\r\n\r\n",
    "a TLS hello": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "vertical tab in a value": b"GET / HTTP/1.1\r\nHost: x\r\nA: a\x0bb\r\n\r\n",
    "DEL in a value": b"GET / HTTP/1.1\r\nHost: x\r\nA: \x7f\r\n\r\n",
    "escape in a value": b"GET / HTTP/1.1\r\nHost: x\r\nA: \x1b[0m\r\n\r\n",
    "obs-fold": b"GET / HTTP/1.1\r\nHost: x\r\nA: b\r\n c\r\n\r\n",
    "obs-fold with a tab": b"GET / HTTP/1.1\r\nHost: x\r\nA: b\r\n\tc\r\n\r\n",
    "white space before the first field": b"GET / HTTP/1.1\r\n Host: x\r\n\r\n",
    "space before the colon": b"GET / HTTP/1.1\r\nHost : x\r\n\r\n",
    "tab before the colon": b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length\t: 1\r\n\r\n",
    "a field without a colon": b"GET / HTTP/1.1\r\nHost: x\r\nnonsense\r\n\r\n",
    "an empty field name": b"GET / HTTP/1.1\r\nHost: x\r\n: y\r\n\r\n",
    "a field name with a bracket": b"GET / HTTP/1.1\r\nHost: x\r\nA[0]: y\r\n\r\n",
    "a field name beyond ASCII": b"GET / HTTP/1.1\r\nHost: x\r\n\xe9: y\r\n\r\n",
    "a method with a slash": b"G/T / HTTP/1.1\r\nHost: x\r\n\r\n",
    "an empty method": b" / HTTP/1.1\r\nHost: x\r\n\r\n",
    "a method beyond ASCII": b"G\xc9T / HTTP/1.1\r\nHost: x\r\n\r\n",
    "no target": b"GET HTTP/1.1\r\nHost: x\r\n\r\n",
    "two spaces": b"GET  / HTTP/1.1\r\nHost: x\r\n\r\n",
    "a tab for a space": b"GET\t/ HTTP/1.1\r\nHost: x\r\n\r\n",
    "a space at the end": b"GET / HTTP/1.1 \r\nHost: x\r\n\r\n",
    "a space in the target": b"GET /a b HTTP/1.1\r\nHost: x\r\n\r\n",
    "a relative target": b"GET a HTTP/1.1\r\nHost: x\r\n\r\n",
    "a fragment": b"GET /a#b HTTP/1.1\r\nHost: x\r\n\r\n",
    "a target beyond ASCII": b"GET /\xc3\xa9 HTTP/1.1\r\nHost: x\r\n\r\n",
    "a target with a quote": b'GET /" HTTP/1.1\r\nHost: x\r\n\r\n',
    "a target with a backslash": b"GET /\\ HTTP/1.1\r\nHost: x\r\n\r\n",
    "half a percent escape": b"GET /%4 HTTP/1.1\r\nHost: x\r\n\r\n",
    "a percent escape that is not hex": b"GET /%zz HTTP/1.1\r\nHost: x\r\n\r\n",
    "an asterisk for GET": b"GET * HTTP/1.1\r\nHost: x\r\n\r\n",
    "CONNECT": b"CONNECT x:80 HTTP/1.1\r\nHost: x:80\r\n\r\n",
    "CONNECT with a path": b"CONNECT / HTTP/1.1\r\nHost: x\r\n\r\n",
    "authority-form": b"GET x:80 HTTP/1.1\r\nHost: x:80\r\n\r\n",
    "another scheme": b"GET ftp://x/ HTTP/1.1\r\nHost: x\r\n\r\n",
    "an absolute target without a host": b"GET http:///a HTTP/1.1\r\nHost: x\r\n\r\n",
    "an absolute target with userinfo": b"GET http://a:b@x/ HTTP/1.1\r\nHost: x\r\n\r\n",
    "HTTP/0.9": b"GET /\r\n\r\n",
    "HTTP/1.2": b"GET / HTTP/1.2\r\nHost: x\r\n\r\n",
    "HTTP/2.0": b"GET / HTTP/2.0\r\nHost: x\r\n\r\n",
    "the HTTP/2 preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "a version in lower case": b"GET / http/1.1\r\nHost: x\r\n\r\n",
    "a version with two digits": b"GET / HTTP/1.10\r\nHost: x\r\n\r\n",
    "a version without a minor": b"GET / HTTP/1\r\nHost: x\r\n\r\n",
    "two Hosts": b"GET / HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n",
    "two equal Hosts": b"GET / HTTP/1.1\r\nHost: x\r\nhost: x\r\n\r\n",
    "a Host list": b"GET / HTTP/1.1\r\nHost: x, y\r\n\r\n",
    "a Host with a path": b"GET / HTTP/1.1\r\nHost: x/y\r\n\r\n",
    "a Host with userinfo": b"GET / HTTP/1.1\r\nHost: a@x\r\n\r\n",
    "a Host with a port that is no number": b"GET / HTTP/1.1\r\nHost: x:y\r\n\r\n",
    "no request line": b"\r\n\r\n",
}


@pytest.mark.parametrize("raw", MALFORMED.values(), ids=MALFORMED)
def test_malformed_heads_are_refused_and_the_connection_ends(raw: bytes) -> None:
    with pytest.raises(BadRequest) as caught:
        read(raw)
    assert caught.value.status == 400
    assert caught.value.close
    assert caught.value.message.isascii()
    assert caught.value.message.isprintable()


WELL_FORMED = {
    "plain": (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", ("GET", "/", "", "x", "1.1")),
    "query": (b"GET /a/b?c=d&e=/?f HTTP/1.1\r\nHost: x:80\r\n\r\n", ("GET", "/a/b", "c=d&e=/?f", "x:80", "1.1")),
    "empty query": (b"GET /? HTTP/1.1\r\nHost: x\r\n\r\n", ("GET", "/", "", "x", "1.1")),
    "percent stays": (b"GET /%2F%c3%A9 HTTP/1.1\r\nHost: x\r\n\r\n", ("GET", "/%2F%c3%A9", "", "x", "1.1")),
    "dot segments stay": (b"GET /a/../b HTTP/1.1\r\nHost: x\r\n\r\n", ("GET", "/a/../b", "", "x", "1.1")),
    "HTTP/1.0 without Host": (b"GET / HTTP/1.0\r\n\r\n", ("GET", "/", "", None, "1.0")),
    "HTTP/1.1 without Host": (b"GET / HTTP/1.1\r\nA: b\r\n\r\n", ("GET", "/", "", None, "1.1")),
    "empty Host": (b"GET / HTTP/1.1\r\nHost:\r\n\r\n", ("GET", "/", "", "", "1.1")),
    "IPv6 Host": (b"GET / HTTP/1.1\r\nHost: [::1]:80\r\n\r\n", ("GET", "/", "", "[::1]:80", "1.1")),
    "absolute-form replaces Host": (
        b"GET http://a:1/p?q HTTP/1.1\r\nHost: b\r\n\r\n",
        ("GET", "/p", "q", "a:1", "1.1"),
    ),
    "absolute-form without path": (b"GET HTTPS://a?q HTTP/1.1\r\nHost: b\r\n\r\n", ("GET", "/", "q", "a", "1.1")),
    "absolute-form without Host": (b"GET http://a/p HTTP/1.1\r\n\r\n", ("GET", "/p", "", None, "1.1")),
    "absolute-form of HTTP/1.0": (b"GET http://a/p HTTP/1.0\r\n\r\n", ("GET", "/p", "", "a", "1.0")),
    "asterisk": (b"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n", ("OPTIONS", "*", "", "x", "1.1")),
    "odd method": (b"pu!t / HTTP/1.1\r\nHost: x\r\n\r\n", ("pu!t", "/", "", "x", "1.1")),
}


@pytest.mark.parametrize(("raw", "expected"), WELL_FORMED.values(), ids=WELL_FORMED)
def test_well_formed_heads_are_read(raw: bytes, expected: tuple[str | None, ...]) -> None:
    head = read(raw)
    assert head is not None
    assert (head.method, head.path, head.query, head.authority, head.http_version) == expected


def test_fields_keep_their_order_and_lose_outer_white_space() -> None:
    head = read(b"GET / HTTP/1.1\r\nHost:x\r\nX-B:  two words\t \r\nx-a:\r\nX-B: \xe9\r\n\r\n")
    assert head is not None
    assert head.headers == ((b"host", b"x"), (b"x-b", b"two words"), (b"x-a", b""), (b"x-b", b"\xe9"))
    assert head.get_all(b"x-b") == [b"two words", b"\xe9"]


@pytest.mark.parametrize("raw", [b"", b"GET", b"GET / HTTP/1.1\r\n", b"GET / HTTP/1.1\r\nHost: x\r\n\r"])
def test_a_head_that_has_not_arrived_whole_is_none(raw: bytes) -> None:
    assert read(raw) is None


def padded_head(size: int) -> bytes:
    start, end = b"GET / HTTP/1.1\r\nHost: x\r\nA: ", b"\r\n\r\n"
    return start + b"a" * (size - len(start) - len(end)) + end


def test_a_head_of_64_kib_passes_and_one_byte_more_does_not() -> None:
    assert MAX_HEAD_BYTES == 65536  # the reference: "Request headers are capped at 64 KiB"
    assert read(padded_head(65536)) is not None
    with pytest.raises(HeadersTooLarge) as caught:
        read(padded_head(65537))
    assert caught.value.status == 431
    assert caught.value.close


def test_an_endless_head_is_refused_before_it_ends() -> None:
    with pytest.raises(HeadersTooLarge):
        read(padded_head(70000)[:65537])


def test_body_bytes_after_the_head_are_not_checked() -> None:
    raw = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\n"
    assert find_head_end(raw + b"\n\r\0\n", 0) == len(raw)


@pytest.mark.parametrize("raw", [*MALFORMED.values(), *(raw for raw, _ in WELL_FORMED.values())])
def test_byte_by_byte_comes_to_the_same(raw: bytes) -> None:
    def outcome(step: int) -> Head | str | None:
        scanned = 0
        for stop in range(step, len(raw) + step, step):
            try:
                end = find_head_end(raw[:stop], scanned)
                if end is not None:
                    return parse_head(raw[:end])
            except RequestError as error:
                return error.message
            scanned = min(stop, len(raw))
        return None

    assert outcome(1) == outcome(len(raw))


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (b"", 0),
        (b"Content-Length: 0\r\n", 0),
        (b"Content-Length: 00017\r\n", 17),
        (b"Content-Length: 999999999999999999\r\n", 999999999999999999),
        (b"Content-Length: +1\r\n", None),
        (b"Content-Length: -1\r\n", None),
        (b"Content-Length: 1 1\r\n", None),
        (b"Content-Length: 1,1\r\n", None),
        (b"Content-Length: 0x1\r\n", None),
        (b"Content-Length: 1_0\r\n", None),
        (b"Content-Length: \xb2\r\n", None),
        (b"Content-Length:\r\n", None),
        (b"Content-Length: 1\r\nContent-Length: 1\r\n", None),
        (b"Content-Length: " + b"9" * 5000 + b"\r\n", None),
        (b"Transfer-Encoding: chunked\r\n", None),
        (b"Transfer-Encoding: identity\r\nContent-Length: 1\r\n", None),
    ],
)
def test_the_body_length_is_known_or_the_framing_is_unreadable(fields: bytes, expected: int | None) -> None:
    head = read(b"POST / HTTP/1.1\r\nHost: x\r\n" + fields + b"\r\n")
    assert head is not None
    assert body_length(head) == expected


@pytest.mark.parametrize(
    "raw",
    [
        b"GET / HTTP/1.1\r\nA:" + b" " * 65000 + b"\x01\r\n\r\n",
        b"GET / HTTP/1.1\r\nA: " + b"x " * 32000 + b"\x01\r\n\r\n",
        b"GET /" + b"%41" * 21000 + b'" HTTP/1.1\r\n\r\n',
        b"GET http://" + b"a" * 65000 + b'" HTTP/1.1\r\n\r\n',
        b"GET / HTTP/1.1\r\n" + b"a:\r\n" * 16000 + b"\x01\r\n\r\n",
    ],
)
def test_hostile_heads_cost_linear_time(raw: bytes) -> None:
    started = time.process_time()
    with pytest.raises(BadRequest):
        read(raw)
    # Milliseconds when linear; a quadratic scan of 64 KiB takes tens of seconds.
    assert time.process_time() - started < 1


_FRAGMENTS = (
    *(b"GET ", b"POST ", b"/", b"/a?b", b"*", b"http://h/", b"%4", b"%41", b"#", b" HTTP/1.1", b" HTTP/1.0"),
    *(b"Host: x", b"A: b", b"Content-Length: 3", b"Transfer-Encoding: chunked"),
    *(b"\r\n", b"\r\n\r\n", b"\r", b"\n", b"\0", b": ", b" ", b"\t", b"\xff"),
)
_pieces = st.lists(st.sampled_from(_FRAGMENTS) | st.binary(max_size=4), max_size=24).map(b"".join)
_heads = st.builds(
    lambda method, target, fields: (
        method
        + b" "
        + target
        + b" HTTP/1.1\r\nHost: x\r\n"
        + b"".join(n + b":" + v + b"\r\n" for n, v in fields)
        + b"\r\n"
    ),
    st.sampled_from([b"GET", b"POST", b"A-B"]) | st.binary(min_size=1, max_size=3),
    st.binary(max_size=6).map(lambda rest: b"/" + rest),
    st.lists(st.tuples(st.binary(min_size=1, max_size=4), st.binary(max_size=8)), max_size=4),
)


@given(_pieces | _heads)
@example(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
def test_any_bytes_are_a_head_or_one_typed_error_and_h11_agrees(raw: bytes) -> None:
    try:
        head = read(raw)
    except RequestError:
        return
    if head is None or not head.get_all(b"host") or body_length(head) is None:
        return
    end = find_head_end(raw, 0)
    assert end is not None
    reader = h11.Connection(h11.SERVER)
    reader.receive_data(raw[:end])
    event = reader.next_event()
    assert isinstance(event, h11.Request)
    assert event.method.decode() == head.method
    assert tuple(event.headers) == head.headers
    if raw.split(b" ")[1].startswith(b"/"):
        assert event.target.decode().split("?", 1)[0] == head.path
