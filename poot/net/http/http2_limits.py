"""Counted limits on what an HTTP/2 client may make a server do without asking for anything.

Each kind of frame here is cheap to send and costs the receiver work, an answer or memory, and is legal in any number. A
connection gets a budget of each for every `WINDOW_SECONDS`; one that spends more has nothing an honest client needs.
"""

from __future__ import annotations

from enum import Enum

WINDOW_SECONDS = 30.0
"""How long a budget lasts. Long enough that an honest burst (all streams cancelled at once) does not have to fit a
fraction of a second, short enough that a long-lived connection's budget comes back."""


class Abuse(Enum):
    """What is counted, with how much of it is let pass in `WINDOW_SECONDS`, and what it is called in GOAWAY.

    RESET: streams the client opened and reset, and streams it made us reset by breaking the rules on them. Either lets
        it start requests faster than the stream limit means to allow (CVE-2023-44487, CVE-2025-8671). Clients of ours
        cancel generations, at most all 128 streams at once now and then; nghttp2 allows a burst of 1000 and 33/s.
    REFUSED: streams over the announced limit. Before our SETTINGS arrive a client may not know the limit.
    PING: every one is answered (CVE-2019-9512). Keep-alive sends one every few seconds, bandwidth probes (hyper) some
        ten a second.
    SETTINGS: every one is acknowledged and may touch all streams (CVE-2019-9515). Clients send one, a few more at most.
    EMPTY: DATA without content, or with padding only: work without progress (CVE-2019-9518). A client that
        flushes often may send some.
    WINDOW_UPDATE: makes us look for what can be sent. Readers send one or two for what they have taken from a DATA
        frame, in small bites even a dozen; so every DATA frame of ours adds `WINDOW_UPDATES_PER_DATA` (Envoy: 10).
    PRIORITY: was a tree to keep (CVE-2019-9513), is ignored here. Firefox sends six at first and then one a stream;
        every stream adds `PRIORITIES_PER_STREAM`.
    UNKNOWN: what is ignored: extension frames and GOAWAY. Chromium greases with one now and then.
    """

    RESET = (1000, "streams reset")
    REFUSED = (1000, "streams over the limit")
    PING = (1000, "PING")
    SETTINGS = (100, "SETTINGS")
    EMPTY = (500, "empty frames")
    WINDOW_UPDATE = (1000, "WINDOW_UPDATE")
    PRIORITY = (1000, "PRIORITY")
    UNKNOWN = (1000, "ignored frames")

    def __init__(self, budget: int, label: str) -> None:
        self.budget = budget
        self.label = label


WINDOW_UPDATES_PER_DATA = 20
PRIORITIES_PER_STREAM = 10

MAX_CARRIED = 10
"""How many budgets' worth of what was earned lives on: what it was earned for may still be on the wire."""

MAX_CONTINUATIONS = 32
"""Frames a header block may be spread over (CVE-2024-27316). The largest one accepted fills eight."""


class Budgets:
    """What a connection has left of each budget."""

    def __init__(self) -> None:
        self._left = {abuse: abuse.budget for abuse in Abuse}
        self._ends_at = 0.0

    def spend(self, abuse: Abuse, now: float) -> bool:
        """Counts one; says whether the budget covers it."""
        if now >= self._ends_at:
            self._ends_at = now + WINDOW_SECONDS
            self._left = {each: max(each.budget, min(self._left[each], MAX_CARRIED * each.budget)) for each in Abuse}
        self._left[abuse] -= 1
        return self._left[abuse] >= 0

    def earn(self, abuse: Abuse, count: int) -> None:
        """Adds to a budget, for something that entitles the client to more."""
        self._left[abuse] += count
