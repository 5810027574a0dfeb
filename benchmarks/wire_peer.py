"""The routes of `wire.py` in Starlette, under uvicorn or Hypercorn, in the peers' own environment.

    PEER_PYTHON benchmarks/wire_peer.py uvicorn-h11 | uvicorn-httptools | hypercorn

Frames are one constant, encoded beforehand. Where the request's `seed` is 1 a task gives every stream a token a step
through a queue, as an engine would; otherwise the generator never waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.wire_lag import LagMeter

ENVELOPE = {
    "id": "cmpl-0123456789abcdef01234567",
    "object": "text_completion",
    "created": 1_700_000_000,
    "model": "null",
    "system_fingerprint": "fp_0123456789ab",
}
CHOICE = {"index": 0, "text": " token", "logprobs": None, "finish_reason": None}


def compact(data: object) -> bytes:
    return json.dumps(data, separators=(",", ":")).encode()


FRAME = b"data: " + compact({**ENVELOPE, "choices": [CHOICE]}) + b"\n\n"
LAST = b"data: " + compact({**ENVELOPE, "choices": [{**CHOICE, "text": "", "finish_reason": "length"}]}) + b"\n\n"
DONE = b"data: [DONE]\n\n"
HEALTH = {
    "status": "serving",
    "model": "null",
    "task": "generate",
    "backend": "null",
    "device": "none",
    "rows": 1024,
    "max_seq": 8192,
    "context_limit": 8192,
    "vocab_size": 32000,
    "weight_bytes": 0,
    "kv_bytes": 0,
    "version": "0",
    "uptime_seconds": 1.0,
}

queues: dict[asyncio.Queue[bytes], int] = {}
woken = asyncio.Event()
meter = LagMeter()


async def run_engine() -> None:
    while True:
        if not queues:
            woken.clear()
            await woken.wait()
        for queue, num_left in tuple(queues.items()):
            queue.put_nowait(FRAME if num_left else b"")
            if num_left:
                queues[queue] = num_left - 1
            else:
                del queues[queue]
        await asyncio.sleep(0)


async def stepped(num_tokens: int) -> AsyncIterator[bytes]:
    queue: asyncio.Queue[bytes] = asyncio.Queue()
    queues[queue] = num_tokens
    woken.set()
    try:
        while frame := await queue.get():
            yield frame
    finally:
        queues.pop(queue, None)
    yield LAST + DONE


async def unbroken(num_tokens: int) -> AsyncIterator[bytes]:
    for _ in range(num_tokens):
        yield FRAME
    yield LAST + DONE


async def health(request: Request) -> Response:
    return JSONResponse(HEALTH)


async def lag(request: Request) -> Response:
    return JSONResponse(meter.take())


async def complete(request: Request) -> Response:
    body: dict[str, Any] = await request.json()
    num_tokens = body["max_tokens"]
    if body.get("stream"):
        frames = stepped(num_tokens) if body["seed"] == 1 else unbroken(num_tokens)
        return StreamingResponse(frames, media_type="text/event-stream")
    usage = {"prompt_tokens": 1, "completion_tokens": num_tokens, "total_tokens": 1 + num_tokens}
    return JSONResponse({**ENVELOPE, "choices": [{**CHOICE, "finish_reason": "length"}], "usage": usage})


@contextlib.asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[None]:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(run_engine()), group.create_task(meter.run())]
        yield
        for task in tasks:
            task.cancel()


app = Starlette(
    routes=[
        Route("/health", health),
        Route("/bench/lag", lag),
        Route("/v1/completions", complete, methods=["POST"]),
    ],
    lifespan=lifespan,
)


def main() -> None:
    kind = sys.argv[1]
    listening = socket.create_server(("127.0.0.1", 0), backlog=2048)
    print(listening.getsockname()[1], flush=True)
    # What they log, uvicorn's access log among it, goes where poot's goes.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.dup2(1, 2)
    if kind == "hypercorn":
        import uvloop
        from hypercorn.asyncio import serve
        from hypercorn.config import Config

        config = Config()
        config.bind = [f"fd://{listening.fileno()}"]
        config.keep_alive_max_requests = 2**31  # a measurement sends more than the default 1000 over one connection
        uvloop.run(serve(app, config))
    else:
        import uvicorn

        server = uvicorn.Server(uvicorn.Config(app, http=kind.removeprefix("uvicorn-"), loop="uvloop", ws="none"))
        server.run(sockets=[listening])


if __name__ == "__main__":
    main()
