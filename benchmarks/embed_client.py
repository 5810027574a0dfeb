"""A load client of an OpenAI-compatible embeddings endpoint that costs the measured server little of the machine.

One thread, raw sockets that stay open, requests encoded before the clock starts, and answers read only as far as their
length says.
"""

from __future__ import annotations

import json
import selectors
import socket
import time
from collections import deque
from collections.abc import Iterable

_RECEIVE_BYTES = 256 * 1024


class EmbeddingClient:
    """Asks `path` on port `port` of the loopback address for base64 embeddings of `model`."""

    def __init__(self, port: int, path: str, model: str) -> None:
        self._port = port
        self._path = path
        self._model = model

    def seconds(self, texts: list[str], concurrency: int, texts_per_request: int) -> float:
        """Seconds from the first request to the last answer, with `concurrency` connections that ask again at once."""
        chunks = [texts[start : start + texts_per_request] for start in range(0, len(texts), texts_per_request)]
        requests = deque(self._request(chunk) for chunk in chunks)
        connections = [_Connection(self._port) for _ in range(min(concurrency, len(requests)))]
        try:
            started = time.perf_counter()
            with selectors.DefaultSelector() as selector:
                for connection in connections:
                    connection.ask(requests.popleft())
                    selector.register(connection.socket, selectors.EVENT_READ, connection)
                num_left = len(chunks)
                while num_left:
                    for key, _ in selector.select():
                        asked: _Connection = key.data
                        if asked.receive():
                            num_left -= 1
                            if requests:
                                asked.ask(requests.popleft())
            return time.perf_counter() - started
        finally:
            for connection in connections:
                connection.socket.close()

    def latencies(self, texts: Iterable[str]) -> list[float]:
        """Seconds that each text takes, one after the other on one connection."""
        connection = _Connection(self._port)
        times = []
        for text in texts:
            request = self._request([text])
            started = time.perf_counter()
            connection.ask(request)
            while not connection.receive():
                pass
            times.append(time.perf_counter() - started)
        connection.socket.close()
        return times

    def _request(self, texts: list[str]) -> bytes:
        body = json.dumps({"model": self._model, "input": texts, "encoding_format": "base64"}).encode()
        head = (
            f"POST {self._path} HTTP/1.1\r\nHost: 127.0.0.1:{self._port}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body


class _Connection:
    """One connection with at most one request on it."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=600)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._received = bytearray()

    def ask(self, request: bytes) -> None:
        self._received.clear()
        self.socket.sendall(request)

    def receive(self) -> bool:
        """Reads once; whether the answer is whole.

        Raises:
            ConnectionError: the server closed, or its answer is not 200.
        """
        piece = self.socket.recv(_RECEIVE_BYTES)
        if not piece:
            raise ConnectionError("the server closed the connection")
        self._received += piece
        head, separator, body = self._received.partition(b"\r\n\r\n")
        if not separator:
            return False
        lines = head.split(b"\r\n")
        length = next(int(line[15:]) for line in lines if line[:15].lower() == b"content-length:")
        if lines[0].split(b" ")[1] != b"200":
            raise ConnectionError(f"{lines[0].decode()}: {bytes(body[:500])!r}")
        return len(body) >= length
