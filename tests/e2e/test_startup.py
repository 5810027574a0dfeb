"""What an operator sees when something is wrong at startup, and when the server is told to stop."""

from __future__ import annotations

import json
import signal
import socket
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.process import ServerProcess, serving
from tests.models import require_model


def refused(*arguments: str) -> tuple[int, list[str]]:
    server = ServerProcess(*arguments, environment={"RUST_LOG": "off"})
    status = server.wait()
    assert server.process.stderr is not None
    server.process.stderr.close()
    return status, server.lines


def truncated(data: bytes) -> bytes:
    return data[: len(data) // 2]


def wrong_magic(data: bytes) -> bytes:
    return b"GGML" + data[4:]


def oversized_count(data: bytes) -> bytes:
    return data[:8] + struct.pack("<Q", 2**60) + data[16:]


def overlapping_tensors(data: bytes) -> bytes:
    """Moves the second tensor onto the first by rewriting its offset (0 in the tensor table's last field)."""
    name = b"blk.0.ffn_down.weight"
    at = data.index(struct.pack("<Q", len(name)) + name) + 8 + len(name)
    (num_dims,) = struct.unpack_from("<I", data, at)
    offset_at = at + 4 + 8 * num_dims + 4
    return data[:offset_at] + struct.pack("<Q", 0) + data[offset_at + 8 :]


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (truncated, "truncated"),
        (wrong_magic, "not a GGUF file"),
        (oversized_count, "1152921504606846976 tensors; at most"),
        (overlapping_tensors, "overlap"),
    ],
)
def test_a_damaged_gguf_stops_startup_with_one_line(
    tmp_path: Path, damage: Callable[[bytes], bytes], told: str
) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(damage(require_model("smollm2").read_bytes()))
    status, lines = refused(str(path), "127.0.0.1:0")
    assert status == 1
    assert len(lines) == 1, lines
    assert told in lines[0]
    assert "Traceback" not in lines[0]


def test_a_damaged_safetensors_header_stops_startup_with_one_line(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"]}))
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", 1 << 40) + b"{}")
    status, lines = refused(str(tmp_path), "127.0.0.1:0")
    assert status == 1
    assert len(lines) == 1, lines
    assert "header" in lines[0]


def test_an_address_in_use_stops_startup_with_one_line(smollm2: ServerProcess) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        status, lines = refused(str(require_model("smollm2")), f"127.0.0.1:{taken.getsockname()[1]}")
    assert status == 1
    assert len(lines) == 1, lines
    assert "in use" in lines[0]


def test_device_timing_says_what_was_kept_and_that_the_device_time_is_unknown() -> None:
    arguments = ["--max-seq", "256", "--rows", "1", "--device-timing", "--timing-max-steps", "5"]
    with serving(require_model("smollm2"), *arguments) as server:
        assert server.get("/metrics")["device_timing"] == {
            "steps": 0,
            "host_wall_seconds": 0,
            "device_seconds": None,
            "detail": "complete",
            "perturbed": False,
            "retained_steps": 0,
            "retained_dispatch_records": 0,
            "dispatches": {},
        }
        server.post("/v1/completions", {"prompt": "Count:", "max_tokens": 8, "temperature": 0, "ignore_eos": True})
        timing = server.get("/metrics")["device_timing"]
        assert (timing["steps"], timing["retained_steps"], timing["detail"]) == (8, 5, "truncated")
        assert timing["dispatches"]["attention"]["count"] == 5 * 30  # one a layer of SmolLM2-135M
        kept = sum(totals["host_seconds"] for totals in timing["dispatches"].values())
        assert 0 < kept < timing["host_wall_seconds"]
        assert timing["device_seconds"] is None
        assert {totals["device_seconds"] for totals in timing["dispatches"].values()} == {None}
        assert "\npoot_device_timing_device_seconds_total " not in server.get_text("/metrics/prometheus")
        assert "device time stays unknown" in server.log


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains_what_runs_and_exits_with_zero(number: signal.Signals) -> None:
    with serving(require_model("smollm2"), "--max-seq", "256", "--rows", "1") as server:
        body = json.dumps({"prompt": "Count:", "max_tokens": 60, "temperature": 0, "ignore_eos": True}).encode()
        head = (
            f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        ).encode()
        with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
            connection.sendall(head + body)
            server.wait_for(lambda: server.sample("poot_rows_held") == 1)
            server.process.send_signal(number)
            answer = b""
            while chunk := connection.recv(65536):
                answer += chunk
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert b"connection: close" in answer.lower()
        assert json.loads(answer.split(b"\r\n\r\n", 1)[1])["usage"]["completion_tokens"] == 60
        assert server.wait() == 0
