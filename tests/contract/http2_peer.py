"""An HTTP/2 client around the h2 project's connection object, which the server does not use.

h2's checks of what a client sends are off, so that it sends what a test wants to see refused.
"""

from __future__ import annotations

import contextlib
import functools
import socket
import struct

import anyio
import h2.config
import h2.connection
import h2.events
import h2.settings

from tests.contract.asking import Ask, Gone, Reply

GOAWAY = 7
"""The type of the frame (RFC 9113 section 6.8)."""


def pseudo_fields(ask: Ask, authority: str | None) -> list[tuple[bytes, bytes]]:
    """The pseudo-header fields of a request."""
    fields = [(b":method", ask.method), (b":scheme", b"http"), (b":path", ask.target)]
    if authority is not None:
        fields.append((b":authority", authority.encode()))
    return fields


class Http2Peer:
    """One connection; requests on it may overlap.

    Attributes:
        goaways: last stream id and error code of each GOAWAY that came.
    """

    def __init__(self, connected: socket.socket, our_authority: str, *, initial_window: int | None = None) -> None:
        self._socket = connected
        self._our_authority = our_authority
        self.h2 = h2.connection.H2Connection(
            h2.config.H2Configuration(
                client_side=True,
                header_encoding=None,
                validate_outbound_headers=False,
                normalize_outbound_headers=False,
            )
        )
        if initial_window is not None:
            self.h2.local_settings = h2.settings.Settings(
                client=True, initial_values={h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: initial_window}
            )
        # Without Huffman coding, which takes h2's encoder a second for the largest heads.
        self.h2.encoder.encode = functools.partial(self.h2.encoder.encode, huffman=False)  # type: ignore[method-assign]
        self.h2.initiate_connection()
        self._calls: dict[int, Http2Call] = {}
        self._has_ended = False
        self._received = bytearray()
        self.goaways: list[tuple[int, int]] = []

    async def ask(self, ask: Ask) -> Reply:
        """Sends a whole request and reads its answer."""
        call = await self.begin(ask)
        if ask.body:
            await call.send(ask.body)
        return await call.reply()

    async def begin(self, ask: Ask, *, ends: bool | None = None) -> Http2Call:
        """Sends the head of a request; `ends` it, or as its body says."""
        authority = self._our_authority if ask.authority == "ours" else ask.authority
        fields = [*pseudo_fields(ask, authority), *ask.fields]
        return await self.begin_with(fields, ends=not ask.body if ends is None else ends)

    async def begin_with(self, fields: list[tuple[bytes, bytes]], *, ends: bool) -> Http2Call:
        """Sends these fields as the head of a request."""
        stream_id = self.h2.get_next_available_stream_id()
        self.h2.send_headers(stream_id, fields, end_stream=ends)
        self._calls[stream_id] = call = Http2Call(self, stream_id)
        await self.flush()
        return call

    async def flush(self) -> None:
        """Sends what h2 has to send; stops in silence when the server has closed."""
        await self.send(self.h2.data_to_send())

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

    def close(self) -> None:
        """Closes both sides."""
        self._socket.close()

    async def is_closed(self) -> bool:
        """Whether the server has ended the connection, once everything has happened that can."""
        await anyio.sleep(0.001)
        while not self._has_ended:
            try:
                self._take(self._socket.recv(65536))
            except BlockingIOError:
                break
            except ConnectionResetError:
                self._has_ended = True
        with contextlib.suppress(OSError):
            await self.flush()
        return self._has_ended

    async def grant(self, num_bytes: int) -> None:
        """Gives the server credit for the connection, and for no stream."""
        self.h2.increment_flow_control_window(num_bytes)
        await self.flush()

    async def seen(self) -> bytes:
        """All bodies of answers that have come, one behind the other."""
        await self.is_closed()
        return b"".join(call.body for call in self._calls.values())

    async def pump(self) -> None:
        """Waits for bytes from the server and acts on them.

        Raises:
            Gone: the connection has ended.
        """
        await self.flush()
        if self._has_ended:
            raise Gone
        while True:
            try:
                self._take(self._socket.recv(65536))
                break
            except BlockingIOError:
                await anyio.wait_readable(self._socket)
            except ConnectionResetError:
                self._has_ended = True
                break
        await self.flush()

    def _take(self, data: bytes) -> None:
        if not data:
            self._has_ended = True
            return
        self._received += data
        for event in self.h2.receive_data(self._take_frames()):
            stream_id = getattr(event, "stream_id", None)
            if stream_id:
                self._calls[stream_id].take(event)

    def _take_frames(self) -> bytes:
        """The whole frames that have come, but for GOAWAY, after which h2 takes nothing more."""
        frames = []
        while len(self._received) >= 9:
            end = 9 + int.from_bytes(self._received[:3], "big")
            if len(self._received) < end:
                break
            frame = bytes(self._received[:end])
            del self._received[:end]
            if frame[3] == GOAWAY:
                last_stream_id, error_code = struct.unpack(">II", frame[9:17])
                self.goaways.append((last_stream_id, error_code))
            else:
                frames.append(frame)
        return b"".join(frames)


class Http2Call:
    """A request whose head has been sent, on its stream."""

    def __init__(self, peer: Http2Peer, stream_id: int) -> None:
        self._peer = peer
        self.stream_id = stream_id
        self.reset: int | None = None
        self.num_received = 0
        self._informational: list[int] = []
        self._reply: Reply | None = None
        # How many bytes of DATA are given back to the server's windows as they come.
        self.gives_credit = True

    async def send(self, data: bytes, *, ends: bool = True) -> None:
        """Sends a piece of the body, the last one unless `ends` is false."""
        if self.reset is None:
            self._peer.h2.send_data(self.stream_id, data, end_stream=ends)
            await self._peer.flush()

    async def ends_with(self) -> int:
        """The error code of the stream's reset, once it has come."""
        while self.reset is None:
            await self._peer.pump()
        return self.reset

    @property
    def informational(self) -> list[int]:
        """The statuses of the 1xx answers that have come."""
        return self._informational

    @property
    def body(self) -> bytes:
        """What has come of the answer's body."""
        return self._reply.body if self._reply is not None else b""

    async def cancel(self) -> None:
        """Resets the stream."""
        self._peer.h2.reset_stream(self.stream_id, 8)
        await self._peer.flush()

    async def reply(self) -> Reply:
        """The answer.

        Raises:
            Gone: there is none.
        """
        while self.reset is None and not (self._reply is not None and self._reply.is_complete):
            try:
                await self._peer.pump()
            except Gone:
                break
        if self._reply is None:
            raise Gone(self.reset)
        await self._peer.is_closed()  # takes what has come right behind the answer
        self._reply.informational = self._informational
        self._reply.reset = self.reset
        return self._reply

    def take(self, event: h2.events.Event) -> None:
        """Keeps what came on this stream."""
        if isinstance(event, h2.events.InformationalResponseReceived):
            self._informational.append(_status(event.headers))
        elif isinstance(event, h2.events.ResponseReceived):
            assert event.headers is not None
            fields = tuple((bytes(name), bytes(value)) for name, value in event.headers)
            self._reply = Reply(status=_status(event.headers), fields=tuple(f for f in fields if f[0][:1] != b":"))
        elif isinstance(event, h2.events.DataReceived):
            assert self._reply is not None
            assert event.data is not None
            self._reply.body += event.data
            self.num_received += len(event.data)
            if self.gives_credit and event.flow_controlled_length:
                self._peer.h2.acknowledge_received_data(event.flow_controlled_length, self.stream_id)
        elif isinstance(event, h2.events.StreamEnded):
            assert self._reply is not None
            self._reply.is_complete = True
        elif isinstance(event, h2.events.StreamReset):
            self.reset = int(event.error_code or 0)


def _status(headers: object) -> int:
    return int(dict(headers)[b":status"])  # type: ignore[call-overload] # h2 types its fields as a union of pairs
