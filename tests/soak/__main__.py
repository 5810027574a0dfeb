"""The soak: `python -m tests.soak [--seconds 300] [--clients 200] [--seed N]`. Not part of the test run; `make soak`.

Loads a server process (`server.py`) with clients that behave well and badly (`clients.py`), lets it come to rest, and
then requires of it: a ledger of zeros in /metrics, with no connection but the one that asks; memory within 10 % of what
it was at rest after a warm-up of the same load; no error in its log; an answer to an ordinary request; exit status 0
on SIGTERM.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO, Any

import anyio

from tests.soak.clients import run_client
from tests.soak.server import QUEUE_WAIT_SECONDS, REQUEST_TIMEOUT_SECONDS, WRITE_TIMEOUT_SECONDS

ROOT = Path(__file__).resolve().parents[2]
MAX_GROWTH = 1.10
REST_SECONDS = 2 * (REQUEST_TIMEOUT_SECONDS + WRITE_TIMEOUT_SECONDS + QUEUE_WAIT_SECONDS)
"""After the last client left, every deadline of the server has passed by then."""


def get(port: int, path: str) -> Any:
    return _ask(port, "GET", path, None)


def complete(port: int) -> Any:
    return _ask(port, "POST", "/v1/completions", json.dumps({"prompt": "hello", "max_tokens": 26}))


def _ask(port: int, method: str, path: str, body: str | None) -> Any:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request(method, path, body, {"Content-Type": "application/json"} if body else {})
        answer = connection.getresponse()
        data = answer.read()
        if answer.status != 200:
            raise SystemExit(f"FAILED: {method} {path} was answered {answer.status}: {data[:300]!r}")
        return json.loads(data)
    finally:
        connection.close()


def ledger(port: int) -> dict[str, float]:
    """What is held, without the connection that asks."""
    metrics = get(port, "/metrics")
    held = {name: metrics[name] for name in ("rows_held", "kv_blocks_held", "admission_pending", "admission_receiving")}
    held["connections_open"] = sum(metrics["connections_open"].values()) - 1
    return held


def rest(port: int) -> dict[str, float]:
    """The ledger once it is all zeros, or what is left in it after `REST_SECONDS`."""
    end = time.monotonic() + REST_SECONDS
    while any((held := ledger(port)).values()) and time.monotonic() < end:
        time.sleep(0.2)
    return held


def resident_bytes(pid: int) -> int:
    (line,) = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS:")]
    return int(line.split()[1]) * 1024


async def load(port: int, seconds: float, num_clients: int, seed: int) -> dict[str, int]:
    """Runs the clients for a time; returns how often each behaviour was carried through."""
    counts: dict[str, int] = {}
    with anyio.move_on_after(seconds):
        async with anyio.create_task_group() as group:
            for number in range(num_clients):
                group.start_soon(run_client, port, seed + number, counts)
    return counts


def soak(arguments: argparse.Namespace, server: subprocess.Popen[str], log: IO[str]) -> list[str]:
    """What is wrong with the server after the load; nothing if it is well."""
    assert server.stdout is not None
    port = int(server.stdout.readline())
    problems = []
    at_rest = 0
    warm_up = max(10.0, arguments.seconds / 5)
    for name, seconds, seed in (
        ("warm-up", warm_up, arguments.seed),
        ("load", arguments.seconds, arguments.seed + arguments.clients),
    ):
        counts = anyio.run(load, port, seconds, arguments.clients, seed)
        held = rest(port)
        problems += [f"{key} is {value:g} at rest after the {name}" for key, value in held.items() if value]
        before, at_rest = at_rest, resident_bytes(server.pid)
        print(f"{name}: {sum(counts.values())} connections in {seconds:.0f} s, {at_rest / 2**20:.1f} MiB at rest")
    for behaviour, count in sorted(counts.items()):
        print(f"    {behaviour}: {count}")
    if at_rest > MAX_GROWTH * before:
        problems.append(f"memory grew from {before / 2**20:.1f} to {at_rest / 2**20:.1f} MiB")
    answer = complete(port)
    if answer["usage"]["completion_tokens"] != 26:
        problems.append(f"a request was answered {answer}")
    print("requests answered: ", json.dumps(get(port, "/metrics")["requests"]["/v1/completions"]))
    server.terminate()
    if status := server.wait(30):
        problems.append(f"SIGTERM ended it with status {status}")
    log.seek(0)
    errors = [line for line in log if " ERROR " in line or line.startswith("Traceback")]
    if errors:
        problems.append(f"{len(errors)} errors in its log, the first: {errors[0].strip()}")
    return problems


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    arguments = parser.parse_args()
    print(f"soak: {arguments.clients} clients, seed {arguments.seed}", flush=True)
    with tempfile.TemporaryFile("w+") as log:
        server = subprocess.Popen(
            [sys.executable, "-m", "tests.soak.server"],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
        try:
            problems = soak(arguments, server, log)
            if problems:
                log.seek(0)
                sys.stdout.write("".join(list(log)[-60:]))
        finally:
            if server.poll() is None:
                server.kill()
                server.wait()
    for problem in problems:
        print(f"FAILED: {problem}")
    print("soak: failed" if problems else "soak: passed")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
