"""An asyncio event loop whose clock jumps to the next timer when nothing else can happen.

What trio's MockClock is to trio. Sockets of this process are the only other source of events, and the kernel delivers
between them at once, so "no socket is ready" means that every task waits for a timer.
"""

from __future__ import annotations

import asyncio
import selectors


class _JumpingSelector(selectors.DefaultSelector):
    """Never sleeps while a timer is pending: moves the clock forward instead."""

    skipped_seconds = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            return super().select(None)
        ready = super().select(0)
        if not ready:
            self.skipped_seconds += max(timeout, 0)
        return ready


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """Time stands still while tasks run."""

    def __init__(self) -> None:
        self._selector_with_clock = _JumpingSelector()
        super().__init__(self._selector_with_clock)

    def time(self) -> float:
        return self._selector_with_clock.skipped_seconds
