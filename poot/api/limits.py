"""The limits on who may come in: admission and receiving places, and the request rate of a peer.

Synchronous and exact: a place is taken by entering a block and given back by leaving it, however it is left. The
clock is passed in.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager

from prometheus_client import Counter, Gauge

from poot.errors import TooManyRequests

PLACE_RETRY_AFTER_SECONDS = 1
"""Retry-After for a place: one comes free with every request that ends, so the client should come back soon."""

RATE_WINDOW_SECONDS = 60.0
MAX_RATE_PEERS = 65536
"""Peers counted at once, about 10 MiB of table. One more takes the slot of the peer whose window began first."""


class Places:
    """A fixed number of places; one more is refused at once, nobody waits here.

    Args:
        name: what a place is for, in the refusal's message.
        flag: the option that sets the number.
        gauge: shows how many are held.
        refused: counts refusals.
    """

    def __init__(self, *, name: str, flag: str, num_places: int, gauge: Gauge, refused: Counter) -> None:
        self._name = name
        self._flag = flag
        self._num_places = num_places
        self._num_held = 0
        self._gauge = gauge
        self._refused = refused
        self._place = _Place(self._take, self._give_back)

    @property
    def num_held(self) -> int:
        return self._num_held

    def hold(self) -> AbstractContextManager[None]:
        """Holds one place for the block.

        Raises:
            TooManyRequests: all places are held; on entering the block.
        """
        return self._place

    def _take(self) -> None:
        if self._num_held >= self._num_places:
            self._refused.inc()
            raise TooManyRequests(
                f"the server {self._name} {self._num_places} requests at most ({self._flag}); try again shortly",
                headers=(("Retry-After", str(PLACE_RETRY_AFTER_SECONDS)),),
            )
        self._num_held += 1
        self._gauge.inc()

    def _give_back(self) -> None:
        self._num_held -= 1
        self._gauge.dec()


class _Place(AbstractContextManager[None]):
    """Takes a place on entering and gives it back on leaving. Keeps nothing, so that one serves every request."""

    def __init__(self, take: Callable[[], None], give_back: Callable[[], None]) -> None:
        self._take = take
        self._give_back = give_back

    def __enter__(self) -> None:
        self._take()

    def __exit__(self, *exception: object) -> None:
        self._give_back()


class RateWindow:
    """Counts requests of each peer in fixed windows of 60 s, each beginning with the peer's first request.

    Args:
        requests_per_window: how many pass; 0 is no limit.
        clock: seconds of a clock that never goes back.
        refused: counts refusals.
    """

    def __init__(
        self,
        *,
        requests_per_window: int,
        clock: Callable[[], float],
        refused: Counter,
        max_peers: int = MAX_RATE_PEERS,
    ) -> None:
        self._requests_per_window = requests_per_window
        self._clock = clock
        self._refused = refused
        self._max_peers = max_peers
        # Peer -> (start of its window, requests in it), ordered by start: a new window goes to the end.
        self._windows: dict[str, tuple[float, int]] = {}

    def spend(self, peer_ip: str) -> None:
        """Counts one request of a peer.

        Raises:
            TooManyRequests: its window is spent; Retry-After is the whole seconds left in it. A refused request
                does not lengthen the window.
        """
        if not self._requests_per_window:
            return
        now = self._clock()
        start, count = self._windows.get(peer_ip, (-math.inf, 0))
        if now - start >= RATE_WINDOW_SECONDS:
            self._windows.pop(peer_ip, None)
            if len(self._windows) >= self._max_peers:
                del self._windows[next(iter(self._windows))]
            start, count = now, 0
        if count >= self._requests_per_window:
            self._refused.inc()
            seconds_left = max(1, math.ceil(start + RATE_WINDOW_SECONDS - now))
            raise TooManyRequests(
                f"rate limit reached: {self._requests_per_window} requests in 60 seconds; "
                f"try again in {seconds_left} s",
                headers=(("Retry-After", str(seconds_left)),),
            )
        self._windows[peer_ip] = (start, count + 1)
