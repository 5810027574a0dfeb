"""How late an event loop is. Standard library and AnyIO only, since the peers' environment runs it too."""

from __future__ import annotations

import time

import anyio

INTERVAL_SECONDS = 0.005


class LagMeter:
    """Wakes every 5 ms and notes how much later it was called than it asked to be."""

    def __init__(self) -> None:
        self._late: list[float] = []
        self._due: float | None = None

    async def run(self) -> None:
        while True:
            self._due = time.perf_counter() + INTERVAL_SECONDS
            await anyio.sleep(INTERVAL_SECONDS)
            self._late.append(time.perf_counter() - self._due)

    def take(self) -> dict[str, float]:
        """Milliseconds since the last call: median, 99th percentile, longest."""
        late, self._late = self._late, []
        # A loop that has not come round at all is as late as it is by now.
        if self._due is not None and not late:
            late.append(max(0.0, time.perf_counter() - self._due))
        late.sort()
        if not late:
            return {"p50_ms": 0.0, "p99_ms": 0.0, "max_ms": 0.0}
        return {
            "p50_ms": 1000 * late[len(late) // 2],
            "p99_ms": 1000 * late[int(0.99 * (len(late) - 1))],
            "max_ms": 1000 * late[-1],
        }
