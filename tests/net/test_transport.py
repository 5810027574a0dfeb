"""One socket's reader and writer, without HTTP above them."""

from __future__ import annotations

import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio
import pytest

from poot.net.exchange import ClientGone
from poot.net.transport import READ_AHEAD_BYTES, WRITE_BUFFER_BYTES, Transport
from tests.net.conftest import every_loop
from tests.net.peers import Client, settle

pytestmark = pytest.mark.anyio


class Inbox:
    """What a transport has received; `num_unread` is what its user says it holds."""

    def __init__(self) -> None:
        self.data = b""
        self.num_unread = 0
        self.num_gone = 0

    def receive(self, data: bytes) -> None:
        self.data += data
        self.num_unread += len(data)

    def count_gone(self) -> None:
        self.num_gone += 1


@asynccontextmanager
async def transport(*, write_timeout_seconds: float = 30) -> AsyncGenerator[tuple[Transport, Client, Inbox]]:
    ours, theirs = socket.socketpair()
    inbox = Inbox()
    with ours, theirs:
        ours.setblocking(False)
        theirs.setblocking(False)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        async with anyio.create_task_group() as task_group:
            under_test = Transport(
                ours, task_group, write_timeout_seconds=write_timeout_seconds, on_gone=inbox.count_gone
            )
            task_group.start_soon(under_test.run_reader, inbox.receive, lambda: inbox.num_unread)
            yield under_test, Client(theirs), inbox
            task_group.cancel_scope.cancel()


@every_loop
async def test_what_arrives_is_passed_on_and_wakes_who_waits() -> None:
    async with transport() as (under_test, client, inbox):
        await client.send(b"hello")
        await under_test.wait_for_data()
        assert inbox.data == b"hello"


async def test_interrupt_wakes_who_waits() -> None:
    async with transport() as (under_test, _, inbox), anyio.create_task_group() as task_group:
        task_group.start_soon(under_test.wait_for_data)
        await settle()
        under_test.interrupt()
        assert inbox.data == b""


async def test_reading_pauses_until_somebody_wants_more() -> None:
    async with transport() as (under_test, client, inbox):
        inbox.num_unread = READ_AHEAD_BYTES
        await client.send(b"a")
        await settle()
        await client.send(b"b")
        await settle()
        assert inbox.data == b"a"
        await under_test.wait_for_data()
        assert inbox.data == b"ab"


async def test_the_peers_end_is_told_once_and_nothing_waits_after_it() -> None:
    async with transport() as (under_test, client, inbox):
        client.close()
        await under_test.wait_for_data()
        await under_test.wait_for_data()
        assert (under_test.has_ended, inbox.num_gone) == (True, 1)
        with pytest.raises(ClientGone):
            await under_test.write(b"x")
        assert (under_test.is_gone, inbox.num_gone) == (True, 1)


async def test_a_peer_that_ends_its_sending_side_still_takes_bytes() -> None:
    async with transport() as (under_test, client, _):
        client.connected.shutdown(socket.SHUT_WR)
        await under_test.wait_for_data()
        assert (under_test.has_ended, under_test.is_gone) == (True, False)
        await under_test.write(b"bye")
        assert await client.receive() == b"bye"


async def test_bytes_leave_in_order_whatever_the_client_reads() -> None:
    expected = b"".join(b"%06d" % number for number in range(50_000))
    async with transport() as (under_test, client, _), anyio.create_task_group() as task_group:

        async def send() -> None:
            for start in range(0, len(expected), 997):
                await under_test.write(expected[start : start + 997])
            await under_test.flush()
            client.connected.shutdown(socket.SHUT_RD)

        task_group.start_soon(send)
        received = b""
        while len(received) < len(expected):
            received += await client.receive(1 + len(received) % 5000)
        assert received == expected


async def test_flush_waits_for_the_kernel_and_fails_with_the_write() -> None:
    async with transport(write_timeout_seconds=5) as (under_test, _, inbox):
        started = anyio.current_time()
        await under_test.write(b"x" * WRITE_BUFFER_BYTES)
        assert anyio.current_time() == started, "a write within the buffer does not wait"
        with pytest.raises(ClientGone):
            await under_test.flush()
        assert anyio.current_time() - started == pytest.approx(5, abs=0.1)
        assert inbox.num_gone == 1


async def test_each_write_has_its_own_time() -> None:
    async with transport(write_timeout_seconds=5) as (under_test, client, inbox):
        await under_test.write(b"x" * 20_000)
        started = anyio.current_time()
        await anyio.sleep(4)
        await under_test.write(b"y" * 20_000)
        received = 0
        while received < 20_000:
            received += len(await client.receive(20_000 - received))
        await anyio.sleep(4)
        assert not under_test.is_gone, "the second write was held to the time of the first"
        await anyio.sleep(2)
        assert under_test.is_gone
        assert anyio.current_time() - started == pytest.approx(10, abs=0.1)
        assert inbox.num_gone == 1
