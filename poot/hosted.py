"""poot inside another server: `asgi` gives what `poot-serve` would serve as an ASGI application.

    from poot.hosted import asgi

    app = asgi(["model.gguf", "--rows", "8"], names=["llm.example.com"])

The other composition root beside `server`: the same parts, without a listener and without signals.
"""

from __future__ import annotations

import gc
import os
from collections.abc import AsyncGenerator, Collection, Sequence
from contextlib import asynccontextmanager

import anyio

from poot import log
from poot.api.routes import Api
from poot.cli import Print, flags, parse_command_line
from poot.cli.reader import read_arguments
from poot.config import Config
from poot.engine.device_thread import DeviceThread
from poot.errors import ConfigError
from poot.metrics import Metrics
from poot.net.asgi import AsgiApplication
from poot.net.exchange import Application
from poot.server import Served, load


def asgi(arguments: Sequence[str], *, names: Collection[str] = ()) -> AsgiApplication:
    """Loads the model, and gives the application for one host server process to serve it.

    Blocks while it loads. Engine and device thread run within the application's lifespan; requests are refused with
    503 outside it. poot logs as RUST_LOG asks, as `poot-serve` does; the host's own logging is left alone.

    Args:
        arguments: the command line of `poot-serve` without ADDR.
        names: hosts that the server is reached by, such as those in its certificate; a POST that names none of them,
            nor localhost, loopback or the address it came in on, is answered 421.

    Raises:
        ConfigError: a command line that is wrong, or that asks for what is the host server's to do.
        StartupError: what cannot be loaded, as `poot.server.load` says.
    """
    config = parse_hosted(arguments)
    log.configure(os.environ.get("RUST_LOG"), target="poot")
    served = load(config)
    # The model's objects live for ever: without them a collection looks only at what requests leave behind.
    gc.collect()
    gc.freeze()
    metrics = Metrics()
    return AsgiApplication(lambda: _open(config, served, metrics), config.net, metrics=metrics, names=names)


def parse_hosted(arguments: Sequence[str]) -> Config:
    """The configuration that the command line of a hosted server asks for.

    Raises:
        ConfigError, NotAvailableError, StartupError: as `poot.cli.parse_command_line`.
        ConfigError: ADDR, or an option that only a server of one's own can honour.
    """
    given = read_arguments(arguments, flags.OPTIONS, positionals=("MODEL",))
    if given.has(flags.MAX_CONNECTIONS):
        raise ConfigError(f"{flags.MAX_CONNECTIONS.name}: connections are the host server's; set its own limit instead")
    config = parse_command_line(arguments)
    if isinstance(config, Print):
        raise ConfigError(f"--{config.value} is for the command line of poot-serve")
    return config


@asynccontextmanager
async def _open(config: Config, served: Served, metrics: Metrics) -> AsyncGenerator[Application]:
    """The API over a running engine, which stops on leaving; a step in flight is finished first."""
    device_thread = DeviceThread()
    engine = served.engine(device_thread, metrics)
    async with anyio.create_task_group() as task_group:
        await task_group.start(device_thread.run)
        await task_group.start(engine.run)
        yield Api(engine, config.api, metrics)
        task_group.cancel_scope.cancel()
