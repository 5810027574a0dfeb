"""A client of HTTP/3 for tests, by aioquic: one request over one connection. asyncio only, as aioquic is."""

from __future__ import annotations

import asyncio
from typing import Any

from aioquic.asyncio.client import connect
from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.h3.connection import H3Connection
from aioquic.h3.events import DataReceived, HeadersReceived
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.events import QuicEvent


class _Exchange(QuicConnectionProtocol):
    """Keeps what comes back."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.http = H3Connection(self._quic)
        self.headers: dict[bytes, bytes] = {}
        self.body = b""
        self.has_ended = asyncio.Event()

    def quic_event_received(self, event: QuicEvent) -> None:
        for received in self.http.handle_event(event):
            if isinstance(received, HeadersReceived):
                self.headers.update(received.headers)
            elif isinstance(received, DataReceived):
                self.body += received.data
            if isinstance(received, HeadersReceived | DataReceived) and received.stream_ended:
                self.has_ended.set()

    def post(self, authority: str, path: str, body: bytes) -> None:
        stream_id = self._quic.get_next_available_stream_id()
        fields = {
            ":method": "POST",
            ":scheme": "https",
            ":authority": authority,
            ":path": path,
            "content-type": "application/json",
            "content-length": str(len(body)),
        }
        self.http.send_headers(stream_id, [(name.encode(), value.encode()) for name, value in fields.items()])
        self.http.send_data(stream_id, body, end_stream=True)
        self.transmit()


async def post(port: int, host: str, authority_pem: bytes, path: str, body: bytes) -> tuple[dict[bytes, bytes], bytes]:
    """Sends a POST to a loopback port, as to `host`, whose certificate `authority_pem` vouches for.

    Returns: fields and body of the answer.
    """
    configuration = QuicConfiguration(alpn_protocols=["h3"], server_name=host)
    configuration.load_verify_locations(cadata=authority_pem)
    async with connect("127.0.0.1", port, configuration=configuration, create_protocol=_Exchange) as exchange:
        assert isinstance(exchange, _Exchange)
        exchange.post(host, path, body)
        await exchange.has_ended.wait()
    return exchange.headers, exchange.body
