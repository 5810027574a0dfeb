"""poot over a null engine, for `wire.py`: its real listener, connections and API, in a process of its own.

    python benchmarks/wire_server.py [--profile FILE] [--no-access-log]

Prints its port when it listens, and serves until its input ends or a signal drains it. `GET /bench/lag` answers how
late the event loop was since the last such request.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import json
import os
import sys
import time

import anyio
import anyio.to_thread

from benchmarks.wire_engine import NullEngine
from benchmarks.wire_lag import LagMeter
from poot import log
from poot.api import Api
from poot.config import ApiConfig, NetConfig, TcpAddress
from poot.metrics import Metrics
from poot.net.exchange import Exchange, Response
from poot.net.listener import Server

LAG_PATH = "/bench/lag"


async def serve() -> None:
    engine, metrics, lag = NullEngine(), Metrics(), LagMeter()
    api = Api(engine, ApiConfig(max_pending_requests=1024, max_receiving_requests=1024), metrics)

    async def application(exchange: Exchange) -> None:
        if exchange.head.path == LAG_PATH:
            await exchange.send(Response(status=200, headers=(), body=json.dumps(lag.take()).encode()))
        else:
            await api(exchange)

    config = NetConfig(address=TcpAddress(host="127.0.0.1", port=0), max_connections=0, request_timeout_seconds=600)
    server = Server(config, application, metrics)
    async with anyio.create_task_group() as group:
        group.start_soon(engine.run)
        group.start_soon(lag.run)
        address = await group.start(server.serve)
        print(address.port, flush=True)
        await anyio.to_thread.run_sync(sys.stdin.read, abandon_on_cancel=True)
        group.cancel_scope.cancel()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", metavar="FILE", help="write a cProfile of the whole run, in CPU time")
    parser.add_argument("--no-access-log", action="store_true")
    arguments = parser.parse_args()
    with open(os.devnull, "w") as devnull:
        log.configure("warn" if arguments.no_access_log else "info", stream=devnull)
        gc.collect()
        gc.freeze()
        profile = cProfile.Profile(time.process_time) if arguments.profile else None
        if profile is not None:
            profile.enable()
        anyio.run(serve, backend="asyncio", backend_options={"use_uvloop": True})
        if profile is not None:
            profile.disable()
            profile.dump_stats(arguments.profile)


if __name__ == "__main__":
    main()
