"""A peer that is a server of its own: started on a free port of the loopback address, waited for, ended."""

from __future__ import annotations

import socket
import subprocess
import time
import urllib.request
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

from benchmarks.worker import WorkerDied, describe_exit, limit_processors

READY_SECONDS = 180.0


class PeerServer:
    """Runs `command` with `--port N` behind it; a context manager that ends the process.

    Args:
        ready_path: answers 200 once the model is loaded.

    Attributes:
        port: where it listens.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        ready_path: str,
        *,
        environment: Mapping[str, str],
        num_threads: int,
    ) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        self._name = name
        self._command = [*command, "--port", str(self.port)]
        self._ready_url = f"http://127.0.0.1:{self.port}{ready_path}"
        self._environment = environment
        self._num_threads = num_threads

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            self._command,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=dict(self._environment),
            preexec_fn=lambda: limit_processors(self._num_threads),
        )
        deadline = time.monotonic() + READY_SECONDS
        while True:
            try:
                urllib.request.urlopen(self._ready_url, timeout=5).close()
            except OSError:
                if self._process.poll() is not None:
                    raise WorkerDied(f"{self._name} {describe_exit(self._process.wait())}") from None
                if time.monotonic() > deadline:
                    self._process.kill()
                    raise WorkerDied(f"{self._name} did not become ready") from None
                time.sleep(0.5)
            else:
                return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._process.terminate()
        self._process.wait()
