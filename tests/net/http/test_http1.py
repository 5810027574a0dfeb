"""Scripts of bytes in and events out, answers in and bytes out; each also fed byte by byte."""

from __future__ import annotations

from collections.abc import Iterator

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st

from poot.net.http.events import BodyArrived, BodyEnded, Event, RequestArrived, RequestRefused
from poot.net.http.http1 import Http1

GET = b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n"
POST = b"POST /b HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello"


def events(http: Http1, data: bytes, *, step: int | None = None) -> list[Event]:
    """Everything `data` amounts to, with body pieces joined."""
    found: list[Event] = []
    for start in range(0, len(data), step or max(len(data), 1)):
        http.receive(data[start : start + (step or len(data))])
        while (event := http.next_event()) is not None:
            if isinstance(event, BodyArrived) and found and isinstance(found[-1], BodyArrived):
                event = BodyArrived(found.pop().data + event.data)  # type: ignore[union-attr]  # checked above
            found.append(event)
    return found


def only_head(found: list[Event]) -> RequestArrived:
    (event,) = [event for event in found if isinstance(event, RequestArrived)]
    return event


@pytest.fixture(params=[None, 1, 3], ids=["whole", "by byte", "by threes"])
def step(request: pytest.FixtureRequest) -> Iterator[int | None]:
    return request.param  # type: ignore[no-any-return]  # pytest does not type parameters


def test_a_get_is_a_head_and_an_empty_body(step: int | None) -> None:
    found = events(Http1(), GET, step=step)
    assert [type(event) for event in found] == [RequestArrived, BodyEnded]
    assert only_head(found).head.path == "/a"


def test_a_post_is_a_head_a_body_and_its_end(step: int | None) -> None:
    http = Http1()
    found = events(http, POST, step=step)
    assert found[1:] == [BodyArrived(b"hello"), BodyEnded()]
    assert http.body_left == 0


def test_what_follows_a_request_waits_for_the_next_cycle(step: int | None) -> None:
    http = Http1()
    found = events(http, POST + GET, step=step)
    assert len(found) == 3
    assert http.num_buffered_bytes == len(GET)
    assert not http.is_reusable
    http.answer(200, (), b"", close=False)
    assert http.is_reusable
    http.next_cycle()
    assert http.has_begun
    assert only_head(list(iter(http.next_event, None))).head.path == "/a"


def test_one_blank_line_before_a_request_is_passed_over(step: int | None) -> None:
    http = Http1()
    assert not http.has_begun
    assert only_head(events(http, b"\r\n" + GET, step=step)).head.path == "/a"


def test_two_blank_lines_are_refused(step: int | None) -> None:
    assert isinstance(events(Http1(), b"\r\n\r\n" + GET, step=step)[0], RequestRefused)


@pytest.mark.parametrize(("sent", "has_begun"), [(b"", False), (b"\r", False), (b"\r\n", False), (b"G", True)])
def test_a_request_has_begun_with_its_first_byte(sent: bytes, has_begun: bool) -> None:
    http = Http1()
    assert events(http, sent) == []
    assert http.has_begun is has_begun


def test_a_malformed_head_is_refused_once_and_answered_with_close(step: int | None) -> None:
    http = Http1()
    (event,) = events(http, b"GET / HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n" + GET, step=step)
    assert isinstance(event, RequestRefused)
    assert b"connection: close" in http.answer(400, (), b"no", close=False)
    assert not http.is_reusable
    assert http.next_event() is None


@pytest.mark.parametrize(
    "fields",
    [
        b"Transfer-Encoding: chunked",
        b"Transfer-Encoding: chunked\r\nContent-Length: 5",
        b"Content-Length: 5\r\nContent-Length: 5",
        b"Content-Length: 5, 5",
        b"Content-Length: +5",
    ],
)
def test_odd_framing_reaches_the_application_and_ends_the_connection(fields: bytes, step: int | None) -> None:
    http = Http1()
    found = events(http, b"POST / HTTP/1.1\r\nHost: x\r\n" + fields + b"\r\n\r\n5\r\nhello\r\n0\r\n\r\n", step=step)
    assert only_head(found).head.method == "POST"
    assert len(found) == 1, "not one byte of a body that cannot be framed is handed out"
    assert http.body_left is None
    assert b"\r\nconnection: close\r\n" in http.answer(411, (), b"", close=False).lower()
    assert not http.is_reusable


def test_an_unread_body_ends_the_connection() -> None:
    http = Http1()
    http.receive(POST)
    assert isinstance(http.next_event(), RequestArrived)
    assert http.body_left == 5
    assert b"\r\nconnection: close\r\n" in http.answer(404, (), b"", close=False)
    assert not http.is_reusable


@pytest.mark.parametrize("expectation", [b"100-continue", b"100-Continue"])
def test_a_waiting_client_is_asked_for_its_body_once(expectation: bytes) -> None:
    http = Http1()
    http.receive(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nExpect: " + expectation + b"\r\n\r\n")
    event = http.next_event()
    assert isinstance(event, RequestArrived)
    assert event.expects_continue
    assert http.ask_for_body() == b"HTTP/1.1 100 Continue\r\n\r\n"
    assert http.ask_for_body() == b""


def test_a_client_that_sends_its_body_at_once_is_not_asked() -> None:
    http = Http1()
    events(http, b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\na")
    assert http.ask_for_body() == b""


@pytest.mark.parametrize(
    "raw",
    [
        GET.replace(b"Host", b"Expect: 100-continue\r\nHost"),
        b"POST / HTTP/1.0\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n",
    ],
    ids=["no body", "HTTP/1.0"],
)
def test_no_continue_without_a_body_or_for_http_1_0(raw: bytes) -> None:
    http = Http1()
    http.receive(raw)
    http.next_event()
    assert http.ask_for_body() == b""


@pytest.mark.parametrize(
    ("raw", "is_reusable"),
    [
        (GET, True),
        (GET.replace(b"Host", b"Connection: close\r\nHost"), False),
        (GET.replace(b"Host", b"Connection: keep-alive, Close\r\nHost"), False),
        (b"GET / HTTP/1.0\r\n\r\n", False),
        (b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", False),
    ],
)
def test_who_may_send_another_request(raw: bytes, is_reusable: bool) -> None:
    http = Http1()
    events(http, raw)
    answer = http.answer(200, (), b"x", close=False)
    assert http.is_reusable is is_reusable
    assert (b"connection: close" in answer.lower()) is not is_reusable


def test_close_is_said_when_asked_for() -> None:
    http = Http1()
    events(http, GET)
    assert b"connection: close" in http.answer(200, (), b"x", close=True)
    assert not http.is_reusable


def test_a_whole_answer_has_its_length() -> None:
    http = Http1()
    events(http, GET)
    assert http.answer(200, ((b"x-a", b"b"),), b"hello", close=False) == (
        b"HTTP/1.1 200 OK\r\nx-a: b\r\ncontent-length: 5\r\n\r\nhello"
    )


def test_a_stream_is_chunked() -> None:
    http = Http1()
    events(http, GET)
    assert b"\r\ntransfer-encoding: chunked\r\n" in http.begin_answer(200, (), close=False)
    assert http.piece(b"a" * 17) == b"11\r\n" + b"a" * 17 + b"\r\n"
    assert http.piece(b"") == b"", "an empty chunk would end the body"
    assert http.end_answer() == b"0\r\n\r\n"
    assert http.is_reusable


def test_a_stream_to_http_1_0_is_ended_by_the_connection() -> None:
    http = Http1()
    events(http, b"GET / HTTP/1.0\r\n\r\n")
    head = http.begin_answer(200, (), close=False).lower()
    assert b"transfer-encoding" not in head
    assert b"\r\nconnection: close\r\n" in head
    assert (http.piece(b"abc"), http.end_answer()) == (b"abc", b"")
    assert not http.is_reusable


def test_head_is_answered_without_a_body_and_with_its_length() -> None:
    http = Http1()
    events(http, GET.replace(b"GET", b"HEAD"))
    answer = http.answer(200, (), b"hello", close=False)
    assert answer == b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n"
    assert http.is_reusable


def test_a_stream_for_head_sends_no_frames() -> None:
    http = Http1()
    events(http, GET.replace(b"GET", b"HEAD"))
    http.begin_answer(200, (), close=False)
    assert (http.piece(b"abc"), http.end_answer()) == (b"", b"")
    assert http.is_reusable


@pytest.mark.parametrize("status", [204, 304])
def test_statuses_without_a_body(status: int) -> None:
    http = Http1()
    events(http, GET)
    answer = http.answer(status, (), b"", close=False)
    assert answer.endswith(b"\r\n\r\n")
    assert b"content-length" not in answer
    assert http.is_reusable


@pytest.mark.parametrize("value", [b"a\r\nSet-Cookie: b", b"a\nb", b"a\0"])
def test_a_field_that_would_split_the_answer_is_refused_and_changes_nothing(value: bytes) -> None:
    http = Http1()
    events(http, GET)
    with pytest.raises(ValueError, match="field"):
        http.answer(200, ((b"x-a", value),), b"", close=False)
    assert http.answer(500, (), b"", close=False).startswith(b"HTTP/1.1 500 Internal Server Error\r\n")


def test_upgrade_is_ignored() -> None:
    http = Http1()
    raw = POST.replace(
        b"Host", b"Upgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAMAAABk\r\nHost"
    )
    assert events(http, raw)[1:] == [BodyArrived(b"hello"), BodyEnded()]
    assert http.answer(200, (), b"", close=False).startswith(b"HTTP/1.1 200 ")
    assert http.is_reusable


@given(
    st.lists(st.binary(max_size=40), min_size=1, max_size=4),
    st.lists(st.integers(1, 30), min_size=1, max_size=8),
)
def test_any_split_of_a_pipeline_gives_the_same_requests(bodies: list[bytes], sizes: list[int]) -> None:
    data = b"".join(
        b"POST /%d HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (n, len(b), b) for n, b in enumerate(bodies)
    )
    http = Http1()
    read: list[bytes] = []
    position = 0
    turn = 0
    while len(read) < len(bodies):
        body = b""
        while not isinstance(event := http.next_event(), BodyEnded):
            if event is None:
                size = sizes[turn % len(sizes)]
                assert position < len(data)
                http.receive(data[position : position + size])
                position += size
                turn += 1
            elif isinstance(event, BodyArrived):
                body += event.data
            else:
                assert isinstance(event, RequestArrived)
                assert event.head.path == f"/{len(read)}"
        read.append(body)
        http.answer(200, (), b"", close=False)
        http.next_cycle()
    assert read == bodies
    assert position >= len(data)


@given(st.binary(max_size=200), st.integers(1, 50))
def test_arbitrary_bytes_raise_nothing(data: bytes, size: int) -> None:
    for event in events(Http1(), data, step=size):
        assert isinstance(event, RequestArrived | RequestRefused | BodyArrived | BodyEnded)


REQUESTS = {
    "GET": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "HEAD": b"HEAD / HTTP/1.1\r\nHost: x\r\n\r\n",
    "close": b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
    "HTTP/1.0": b"GET / HTTP/1.0\r\nHost: x\r\n\r\n",
    "POST": POST,
}


@given(
    st.sampled_from(sorted(REQUESTS)),
    st.sampled_from([200, 204, 304, 400, 404, 503]),
    st.booleans(),
    st.booleans(),
    st.lists(st.binary(max_size=20), max_size=4),
    st.dictionaries(
        st.sampled_from([b"x-a", b"date"]), st.from_regex(rb"[!-~]([ -~\x80-\xff]*[!-~])?", fullmatch=True)
    ),
)
def test_h11_reads_what_is_answered_and_agrees_on_what_follows(
    kind: str, status: int, is_streamed: bool, close: bool, pieces: list[bytes], fields: dict[bytes, bytes]
) -> None:
    http = Http1()
    events(http, REQUESTS[kind])
    headers = tuple(fields.items())
    if is_streamed:
        answer = http.begin_answer(status, headers, close=close)
        answer += b"".join([http.piece(piece) for piece in pieces]) + http.end_answer()
    else:
        answer = http.answer(status, headers, b"".join(pieces), close=close)

    client = h11.Connection(h11.CLIENT)
    asked = [("host", "x"), *([("connection", "close")] if kind == "close" else [])]
    client.send(h11.Request(method="HEAD" if kind == "HEAD" else "GET", target="/", headers=asked))
    client.send(h11.EndOfMessage())
    client.receive_data(answer)
    if not http.is_reusable:
        client.receive_data(b"")  # the connection closes after a last answer
    response = client.next_event()
    assert isinstance(response, h11.Response)
    assert response.status_code == status
    assert set(headers) <= set(response.headers)
    body = b""
    while isinstance(event := client.next_event(), h11.Data):
        body += bytes(event.data)
    assert isinstance(event, h11.EndOfMessage)
    assert body == (b"" if kind == "HEAD" or status in (204, 304) else b"".join(pieces))
    assert (client.their_state is h11.DONE) is http.is_reusable
    assert client.trailing_data == (b"", not http.is_reusable)


def test_a_request_is_answered_once() -> None:
    http = Http1()
    events(http, GET)
    http.answer(200, (), b"", close=False)
    with pytest.raises(RuntimeError):
        http.answer(200, (), b"", close=False)


@pytest.mark.parametrize("name", [b"", b"a b", b"a\r\nb", b"a:"])
def test_a_field_name_that_is_no_token_is_refused(name: bytes) -> None:
    http = Http1()
    events(http, GET)
    with pytest.raises(ValueError, match="field"):
        http.answer(200, ((name, b"1"),), b"", close=False)
