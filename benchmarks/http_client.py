"""poot over HTTP, measured from outside: a server process, and clients that stream completions from it."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import IO

from benchmarks.worker import WorkerDied, describe_exit, limit_processors

_ADDRESS = re.compile(r"address=(?P<host>[0-9.]+):(?P<port>\d+)")


class HttpServer:
    """Runs `command`, a poot-serve on port 0 of the loopback address; a context manager that drains it.

    Attributes:
        port: where it listens, once entered.
    """

    def __init__(self, command: Sequence[str], *, environment: Mapping[str, str], num_threads: int) -> None:
        self._command = command
        self._environment = environment
        self._num_threads = num_threads

    def __enter__(self) -> HttpServer:
        self._process = subprocess.Popen(
            self._command,
            stderr=subprocess.PIPE,
            text=True,
            env={**self._environment, "RUST_LOG": "warn,poot.server=info"},
            preexec_fn=lambda: limit_processors(self._num_threads),
        )
        assert self._process.stderr is not None
        self.port = self._read_port(self._process.stderr)
        # What it logs from here on would fill the pipe if nobody read it.
        self._reader = threading.Thread(target=_drop, args=(self._process.stderr,), daemon=True)
        self._reader.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._process.send_signal(signal.SIGTERM)
        self._process.wait()
        self._reader.join()

    def _read_port(self, log: IO[str]) -> int:
        lines = []
        for line in log:
            lines.append(line)
            match = _ADDRESS.search(line)
            if match is not None:
                return int(match["port"])
        status = describe_exit(self._process.wait())
        raise WorkerDied(f"poot-serve {status}: {''.join(lines).strip()}")

    def prefill(self, prompts: Sequence[Sequence[int]]) -> float:
        """Tokens a second over one prompt, from the request's first byte to the answer's last."""
        (prompt,) = prompts
        started = time.perf_counter()
        self._complete(prompt, 1)
        return len(prompt) / (time.perf_counter() - started)

    def decode(self, prompts: Sequence[Sequence[int]], num_tokens: int) -> float:
        """Tokens a second of all rows together, each row a connection that reads a stream."""
        times: list[tuple[float, float]] = []
        errors: list[BaseException] = []

        def row(prompt: Sequence[int]) -> None:
            try:
                times.append(self._complete(prompt, num_tokens))
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=row, args=(prompt,)) for prompt in prompts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]
        return sum((num_tokens - 1) / (last - first) for first, last in times)

    def _complete(self, prompt: Sequence[int], num_tokens: int) -> tuple[float, float]:
        """Times (s) at which the first and the last chunk with a choice of one greedy completion arrived."""
        body = {"prompt": list(prompt), "max_tokens": num_tokens, "temperature": 0, "ignore_eos": True, "stream": True}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        if response.status != 200:
            raise RuntimeError(f"status {response.status}: {response.read(1000)!r}")
        first = last = None
        while line := response.readline():
            if line.startswith(b"data: {"):
                if line.startswith(b'data: {"error"'):
                    raise RuntimeError(line.decode())
                last = time.perf_counter()
                first = last if first is None else first
        connection.close()
        assert first is not None
        assert last is not None
        return first, last


def _drop(log: IO[str]) -> None:
    for _ in log:
        pass
    log.close()


def environment_for(num_threads: int) -> dict[str, str]:
    """This process's environment with OpenMP held to `num_threads`."""
    return {**os.environ, "OMP_NUM_THREADS": str(num_threads), "MKL_NUM_THREADS": str(num_threads)}
