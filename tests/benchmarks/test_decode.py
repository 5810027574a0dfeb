"""The benchmark's own arithmetic, and that a contender which dies takes nothing else down."""

from __future__ import annotations

import os
import sys

import pytest

from benchmarks.decode import COLUMNS, Contender, format_table, worker_contender
from benchmarks.worker import Worker, WorkerDied

ECHO = """
import json, sys
print(json.dumps({"version": "1", "system": "toy"}), flush=True)
for line in sys.stdin:
    question = json.loads(line)
    num_tokens = sum(map(len, question["prompts"])) + question.get("num_tokens", 0)
    print(json.dumps({"tokens_per_second": num_tokens}), flush=True)
"""
CRASH = "import os, signal, sys; sys.stdin.readline(); os.kill(os.getpid(), signal.SIGKILL)"


def worker(program: str) -> Worker:
    return Worker("toy", [sys.executable, "-c", program], environment=os.environ, num_threads=1)


def test_a_worker_answers_what_it_is_asked() -> None:
    with worker(ECHO) as toy:
        assert toy.ready() == {"version": "1", "system": "toy"}
        contender = worker_contender("toy", toy)
        contender.run_round(0, 7)
    # 512 prompt tokens; then one and four prompts of 16 tokens, and the 7 to generate.
    assert contender.rates == dict(zip(COLUMNS, [[512.0], [23.0], [71.0]], strict=True))


def test_a_contender_that_dies_is_left_out_and_says_how() -> None:
    with worker(CRASH) as toy:
        contender = worker_contender("toy", toy)
        contender.run_round(0, 7)
        contender.run_round(1, 7)
    assert contender.died == "toy was ended by SIGKILL"
    assert contender.rates == {}
    assert "toy was ended by SIGKILL" in format_table([contender])[1]


def test_a_worker_that_never_gets_ready_says_its_status() -> None:
    with worker("import sys; sys.exit(3)") as toy, pytest.raises(WorkerDied, match="toy exited with status 3"):
        toy.ready()


def test_the_table_shows_medians_and_ratios_to_the_peer() -> None:
    def contender(name: str, *rates: float) -> Contender:
        made = Contender(name=name, prefill=lambda ids: 0.0, decode=lambda ids, num: 0.0)
        made.rates = {column: list(rates) for column in COLUMNS}
        return made

    lines = format_table([contender("engine", 10, 30, 20), contender("http", 18, 18, 90), contender("peer", 40, 1, 50)])
    cells = {line[:14].strip(): line[14:].split() for line in lines[1:]}
    assert cells["engine"] == ["20.0"] * 3
    assert cells["http"] == ["18.0"] * 3
    assert cells["peer"] == ["40.0"] * 3
    assert cells["engine / peer"] == ["0.50"] * 3
    assert cells["http / peer"] == ["0.45"] * 3
