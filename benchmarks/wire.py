#!/usr/bin/env python3
"""Requests and streamed frames a second: `python benchmarks/wire.py [--peer-python PYTHON] [--rounds 3] [--seconds 1]`.

poot's own listener, connections and API over a null engine (`wire_engine.py`), beside the same routes in Starlette
under uvicorn (h11 and httptools) and under Hypercorn, over HTTP/1.1 and, where a server has it, HTTP/2. Each server is
a process on one core, the load client (`wire_client.py`) a process on another. Rounds are interleaved, so that a
machine that slows down slows all of them; tables show medians over the rounds. Beside each rate stands what it cost:
the server's CPU time for one answer or frame, which a busy machine disturbs less.

Two kinds of streams are measured. "a token a step": an engine task gives every stream one token, then the event loop
has its turn; the peers' streams are fed through queues. "text ready": all of a stream's tokens are there when it opens;
the peers' generators never wait.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import platform
import socket
import statistics
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

# Run as a script, Python looks for modules in this folder alone.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
BUSY_LOAD = 0.5
LAG_STREAMS = 256
IDLE_CONNECTIONS = 10_000
CONNECTIONS_PER_ADDRESS = 5_000
"""Connections from one source address: fewer than there are ephemeral ports."""


@dataclass(frozen=True)
class Workload:
    """One row of the tables."""

    name: str
    kind: str
    concurrency: int

    @property
    def is_streamed(self) -> bool:
        return self.kind not in ("get", "post")


WORKLOADS = (
    Workload("GET /health, requests/s", "get", 32),
    Workload("POST of 1 KiB, requests/s", "post", 32),
    *(Workload(f"frames/s, a token a step, {n} stream{'s' * (n > 1)}", "steps", n) for n in (1, 32, 256)),
    *(Workload(f"frames/s, text ready, {n} stream{'s' * (n > 1)}", "ready", n) for n in (1, 32, 256)),
)


@dataclass(frozen=True)
class Result:
    """What one measurement gave: answers or frames a second, the server's CPU time for one, and its worst lag."""

    rate: float
    cpu_us: float
    lag_p99_ms: float | None = None


class WireServer:
    """A server process on one core; a context manager that ends it.

    Args:
        command: prints the port it listens on as its first line, and ends on a signal.
    """

    def __init__(self, name: str, protocols: Sequence[str], command: Sequence[str], *, core: int) -> None:
        self.name = name
        self.protocols = protocols
        self._command = command
        self._core = core

    def __enter__(self) -> WireServer:
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            preexec_fn=lambda: os.sched_setaffinity(0, {self._core}),
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            assert self._process.stderr is not None
            raise SystemExit(f"{self.name} did not start: {self._process.stderr.read().strip()[-500:]}")
        self.port = int(line)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._process.terminate()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            assert pipe is not None
            pipe.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    def get(self, path: str) -> bytes:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        connection.request("GET", path)
        body = connection.getresponse().read()
        connection.close()
        return body

    def resident_bytes(self) -> int:
        status = Path(f"/proc/{self.pid}/status").read_text()
        (line,) = [line for line in status.splitlines() if line.startswith("VmRSS:")]
        return int(line.split()[1]) * 1024


def measure(server: WireServer, protocol: str, workload: Workload, *, seconds: float, core: int) -> Result:
    """Loads one server from a client process on `core`."""
    client = subprocess.run(
        [
            *(sys.executable, str(HERE / "wire_client.py"), str(server.port), protocol),
            *(workload.kind, str(workload.concurrency), str(seconds), str(server.pid)),
        ],
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: os.sched_setaffinity(0, {core}),
    )
    if client.returncode:
        raise SystemExit(f"{server.name}, {protocol}, {workload.name}: {client.stderr.strip()[-500:]}")
    figures = json.loads(client.stdout)
    if figures["num_failed"]:
        raise SystemExit(f"{server.name}, {protocol}, {workload.name}: {figures['num_failed']} answers were not 200")
    lag = figures["lag_p99_ms"] if workload.concurrency == LAG_STREAMS else None
    rate = figures["frames_per_second" if workload.is_streamed else "answers_per_second"]
    return Result(rate, figures["cpu_us"], lag)


def hold_idle(server: WireServer, count: int) -> str:
    """Holds `count` idle connections, says what they cost, and that a request is answered beside them."""
    before = server.resident_bytes()
    held: list[socket.socket] = []
    try:
        for index in range(count):
            source = f"127.0.0.{1 + index // CONNECTIONS_PER_ADDRESS}"
            held.append(socket.create_connection(("127.0.0.1", server.port), source_address=(source, 0)))
        server.get("/health")  # accepted after them, so they are all in by now
        open_now = json.loads(server.get("/metrics"))["connections_open"]["http/1.1"]
        after = server.resident_bytes()
    except OSError as error:
        return f"idle connections: {len(held)} held, then {error}"
    finally:
        for each in held:
            each.close()
    mib = 1024 * 1024
    return (
        f"idle connections: {open_now:.0f} open, {after / mib:.0f} MiB resident "
        f"({before / mib:.0f} MiB without them, {(after - before) / count / 1024:.1f} KiB each)"
    )


Results = Mapping[tuple[str, str, Workload], Sequence[Result]]


def format_table(protocol: str, names: Sequence[str], results: Results) -> list[str]:
    """A Markdown table: medians, microseconds of CPU time beside them, and the first name's ratio to the others."""
    ours, *peers = names
    lines = [
        f"| {protocol} | " + " | ".join([*names, *(f"{ours} / {peer}" for peer in peers)]) + " |",
        "| --- |" + " ---: |" * (2 * len(names) - 1),
    ]
    for workload in WORKLOADS:
        rates = {name: median([each.rate for each in results[name, protocol, workload]]) for name in names}
        costs = {name: median([each.cpu_us for each in results[name, protocol, workload]]) for name in names}
        cells = [f"{rates[name]:,.0f} ({costs[name]:.1f} us)" for name in names]
        cells += [f"{rates[ours] / rates[peer]:.2f}" for peer in peers]
        lines.append(f"| {workload.name} | " + " | ".join(cells) + " |")
    return lines


def format_lag(results: Results) -> list[str]:
    lines = []
    for (name, protocol, workload), each in results.items():
        lags = [result.lag_p99_ms for result in each if result.lag_p99_ms is not None]
        if lags:
            lines.append(f"event loop lag p99, {name}, {protocol}, {workload.name}: {median(lags):.1f} ms")
    return lines


def median(values: Sequence[float]) -> float:
    return statistics.median(values)


def peers(python: str | None, *, core: int) -> list[WireServer]:
    """The peers that interpreter has; says which are left out, and why."""
    if python is None:
        print("peers: skipped; --peer-python names an interpreter that has them (see benchmarks/README.md)")
        return []
    found = []
    for name, module, protocols in (
        ("uvicorn-h11", "uvicorn", ("http/1.1",)),
        ("uvicorn-httptools", "httptools", ("http/1.1",)),
        ("hypercorn", "hypercorn", ("http/1.1", "h2")),
    ):
        check = f"import starlette, uvloop, {module}"
        if subprocess.run([python, "-c", check], check=False, capture_output=True).returncode:
            print(f"peers: {name} skipped; {python} cannot `{check}`")
        else:
            found.append(WireServer(name, protocols, [python, str(HERE / "wire_peer.py"), name], core=core))
    return found


def run(arguments: argparse.Namespace, note: Callable[[str], None]) -> None:
    server_core, client_core = sorted(os.sched_getaffinity(0))[:2]
    command = [sys.executable, "-m", "benchmarks.wire_server"]
    servers = [WireServer("poot", ("http/1.1", "h2"), command, core=server_core)]
    servers += peers(arguments.peer_python, core=server_core)
    results: dict[tuple[str, str, Workload], list[Result]] = defaultdict(list)
    with ExitStack() as stack:
        for server in servers:
            stack.enter_context(server)
        for number in range(arguments.rounds):
            for workload in WORKLOADS:
                for protocol in ("http/1.1", "h2"):
                    for server in servers:
                        if protocol in server.protocols:
                            note(f"round {number + 1}: {workload.name}, {protocol}, {server.name}")
                            result = measure(server, protocol, workload, seconds=arguments.seconds, core=client_core)
                            results[server.name, protocol, workload].append(result)
    note("idle connections")
    # A fresh process: what the load left behind is no cost of an idle connection.
    with WireServer("poot", ("http/1.1",), command, core=server_core) as server:
        idle = hold_idle(server, IDLE_CONNECTIONS)
    note("")
    print(f"machine: {processor()}, one core for the server, one for the client; Python {platform.python_version()}")
    if (load := os.getloadavg()[0]) > 1 + BUSY_LOAD * (os.cpu_count() or 1):
        print(f"warning: the load average is {load:.1f}; on a busy machine rates say little, CPU times more")
    for protocol in ("http/1.1", "h2"):
        names = [server.name for server in servers if protocol in server.protocols]
        print("\n" + "\n".join(format_table(protocol, names, results)))
    print("\n" + "\n".join([*format_lag(results), idle]))


def processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer-python", metavar="PYTHON", help="an interpreter with starlette, uvicorn and hypercorn")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each measurement, after its warm-up")
    arguments = parser.parse_args()
    if not hasattr(os, "sched_setaffinity") or len(os.sched_getaffinity(0)) < 2:
        raise SystemExit("wire.py needs Linux and two cores: one for the server, one for the client")
    is_terminal = sys.stderr.isatty()

    def note(text: str) -> None:
        if is_terminal:
            print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)

    run(arguments, note)


if __name__ == "__main__":
    main()
