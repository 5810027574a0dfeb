"""The rows about the end: what is under way finishes, what comes later is told to go elsewhere."""

from __future__ import annotations

import json

import anyio
import pytest

from tests.contract.asking import Ask, Gone, Protocol, post, post_json
from tests.contract.checks import check_closes, check_error, check_lives
from tests.contract.house import House, Peer, house
from tests.contract.http1_peer import head_bytes
from tests.contract.http2_peer import Http2Peer
from tests.fakes.engine import FakeEngine, say

pytestmark = pytest.mark.anyio

DEADLINE = 30
GRACE = 1.0
"""How long a connection that has not carried a request yet may still send one; `NEW_CONNECTION_GRACE_SECONDS`."""
STREAM = post_json({"prompt": "hi", "stream": True})


async def drain(served: House) -> None:
    """Begins the drain and lets the server act on it."""
    served.server.drain()
    await anyio.sleep(0.001)


async def open_and_wait(served: House, protocol: Protocol) -> Peer:
    """A connection that has carried nothing, and is old enough that nothing counts as on its way."""
    peer = served.connect(protocol)
    await anyio.sleep(2 * GRACE)
    return peer


async def test_a_new_connection_is_refused_by_the_kernel() -> None:
    async with house() as served:
        await drain(served)
        await served.has_ended.wait()
        with pytest.raises(ConnectionRefusedError):
            served.connect_http1()


async def test_a_new_request_on_an_open_connection_is_503_and_closes(protocol: Protocol) -> None:
    async with house(rate_limit_rpm=1) as served:
        peer = await open_and_wait(served, protocol)
        await drain(served)
        call = await peer.begin(post().with_field(b"expect", b"100-continue"))
        reply = await call.reply()
        check_error(reply, 503, "shutting down", code="draining")
        assert (reply.informational, served.engine.requests) == ([], [])
        assert served.metric("refused", "draining") == 1
        if protocol is Protocol.HTTP1:
            await check_closes(peer, reply)
        else:
            assert isinstance(peer, Http2Peer)
            assert [error for _, error in peer.goaways] == [0, 0], "GOAWAY in two steps"
        await served.has_ended.wait()


async def test_health_says_draining_with_503(protocol: Protocol) -> None:
    async with house() as served:
        peer = await open_and_wait(served, protocol)
        await drain(served)
        reply = await peer.ask(Ask())
        assert (reply.status, reply.data["status"]) == (503, "draining")
        if protocol is Protocol.HTTP1:
            await check_closes(peer, reply)


@pytest.mark.parametrize("target", [b"/v1/models", b"/metrics"])
async def test_other_gets_are_answered_and_their_connection_closes(target: bytes) -> None:
    async with house() as served:
        peer = await open_and_wait(served, Protocol.HTTP1)
        await drain(served)
        reply = await peer.ask(Ask(target=target))
        assert reply.status == 200
        await check_closes(peer, reply)


async def test_an_idle_connection_is_closed_at_once(protocol: Protocol) -> None:
    async with house(drain_timeout_seconds=DEADLINE) as served:
        peer = served.connect(protocol)
        await check_lives(peer)
        began = anyio.current_time()
        await drain(served)
        if isinstance(peer, Http2Peer):
            await peer.is_closed()  # answers the PING that comes with the first GOAWAY
        await anyio.sleep(0.1)
        assert await peer.is_closed()
        peer.close()
        await served.has_ended.wait()
        assert anyio.current_time() - began < GRACE


async def test_a_connection_in_the_middle_of_a_head_is_closed() -> None:
    async with house() as served:
        peer = served.connect_http1()
        await peer.send(head_bytes(Ask(), "x")[:-2])
        await anyio.sleep(0.001)
        await drain(served)
        assert await peer.rest() == b""


async def test_an_answer_under_way_is_finished(protocol: Protocol) -> None:
    engine = FakeEngine(is_stepped=True)
    async with house(engine, drain_timeout_seconds=DEADLINE) as served:
        peer = served.connect(protocol)
        call = await peer.begin(post())
        await call.send(post().body)
        await anyio.sleep(0.001)
        await drain(served)
        await anyio.sleep(DEADLINE - 1)
        for _ in range(3):
            engine.step()
        reply = await call.reply()
        assert (reply.status, reply.data["choices"][0]["text"]) == (200, "Hello world")
        if protocol is Protocol.HTTP1:
            await check_closes(peer, reply)
        peer.close()
        await served.has_ended.wait()


async def test_a_stream_under_way_is_finished(protocol: Protocol) -> None:
    engine = FakeEngine(is_stepped=True)
    async with house(engine, drain_timeout_seconds=DEADLINE) as served:
        peer = served.connect(protocol)
        call = await peer.begin(STREAM)
        await call.send(STREAM.body)
        await anyio.sleep(0.001)
        engine.step()
        await drain(served)
        for _ in range(2):
            await anyio.sleep(5)
            engine.step()
        reply = await call.reply()
        assert (reply.is_complete, reply.events[-1]) == (True, "[DONE]")
        peer.close()
        await served.has_ended.wait()


async def test_a_request_whose_head_had_arrived_may_finish_its_body(protocol: Protocol) -> None:
    async with house(drain_timeout_seconds=DEADLINE) as served:
        peer = served.connect(protocol)
        call = await peer.begin(post())
        await anyio.sleep(0.001)
        await drain(served)
        await anyio.sleep(10)
        await call.send(post().body)
        reply = await call.reply()
        assert reply.status == 200
        if protocol is Protocol.HTTP1:
            await check_closes(peer, reply)


async def abort_at_the_deadline(served: House) -> None:
    """What `server.py` does with the engine when the drain deadline passes."""
    await drain(served)
    await anyio.sleep(DEADLINE)
    served.engine.is_draining = True
    served.engine.fail_all("the server shut down before this request was finished", draining=True)


async def test_a_stream_that_the_deadline_cancels_ends_with_an_error_event(protocol: Protocol) -> None:
    engine = FakeEngine(say("one", "two"), is_stepped=True)
    async with house(engine, drain_timeout_seconds=DEADLINE) as served:
        peer = served.connect(protocol)
        call = await peer.begin(STREAM)
        await call.send(STREAM.body)
        await anyio.sleep(0.001)
        engine.step()
        await abort_at_the_deadline(served)
        reply = await call.reply()
        assert (reply.status, reply.is_complete) == (200, True)
        assert "one" in reply.events[0]
        assert json.loads(reply.events[-1])["error"] == {
            "message": "the server shut down before this request was finished",
            "type": "overloaded_error",
            "param": None,
            "code": "draining",
        }
        assert "[DONE]" not in reply.events
        peer.close()
        await served.has_ended.wait()


async def test_an_answer_that_the_deadline_cancels_is_503(protocol: Protocol) -> None:
    async with house(FakeEngine(is_stepped=True), drain_timeout_seconds=DEADLINE) as served:
        peer = served.connect(protocol)
        call = await peer.begin(post())
        await call.send(post().body)
        await anyio.sleep(0.001)
        await abort_at_the_deadline(served)
        reply = await call.reply()
        check_error(reply, 503, "shut down", code="draining")
        if protocol is Protocol.HTTP1:
            await check_closes(peer, reply)


async def test_a_sender_that_is_too_slow_for_the_deadline_is_503(protocol: Protocol) -> None:
    async with house(drain_timeout_seconds=5, request_timeout_seconds=100) as served:
        peer = served.connect(protocol)
        call = await peer.begin(post())
        await call.send(post().body[:3], ends=False)
        await anyio.sleep(0.001)
        await drain(served)
        reply = await call.reply()
        check_error(reply, 503, "shut down", code="draining")
        assert served.engine.requests == []
        peer.close()
        await served.has_ended.wait()


async def test_requests_sent_ahead_of_the_drain_behind_one_under_way_are_not_begun() -> None:
    engine = FakeEngine(is_stepped=True)
    async with house(engine) as served:
        peer = served.connect_http1()
        raw = head_bytes(post(), served.authority) + post().body
        await peer.send(raw + raw)
        await anyio.sleep(0.001)
        await drain(served)
        for _ in range(3):
            engine.step()
        reply = await peer.reply()
        assert reply.status == 200
        await check_closes(peer, reply)
        assert len(engine.requests) == 1


async def test_a_stream_opened_after_the_last_goaway_is_not_served() -> None:
    engine = FakeEngine(is_stepped=True)
    async with house(engine) as served:
        peer = served.connect_http2()
        call = await peer.begin(post())
        await call.send(post().body)
        await anyio.sleep(0.001)
        await drain(served)
        await peer.is_closed()  # takes the first GOAWAY and its PING, and answers
        await peer.is_closed()  # takes the second
        assert peer.goaways == [(2**31 - 1, 0), (call.stream_id, 0)]
        late = await peer.begin(post())
        await late.send(post().body)
        for _ in range(3):
            engine.step()
        assert (await call.reply()).status == 200, "what was open is answered behind the GOAWAY"
        with pytest.raises(Gone):
            await late.reply()
        assert len(engine.requests) == 1
        await served.has_ended.wait()
