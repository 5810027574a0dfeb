"""A server process for the soak: everything of poot but the model. `python -m tests.soak.server`.

The real engine with its scheduler, KV blocks and device thread runs a program that draws tokens from a counter, behind
the real API and listener on a free port, with deadlines short enough to pass often. Writes the port to standard output
when it listens; SIGTERM drains it.
"""

from __future__ import annotations

import gc
import itertools
import signal

import anyio
import anyio.abc

from poot import log
from poot.api import Api
from poot.config import ApiConfig, NetConfig, TcpAddress
from poot.devices.base import Step, StepResult
from poot.engine.device_thread import DeviceThread
from poot.engine.engine import Engine
from poot.engine.text import ChatTemplate
from poot.metrics import Metrics
from poot.net.listener import Server
from tests.fakes.engine_info import fake_info
from tests.fakes.tokenizer import TEMPLATE, VOCAB_SIZE, byte_tokenizer

ROWS = 8
MAX_SEQ = 1024
REQUEST_TIMEOUT_SECONDS = 3
WRITE_TIMEOUT_SECONDS = 2
QUEUE_WAIT_SECONDS = 4


class CountingProgram:
    """Implements `Program` and `Pending`: the letters of the alphabet, one after the other."""

    def __init__(self) -> None:
        self._letters = itertools.cycle(b"abcdefghijklmnopqrstuvwxyz ")
        self._count = 0

    @property
    def launch_computes(self) -> bool:
        return True

    def launch(self, step: Step) -> CountingProgram:
        self._count = len(step.sample_indices)
        return self

    def tokens(self) -> StepResult:
        drawn = tuple(itertools.islice(self._letters, self._count))
        return StepResult(drawn, (None,) * self._count)


async def main() -> None:
    """Serves until it has drained."""
    metrics = Metrics()
    device_thread = DeviceThread()
    engine = Engine(
        model=fake_info(rows=ROWS, max_seq=MAX_SEQ, vocab_size=VOCAB_SIZE, model_id="soak"),
        tokenizer=byte_tokenizer(),
        chat=ChatTemplate(TEMPLATE, origin="the soak"),
        program=CountingProgram(),
        executor=device_thread,
        token_budget=2048,
        mixed_token_budget=512,
        metrics=metrics,
    )
    net = NetConfig(
        address=TcpAddress(host="127.0.0.1", port=0),
        request_timeout_seconds=REQUEST_TIMEOUT_SECONDS,
        write_timeout_seconds=WRITE_TIMEOUT_SECONDS,
        drain_timeout_seconds=5,
    )
    api = ApiConfig(max_pending_requests=64, max_receiving_requests=32, max_queue_wait_seconds=QUEUE_WAIT_SECONDS)
    server = Server(net, Api(engine, api, metrics), metrics)
    async with anyio.create_task_group() as root:
        await root.start(device_thread.run)
        await root.start(engine.run)
        await root.start(_watch_signals, server)
        async with anyio.create_task_group() as connections:
            bound = await connections.start(server.serve)
            assert isinstance(bound, TcpAddress)
            print(bound.port, flush=True)
        root.cancel_scope.cancel()


async def _watch_signals(server: Server, *, task_status: anyio.abc.TaskStatus[None]) -> None:
    with anyio.open_signal_receiver(signal.SIGTERM) as signals:
        task_status.started()
        async for _ in signals:
            server.drain()


if __name__ == "__main__":
    # Access lines would be most of the work; what is looked for is written at higher levels.
    log.configure("warn")
    gc.collect()
    gc.freeze()
    anyio.run(main, backend_options={"use_uvloop": True})
