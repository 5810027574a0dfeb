"""HTTP/1.1 as a state machine without sockets or time: bytes in and events out, answers in and bytes out.

`head` reads and checks the head, because heads that h11 would raise on (odd Content-Length, Transfer-Encoding, no
Host) must reach the application, whose gate answers them in its own order. h11 then keeps the state of the cycle from
a head reduced to what framing depends on: how much body is due, how the answer is delimited for this method and
version, who may speak, and whether the connection can carry another request.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import TypeVar

import h11

from poot.errors import RequestError
from poot.net.exchange import Head, Headers
from poot.net.http.events import BodyArrived, BodyEnded, Event, RequestArrived, RequestRefused
from poot.net.http.head import body_length, find_head_end, parse_head

_REASONS = {status.value: status.phrase.encode("ascii") for status in HTTPStatus}
_BODILESS_STATUSES = (204, 304)
_CRLF = b"\r\n"

_H11Event = TypeVar("_H11Event", h11.Request, h11.Data, h11.EndOfMessage)


class Http1:
    """The server's side of one HTTP/1.x connection.

    Feed it with `receive`, pull with `next_event` until that returns None. Answer a `RequestArrived` or a
    `RequestRefused` with `answer`, or with `begin_answer`, `piece` and `end_answer`; then, if `is_reusable`, call
    `next_cycle` and go on pulling.
    """

    def __init__(self) -> None:
        self._h11 = h11.Connection(h11.SERVER)
        self._buffer = bytearray()
        self._scanned = 0
        self._has_skipped_blank_line = False
        self._head: Head | None = None
        self._is_refused = False
        # Body bytes not handed out yet; None when the framing fields cannot be read.
        self._body_left: int | None = 0
        self._has_told_body_end = False
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
        return self._h11.our_state is h11.DONE and self._h11.their_state is h11.DONE

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
        self._h11.receive_data(data)
        event = BodyArrived(bytes(self._pull(h11.Data).data))
        if self._body_left == 0:
            self._pull(h11.EndOfMessage)
        return event

    def next_cycle(self) -> None:
        """Forgets the finished request; what was received ahead is the beginning of the next."""
        self._h11.start_next_cycle()
        self._head = None
        self._has_told_body_end = False
        self._scanned = 0
        self._has_skipped_blank_line = False

    def ask_for_body(self) -> bytes:
        """100 Continue, or nothing when the client does not wait for one (RFC 9110 section 10.1.1)."""
        if not self._h11.they_are_waiting_for_100_continue:
            return b""
        return self._send(h11.InformationalResponse(status_code=100, reason=_REASONS[100], headers=[]))

    def answer(self, status: int, headers: Headers, body: bytes, *, close: bool) -> bytes:
        """A whole answer with its Content-Length; its body is left out where the method or status has none.

        Args:
            status: 200 to 599.
            headers: fields beside Content-Length and Connection.
            body: the content, as a GET would get it.
            close: end the connection after this answer. It ends anyway when body bytes were left unread, when the
                client asked for that, and on HTTP/1.0.

        Raises:
            h11.LocalProtocolError: a field is malformed; nothing has changed.
        """
        if status not in _BODILESS_STATUSES:
            headers = (*headers, (b"content-length", b"%d" % len(body)))
        head = self._answer_head(status, headers, close=close)
        content = self._send(h11.Data(data=body)) if self._sends_body and body else b""
        return head + content + self._send(h11.EndOfMessage())

    def begin_answer(self, status: int, headers: Headers, *, close: bool) -> bytes:
        """The head of an answer of unknown length: chunked, or on HTTP/1.0 ended by the end of the connection.

        Raises:
            h11.LocalProtocolError: a field is malformed; nothing has changed.
        """
        data = self._answer_head(status, headers, close=close)
        self._is_chunked = self._head is not None and self._head.http_version == "1.1"
        return data

    def piece(self, data: bytes) -> bytes:
        """A piece of the answer's body as it goes on the wire; nothing for HEAD and for an empty piece."""
        # Not by way of h11, whose state no piece changes: this runs for every token of every stream.
        if not data or not self._sends_body:
            return b""
        return b"%x\r\n%b\r\n" % (len(data), data) if self._is_chunked else data

    def end_answer(self) -> bytes:
        """What ends the answer: the last chunk, where there are chunks."""
        return self._send(h11.EndOfMessage())

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
            head = parse_head(raw)
        except RequestError as error:
            self._is_refused = True
            return RequestRefused(error)
        self._head = head
        self._body_left = body_length(head)
        self._h11.receive_data(_framing_head(head, self._body_left))
        self._pull(h11.Request)
        if not self._body_left:
            self._pull(h11.EndOfMessage)
        return RequestArrived(head, self._h11.they_are_waiting_for_100_continue)

    def _answer_head(self, status: int, headers: Headers, *, close: bool) -> bytes:
        # A body left unread stands where the next head would be looked for.
        if close or self._is_refused or self._body_left != 0:
            headers = (*headers, (b"connection", b"close"))
        response = h11.Response(status_code=status, headers=list(headers), reason=_REASONS.get(status, b""))
        self._sends_body = status not in _BODILESS_STATUSES and not (self._head and self._head.method == "HEAD")
        return self._send(response)

    def _send(self, event: h11.Event) -> bytes:
        data = self._h11.send(event)
        assert data is not None  # only ConnectionClosed has no bytes
        return data

    def _pull(self, kind: type[_H11Event]) -> _H11Event:
        event = self._h11.next_event()
        assert isinstance(event, kind), event  # the head was checked, and h11 is fed exactly the body
        return event


def _framing_head(head: Head, length: int | None) -> bytes:
    """A head that says to h11 what decides framing and persistence in `head`, and nothing else."""
    lines = [f"{head.method} / HTTP/{head.http_version}\r\nhost: poot".encode("ascii")]
    if b"close" in _options(head, b"connection"):
        lines.append(b"connection: close")
    if length:
        lines.append(b"content-length: %d" % length)
        if b"100-continue" in _options(head, b"expect"):
            lines.append(b"expect: 100-continue")
    return b"\r\n".join(lines) + b"\r\n\r\n"


def _options(head: Head, name: bytes) -> list[bytes]:
    """The members of a list field in lower case (RFC 9110 section 5.6.1)."""
    return [option.strip(b" \t").lower() for value in head.get_all(name) for option in value.split(b",")]
