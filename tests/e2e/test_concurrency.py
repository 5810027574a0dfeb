"""Requests side by side: none changes another, and one that leaves gives its row back."""

from __future__ import annotations

import json
import socket
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.e2e.process import ServerProcess

PROMPTS = [
    "The capital of France is",
    "Once upon a time",
    "def add(a, b):",
    "Water boils at",
    "1, 2, 3, 4,",
    "My favourite colour is",
    "In the beginning",
    "The quick brown fox",
]


def complete(server: ServerProcess, prompt: str, max_tokens: int = 32) -> Any:
    body = {"prompt": prompt, "temperature": 0, "max_tokens": max_tokens, "ignore_eos": True, "logprobs": 0}
    return server.post("/v1/completions", body)["choices"][0]


LEDGER = ("poot_rows_held", "poot_kv_blocks_held", "poot_admission_pending", "poot_admission_receiving")


def is_idle(server: ServerProcess) -> bool:
    return all(server.sample(name) == 0 for name in LEDGER)


def test_eight_requests_over_four_rows_each_get_what_they_get_alone(smollm2: ServerProcess) -> None:
    alone = [complete(smollm2, prompt) for prompt in PROMPTS]
    with ThreadPoolExecutor(len(PROMPTS)) as pool:
        together = list(pool.map(lambda prompt: complete(smollm2, prompt), PROMPTS))
    assert [choice["logprobs"]["tokens"] for choice in together] == [choice["logprobs"]["tokens"] for choice in alone]
    assert [choice["text"] for choice in together] == [choice["text"] for choice in alone]
    smollm2.wait_for(lambda: is_idle(smollm2))


def test_a_client_that_leaves_mid_stream_frees_its_row_within_one_step(smollm2: ServerProcess) -> None:
    body = json.dumps(
        {"prompt": "Count:", "max_tokens": 2000, "temperature": 0, "stream": True, "ignore_eos": True}
    ).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1:{smollm2.port}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    ).encode()
    with socket.create_connection(("127.0.0.1", smollm2.port)) as connection:
        connection.sendall(head + body)
        received = b""
        while received.count(b"data: ") < 3:
            received += connection.recv(65536)
        assert smollm2.sample("poot_rows_held") == 1
        assert smollm2.sample("poot_kv_blocks_held") >= 1
        cancelled = smollm2.sample("poot_cancelled_total")
    smollm2.wait_for(lambda: smollm2.sample("poot_cancelled_total") == cancelled + 1)
    steps = smollm2.sample("poot_steps_total")
    smollm2.wait_for(lambda: smollm2.sample("poot_rows_held") == 0)
    assert smollm2.sample("poot_steps_total") <= steps + 1
    assert smollm2.sample("poot_kv_blocks_held") == 0
