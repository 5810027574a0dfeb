"""Spreads work that comes in bursts over turns of the event loop, so that what else it serves is not held up."""

from __future__ import annotations

import anyio.lowlevel


class Turns:
    """Lets so many tasks go on in one turn of the event loop; the others wait for the next, or the one after.

    Costs one checkpoint for every `num_per_turn` tasks where there is no burst. Nothing is held: a task that is
    cancelled while it waits has taken no place.

    Args:
        num_per_turn: at least 1.
    """

    def __init__(self, num_per_turn: int) -> None:
        self._num_per_turn = num_per_turn
        self._num_taken = 0
        self._turn = 0

    async def take(self) -> None:
        """Returns in a turn that has room for one more."""
        while self._num_taken >= self._num_per_turn:
            turn = self._turn
            await anyio.lowlevel.checkpoint()
            # Whoever comes back first finds that a new turn has begun.
            if self._turn == turn:
                self._turn += 1
                self._num_taken = 0
        self._num_taken += 1
