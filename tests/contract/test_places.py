"""The rows about how many may come in at once: places of admission, places to receive a body, rows of the engine,
and connections."""

from __future__ import annotations

import anyio
import pytest

from tests.contract.asking import Ask, Protocol, Reply, post, post_json
from tests.contract.checks import check_closes, check_error, check_lives, check_stream_ends
from tests.contract.house import House, house
from tests.fakes.engine import FakeEngine, FakeModel

pytestmark = pytest.mark.anyio

WAIT = post().with_field(b"expect", b"100-continue")


async def refused_at_the_head(served: House, protocol: Protocol, words: str) -> None:
    """Checks that one more request is 429 before its body."""
    num_opened = len(served.engine.requests)
    peer = served.connect(protocol)
    call = await peer.begin(WAIT)
    reply = await call.reply()
    check_error(reply, 429, words)
    assert (reply.get(b"retry-after"), reply.informational) == (b"1", [])
    assert len(served.engine.requests) == num_opened
    if protocol is Protocol.HTTP1:
        await check_closes(peer, reply)
    else:
        await check_stream_ends(call)
        await check_lives(peer)


@pytest.mark.parametrize("path", [b"/v1/completions", b"/v1/chat/completions", b"/v1/embeddings", b"/v1/rerank"])
async def test_a_slow_sender_holds_a_place_of_admission_until_it_is_answered(protocol: Protocol, path: bytes) -> None:
    async with house(max_pending_requests=2, max_receiving_requests=2) as served:
        slow = [await served.connect(protocol).begin(post()) for _ in range(2)]
        for call in slow:
            await call.send(post().body[:5], ends=False)
        await anyio.sleep(10)
        assert served.ledger()["pending"] == 2
        num_refused = served.metric("refused", "pending")
        peer = served.connect(protocol)
        reply = await (await peer.begin(post(path))).reply()
        check_error(reply, 429, "admits 2 requests.*--max-pending-requests")
        assert reply.get(b"retry-after") == b"1"
        assert served.metric("refused", "pending") == num_refused + 1
        await slow[0].send(post().body[5:])
        assert (await slow[0].reply()).status == 200
        assert (await served.ask(protocol, post())).status == 200, "its place is free again"
        await slow[1].send(post().body[5:])
        assert (await slow[1].reply()).status == 200


async def test_no_admission_place_is_429_before_the_body(protocol: Protocol) -> None:
    async with house(max_pending_requests=1) as served:
        await served.connect(protocol).begin(post())
        await anyio.sleep(0.001)
        await refused_at_the_head(served, protocol, "--max-pending-requests")


async def test_no_receiving_place_is_429_before_the_body(protocol: Protocol) -> None:
    async with house(max_pending_requests=9, max_receiving_requests=1) as served:
        slow = await served.connect(protocol).begin(post())
        await slow.send(b"{", ends=False)
        await anyio.sleep(0.001)
        assert (served.ledger()["pending"], served.ledger()["receiving"]) == (1, 1)
        await refused_at_the_head(served, protocol, "receives 1 requests.*--max-receiving-requests")
        assert served.metric("refused", "receiving") == 1
        await slow.send(post().body[1:])
        assert (await slow.reply()).status == 200


async def test_a_received_request_frees_its_receiving_place_and_keeps_the_other(protocol: Protocol) -> None:
    async with house(FakeEngine(is_stepped=True), max_pending_requests=2, max_receiving_requests=1) as served:
        calls = []
        for _ in range(2):
            call = await served.connect(protocol).begin(post())
            await call.send(post().body)
            await anyio.sleep(0.001)
            calls.append(call)
        ledger = served.ledger()
        assert (ledger["pending"], ledger["rows"], "receiving" in ledger) == (2, 2, False)
        await refused_at_the_head(served, protocol, "--max-pending-requests")
        for _ in range(3):
            served.engine.step()
        assert [(await call.reply()).status for call in calls] == [200, 200]
        assert "pending" not in served.ledger()


async def test_gets_need_no_place(protocol: Protocol) -> None:
    async with house(max_pending_requests=1) as served:
        await served.connect(protocol).begin(post())
        await anyio.sleep(0.001)
        for target in (b"/health", b"/metrics", b"/v1/models"):
            assert (await served.ask(protocol, Ask(target=target))).status == 200
        assert (await served.ask(protocol, post(b"/v1/lora_adapters"))).status == 400


async def test_a_refused_request_leaves_the_places_as_they_were(protocol: Protocol) -> None:
    async with house(max_pending_requests=1, max_receiving_requests=1) as served:
        for _ in range(3):
            assert (await served.ask(protocol, post(body=b"{"))).status == 400
            assert (await served.ask(protocol, post().with_field(b"content-type"))).status == 415
        assert (await served.ask(protocol, post())).status == 200


async def test_a_sender_that_goes_away_gives_its_places_back(protocol: Protocol) -> None:
    async with house(max_pending_requests=1, max_receiving_requests=1) as served:
        peer = served.connect(protocol)
        await (await peer.begin(post())).send(b"{", ends=False)
        await anyio.sleep(0.001)
        assert served.ledger()["receiving"] == 1
        peer.close()
        await anyio.sleep(0.001)
        assert served.ledger() == {}
        assert (await served.ask(protocol, post())).status == 200


async def test_a_cancelled_stream_gives_its_places_and_its_row_back() -> None:
    async with house(FakeEngine(is_stepped=True), max_pending_requests=1) as served:
        peer = served.connect_http2()
        call = await peer.begin(post())
        await call.send(post().body)
        await anyio.sleep(0.001)
        assert served.ledger()["rows"] == 1
        await call.cancel()
        await anyio.sleep(0.001)
        assert set(served.ledger()) == {"connections", "h2"}
        assert served.engine.num_cancelled == 1
        await check_lives(peer)


async def test_a_request_that_no_row_opens_in_time_is_503(protocol: Protocol) -> None:
    engine = FakeEngine(model=FakeModel(rows=1), is_stepped=True)
    async with house(engine, max_queue_wait_seconds=60) as served:
        running = await served.connect(protocol).begin(post())
        await running.send(post().body)
        await anyio.sleep(30)
        peer = served.connect(protocol)
        waiting = await peer.begin(post())
        await waiting.send(post().body)
        await anyio.sleep(59.9)
        assert (served.ledger()["rows"], served.ledger()["waiting"]) == (1, 1)
        began = anyio.current_time()
        reply = await waiting.reply()
        assert anyio.current_time() - began == pytest.approx(0.1, abs=0.01)
        check_error(reply, 503, "60 s .--max-queue-wait-secs")
        assert reply.get(b"retry-after") == b"10"
        assert reply.get(b"connection") is None, "its body was read, so its connection may live"
        await check_lives(peer)
        assert (served.metric("refused", "queue_wait"), "waiting" in served.ledger()) == (1, False)
        for _ in range(3):
            engine.step()
        assert (await running.reply()).status == 200, "a running request is not affected"


async def test_a_stream_that_no_row_opens_in_time_is_503_too(protocol: Protocol) -> None:
    async with house(FakeEngine(model=FakeModel(rows=0)), max_queue_wait_seconds=1) as served:
        reply = await served.ask(protocol, post_json({"prompt": "hi", "stream": True}))
        check_error(reply, 503, "--max-queue-wait-secs")


async def test_over_max_connections_a_connection_gets_a_short_503_and_is_closed() -> None:
    async with house(max_connections=2) as served:
        first, second = served.connect_http1(), served.connect(Protocol.HTTP2)
        await check_lives(first)
        await check_lives(second)
        third = served.connect_http1()
        reply: Reply = await third.reply()  # nothing was sent
        assert (reply.status, reply.data["error"]["type"]) == (503, "overloaded_error")
        assert "--max-connections" in reply.data["error"]["message"]
        assert (reply.get(b"connection"), reply.get(b"retry-after")) == (b"close", b"1")
        assert await third.is_closed()
        assert served.server.statistics().num_open == 2
        await check_lives(first)
        first.close()
        await anyio.sleep(0.001)
        await check_lives(served.connect_http1())
        assert served.metric("refused", "connections") == 1
