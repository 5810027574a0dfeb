"""A rolling restart under load, both ways the README gives: by an inherited socket, and by SO_REUSEPORT.

Real processes and real clients that open a connection for each request and never try again.
"""

from __future__ import annotations

import http.client
import json
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from tests.e2e.fake_server import TEXTS

ROOT = Path(__file__).resolve().parent.parent.parent
LIMIT_SECONDS = 40.0
NUM_CLIENTS = 6
MIN_ANSWERS = 40
"""Answers of each process beside the one before it, and alone."""

NUM_QUEUED = 768
"""Connections of which one of two listeners gets some 384. That is six times what it accepts in a row: the drain
begins before it has accepted the last."""


class Process:
    """One server of `fake_server`, listening when this returns."""

    def __init__(self, address: str, name: str, *, pass_fds: Sequence[int] = ()) -> None:
        self.name = name
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.e2e.fake_server", address, name],
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            pass_fds=pass_fds,
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line.startswith("serving "), f"{name} did not start"
        self.port = int(line.split()[1])

    def pause(self) -> None:
        """Stops the process where it is; `drain` lets it go on."""
        self._process.send_signal(signal.SIGSTOP)

    def drain(self) -> None:
        """Sends SIGTERM and waits until the process has drained."""
        self._process.send_signal(signal.SIGTERM)
        self._process.send_signal(signal.SIGCONT)
        assert self._process.wait(LIMIT_SECONDS) == 0

    def end(self) -> None:
        """Leaves nothing of the process behind."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


class Load:
    """Clients that send one request after another, each over a connection of its own.

    Attributes:
        answers: the name of the process that answered, in the order of the answers' ends.
        failures: what went wrong, if anything did.
    """

    def __init__(self, port: int) -> None:
        self.port = port
        self._ways = (complete_streamed, complete, complete_over_http2 if has_http2_curl() else complete)
        self._is_over = threading.Event()
        self._progress = threading.Condition()
        self.answers: list[str] = []
        self.failures: list[Exception] = []

    def wait_for(self, name: str, num_answers: int) -> None:
        """Returns when the process of that name has given so many answers more."""
        with self._progress:
            goal = self.answers.count(name) + num_answers
            has_come = self._progress.wait_for(
                lambda: self.answers.count(name) >= goal or bool(self.failures), LIMIT_SECONDS
            )
        assert has_come, f"{name} did not answer: {self.failures}"

    @contextmanager
    def running(self) -> Iterator[None]:
        threads = [threading.Thread(target=self._run, args=(index,)) for index in range(NUM_CLIENTS)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._is_over.set()
            for thread in threads:
                thread.join(LIMIT_SECONDS)

    def _run(self, index: int) -> None:
        ask = self._ways[index % len(self._ways)]
        while not self._is_over.is_set():
            try:
                name = ask(self.port)
            except Exception as error:
                with self._progress:
                    self.failures.append(error)
                    self._progress.notify_all()
            else:
                with self._progress:
                    self.answers.append(name)
                    self._progress.notify_all()


def complete(port: int) -> str:
    """Asks for a completion over a new connection, checks it, and returns the model's name."""
    return finish(begin(port))


def complete_streamed(port: int) -> str:
    """As `complete`, with a streamed answer."""
    with closing(begin(port, is_streamed=True)) as connection:
        answer = connection.getresponse()
        text = answer.read().decode()
    assert answer.status == 200, text
    *events, last = text.removesuffix("\n\n").split("\n\n")
    assert last == "data: [DONE]", text
    return check([json.loads(event.removeprefix("data: ")) for event in events])


def complete_over_http2(port: int) -> str:
    """As `complete`, with a connection that begins as HTTP/2.

    By curl: clients on h2, such as httpx, give up what is under way when they are told of the drain by GOAWAY.
    """
    command = [
        *("curl", "--silent", "--show-error", "--http2-prior-knowledge", "--write-out", "%{stderr}%{http_version}"),
        *("--header", "Content-Type: application/json", "--data", json.dumps({"prompt": "hi"})),
        f"http://127.0.0.1:{port}/v1/completions",
    ]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT_SECONDS)
    assert result.returncode == 0, result.stderr
    assert result.stderr == "2"
    return check([json.loads(result.stdout)])


def has_http2_curl() -> bool:
    """Whether there is a curl that speaks HTTP/2; without it that part of the load is left out."""
    if shutil.which("curl") is None:
        return False
    features = subprocess.run(["curl", "--version"], capture_output=True, text=True, check=True).stdout
    return "HTTP2" in features


def begin(port: int, *, is_streamed: bool = False) -> http.client.HTTPConnection:
    """Sends a request over a new connection."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT_SECONDS)
    body = json.dumps({"prompt": "hi", "stream": is_streamed})
    try:
        connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
    except BaseException:
        connection.close()
        raise
    return connection


def finish(connection: http.client.HTTPConnection) -> str:
    """Reads and checks a whole answer, and returns the model's name."""
    with closing(connection):
        answer = connection.getresponse()
        text = answer.read().decode()
    assert answer.status == 200, text
    return check([json.loads(text)])


def check(chunks: list[dict[str, Any]]) -> str:
    """Checks the text of an answer, whole or in chunks, and returns the model's name."""
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "".join(TEXTS)
    return str(chunks[0]["model"])


def drain_with_a_full_queue(process: Process, port: int) -> list[str]:
    """Drains a process that has as many connections to accept as may come in while it is busy.

    Returns: the names of those that answered them; every one is answered.
    """
    process.pause()
    waiting = [begin(port) for _ in range(NUM_QUEUED)]
    process.drain()
    return [finish(connection) for connection in waiting]


@contextmanager
def processes() -> Iterator[list[Process]]:
    """A list for the processes of a test, none of which outlives it."""
    started: list[Process] = []
    try:
        yield started
    finally:
        for process in started:
            process.end()


def test_restarts_on_an_inherited_socket_fail_no_request() -> None:
    with processes() as started, socket.create_server(("127.0.0.1", 0), backlog=1024) as listening:
        number = listening.fileno()
        load = Load(listening.getsockname()[1])
        started.append(Process(f"fd://{number}", "process 0", pass_fds=[number]))
        with load.running():
            load.wait_for("process 0", MIN_ANSWERS)
            for name in ("process 1", "process 2"):
                started.append(Process(f"fd://{number}", name, pass_fds=[number]))
                load.wait_for(name, MIN_ANSWERS)
                started[-2].drain()
                load.wait_for(name, MIN_ANSWERS)
        started[-1].drain()
    assert load.failures == []
    assert set(load.answers) == {process.name for process in started}


def test_a_restart_on_a_shared_port_fails_no_request_but_one_in_the_moment_of_closing() -> None:
    with processes() as started:
        old = Process("127.0.0.1:0", "old")
        started.append(old)
        load = Load(old.port)
        with load.running():
            load.wait_for("old", MIN_ANSWERS)
            started.append(Process(f"127.0.0.1:{load.port}", "new"))
            load.wait_for("new", MIN_ANSWERS)
            answered_by = drain_with_a_full_queue(old, load.port)
            load.wait_for("new", MIN_ANSWERS)
        started[-1].drain()
    assert set(answered_by) == {"old", "new"}
    # Each listener has a queue of its own, and what the kernel puts into it after the last accept is reset.
    assert len(load.failures) <= 1
    assert all(isinstance(failure, ConnectionResetError) for failure in load.failures)
