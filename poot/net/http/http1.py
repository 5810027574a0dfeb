"""HTTP/1.1 as a state machine without sockets or time: bytes in and events out, answers in and bytes out.

`head` reads and checks the head, because heads that deserve an answer of their own (odd Content-Length,
Transfer-Encoding, no Host) must reach the application, whose gate answers them in its order. What is left of HTTP/1.1
is here: how much body is due, how the answer is delimited for this method and version (RFC 9112 section 6.3), and
whether the connection can carry another request (section 9.3).

No library sits underneath: h11 would read every head and check every answer a second time, which was half the cost of a
small request. It is the reference in the tests instead, as the client that reads every kind of answer written here
and has to agree about where it ends and whether the connection goes on.
"""

from __future__ import annotations

import re
from enum import Enum
from http import HTTPStatus

from poot.errors import RequestError
from poot.net.exchange import Head, Headers
from poot.net.http.events import BodyArrived, BodyEnded, Event, RequestArrived, RequestRefused
from poot.net.http.head import FIELD_NAME, FIELD_VALUE, body_length, find_head_end, parse_head

_STATUS_LINES = {
    status.value: b"HTTP/1.1 %d %b\r\n" % (status.value, status.phrase.encode("ascii")) for status in HTTPStatus
}
_BODILESS_STATUSES = (204, 304)
_CRLF = b"\r\n"
_CONTINUE = _STATUS_LINES[100] + _CRLF
_LAST_CHUNK = b"0\r\n\r\n"
_FIELD_LINES = re.compile(rb"(?:%b: %b\r\n)*" % (FIELD_NAME.pattern, FIELD_VALUE.pattern))


class _Answer(Enum):
    """How far the answer of a cycle is."""

    NONE = "none"
    BEGUN = "begun"
    ENDED = "ended"


class Http1:
    """The server's side of one HTTP/1.x connection.

    Feed it with `receive`, pull with `next_event` until that returns None. Answer a `RequestArrived` or a
    `RequestRefused` with `answer`, or with `begin_answer`, `piece` and `end_answer`; then, if `is_reusable`, call
    `next_cycle` and go on pulling.
    """

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._scanned = 0
        self._has_skipped_blank_line = False
        self._head: Head | None = None
        # A client that asks the same again, as probes do, sends the same bytes, and they mean the same.
        self._last_parsed: _Parsed | None = None
        self._is_refused = False
        # Body bytes not handed out yet; None when the framing fields cannot be read.
        self._body_left: int | None = 0
        self._has_told_body_end = False
        self._expects_continue = False
        self._answer = _Answer.NONE
        self._is_last = False
        self._is_chunked = False
        self._sends_body = True

    @property
    def num_buffered_bytes(self) -> int:
        """Bytes received and not handed out: part of a head, of a body, or requests sent ahead."""
        return len(self._buffer)

    @property
    def has_begun(self) -> bool:
        """Whether part of the next head has arrived. A blank line before it does not count."""
        return self._head is None and not _CRLF.startswith(self._buffer)

    @property
    def body_left(self) -> int | None:
        """Body bytes of the current request not handed out yet; None when its framing fields cannot be read."""
        return self._body_left

    @property
    def sends_body(self) -> bool:
        """Whether the answer that was begun has a body on the wire: not for HEAD, 204 and 304."""
        return self._sends_body

    @property
    def is_reusable(self) -> bool:
        """Whether request and answer are complete and another request may follow."""
        return self._answer is _Answer.ENDED and self._body_left == 0 and not self._is_last

    def receive(self, data: bytes) -> None:
        """Takes bytes from the peer."""
        self._buffer += data

    def begins_with(self, prefix: bytes) -> bool | None:
        """Whether what was received begins with `prefix`; None while it is too short to tell."""
        if len(self._buffer) < len(prefix) and prefix.startswith(self._buffer):
            return None
        return self._buffer.startswith(prefix)

    def take_received(self) -> bytes:
        """Everything received, for another protocol to read; nothing of it has been pulled."""
        received = bytes(self._buffer)
        self._buffer.clear()
        return received

    def next_event(self) -> Event | None:
        """The next thing the bytes so far amount to; None when it takes more bytes, or a next cycle, to tell."""
        if self._head is None:
            return None if self._is_refused else self._next_head()
        if self._body_left == 0:
            if self._has_told_body_end:
                return None
            self._has_told_body_end = True
            return BodyEnded()
        if self._body_left is None or not self._buffer:
            return None
        data = bytes(self._buffer[: self._body_left])
        del self._buffer[: len(data)]
        self._body_left -= len(data)
        self._expects_continue = False
        return BodyArrived(data)

    def next_cycle(self) -> None:
        """Forgets the finished request; what was received ahead is the beginning of the next."""
        assert self.is_reusable
        self._head = None
        self._answer = _Answer.NONE
        self._has_told_body_end = False
        self._scanned = 0
        self._has_skipped_blank_line = False

    def ask_for_body(self) -> bytes:
        """100 Continue, or nothing when the client does not wait for one (RFC 9110 section 10.1.1)."""
        if not self._expects_continue:
            return b""
        self._expects_continue = False
        return _CONTINUE

    def answer(self, status: int, headers: Headers, body: bytes, *, close: bool) -> bytes:
        """A whole answer with its Content-Length; its body is left out where the method or status has none.

        Args:
            status: 200 to 599.
            headers: fields beside Content-Length and Connection.
            body: the content, as a GET would get it.
            close: end the connection after this answer. It ends anyway when body bytes were left unread, when the
                client asked for that, and on HTTP/1.0.

        Raises:
            ValueError: a field is malformed; nothing has changed.
        """
        if status not in _BODILESS_STATUSES:
            headers = (*headers, (b"content-length", b"%d" % len(body)))
        head = self._answer_head(status, headers, close=close)
        self._answer = _Answer.ENDED
        return head + body if self._sends_body else head

    def begin_answer(self, status: int, headers: Headers, *, close: bool) -> bytes:
        """The head of an answer of unknown length: chunked, or on HTTP/1.0 ended by the end of the connection.

        Raises:
            ValueError: a field is malformed; nothing has changed.
        """
        is_chunked = self._head is not None and self._head.http_version == "1.1" and status not in _BODILESS_STATUSES
        if is_chunked:
            headers = (*headers, (b"transfer-encoding", b"chunked"))
        data = self._answer_head(status, headers, close=close)
        self._answer = _Answer.BEGUN
        self._is_chunked = is_chunked
        return data

    def piece(self, data: bytes) -> bytes:
        """A piece of the answer's body as it goes on the wire; nothing for HEAD and for an empty piece."""
        if not data or not self._sends_body:
            return b""
        return b"%x\r\n%b\r\n" % (len(data), data) if self._is_chunked else data

    def end_answer(self) -> bytes:
        """What ends the answer: the last chunk, where there are chunks."""
        assert self._answer is _Answer.BEGUN
        self._answer = _Answer.ENDED
        return _LAST_CHUNK if self._is_chunked and self._sends_body else b""

    def _next_head(self) -> Event | None:
        if not self._has_skipped_blank_line and self._buffer[:2] == _CRLF:
            # Some clients end a body with one; RFC 9112 section 2.2 asks servers to pass over it.
            del self._buffer[:2]
            self._scanned = 0
            self._has_skipped_blank_line = True
        try:
            end = find_head_end(self._buffer, self._scanned)
            self._scanned = len(self._buffer)
            if end is None:
                return None
            raw = bytes(self._buffer[:end])
            del self._buffer[:end]
            if self._last_parsed is None or self._last_parsed.raw != raw:
                self._last_parsed = _Parsed(raw)
        except RequestError as error:
            self._is_refused = True
            return RequestRefused(error)
        parsed = self._last_parsed
        self._head = parsed.head
        self._body_left = parsed.body_length
        self._is_last = parsed.is_last
        self._expects_continue = parsed.expects_continue
        return RequestArrived(parsed.head, parsed.expects_continue)

    def _answer_head(self, status: int, headers: Headers, *, close: bool) -> bytes:
        if self._answer is not _Answer.NONE:
            raise RuntimeError("the request has been answered already")
        # A body left unread stands where the next head would be looked for.
        is_last = close or self._is_last or self._is_refused or self._body_left != 0
        if is_last:
            headers = (*headers, (b"connection", b"close"))
        lines = b"".join([b"%b: %b\r\n" % field for field in headers])
        # Counted too, since a value that brought line ends along could look like two fields.
        if not _FIELD_LINES.fullmatch(lines) or lines.count(b"\n") != len(headers):
            raise ValueError("a field of the answer is no token with a value of one line")
        self._is_last = is_last
        self._expects_continue = False
        self._sends_body = status not in _BODILESS_STATUSES and not (self._head and self._head.method == "HEAD")
        status_line = _STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status
        return status_line + lines + _CRLF


class _Parsed:
    """A head and what this connection has to know of it.

    Raises:
        BadRequest: it is malformed.
    """

    __slots__ = ("body_length", "expects_continue", "head", "is_last", "raw")

    def __init__(self, raw: bytes) -> None:
        self.raw = raw
        self.head = head = parse_head(raw)
        self.body_length = body_length(head)
        is_1_1 = head.http_version == "1.1"
        self.is_last = not is_1_1 or b"close" in _options(head, b"connection")
        self.expects_continue = is_1_1 and bool(self.body_length) and b"100-continue" in _options(head, b"expect")


def _options(head: Head, name: bytes) -> list[bytes]:
    """The members of a list field in lower case (RFC 9110 section 5.6.1)."""
    return [option.strip(b" \t").lower() for value in head.get_all(name) for option in value.split(b",")]
