"""One connected socket: bytes in by a reader task, bytes out at once or by a flusher, each within its deadline.

The socket is ours, non-blocking, and no event loop's stream wraps it: a write is one `send` system call when the
client keeps up, and only a client that does not costs a task, a scope and a wait. Knows nothing of HTTP.
"""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Callable

import anyio
import anyio.abc

from poot.net.exchange import ClientGone

RECEIVE_BYTES = 64 * 1024
"""Most bytes taken by one `recv`; asyncio takes 256 KiB, Go 4 KiB."""

READ_AHEAD_BYTES = 64 * 1024
"""Received bytes that may lie unread before the reader pauses: requests sent ahead, or a body nobody reads yet. While
it is paused a client that closes is noticed only by a failing write."""

WRITE_BUFFER_BYTES = 64 * 1024
"""Bytes a slow client may leave unsent before writers wait; asyncio's high-water mark is the same."""

LINGER_BYTES = 256 * 1024
LINGER_SECONDS = 2.0
"""What is read and thrown away after a last answer that left bytes unread. Closing at once would reset the connection
and could take the answer with it (RFC 9112 section 9.6). nginx lingers 5 s at most between reads."""


class Transport:
    """Sends and receives on one socket, which it owns and closes.

    Args:
        connected: a connected, non-blocking stream socket.
        task_group: outlives this object; the flusher runs in it.
        write_timeout_seconds: how long the bytes of one `write` may take to reach the kernel.
        on_gone: called once, when the peer closed, was reset or read too slowly. Must not wait.

    A peer that closed (`has_ended`) may still take what is written at once; one that is gone (`is_gone`) takes nothing.
    """

    def __init__(
        self,
        connected: socket.socket,
        task_group: anyio.abc.TaskGroup,
        *,
        write_timeout_seconds: float,
        on_gone: Callable[[], None],
    ) -> None:
        self._socket = connected
        self._task_group = task_group
        self._write_timeout_seconds = write_timeout_seconds
        self._on_gone = on_gone
        self._has_ended = False
        self._is_gone = False
        self._unsent = bytearray()
        # For each write with bytes in `_unsent`: how many bytes have to leave before it is done, and by when.
        self._deadlines: deque[tuple[int, float]] = deque()
        self._num_sent = 0
        self._is_flushing = False
        self._progress: anyio.Event | None = None
        self._arrival: anyio.Event | None = None
        self._resumption: anyio.Event | None = None
        self._is_discarding = False
        self._num_discarded = 0

    @property
    def has_ended(self) -> bool:
        """Whether the peer sends nothing any more."""
        return self._has_ended

    @property
    def is_gone(self) -> bool:
        """Whether nothing can be sent to the peer any more."""
        return self._is_gone

    async def run_reader(self, receive: Callable[[bytes], None], num_unread: Callable[[], int]) -> None:
        """Passes what arrives to `receive` until the peer closes, then calls `on_gone`.

        Args:
            receive: takes the bytes. Must not wait.
            num_unread: how many bytes it holds that nobody has read; reading pauses at `READ_AHEAD_BYTES`.
        """
        while True:
            await anyio.wait_readable(self._socket)
            data = self.receive_nowait()
            if data is None:
                continue
            if not data:
                self._end()
                return
            if self._is_discarding:
                self._num_discarded += len(data)
                if self._num_discarded > LINGER_BYTES:
                    self._end()
                    return
                continue
            receive(data)
            self._wake()
            while num_unread() >= READ_AHEAD_BYTES and self._arrival is None and not self._is_discarding:
                self._resumption = anyio.Event()
                await self._resumption.wait()

    def receive_nowait(self) -> bytes | None:
        """What has arrived, b"" when the peer has closed, None when there is nothing."""
        try:
            return self._socket.recv(RECEIVE_BYTES)
        except (BlockingIOError, InterruptedError):
            return None
        except OSError:
            return b""

    async def wait_for_data(self) -> None:
        """Waits until more has been received, the peer has ended, or `interrupt` is called."""
        if self._has_ended:
            return
        self._arrival = anyio.Event()
        self._resume_reader()
        try:
            await self._arrival.wait()
        finally:
            self._arrival = None

    def interrupt(self) -> None:
        """Wakes `wait_for_data`."""
        self._wake()

    async def write(self, data: bytes) -> None:
        """Sends `data` as `write_nowait` does, and waits while `WRITE_BUFFER_BYTES` are unsent.

        Raises:
            ClientGone: the peer is gone, or did not take earlier bytes in time.
        """
        if not self.write_nowait(data):
            await self.wait_for_room()

    async def wait_for_room(self) -> None:
        """Waits while `WRITE_BUFFER_BYTES` are unsent.

        Raises:
            ClientGone: as `write`.
        """
        await self._wait_until_unsent(WRITE_BUFFER_BYTES)

    def write_nowait(self, data: bytes) -> bool:
        """Sends `data`, or leaves it to be sent within its deadline when the client is behind.

        Writes that are left together go out joined.

        Returns: whether all of it has been sent; else `wait_for_room` has to be called before the next write.

        Raises:
            ClientGone: as `write`.
        """
        if self._is_gone:
            raise ClientGone
        if not self._unsent:
            num_sent = self._send(data)
            if num_sent == len(data):
                return True
            data = data[num_sent:]
        self._unsent += data
        due = anyio.current_time() + self._write_timeout_seconds
        self._deadlines.append((self._num_sent + len(self._unsent), due))
        if not self._is_flushing:
            self._is_flushing = True
            self._task_group.start_soon(self._flush_unsent)
        return False

    async def flush(self) -> None:
        """Waits until everything written has reached the kernel.

        Raises:
            ClientGone: as `write`.
        """
        await self._wait_until_unsent(0)

    async def linger(self) -> None:
        """Ends our side, and reads and drops what the peer still sends, within `LINGER_BYTES` and `LINGER_SECONDS`."""
        self._is_discarding = True
        self._resume_reader()
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError:
            return
        with anyio.move_on_after(LINGER_SECONDS):
            while not self._has_ended:
                await self.wait_for_data()

    def _send(self, data: bytes | bytearray) -> int:
        try:
            return self._socket.send(data)
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError as error:
            self._lose()
            raise ClientGone from error

    async def _flush_unsent(self) -> None:
        try:
            while self._unsent:
                _, due = self._deadlines[0]
                with anyio.CancelScope(deadline=due) as scope:
                    await anyio.wait_writable(self._socket)
                if scope.cancelled_caught:
                    self._lose()
                    return
                num_sent = self._send(self._unsent)
                del self._unsent[:num_sent]
                self._num_sent += num_sent
                while self._deadlines and self._deadlines[0][0] <= self._num_sent:
                    self._deadlines.popleft()
                if self._progress is not None:
                    self._progress.set()
        except ClientGone:
            pass  # `_send` has reported it
        finally:
            self._is_flushing = False

    async def _wait_until_unsent(self, num_bytes: int) -> None:
        while len(self._unsent) > num_bytes:
            self._progress = anyio.Event()
            await self._progress.wait()
        if self._is_gone:
            raise ClientGone

    def _lose(self) -> None:
        if self._is_gone:
            return
        self._is_gone = True
        self._unsent.clear()
        self._deadlines.clear()
        if self._progress is not None:
            self._progress.set()
        self._end()

    def _end(self) -> None:
        if self._has_ended:
            return
        self._has_ended = True
        self._wake()
        self._on_gone()

    def _wake(self) -> None:
        if self._arrival is not None:
            self._arrival.set()

    def _resume_reader(self) -> None:
        if self._resumption is not None:
            self._resumption.set()
            self._resumption = None
