"""infinity-emb as a peer: its own server process on a free port of the loopback address."""

from __future__ import annotations

import socket
import subprocess
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from benchmarks.embed_client import EmbeddingClient
from benchmarks.worker import WorkerDied, describe_exit, limit_processors

READY_SECONDS = 180.0


class InfinityServer:
    """Runs infinity-emb of the interpreter `python`; a context manager that ends the process.

    Attributes:
        client: asks it.
    """

    def __init__(self, python: str, model: Path, *, environment: Mapping[str, str], num_threads: int) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port: int = probe.getsockname()[1]
        # The package cannot be run with -m; this is what its console script does.
        self._command = [python, "-c", "from infinity_emb.cli import cli; cli()", "v2", "--model-id", str(model)]
        self._command += ["--served-model-name", model.name, "--host", "127.0.0.1", "--port", str(self._port)]
        self._command += ["--device", "cpu", "--engine", "torch", "--no-bettertransformer", "--log-level", "error"]
        self._environment = environment
        self._num_threads = num_threads
        self.client = EmbeddingClient(self._port, "/embeddings", model.name)

    def __enter__(self) -> InfinityServer:
        self._process = subprocess.Popen(
            self._command,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**self._environment, "DO_NOT_TRACK": "1"},
            preexec_fn=lambda: limit_processors(self._num_threads),
        )
        deadline = time.monotonic() + READY_SECONDS
        while True:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{self._port}/health", timeout=5).close()
            except OSError:
                if self._process.poll() is not None:
                    raise WorkerDied(f"infinity-emb {describe_exit(self._process.wait())}") from None
                if time.monotonic() > deadline:
                    self._process.kill()
                    raise WorkerDied("infinity-emb did not become ready") from None
                time.sleep(0.5)
            else:
                return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._process.terminate()
        self._process.wait()
