"""The serving benchmark's own arithmetic, and that its client reads a stream as it is sent."""

from __future__ import annotations

import json
import random
import socket
import threading
from collections import defaultdict

import pytest

from benchmarks.serve import Results, format_tables
from benchmarks.serve_load import CompletionClient, Objective, Summary, Trial, closed_loop, open_loop, words


def serve_once(listener: socket.socket, answer: bytes, bodies: list[dict[str, object]]) -> None:
    connection, _ = listener.accept()
    with connection, connection.makefile("rb") as reader:
        length = 0
        while (line := reader.readline()) != b"\r\n":
            if line.lower().startswith(b"content-length:"):
                length = int(line[15:])
        bodies.append(json.loads(reader.read(length)))
        connection.sendall(answer)


def ask(answer: bytes) -> tuple[Trial, dict[str, object]]:
    bodies: list[dict[str, object]] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve_once, args=(listener, answer, bodies))
        thread.start()
        try:
            trial = CompletionClient(listener.getsockname()[1], {"ignore_eos": True}).complete("hello", 3)
        finally:
            thread.join()
    return trial, bodies[0]


def stream(*chunks: dict[str, object]) -> bytes:
    frames = b"".join(b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks)
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
    return head + frames + b"data: [DONE]\n\n"


def test_the_client_counts_chunks_with_text_and_takes_tokens_from_usage() -> None:
    trial, body = ask(
        stream(
            {"choices": [{"text": "a"}]},
            {"choices": [{"text": ""}]},
            {"choices": [{"text": "b"}]},
            {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 3}},
        )
    )
    assert len(trial.arrivals) == 2
    assert (trial.num_prompt_tokens, trial.num_generated_tokens) == (5, 3)
    assert body == {"prompt": "hello", "max_tokens": 3, "temperature": 0, "stream": True, "ignore_eos": True}


def test_an_error_in_the_stream_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="drained"):
        ask(stream({"choices": [{"text": "a"}]}, {"error": {"message": "drained"}}))


def test_a_closed_loop_asks_every_prompt_once_and_counts_failures() -> None:
    asked: list[str] = []

    def complete(prompt: str) -> Trial:
        asked.append(prompt)
        if prompt == "b":
            raise RuntimeError("no")
        return Trial(0.0, (1.0,), 1, 1)

    summary = closed_loop(complete, ["a", "b", "c"], 2)
    assert sorted(asked) == ["a", "b", "c"]
    assert (len(summary.trials), summary.num_failed) == (2, 1)


def test_an_open_loop_does_not_wait_for_answers() -> None:
    gate = threading.Event()
    arrived = threading.Semaphore(0)

    def complete(prompt: str) -> Trial:
        if prompt == "last":
            gate.set()
        arrived.release()
        assert gate.wait(30)
        return Trial(0.0, (1.0,), 1, 1)

    # No answer comes before the last request has: a loop that waited would hang.
    summary = open_loop(complete, ["a", "b", "last"], 1000.0, random.Random(0))
    assert len(summary.trials) == 3


def test_a_summary_says_rates_quantiles_and_what_met_the_objective() -> None:
    quick = Trial(0.0, (0.5, 0.6, 0.7), 10, 3)
    slow = Trial(0.0, (3.0, 3.1), 10, 2)
    torn = Trial(0.0, (0.5, 1.5), 10, 2)
    summary = Summary(trials=[quick, slow, torn], wall=2.0)
    assert summary.tokens_per_second == 3.5
    assert summary.ttft_p50 == 0.5
    assert summary.gap(0.99) == 1.0
    assert summary.goodput(Objective(ttft=2.0, gap=0.15)) == 0.5


def test_the_table_has_ratios_to_the_peer() -> None:
    results: Results = defaultdict(dict)
    for name, wall in (("poot", 1.0), ("llama.cpp", 2.0)):
        results["load"][name] = Summary(trials=[Trial(0.0, (0.1, 0.2), 4, 8)], wall=wall)
    rows = list(format_tables(results, "llama.cpp"))
    assert rows[2].startswith("| load | poot | 8.0 | 2.00 | 100 ms | 100.0 ms | 100.0 ms | 1.00 |")
    assert rows[3].startswith("| load | llama.cpp | 4.0 | 1.00 |")


def test_words_are_as_many_as_asked_for() -> None:
    assert len(words(random.Random(1), 50).split()) == 50
