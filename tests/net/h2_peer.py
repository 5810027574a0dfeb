"""A client of HTTP/2 for tests: h2's own connection object over a raw socket, an independent reader and writer.

GOAWAY is kept from h2, which would read nothing after it; it is in `goaways`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import (
    DataReceived,
    InformationalResponseReceived,
    PingAckReceived,
    RemoteSettingsChanged,
    ResponseReceived,
    StreamEnded,
    StreamReset,
)
from h2.settings import SettingCodes, Settings
from hyperframe.frame import Frame, GoAwayFrame

from poot.net.connection import Connection
from poot.net.exchange import Application
from poot.net.service import Service
from tests.net import peers
from tests.net.h2_frames import split
from tests.net.peers import Client, hello

Fields = Sequence[tuple[bytes, bytes]]


@dataclass
class Answer:
    """What came back on a stream so far.

    Attributes:
        is_complete: END_STREAM was seen.
        reset: the error code of RST_STREAM, if one came.
    """

    status: int = 0
    headers: dict[bytes, bytes] = field(default_factory=dict)
    body: bytes = b""
    is_complete: bool = False
    reset: int | None = None
    has_continue: bool = False


class Peer:
    """One connection. With `gives_credit` off windows run empty, as those of a client that stops reading do."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.h2 = H2Connection(H2Configuration(client_side=True, header_encoding=None))
        self.gives_credit = True
        self.answers: dict[int, Answer] = {}
        self.goaways: list[GoAwayFrame] = []
        self.frames: list[Frame] = []
        self.data_order: list[int] = []
        self.pings: list[bytes] = []
        self.has_settings = False
        self.is_closed = False
        self._rest = bytearray()

    async def start(self, settings: dict[SettingCodes, int] | None = None) -> None:
        """Sends the preface and SETTINGS."""
        if settings:
            # Set from the start: h2 would hold an update back until the server has acknowledged it.
            self.h2.local_settings = Settings(client=True, initial_values=settings)
        self.h2.initiate_connection()
        await self.flush()

    async def flush(self) -> None:
        if data := self.h2.data_to_send():
            await self.client.send(data)

    async def request(
        self,
        path: str = "/",
        *,
        method: str = "GET",
        body: bytes | None = None,
        length: int | None = None,
        headers: Fields = (),
        ends: bool = True,
    ) -> int:
        """Sends a request, or its head and the first piece of its body; returns its stream."""
        stream_id: int = self.h2.get_next_available_stream_id()
        fields = [
            (b":method", (b"POST" if body is not None or length is not None else method.encode())),
            (b":scheme", b"http"),
            (b":authority", b"poot"),
            (b":path", path.encode()),
            *headers,
        ]
        if length is not None or body is not None:
            fields.append((b"content-length", b"%d" % (length if length is not None else len(body or b""))))
        self.h2.send_headers(stream_id, fields, end_stream=ends and not body and not length)
        self.answers[stream_id] = Answer()
        await self.flush()
        if body:
            await self.body(stream_id, body, ends=ends)
        return stream_id

    async def body(self, stream_id: int, data: bytes, *, ends: bool = False) -> None:
        """Sends body bytes as the server's windows let it."""
        while data or ends:
            room = min(self.h2.local_flow_control_window(stream_id), self.h2.max_outbound_frame_size, len(data))
            if data and room <= 0:
                await self.read()
                continue
            piece, data = data[:room], data[room:]
            self.h2.send_data(stream_id, piece, end_stream=ends and not data)
            await self.flush()
            if not data:
                return

    async def read(self) -> bool:
        """Takes in what arrives next; false when the server has closed."""
        data = await self.client.receive()
        if not data:
            self.is_closed = True
            return False
        self._rest += data
        before = bytes(self._rest)
        new = split(self._rest)
        self.frames += new
        offset = 0
        for frame in new:
            length = 9 + int.from_bytes(before[offset : offset + 3], "big")
            if isinstance(frame, GoAwayFrame):
                self.goaways.append(frame)
            else:
                self._take(before[offset : offset + length])
            offset += length
        await self.flush()
        return True

    def _take(self, frame: bytes) -> None:
        for event in self.h2.receive_data(frame):
            if isinstance(event, InformationalResponseReceived):
                assert event.stream_id
                self.answers[event.stream_id].has_continue = True
            elif isinstance(event, ResponseReceived):
                assert event.stream_id
                answer = self.answers[event.stream_id]
                answer.headers = {bytes(name): bytes(value) for name, value in event.headers or []}
                answer.status = int(answer.headers.pop(b":status"))
            elif isinstance(event, DataReceived):
                assert event.stream_id
                self.answers[event.stream_id].body += event.data or b""
                self.data_order.append(event.stream_id)
                if self.gives_credit and event.flow_controlled_length:
                    self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            elif isinstance(event, StreamEnded):
                assert event.stream_id
                self.answers[event.stream_id].is_complete = True
            elif isinstance(event, StreamReset):
                assert event.stream_id
                self.answers[event.stream_id].reset = int(event.error_code or 0)
            elif isinstance(event, PingAckReceived):
                self.pings.append(event.ping_data or b"")
            elif isinstance(event, RemoteSettingsChanged):
                self.has_settings = True

    async def answer(self, stream_id: int) -> Answer:
        """The answer of a stream, complete or reset.

        Raises:
            EOFError: the server closed first.
        """
        answer = self.answers[stream_id]
        while not answer.is_complete and answer.reset is None:
            if not await self.read():
                raise EOFError
        return answer

    async def get(self, path: str = "/", **how: object) -> Answer:
        """A request and its answer."""
        return await self.answer(await self.request(path, **how))  # type: ignore[arg-type] # passed on as they are

    async def reset(self, stream_id: int, error: int = 8) -> None:
        self.h2.reset_stream(stream_id, error)
        await self.flush()

    async def ping(self, opaque: bytes = b"12345678") -> None:
        """A round trip; what the server sent before it has been read then."""
        self.h2.ping(opaque)
        await self.flush()
        while opaque not in self.pings:
            if not await self.read():
                raise EOFError

    async def read_rest(self) -> None:
        """Everything until the server closes."""
        while await self.read():
            pass


@asynccontextmanager
async def connected(
    application: Application = hello,
    *,
    settings: dict[SettingCodes, int] | None = None,
    request_timeout_seconds: float = 30,
    write_timeout_seconds: float = 30,
    send_buffer_bytes: int | None = None,
) -> AsyncGenerator[tuple[Peer, Connection, Service]]:
    """A connection over a socket pair with an HTTP/2 client at its other end that has begun."""
    async with peers.connected(
        application,
        request_timeout_seconds=request_timeout_seconds,
        write_timeout_seconds=write_timeout_seconds,
        send_buffer_bytes=send_buffer_bytes,
    ) as (client, connection, service):
        peer = Peer(client)
        await peer.start(settings)
        yield peer, connection, service


async def settle() -> None:
    """Lets the server take in everything that was sent."""
    await anyio.wait_all_tasks_blocked()
