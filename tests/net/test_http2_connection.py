"""HTTP/2 over a socket pair: streams, bodies, answers, failures, and every deadline on a virtual clock."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Awaitable, Callable

import anyio
import pytest
from h2.errors import ErrorCodes
from h2.settings import SettingCodes

from poot.errors import BadRequest
from poot.net.exchange import ClientGone, Exchange, Response
from poot.net.http2_connection import DRAIN_GRACE_SECONDS
from poot.net.http2_exchange import STREAM_BUFFER_BYTES
from poot.net.transport import LINGER_SECONDS
from tests.net import h2_frames as wire
from tests.net.conftest import every_loop
from tests.net.h2_peer import Peer, connected, settle
from tests.net.peers import TEXT, hello
from tests.net.peers import connected as connected_raw

pytestmark = pytest.mark.anyio

TINY: dict[SettingCodes, int] = {SettingCodes.INITIAL_WINDOW_SIZE: 10}


def raises(error: Exception) -> Callable[[Exchange], Awaitable[None]]:
    async def application(exchange: Exchange) -> None:
        raise error

    return application


class Recorder:
    """An application that waits, and how it ended on every path."""

    def __init__(self) -> None:
        self.running: set[str] = set()
        self.cancelled: list[str] = []

    async def __call__(self, exchange: Exchange) -> None:
        path = exchange.head.path
        if path == "/hello":
            await hello(exchange)
            return
        self.running.add(path)
        try:
            if path == "/stream":
                async with exchange.stream(200, TEXT) as writer:
                    await writer.write(b"begun,")
                    await anyio.sleep_forever()
            await anyio.sleep_forever()
        except anyio.get_cancelled_exc_class():
            self.cancelled.append(path)
            raise
        finally:
            self.running.discard(path)


# -- which protocol ---------------------------------------------------------------------------------------------------


@every_loop
async def test_the_preface_chooses_http2() -> None:
    async with connected() as (peer, connection, _):
        answer = await peer.get("/a")
        assert (answer.status, answer.body, answer.is_complete) == (200, b"/a", True)
        assert connection.protocol == "h2"


async def test_a_preface_byte_by_byte_is_a_preface() -> None:
    async with connected_raw() as (client, _, _):
        peer = Peer(client)
        peer.h2.initiate_connection()
        for byte in peer.h2.data_to_send():
            await client.send(bytes([byte]))
            await settle()
        assert (await peer.get("/a")).body == b"/a"


@pytest.mark.parametrize("head", [b"POST /p HTTP/1.1", b"PUT /p HTTP/1.1", b"PRIX /p HTTP/1.1", b"GET /p HTTP/1.1"])
async def test_a_head_that_begins_like_the_preface_is_http1(head: bytes) -> None:
    async with connected_raw() as (client, connection, _):
        for byte in head + b"\r\nHost: x\r\nContent-Length: 1\r\n\r\nb":
            await client.send(bytes([byte]))
            await settle()
        assert (await client.answer()).body == b"/pb"
        assert connection.protocol == "http/1.1"


@pytest.mark.parametrize("sent", [b"PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n", b"PRI * HTTP/2.0\r\nHost: x\r\n\r\n"])
async def test_what_only_looks_like_the_preface_is_400(sent: bytes) -> None:
    async with connected_raw() as (client, _, _):
        answer = await client.request(sent)
        assert answer.status == 400
        assert answer.headers[b"connection"] == b"close"


async def test_half_a_preface_is_too_late_after_the_request_timeout() -> None:
    async with connected_raw(request_timeout_seconds=5) as (client, _, _):
        await client.send(wire.PREFACE[:20])
        answer = await client.answer()
        assert (answer.status, anyio.current_time() > 4) == (408, True)


async def test_an_upgrade_is_ignored_and_its_body_intact() -> None:
    async with connected_raw() as (client, _, _):
        for _ in range(2):
            answer = await client.request(
                b"POST /p HTTP/1.1\r\nHost: x\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
                b"HTTP2-Settings: AAMAAABkAAQAAP__\r\nContent-Length: 4\r\n\r\nbody"
            )
            assert (answer.status, answer.body) == (200, b"/pbody")


async def test_a_malformed_preface_of_settings_ends_with_goaway() -> None:
    async with connected_raw() as (client, _, _):
        peer = Peer(client)
        await client.send(wire.PREFACE + wire.ping())
        await peer.read_rest()
        assert peer.goaways[-1].error_code == ErrorCodes.PROTOCOL_ERROR
        await client.has_ended.wait()


# -- requests and answers ---------------------------------------------------------------------------------------------


@every_loop
async def test_bodies_reach_the_application_and_come_back() -> None:
    async with connected() as (peer, _, _):
        for size in (0, 1, 1000, 70_000, 900_000):
            answer = await peer.get("/p", body=b"x" * size)
            assert answer.body == b"/p" + b"x" * size
            assert answer.headers[b"content-length"] == b"%d" % (size + 2)
            assert answer.reset is None


async def test_answers_carry_what_http1_answers_carry_but_not_its_connection_fields() -> None:
    async with connected() as (peer, _, _):
        answer = await peer.get("/", headers=[(b"x-request-id", b"mine-1")])
        assert answer.headers[b"x-request-id"] == b"mine-1"
        assert answer.headers[b"date"].endswith(b" GMT")
        assert set(answer.headers) == {b"content-type", b"content-length", b"date", b"x-request-id"}


async def test_head_gets_no_body() -> None:
    async with connected() as (peer, _, _):
        answer = await peer.get("/", method="HEAD")
        assert (answer.body, answer.is_complete, answer.headers[b"content-length"]) == (b"", True, b"1")


@every_loop
async def test_a_hundred_streams_run_at_once() -> None:
    started: list[str] = []
    release = anyio.Event()

    async def application(exchange: Exchange) -> None:
        started.append(exchange.head.path)
        await release.wait()
        await hello(exchange)

    async with connected(application) as (peer, _, _):
        streams = [await peer.request(f"/{number}") for number in range(100)]
        while len(started) < 100:
            await peer.ping(b"%08d" % len(started))
        release.set()
        for number, stream_id in enumerate(streams):
            assert (await peer.answer(stream_id)).body == b"/%d" % number


async def test_frames_of_a_stream_arrive_as_they_are_written() -> None:
    turn = anyio.Event()

    async def application(exchange: Exchange) -> None:
        async with exchange.stream(200, TEXT) as writer:
            await writer.write(b"one,")
            await turn.wait()
            await writer.write(b"")
            await writer.write(b"two,")
            await writer.write(b"three")

    async with connected(application) as (peer, _, _):
        stream_id = await peer.request()
        await settle()
        await peer.ping()
        assert peer.answers[stream_id].body == b"one,"
        assert not peer.answers[stream_id].is_complete
        turn.set()
        answer = await peer.answer(stream_id)
        assert (answer.body, answer.is_complete) == (b"one,two,three", True)
        # What was written in one turn is one frame.
        assert [bytes(frame.data) for frame in wire.data_frames(peer.frames)][:2] == [b"one,", b"two,three"]


async def test_a_stream_to_head_has_no_body() -> None:
    async def application(exchange: Exchange) -> None:
        async with exchange.stream(200, TEXT) as writer:
            await writer.write(b"one")

    async with connected(application) as (peer, _, _):
        answer = await peer.get(method="HEAD")
        assert (answer.body, answer.is_complete) == (b"", True)


async def test_expect_continue_is_answered_when_the_body_is_wanted() -> None:
    async with connected() as (peer, _, _):
        stream_id = await peer.request("/p", length=4, headers=[(b"expect", b"100-continue")])
        await settle()
        await peer.ping()
        assert peer.answers[stream_id].has_continue
        await peer.body(stream_id, b"body", ends=True)
        assert (await peer.answer(stream_id)).body == b"/pbody"


async def test_expect_continue_is_not_answered_when_the_request_is_refused() -> None:
    async with connected(raises(BadRequest("no"))) as (peer, _, _):
        stream_id = await peer.request(length=4, headers=[(b"expect", b"100-continue")])
        answer = await peer.answer(stream_id)
        assert (answer.status, answer.has_continue) == (400, False)
        # The answer can be read in peace; then the client is told that its body is not waited for.
        await peer.ping()
        assert answer.reset is None
        await anyio.sleep(LINGER_SECONDS)
        await peer.ping(b"later..1")
        assert answer.reset == ErrorCodes.NO_ERROR


async def test_a_malformed_request_is_400_and_the_connection_lives(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "poot.access")
    async with connected() as (peer, _, _):
        peer.h2.config.validate_outbound_headers = False
        peer.h2.config.normalize_outbound_headers = False
        answer = await peer.get("/", headers=[(b"connection", b"close")])
        assert answer.status == 400
        assert b"malformed request" in answer.body
        assert (await peer.get("/b")).body == b"/b"
    first = vars(caplog.records[0])["fields"]
    assert (first["status"], first["path"]) == (400, "-")


async def test_head_lists_over_64_kib_are_431() -> None:
    async with connected() as (peer, _, _):
        answer = await peer.get("/", headers=[(b"x", b"v" * 70_000)])
        assert answer.status == 431
        assert (await peer.get("/b")).body == b"/b"


async def test_a_body_over_the_applications_limit_is_413() -> None:
    async def application(exchange: Exchange) -> None:
        await exchange.read_body(10)

    async with connected(application) as (peer, _, _):
        announced = await peer.get("/", body=b"x" * 11)
        assert announced.status == 413
        stream_id = await peer.request("/", length=None, method="PUT", ends=False)
        peer.h2.reset_stream(stream_id)
        # Without a length the limit is kept while reading.
        stream_id = peer.h2.get_next_available_stream_id()
        peer.h2.send_headers(stream_id, [*wire.post(None)])
        peer.answers[stream_id] = type(announced)()
        await peer.body(stream_id, b"y" * 11)
        assert (await peer.answer(stream_id)).status == 413


async def test_errors_of_the_application_are_answered() -> None:
    async with connected(raises(BadRequest("wrong", close=True))) as (peer, _, _):
        for _ in range(2):
            answer = await peer.get()
            assert (answer.status, b"wrong" in answer.body) == (400, True)


async def test_failures_of_the_application_are_500(caplog: pytest.LogCaptureFixture) -> None:
    async with connected(raises(ZeroDivisionError("secret"))) as (peer, _, _):
        answer = await peer.get()
        assert (answer.status, b"secret" in answer.body) == (500, False)
    assert "the application failed" in caplog.text


async def test_no_answer_is_500(caplog: pytest.LogCaptureFixture) -> None:
    async def application(exchange: Exchange) -> None:
        pass

    async with connected(application) as (peer, _, _):
        assert (await peer.get()).status == 500


async def test_a_failure_behind_the_head_resets_the_stream(caplog: pytest.LogCaptureFixture) -> None:
    async def application(exchange: Exchange) -> None:
        async with exchange.stream(200, TEXT) as writer:
            await writer.write(b"one")
            raise ZeroDivisionError

    async with connected(application) as (peer, _, _):
        answer = await peer.get()
        assert (answer.is_complete, answer.reset) == (False, ErrorCodes.INTERNAL_ERROR)
        await peer.ping()


async def test_one_line_for_each_stream_in_the_access_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "poot.access")
    async with connected() as (peer, _, _):
        await peer.get("/a")
        await peer.get("/b", body=b"xyz")
        await peer.get("/c", method="HEAD")
    lines = [vars(record)["fields"] for record in caplog.records]
    assert [(line["method"], line["path"], line["status"], line["bytes"]) for line in lines] == [
        ("GET", "/a", 200, 2),
        ("POST", "/b", 200, 5),
        ("HEAD", "/c", 200, 0),
    ]


# -- clients that leave -----------------------------------------------------------------------------------------------


@every_loop
async def test_a_reset_cancels_its_exchange_alone() -> None:
    recorder = Recorder()
    async with connected(recorder) as (peer, _, _):
        one, two = await peer.request("/one"), await peer.request("/two")
        await peer.request("/stream")
        await peer.ping()
        await peer.reset(one)
        await peer.ping(b"again..1")
        assert recorder.cancelled == ["/one"]
        assert recorder.running == {"/two", "/stream"}
        assert (await peer.get("/hello")).status == 200
        await peer.reset(two)
        await peer.ping(b"again..2")
        assert recorder.running == {"/stream"}


@every_loop
async def test_a_lost_connection_cancels_all_exchanges() -> None:
    recorder = Recorder()
    async with connected(recorder) as (peer, _, _):
        for path in ("/one", "/two", "/stream"):
            await peer.request(path)
        await peer.ping()
        peer.client.close()
        await peer.client.has_ended.wait()
        assert (sorted(recorder.cancelled), recorder.running) == (["/one", "/stream", "/two"], set())


async def test_a_body_that_ends_short_never_reaches_the_application() -> None:
    bodies: list[bytes] = []

    async def application(exchange: Exchange) -> None:
        bodies.append(await exchange.read_body(100))

    async with connected(application) as (peer, _, _):
        stream_id = await peer.request(length=10)
        await peer.body(stream_id, b"short", ends=True)
        assert (await peer.answer(stream_id)).reset == ErrorCodes.PROTOCOL_ERROR
        stream_id = await peer.request(length=10)
        await peer.body(stream_id, b"short")
        await peer.ping()
        peer.client.close()
        await peer.client.has_ended.wait()
        assert bodies == []


async def test_writes_to_a_stream_that_was_reset_say_so() -> None:
    seen: list[type[BaseException]] = []

    async def application(exchange: Exchange) -> None:
        async with exchange.stream(200, TEXT) as writer:
            await writer.write(b"x")
            with anyio.CancelScope(shield=True):
                await anyio.sleep(1)
                try:
                    await writer.write(b"x")
                except ClientGone as error:
                    seen.append(type(error))

    async with connected(application) as (peer, _, _):
        stream_id = await peer.request()
        await peer.ping()
        await peer.reset(stream_id)
        await anyio.sleep(2)
        assert seen == [ClientGone]


# -- time -------------------------------------------------------------------------------------------------------------


async def test_a_slow_body_is_408_on_its_stream_and_the_connection_lives() -> None:
    async with connected(request_timeout_seconds=5) as (peer, _, _):
        stream_id = await peer.request("/p", length=1000)
        began = anyio.current_time()
        for _ in range(4):
            await anyio.sleep(1)
            await peer.body(stream_id, b"x")
        answer = await peer.answer(stream_id)
        assert (answer.status, answer.is_complete) == (408, True)
        assert anyio.current_time() - began == pytest.approx(5)
        assert (await peer.get("/b")).body == b"/b"
        await anyio.sleep(LINGER_SECONDS)
        await peer.ping()
        assert answer.reset == ErrorCodes.NO_ERROR


async def test_a_client_that_is_sending_when_it_is_refused_may_finish() -> None:
    async with connected(raises(BadRequest("no"))) as (peer, _, _):
        answer = await peer.get("/p", body=bytes(1_000_000))
        assert (answer.status, answer.reset) == (400, None)
        assert (await peer.get("/b")).status == 400


async def test_the_deadline_of_a_stream_begins_with_its_head() -> None:
    async with connected(request_timeout_seconds=5) as (peer, _, _):
        for _ in range(4):
            await anyio.sleep(4)
            assert (await peer.get("/p", body=b"x")).body == b"/px"


async def test_a_head_that_never_ends_ends_the_connection() -> None:
    recorder = Recorder()
    async with connected(recorder, request_timeout_seconds=5) as (peer, _, _):
        await peer.request("/one")  # so that the connection is not idle
        await peer.ping()
        began = anyio.current_time()
        await peer.client.send(wire.raw(1, 1, 3, b"\x82"))
        for _ in range(3):
            await anyio.sleep(1)
            await peer.client.send(wire.raw(9, 0, 3, b"\x86"))
        await peer.read_rest()
        assert anyio.current_time() - began < 5.5 + LINGER_SECONDS
        assert peer.goaways[-1].additional_data == b"the request head did not arrive in time"
        await settle()
        assert recorder.cancelled == ["/one"]


@pytest.mark.parametrize("has_asked", [False, True])
async def test_an_idle_connection_is_closed_with_goaway(has_asked: bool) -> None:
    async with connected(request_timeout_seconds=5) as (peer, _, _):
        if has_asked:
            await anyio.sleep(3)
            await peer.get()
        began = anyio.current_time()
        for number in range(4):
            await anyio.sleep(1)
            await peer.ping(b"%08d" % number)
        await peer.read_rest()
        assert anyio.current_time() - began == pytest.approx(5, abs=0.1)
        assert [(frame.last_stream_id, frame.error_code) for frame in peer.goaways] == [(int(has_asked), 0)]
        peer.client.close()
        await peer.client.has_ended.wait()


async def test_a_connection_with_an_open_stream_is_not_idle() -> None:
    async def application(exchange: Exchange) -> None:
        await anyio.sleep(100)
        await hello(exchange)

    async with connected(application, request_timeout_seconds=5) as (peer, _, _):
        assert (await peer.get("/a")).body == b"/a"


async def test_a_stalled_stream_is_reset_after_the_write_timeout_and_others_run_on() -> None:
    ended: list[float] = []

    async def application(exchange: Exchange) -> None:
        if exchange.head.path == "/stalled":
            try:
                async with exchange.stream(200, TEXT) as writer:
                    await writer.write(b"x" * 20)
                    await anyio.sleep_forever()
            finally:
                ended.append(anyio.current_time())
        else:
            async with exchange.stream(200, TEXT) as writer:
                for _ in range(40):
                    await writer.write(b"token,")
                    await anyio.sleep(0.5)

    async with connected(application, settings=TINY, write_timeout_seconds=7) as (peer, _, _):
        began = anyio.current_time()
        peer.gives_credit = False
        stalled = await peer.request("/stalled")
        await peer.ping()
        running = await peer.request("/running")
        peer.h2.increment_flow_control_window(1000, running)
        await peer.flush()
        answer = await peer.answer(stalled)
        assert (answer.body, answer.reset) == (b"x" * 10, ErrorCodes.CANCEL)
        assert ended[0] - began == pytest.approx(7)
        assert 10 * 6 <= len(peer.answers[running].body) <= 15 * 6
        answer = await peer.answer(running)
        assert (answer.body, answer.is_complete) == (b"token," * 40, True)


async def test_a_whole_answer_has_the_write_timeout_for_all_of_it() -> None:
    async def application(exchange: Exchange) -> None:
        await exchange.send(Response(status=200, headers=TEXT, body=b"x" * 1000))

    async with connected(application, settings=TINY, write_timeout_seconds=5) as (peer, _, _):
        peer.gives_credit = False
        stream_id = await peer.request()
        await peer.ping()
        for _ in range(4):
            await anyio.sleep(1)
            peer.h2.increment_flow_control_window(10, stream_id)
            await peer.flush()
        answer = await peer.answer(stream_id)
        assert (answer.body, answer.reset) == (b"x" * 50, ErrorCodes.CANCEL)
        assert anyio.current_time() == pytest.approx(5, abs=0.1)


async def test_a_client_that_reads_each_write_in_time_is_served_for_as_long_as_it_takes() -> None:
    async def application(exchange: Exchange) -> None:
        async with exchange.stream(200, TEXT) as writer:
            for _ in range(20):
                await writer.write(b"x" * 10)
                await anyio.sleep(3)

    async with connected(application, settings=TINY, write_timeout_seconds=5) as (peer, _, _):
        peer.gives_credit = False
        stream_id = await peer.request()
        while len(peer.answers[stream_id].body) < 190:
            await peer.read()
            await anyio.sleep(2.5)
            peer.h2.increment_flow_control_window(10, stream_id)
            await peer.flush()
        answer = await peer.answer(stream_id)
        assert (len(answer.body), answer.is_complete) == (200, True)


async def test_a_writer_waits_for_a_client_that_lags_and_goes_on() -> None:
    written: list[int] = []

    async def application(exchange: Exchange) -> None:
        async with exchange.stream(200, TEXT) as writer:
            for number in range(40):
                await writer.write(bytes(8192))
                written.append(number)

    async with connected(application) as (peer, _, _):
        peer.gives_credit = False
        stream_id = await peer.request()
        await anyio.sleep(1)
        assert 8192 * len(written) <= 65535 + STREAM_BUFFER_BYTES + 8192
        while await peer.read() and not peer.answers[stream_id].is_complete:
            for target in (None, stream_id):
                peer.h2.increment_flow_control_window(16384, target)
            await peer.flush()
        assert len(peer.answers[stream_id].body) == 40 * 8192


async def test_a_client_that_reads_nothing_loses_the_connection_after_the_write_timeout() -> None:
    recorder = Recorder()

    async def application(exchange: Exchange) -> None:
        if exchange.head.path != "/flood":
            await recorder(exchange)
        async with exchange.stream(200, TEXT) as writer:
            while True:
                await writer.write(bytes(8192))

    settings = {SettingCodes.INITIAL_WINDOW_SIZE: 2**30}
    async with connected(application, settings=settings, write_timeout_seconds=5, send_buffer_bytes=4096) as (
        peer,
        _,
        _,
    ):
        peer.h2.increment_flow_control_window(2**30)
        await peer.request("/waits")
        await peer.request("/flood")
        await peer.client.has_ended.wait()
        assert anyio.current_time() == pytest.approx(5, abs=0.1)
        assert recorder.cancelled == ["/waits"]


# -- fairness ---------------------------------------------------------------------------------------------------------


@every_loop
async def test_a_large_answer_does_not_delay_a_small_one() -> None:
    large = bytes(4 * 1024 * 1024)

    async def application(exchange: Exchange) -> None:
        body = large if exchange.head.path == "/large" else b"small"
        await exchange.send(Response(status=200, headers=TEXT, body=body))

    settings = {SettingCodes.INITIAL_WINDOW_SIZE: 2**30}
    async with connected(application, settings=settings, send_buffer_bytes=65536) as (peer, _, _):
        peer.h2.increment_flow_control_window(2**30)
        first = await peer.request("/large")
        while not peer.answers[first].body:
            await peer.read()
        small = await peer.request("/small")
        await peer.answer(small)
        assert len(peer.answers[first].body) < 1024 * 1024
        assert len((await peer.answer(first)).body) == len(large)


async def test_streams_share_the_connection_evenly() -> None:
    async def application(exchange: Exchange) -> None:
        await exchange.send(Response(status=200, headers=TEXT, body=bytes(500_000)))

    settings = {SettingCodes.INITIAL_WINDOW_SIZE: 2**30}
    async with connected(application, settings=settings, send_buffer_bytes=65536) as (peer, _, _):
        streams = [await peer.request() for _ in range(8)]
        await settle()
        peer.h2.increment_flow_control_window(2**30)
        await peer.flush()
        for stream_id in streams:
            await peer.answer(stream_id)
        sizes = dict.fromkeys(streams, 0)
        for frame in wire.data_frames(peer.frames):
            sizes[frame.stream_id] += len(frame.data)
            if max(sizes.values()) >= 400_000:
                break
        assert min(sizes.values()) > 350_000


# -- drain ------------------------------------------------------------------------------------------------------------


async def test_a_drain_ends_an_idle_connection_after_a_round_trip() -> None:
    async with connected() as (peer, connection, service):
        await peer.get()
        service.is_draining = True
        connection.drain()
        await peer.read_rest()
        assert [frame.last_stream_id for frame in peer.goaways] == [2**31 - 1, 1]
        assert anyio.current_time() < DRAIN_GRACE_SECONDS
        peer.client.close()
        await peer.client.has_ended.wait()


async def test_a_drain_serves_what_is_running_and_what_was_on_its_way() -> None:
    release = anyio.Event()

    async def application(exchange: Exchange) -> None:
        await release.wait()
        assert not exchange.is_draining
        await hello(exchange)

    async with connected(application) as (peer, connection, service):
        running = await peer.request("/running")
        await peer.ping()
        service.is_draining = True
        connection.drain()
        on_its_way = await peer.request("/on-its-way")
        while len(peer.goaways) < 2:
            await peer.read()
        assert peer.goaways[1].last_stream_id == on_its_way
        late = await peer.request("/late")
        await settle()
        release.set()
        assert (await peer.answer(running)).body == b"/running"
        assert (await peer.answer(on_its_way)).body == b"/on-its-way"
        await peer.read_rest()
        assert peer.answers[late].status == 0


async def test_a_drain_does_not_wait_for_a_client_that_confirms_nothing() -> None:
    recorder = Recorder()
    async with connected(recorder) as (peer, connection, service):
        await peer.request("/one")
        await settle()
        service.is_draining = True
        connection.drain()
        connection.drain()
        await anyio.sleep(DRAIN_GRACE_SECONDS / 2)
        await peer.request("/two")
        await anyio.sleep(DRAIN_GRACE_SECONDS)
        await peer.request("/three")
        await settle()
        assert recorder.running == {"/one", "/two"}
        connection.cancel_exchange()
        for stream_id in (1, 3):
            answer = await peer.answer(stream_id)
            assert (answer.status, b"draining" in answer.body) == (503, True)
        await peer.read_rest()


async def test_a_stream_cancelled_by_the_drain_is_reset() -> None:
    recorder = Recorder()
    async with connected(recorder) as (peer, connection, service):
        stream_id = await peer.request("/stream")
        await peer.ping()
        service.is_draining = True
        connection.drain()
        connection.cancel_exchange()
        answer = await peer.answer(stream_id)
        assert (answer.body, answer.is_complete, answer.reset) == (b"begun,", False, ErrorCodes.INTERNAL_ERROR)
        await peer.read_rest()


@pytest.mark.parametrize(("age", "is_late"), [(0.5, False), (3.0, True)])
async def test_a_first_request_during_the_drain_is_late_on_an_old_connection(age: float, is_late: bool) -> None:
    seen: list[bool] = []

    async def application(exchange: Exchange) -> None:
        seen.append(exchange.is_draining)
        await hello(exchange)

    async with connected(application) as (peer, connection, service):
        await anyio.sleep(age)
        service.is_draining = True
        connection.drain()
        await peer.request()
        await peer.read_rest()
        assert seen == [is_late]


async def test_a_preface_that_comes_during_the_drain_is_served_and_closed() -> None:
    async with connected_raw() as (client, connection, service):
        service.is_draining = True
        connection.drain()
        peer = Peer(client)
        await peer.start()
        assert (await peer.get("/a")).body == b"/a"
        await peer.read_rest()
        assert [frame.last_stream_id for frame in peer.goaways] == [2**31 - 1, 1]


# -- abuse ------------------------------------------------------------------------------------------------------------


@every_loop
async def test_rapid_resets_end_the_connection_and_leave_nothing_running() -> None:
    recorder = Recorder()
    async with connected(recorder) as (peer, _, _):
        with contextlib.suppress(BrokenPipeError, ConnectionResetError, EOFError):
            while True:
                stream_id = await peer.request(f"/{len(peer.answers)}")
                await peer.reset(stream_id)
                if stream_id % 100 == 1:
                    await peer.ping(b"%08d" % stream_id)
        assert 500 < len(peer.answers) < 1200
        peer.client.close()
        await peer.client.has_ended.wait()
        assert recorder.running == set()


async def test_goaway_names_the_abuse_and_other_streams_are_cancelled() -> None:
    recorder = Recorder()
    async with connected(recorder) as (peer, _, _):
        await peer.request("/one")
        await peer.client.send(wire.ping() * 500)
        await peer.ping()
        await peer.client.send(wire.ping() * 600)
        await peer.read_rest()
        (goaway,) = peer.goaways
        assert (goaway.error_code, goaway.additional_data) == (ErrorCodes.ENHANCE_YOUR_CALM, b"too many PING")
        await settle()
        assert recorder.cancelled == ["/one"]
