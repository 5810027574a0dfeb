"""A contender in a process of its own, asked over its standard input and output.

The protocol, one JSON object a line. When ready, a worker writes `{"version", "system"}`. Then, for each
`{"measure": "prefill", "prompts": [[id, ...]]}` or `{"measure": "decode", "prompts": [...], "num_tokens": n}` it
answers `{"tokens_per_second": x}`; decode counts the tokens of all rows after each row's first. It ends when its input
does.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any


class WorkerDied(Exception):
    """The process ended before it answered; the message says how."""


class Worker:
    """Runs `command` and asks it; a context manager that ends the process.

    Args:
        name: for messages.
        num_threads: what OpenMP and the process's CPU affinity are limited to.
    """

    def __init__(self, name: str, command: Sequence[str], *, environment: Mapping[str, str], num_threads: int) -> None:
        self.name = name
        self._command = command
        self._environment = environment
        self._num_threads = num_threads

    def __enter__(self) -> Worker:
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=dict(self._environment),
            preexec_fn=self._limit_processors,
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.close()
        except BrokenPipeError:
            pass  # it died with a question unread
        if error is not None:
            self._process.kill()
        self._process.wait()
        self._process.stdout.close()

    def _limit_processors(self) -> None:
        limit_processors(self._num_threads)

    def ready(self) -> dict[str, Any]:
        """Its first line, once the model is loaded.

        Raises:
            WorkerDied: it ended first.
        """
        return self._read()

    def ask(self, question: Mapping[str, Any], field: str = "tokens_per_second") -> Any:
        """The `field` of its answer.

        Raises:
            WorkerDied: it ended first.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # reading finds out how it ended
        return self._read()[field]

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise WorkerDied(f"{self.name} {describe_exit(self._process.wait())}")
        answer: dict[str, Any] = json.loads(line)
        return answer


def describe_exit(status: int) -> str:
    """How a process ended, in words."""
    if status < 0:
        return f"was ended by {signal.Signals(-status).name}"
    return f"exited with status {status}"


def limit_processors(num_threads: int) -> None:
    """Keep the calling process on the first `num_threads` processors it may use, where the system can."""
    if hasattr(os, "sched_setaffinity"):
        allowed = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, allowed[:num_threads])
