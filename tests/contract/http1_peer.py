"""An HTTP/1.1 client made of bytes on a socket, with a strict reader of its own.

Shares no code with the server and none with h11, which the server uses: what both sides of a test took from one
library would agree by itself.
"""

from __future__ import annotations

import re
import socket

import anyio

from tests.contract.asking import Ask, Fields, Gone, Reply

_STATUS_LINE = re.compile(rb"HTTP/1\.1 ([1-5][0-9]{2}) [\x20-\x7e]*")
_FIELD = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]+):[ \t]*([\x20-\x7e]*)")


def head_bytes(ask: Ask, authority: str | None) -> bytes:
    """The head of a request on the wire."""
    host = b"" if authority is None else b"host: %b\r\n" % authority.encode()
    fields = b"".join(b"%b: %b\r\n" % field for field in ask.fields)
    return b"%b %b %b\r\n%b%b\r\n" % (ask.method, ask.target, ask.version, host, fields)


class Http1Peer:
    """One connection; requests on it follow each other."""

    def __init__(self, connected: socket.socket, our_authority: str) -> None:
        self._socket = connected
        self._our_authority = our_authority
        self._received = bytearray()
        self._has_ended = False

    async def ask(self, ask: Ask) -> Reply:
        """Sends a whole request and reads its answer."""
        call = await self.begin(ask)
        await call.send(ask.body)
        return await call.reply()

    async def begin(self, ask: Ask) -> Http1Call:
        """Sends the head of a request."""
        authority = self._our_authority if ask.authority == "ours" else ask.authority
        await self.send(head_bytes(ask, authority))
        return Http1Call(self, ask)

    async def send(self, data: bytes) -> None:
        """Sends raw bytes; stops in silence when the server has closed."""
        view = memoryview(data)
        while view:
            try:
                view = view[self._socket.send(view) :]
            except BlockingIOError:
                await anyio.wait_writable(self._socket)
            except (ConnectionResetError, BrokenPipeError):
                return

    def end_sending(self) -> None:
        """Closes our side."""
        self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Closes both sides."""
        self._socket.close()

    async def is_closed(self) -> bool:
        """Whether the server has ended the connection, once everything has happened that can."""
        unread = await self.seen()
        assert not unread, f"unexpected bytes: {unread[:100]!r}"
        return self._has_ended

    async def seen(self) -> bytes:
        """Every byte that has come and has not been read as an answer; they stay."""
        await anyio.sleep(0.001)
        while not self._has_ended:
            try:
                self._take(self._socket.recv(65536))
            except BlockingIOError:
                break
            except ConnectionResetError:
                self._has_ended = True
        return bytes(self._received)

    async def rest(self) -> bytes:
        """Everything until the server closes. A reset counts as that."""
        while not self._has_ended:
            await self._receive()
        data = bytes(self._received)
        self._received.clear()
        return data

    async def reply(self, *, has_body: bool = True) -> Reply:
        """The next final answer.

        Raises:
            Gone: there is none.
        """
        informational: list[int] = []
        while True:
            status, fields = await self._head()
            if status >= 200:
                break
            assert not fields, "a 1xx answer needs no fields"
            informational.append(status)
        reply = Reply(status=status, fields=fields, informational=informational)
        try:
            await self._read_body(reply, has_body)
            reply.is_complete = True
        except Gone:
            pass
        return reply

    async def _head(self) -> tuple[int, Fields]:
        status_line = await self._line()
        match = _STATUS_LINE.fullmatch(status_line)
        assert match is not None, f"no status line: {status_line!r}"
        fields = []
        while line := await self._line():
            field = _FIELD.fullmatch(line)
            assert field is not None, f"no header field: {line!r}"
            fields.append((field[1].lower(), field[2]))
        return int(match[1]), tuple(fields)

    async def _read_body(self, reply: Reply, has_body: bool) -> None:
        length, coding = reply.get(b"content-length"), reply.get(b"transfer-encoding")
        assert length is None or coding is None, "two kinds of framing"
        if not has_body or reply.status in (204, 304):
            return
        if coding is not None:
            assert coding == b"chunked"
            while size := int(await self._line(), 16):
                reply.body += await self._exactly(size)
                assert await self._line() == b""
            assert await self._line() == b"", "no trailers were asked for"
        elif length is not None:
            reply.body = await self._exactly(int(length))
        else:
            assert reply.get(b"connection") == b"close", "a body of unknown length ends with its connection"
            reply.body = await self.rest()

    async def _line(self) -> bytes:
        while (end := self._received.find(b"\r\n")) < 0:
            await self._receive()
        line = bytes(self._received[:end])
        del self._received[: end + 2]
        return line

    async def _exactly(self, num_bytes: int) -> bytes:
        while len(self._received) < num_bytes:
            await self._receive()
        data = bytes(self._received[:num_bytes])
        del self._received[:num_bytes]
        return data

    async def _receive(self) -> None:
        if self._has_ended:
            raise Gone
        while True:
            try:
                self._take(self._socket.recv(65536))
                return
            except BlockingIOError:
                await anyio.wait_readable(self._socket)
            except ConnectionResetError:
                self._has_ended = True
                return

    def _take(self, data: bytes) -> None:
        self._received += data
        self._has_ended = not data


class Http1Call:
    """A request whose head has been sent."""

    def __init__(self, peer: Http1Peer, ask: Ask) -> None:
        self._peer = peer
        self._ask = ask

    async def send(self, data: bytes, *, ends: bool = True) -> None:
        """Sends a piece of the body; `ends` says nothing here, where the head did."""
        await self._peer.send(data)

    async def reply(self) -> Reply:
        """The answer.

        Raises:
            Gone: there is none.
        """
        return await self._peer.reply(has_body=self._ask.method != b"HEAD")
