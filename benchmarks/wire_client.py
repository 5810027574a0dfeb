"""The load client of `wire.py`: one process, one epoll loop, as little work for each byte as Python can do.

    python benchmarks/wire_client.py PORT PROTOCOL WORKLOAD CONCURRENCY SECONDS SERVER_PID

Keeps CONCURRENCY requests under way over HTTP/1.1 (a connection each) or HTTP/2 (up to 64 streams a connection), and
writes one JSON object about the time after the warm-up: answers and frames a second, microseconds of the server's CPU
time for each, how late its event loop was, how many answers were not 200. Frames are counted as occurrences of
`data: ` in what arrives; one that is torn between two reads is missed, which is less than one in a read of 256 KiB.
"""

from __future__ import annotations

import json
import os
import re
import select
import socket
import sys
import time
from pathlib import Path

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.wire_http2 import OPENING, Reader, Requests, header_block

WARM_UP_SECONDS = 0.3
STREAM_TOKENS = 512
STREAMS_PER_CONNECTION = 64
RECEIVE_BYTES = 256 * 1024

_CONTENT_LENGTH = re.compile(rb"\r\ncontent-length: (\d+)", re.IGNORECASE)


def body_of(workload: str) -> bytes:
    """The request body of a workload: none for `get`, 1 KiB of JSON for the others."""
    if workload == "get":
        return b""
    fields: dict[str, object] = {"prompt": "", "max_tokens": 1, "seed": 1}
    if workload != "post":
        fields |= {"stream": True, "max_tokens": STREAM_TOKENS, "seed": 1 if workload == "steps" else STREAM_TOKENS}
    fields["prompt"] = "x" * (1024 - len(json.dumps(fields)))
    return json.dumps(fields).encode("ascii")


class Http1Client:
    """One connection with one request under way."""

    def __init__(self, port: int, workload: str) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        body = body_of(workload)
        line = "POST /v1/completions" if body else "GET /health"
        head = f"{line} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nUser-Agent: wire\r\nAccept: */*\r\n"
        if body:
            head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        self._request = head.encode("ascii") + b"\r\n" + body
        self._is_streamed = workload not in ("get", "post")
        self._buffer = b""
        self.num_failed = 0
        self.socket.sendall(self._request)

    def read(self, data: bytes) -> int:
        """Takes what arrived; asks again when an answer is complete. Returns how many were."""
        if self._is_streamed:
            if not data.endswith(b"\r\n0\r\n\r\n"):
                # The end may come on its own, in a piece that is shorter than it.
                tail = self._buffer + data if len(data) < 7 else data[-7:]
                self._buffer = tail[-7:]
                if self._buffer != b"\r\n0\r\n\r\n":
                    return 0
            self._buffer = b""
        else:
            data = self._buffer + data if self._buffer else data
            end = data.find(b"\r\n\r\n")
            length = _CONTENT_LENGTH.search(data, 0, end) if end >= 0 else None
            if length is None or len(data) < end + 4 + int(length[1]):
                self._buffer = data
                return 0
            self._buffer = b""
            self.num_failed += not data.startswith(b"HTTP/1.1 200")
        self.socket.send(self._request)
        return 1


class Http2Client:
    """One connection with `num_streams` requests under way."""

    def __init__(self, port: int, workload: str, num_streams: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        body = body_of(workload)
        block = header_block(
            method="POST" if body else "GET",
            path="/v1/completions" if body else "/health",
            authority=f"127.0.0.1:{port}",
            body=body,
        )
        self._requests = Requests(block, body)
        self._reader = Reader()
        self._next_stream = 1
        self.socket.sendall(OPENING + self._ask(num_streams))

    @property
    def num_failed(self) -> int:
        return self._reader.num_failed

    def _ask(self, count: int) -> bytes:
        first = self._next_stream
        self._next_stream += 2 * count
        return b"".join([self._requests.on(stream) for stream in range(first, self._next_stream, 2)])

    def read(self, data: bytes) -> int:
        num_ended, reply = self._reader.read(data)
        if num_ended:
            reply += self._ask(num_ended)
        if reply:
            self.socket.sendall(reply)
        return num_ended


class LagReader:
    """Asks the server over a connection of its own how late its event loop was since it was asked before."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._request = f"GET /bench/lag HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode("ascii")

    def ask(self) -> None:
        """Begins the time that is measured. Does not wait: the load has to go on."""
        self._socket.sendall(self._request)

    def read(self) -> dict[str, float]:
        """Ends it. Waits."""
        self.ask()
        data = b""
        while data.count(b"p99_ms") < 2 or not data.endswith(b"}"):
            received = self._socket.recv(RECEIVE_BYTES)
            if not received:
                raise SystemExit("the server closed the connection that asks for its lag")
            data += received
        self._socket.close()
        answer: dict[str, float] = json.loads(data[data.rindex(b"\r\n\r\n") :])
        return answer


def cpu_seconds(pid: int) -> float:
    """User and system time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(port: int, protocol: str, workload: str, concurrency: int, seconds: float, pid: int) -> dict[str, float]:
    """Loads the server and returns what it did in the last `seconds`."""
    clients: list[Http1Client] | list[Http2Client]
    if protocol == "http/1.1":
        clients = [Http1Client(port, workload) for _ in range(concurrency)]
    else:
        num_full, rest = divmod(concurrency, STREAMS_PER_CONNECTION)
        counts = [STREAMS_PER_CONNECTION] * num_full + ([rest] if rest else [])
        clients = [Http2Client(port, workload, count) for count in counts]
    poll = select.epoll()
    by_descriptor = {client.socket.fileno(): client for client in clients}
    for descriptor in by_descriptor:
        poll.register(descriptor, select.EPOLLIN)
    lag = LagReader(port)
    num_answers = num_frames = num_reads = 0
    cpu = started = 0.0
    begin = time.perf_counter() + WARM_UP_SECONDS
    now = time.perf_counter()
    while not started or now < started + seconds:
        for descriptor, _ in poll.poll(1.0):
            client = by_descriptor[descriptor]
            data = client.socket.recv(RECEIVE_BYTES)
            if not data:
                raise SystemExit(f"the server closed a connection ({protocol}, {workload})")
            num_reads += 1
            num_frames += data.count(b"data: ")
            num_answers += client.read(data)
        now = time.perf_counter()
        if not started and now >= begin:
            started, cpu = now, cpu_seconds(pid)
            num_answers = num_frames = num_reads = 0
            lag.ask()
    elapsed = now - started
    cpu = cpu_seconds(pid) - cpu
    lag_p99_ms = lag.read()["p99_ms"]
    num_failed = sum(client.num_failed for client in clients)
    for client in clients:
        client.socket.close()
    num_done = num_frames if num_frames else num_answers
    return {
        "answers_per_second": num_answers / elapsed,
        "frames_per_second": num_frames / elapsed,
        "frames_per_read": num_frames / max(1, num_reads),
        "cpu_us": 1e6 * cpu / max(1, num_done),
        "cpu_share": cpu / elapsed,
        "lag_p99_ms": lag_p99_ms,
        "num_failed": num_failed,
    }


def main() -> None:
    port, protocol, workload, concurrency, seconds, pid = sys.argv[1:]
    print(json.dumps(measure(int(port), protocol, workload, int(concurrency), float(seconds), int(pid))))


if __name__ == "__main__":
    main()
