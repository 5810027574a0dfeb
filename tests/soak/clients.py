"""The clients of the soak: each opens one connection, does one thing to the server, well or badly, and leaves.

A behaviour is a coroutine of a connected stream; whatever the server answers, however it ends, is fine with it. What
the server must not do is looked for afterwards, in its ledger, its memory and its log.
"""

from __future__ import annotations

import json
import random
import socket
import struct
from collections.abc import Awaitable, Callable

import anyio
from anyio.abc import SocketStream

from benchmarks.wire_http2 import OPENING, Requests, frame, header_block

_READ_BYTES = 64 * 1024
_LONGEST_ANSWER_SECONDS = 10.0
_DATA, _RST_STREAM, _SETTINGS, _PING, _WINDOW_UPDATE, _CONTINUATION = 0, 3, 4, 6, 8, 9
_PREFACE = OPENING[:24]

Behaviour = Callable[[SocketStream, random.Random, str], Awaitable[None]]


def body(draw: random.Random, *, streamed: bool) -> bytes:
    """A completion, now and then of several choices or with a mistake in it."""
    fields: dict[str, object] = {
        "prompt": "x" * draw.choice((1, 20, 200, 600)),
        "max_tokens": draw.choice((1, 5, 50, 400)),
        "stream": streamed,
        "n": draw.choice((1, 1, 1, 2, 4)),
    }
    if draw.random() < 0.1:
        fields |= draw.choice(({"temperature": 9}, {"unknown": 1}, {"prompt": ""}, {"max_tokens": "5"}))
    return json.dumps(fields).encode("ascii")


def post(host: str, data: bytes, *fields: str) -> bytes:
    lines = ["POST /v1/completions HTTP/1.1", f"Host: {host}", "Content-Type: application/json"]
    lines += [f"Content-Length: {len(data)}", *fields]
    return "\r\n".join(lines).encode("ascii") + b"\r\n\r\n" + data


async def read_on(stream: SocketStream, seconds: float = _LONGEST_ANSWER_SECONDS) -> None:
    """Reads until the server closes, or so long."""
    with anyio.move_on_after(seconds):
        while True:
            await stream.receive(_READ_BYTES)


async def read_some(stream: SocketStream, draw: random.Random) -> None:
    """Reads a random part of an answer."""
    left = draw.choice((1, 200, 5_000, 50_000))
    with anyio.move_on_after(_LONGEST_ANSWER_SECONDS):
        while left > 0:
            left -= len(await stream.receive(_READ_BYTES))


def reset(stream: SocketStream) -> None:
    """Makes the close that follows a reset."""
    connected = stream.extra_attributes[anyio.abc.SocketAttribute.raw_socket]()
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


async def whole(stream: SocketStream, draw: random.Random, host: str) -> None:
    for _ in range(draw.randint(1, 3)):
        await stream.send(post(host, body(draw, streamed=False)))
        await read_some(stream, draw)


async def to_the_end(stream: SocketStream, draw: random.Random, host: str) -> None:
    await stream.send(post(host, body(draw, streamed=True), "Connection: close"))
    await read_on(stream)


async def leave_midway(stream: SocketStream, draw: random.Random, host: str) -> None:
    await stream.send(post(host, body(draw, streamed=True)))
    await read_some(stream, draw)


async def reset_midway(stream: SocketStream, draw: random.Random, host: str) -> None:
    await stream.send(post(host, body(draw, streamed=draw.random() < 0.5)))
    if draw.random() < 0.7:
        await read_some(stream, draw)
    reset(stream)


async def half_close(stream: SocketStream, draw: random.Random, host: str) -> None:
    await stream.send(post(host, body(draw, streamed=True)))
    await stream.send_eof()
    await read_on(stream, 2.0)


async def read_slowly(stream: SocketStream, draw: random.Random, host: str) -> None:
    await stream.send(post(host, body(draw, streamed=True)))
    for _ in range(draw.randint(1, 30)):
        await stream.receive(draw.choice((1, 100, 4096)))
        await anyio.sleep(draw.random() * 0.3)


async def never_read(stream: SocketStream, draw: random.Random, host: str) -> None:
    for _ in range(draw.randint(1, 40)):
        await stream.send(post(host, body(draw, streamed=True)))
    await anyio.sleep(draw.random() * 4)


async def write_slowly(stream: SocketStream, draw: random.Random, host: str) -> None:
    data = post(host, body(draw, streamed=False))
    stop = draw.choice((len(data), draw.randrange(len(data))))
    position = 0
    while position < stop:
        size = draw.choice((1, 3, 50))
        await stream.send(data[position : min(stop, position + size)])
        position += size
        await anyio.sleep(draw.random() * 0.05)
    await read_on(stream, draw.choice((0.0, 1.0, 4.0)))


async def stop_in_body(stream: SocketStream, draw: random.Random, host: str) -> None:
    data = post(host, body(draw, streamed=False), *draw.choice(((), ("Expect: 100-continue",))))
    await stream.send(data[: -draw.randint(1, 20)])
    await read_on(stream, draw.choice((0.0, 0.5, 4.0)))


async def malformed(stream: SocketStream, draw: random.Random, host: str) -> None:
    good = post(host, b"{}")
    sent = draw.choice(
        (
            draw.randbytes(draw.randint(1, 3000)),
            good.replace(b"\r\n", b"\n"),
            good.replace(b"Host", b" Host"),
            good.replace(b"Content-Length: 2", b"Content-Length: 2\r\nContent-Length: 2"),
            good.replace(b"Content-Length: 2", b"Transfer-Encoding: chunked"),
            good.replace(b"Content-Length: 2", b"Content-Length: 99999999999"),
            good.replace(b"HTTP/1.1", b"HTTP/9.9"),
            b"GET /health HTTP/1.1\r\nHost: x\0\r\n\r\n",
            b"GET /health HTTP/1.1\r\nA: " + b"a" * 100_000 + b"\r\n\r\n",
            b"GET /nothing HTTP/1.1\r\nHost: x\r\n\r\n" * 20,
        )
    )
    await stream.send(sent)
    await read_on(stream, draw.choice((0.0, 0.2, 1.0)))


async def idle(stream: SocketStream, draw: random.Random, host: str) -> None:
    await stream.send(draw.choice((b"", b"GET /hea", b"\r\n", _PREFACE[:10])) or b"G")
    await read_on(stream, draw.random() * 5)


def _requests(draw: random.Random, host: str, *, streamed: bool) -> Requests:
    data = body(draw, streamed=streamed)
    return Requests(header_block(method="POST", path="/v1/completions", authority=host, body=data), data)


async def h2_streams(stream: SocketStream, draw: random.Random, host: str) -> None:
    asked = [_requests(draw, host, streamed=draw.random() < 0.7).on(1 + 2 * n) for n in range(draw.randint(1, 8))]
    await stream.send(OPENING + b"".join(asked))
    await read_on(stream, draw.choice((0.1, 1.0, 4.0)))


async def h2_reset_streams(stream: SocketStream, draw: random.Random, host: str) -> None:
    await stream.send(OPENING)
    for n in range(draw.randint(1, 20)):
        await stream.send(_requests(draw, host, streamed=True).on(1 + 2 * n))
        if draw.random() < 0.5:
            await stream.receive(_READ_BYTES)
        await stream.send(frame(_RST_STREAM, 0, 1 + 2 * n, (8).to_bytes(4)))
    if draw.random() < 0.3:
        reset(stream)


async def h2_stalled_window(stream: SocketStream, draw: random.Random, host: str) -> None:
    await stream.send(_PREFACE + frame(_SETTINGS, 0, 0, (4).to_bytes(2) + draw.choice((0, 10, 1000)).to_bytes(4)))
    for n in range(draw.randint(1, 5)):
        await stream.send(_requests(draw, host, streamed=True).on(1 + 2 * n))
    for _ in range(draw.randint(0, 5)):
        await anyio.sleep(draw.random() * 0.5)
        await stream.send(frame(_WINDOW_UPDATE, 0, 1, draw.randint(1, 500).to_bytes(4)))
    await read_on(stream, draw.choice((0.0, 4.0)))


async def h2_flood(stream: SocketStream, draw: random.Random, host: str) -> None:
    kind, stream_id, payload = draw.choice(
        (
            (_PING, 0, b"12345678"),
            (_SETTINGS, 0, b""),
            (_DATA, 1, b""),
            (_CONTINUATION, 1, b"x"),
            (_RST_STREAM, 1, b"abcd"),
        )
    )
    await stream.send(OPENING + _requests(draw, host, streamed=True).on(1))
    for _ in range(draw.randint(1, 200)):
        await stream.send(frame(kind, 0, stream_id, payload) * 20)
    await read_on(stream, 0.5)


async def h2_garbage(stream: SocketStream, draw: random.Random, host: str) -> None:
    await stream.send(OPENING + _requests(draw, host, streamed=True).on(1))
    for _ in range(draw.randint(1, 10)):
        kind, flags, stream_id = draw.randrange(12), draw.randrange(256), draw.choice((0, 1, 2, 3, 99))
        await stream.send(frame(kind, flags, stream_id, draw.randbytes(draw.randint(0, 40))))
    await read_on(stream, draw.choice((0.0, 0.5)))


BEHAVIOURS: tuple[Behaviour, ...] = (
    whole,
    to_the_end,
    leave_midway,
    reset_midway,
    half_close,
    read_slowly,
    never_read,
    write_slowly,
    stop_in_body,
    malformed,
    idle,
    h2_streams,
    h2_reset_streams,
    h2_stalled_window,
    h2_flood,
    h2_garbage,
)


async def run_client(port: int, seed: int, counts: dict[str, int]) -> None:
    """One behaviour after the other, each over a connection of its own, until cancelled."""
    draw = random.Random(seed)
    host = f"127.0.0.1:{port}"
    while True:
        behaviour = draw.choice(BEHAVIOURS)
        try:
            async with await anyio.connect_tcp("127.0.0.1", port) as stream:
                if draw.random() < 0.2:
                    connected = stream.extra_attributes[anyio.abc.SocketAttribute.raw_socket]()
                    connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                with anyio.move_on_after(2 * _LONGEST_ANSWER_SECONDS):
                    await behaviour(stream, draw, host)
        except (OSError, anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
            pass  # refused, reset or closed by the server, as most of them deserve
        counts[behaviour.__name__] = counts.get(behaviour.__name__, 0) + 1
