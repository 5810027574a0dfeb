"""A server process without a model: the real listener and API over the fake engine. `python -m tests.e2e.fake_server`.

Arguments: an address as poot-serve takes it, and the name the model is served under, by which answers tell which
process they come from. Writes "serving PORT" to standard output when it listens; SIGTERM drains it.
"""

from __future__ import annotations

import signal
import sys

import anyio
import anyio.abc

from poot.api import Api
from poot.cli.values import parse_address
from poot.config import ApiConfig, NetConfig, TcpAddress
from poot.metrics import Metrics
from poot.net.listener import Server
from tests.fakes.engine import FakeEngine, FakeModel, say

STEP_SECONDS = 0.005
TEXTS = [f"{index} " for index in range(10)]


async def main(address: str, name: str) -> None:
    """Serves until it has drained."""
    engine = FakeEngine(say(*TEXTS), model=FakeModel(model_id=name, rows=64), is_stepped=True)
    metrics = Metrics()
    server = Server(
        NetConfig(address=parse_address(address)),
        Api(engine, ApiConfig(max_pending_requests=4096, max_receiving_requests=4096), metrics),
        metrics,
    )
    async with anyio.create_task_group() as task_group:
        await task_group.start(_watch_signals, server)
        task_group.start_soon(_run_steps, engine)
        async with anyio.create_task_group() as connections:
            bound = await connections.start(server.serve)
            assert isinstance(bound, TcpAddress)
            print(f"serving {bound.port}", flush=True)
        task_group.cancel_scope.cancel()


async def _watch_signals(server: Server, *, task_status: anyio.abc.TaskStatus[None]) -> None:
    with anyio.open_signal_receiver(signal.SIGTERM) as signals:
        task_status.started()
        async for _ in signals:
            server.drain()


async def _run_steps(engine: FakeEngine) -> None:
    """Answers take as long as a small model would, so that some are always under way."""
    while True:
        await anyio.sleep(STEP_SECONDS)
        engine.step()


if __name__ == "__main__":
    anyio.run(main, sys.argv[1], sys.argv[2])
