"""A poot-serve process under test: started as a user starts it, watched through its log, stopped by a signal."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# Loading torch and the demo model takes a few seconds here; a loaded machine may need many times that.
START_SECONDS = 120.0
STOP_SECONDS = 40.0


class ServerProcess:
    """One running server.

    Attributes:
        port: the port it bound.
        lines: what it wrote to standard error so far.
    """

    def __init__(self, *arguments: str, environment: dict[str, str] | None = None) -> None:
        self.lines: list[str] = []
        self.port = 0
        self._is_serving = threading.Event()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "poot", *arguments],
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stdin=subprocess.DEVNULL,
            text=True,
            env={**os.environ, **(environment or {})},
        )
        self._reader = threading.Thread(target=self._read_log, daemon=True)
        self._reader.start()

    def _read_log(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line.rstrip("\n"))
            if found := re.search(r"serving model=.* address=\S*?:(\d+)$", line.rstrip()):
                self.port = int(found[1])
                self._is_serving.set()
        self._is_serving.set()

    @property
    def log(self) -> str:
        return "\n".join(self.lines)

    def wait_until_serving(self) -> None:
        assert self._is_serving.wait(START_SECONDS), f"did not start in time:\n{self.log}"
        assert self.port, f"ended before serving:\n{self.log}"

    def wait(self) -> int:
        """The exit status, once it has ended by itself."""
        status = self.process.wait(START_SECONDS)
        self._reader.join(STOP_SECONDS)
        return status

    def stop(self) -> int:
        """Sends SIGTERM if it still runs, and gives the exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            status = self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        self._reader.join(STOP_SECONDS)
        return status

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(self.url + path, timeout=30) as answer:
            return json.load(answer)

    def get_text(self, path: str) -> str:
        with urllib.request.urlopen(self.url + path, timeout=30) as answer:
            text: str = answer.read().decode()
            return text

    def post(self, path: str, body: dict[str, Any]) -> Any:
        request = urllib.request.Request(
            self.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=120) as answer:
            return json.load(answer)

    def sample(self, name: str) -> float:
        """One sample without labels, as Prometheus would scrape it."""
        for line in self.get_text("/metrics/prometheus").splitlines():
            if line.startswith(f"{name} "):
                return float(line.split()[1])
        raise AssertionError(f"no sample {name}")

    def wait_for(self, condition: Callable[[], bool], *, seconds: float = 30.0) -> None:
        """Polls `condition` until it holds: another process's state can only be looked at from outside."""
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, f"{condition} did not come true:\n{self.log}"
            time.sleep(0.01)


@contextmanager
def serving(model: Path, *arguments: str) -> Iterator[ServerProcess]:
    """A server on a free loopback port, drained and checked for exit status 0 at the end."""
    server = ServerProcess(str(model), "127.0.0.1:0", *arguments)
    try:
        server.wait_until_serving()
        yield server
        assert server.stop() == 0, server.log
    finally:
        if server.process.poll() is None:
            server.process.kill()
            server.process.wait()
        assert server.process.stderr is not None
        server.process.stderr.close()
