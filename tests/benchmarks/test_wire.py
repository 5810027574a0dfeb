"""The load client's own protocol code against h2 and hpack, and the arithmetic of the tables."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator

import h2.config
import h2.connection
import h2.events
import hpack
import pytest

from benchmarks.wire import WORKLOADS, Result, format_table
from benchmarks.wire_client import Http1Client, body_of
from benchmarks.wire_http2 import OPENING, Reader, Requests, header_block


def test_a_header_block_is_what_hpack_reads() -> None:
    block = header_block(method="POST", path="/v1/completions", authority="127.0.0.1:8080", body=b"{}")
    decoded = [(str(name), str(value)) for name, value in hpack.Decoder().decode(block)]
    assert decoded == [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", "/v1/completions"),
        (":authority", "127.0.0.1:8080"),
        ("content-type", "application/json"),
        ("content-length", "2"),
    ]


@pytest.mark.parametrize("step", [1, 7, 10_000])
def test_h2_serves_the_client_and_its_answers_are_counted(step: int) -> None:
    server = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False))
    server.initiate_connection()
    body = body_of("post")
    requests = Requests(header_block(method="POST", path="/", authority="x", body=body), body)
    events = server.receive_data(OPENING + requests.on(1) + requests.on(3))
    assert [event.stream_id for event in events if isinstance(event, h2.events.StreamEnded)] == [1, 3]
    for stream_id, status in ((1, "200"), (3, "503")):
        server.send_headers(stream_id, [(":status", status)])
        server.send_data(stream_id, b"data: x\n\n" * 100, end_stream=True)
    server.ping(b"12345678")
    reader = Reader()
    sent = server.data_to_send()
    num_ended, reply = 0, b""
    for start in range(0, len(sent), step):
        ended, replied = reader.read(sent[start : start + step])
        num_ended += ended
        reply += replied
    assert (num_ended, reader.num_failed) == (2, 1)
    acknowledged = server.receive_data(reply)
    assert {type(event) for event in acknowledged} == {h2.events.SettingsAcknowledged, h2.events.PingAckReceived}


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


@pytest.mark.parametrize("step", [1, 5, 10_000])
@pytest.mark.parametrize(
    ("workload", "answer"),
    [
        ("get", b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc"),
        ("steps", b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n9\r\ndata: x\n\n\r\n0\r\n\r\n"),
    ],
)
def test_http_1_answers_are_counted_however_they_arrive(
    listening: socket.socket, workload: str, answer: bytes, step: int
) -> None:
    client = Http1Client(listening.getsockname()[1], workload)
    num_answers = sum(client.read(answer[start : start + step]) for start in range(0, len(answer), step))
    assert (num_answers, client.num_failed) == (1, 0)
    client.socket.close()


@pytest.mark.parametrize("workload", ["post", "steps", "ready"])
def test_bodies_are_a_kibibyte_of_json(workload: str) -> None:
    assert len(body_of(workload)) == 1024
    assert json.loads(body_of(workload)).get("stream", False) is (workload != "post")


def test_the_table_holds_medians_and_ratios() -> None:
    results = {
        (name, "h2", workload): [Result(rate, 10.0) for rate in rates]
        for workload in WORKLOADS
        for name, rates in {"ours": (1.0, 3000.0, 9000.0), "peer": (1500.0, 1500.0, 1.0)}.items()
    }
    lines = format_table("h2", ["ours", "peer"], results)
    assert lines[0] == "| h2 | ours | peer | ours / peer |"
    assert lines[2] == "| GET /health, requests/s | 3,000 (10.0 us) | 1,500 (10.0 us) | 2.00 |"
    assert len(lines) == 2 + len(WORKLOADS)
