"""How many tokens to propose next, from how the last proposals fared.

A proposal that fails costs a longer step and gives one token all the same. So a sequence whose proposals fail soon
proposes fewer and then none for a while, and each further failure doubles the while: on text that cannot be guessed,
the share of steps that carry a proposal goes to 1 in MAX_PAUSE.
"""

from __future__ import annotations

# Steps between two attempts at most. An attempt costs less than twice a plain step, so failing forever costs at most
# about 1.5 %; text that begins to repeat is noticed within that many tokens.
MAX_PAUSE = 64


class ProposalLength:
    """One sequence's number of tokens to propose, between 0 and the flag's K."""

    __slots__ = ("_length", "_max_length", "_pause", "_wait")

    def __init__(self, max_length: int) -> None:
        assert max_length >= 1
        self._max_length = max_length
        self._length = max_length
        self._pause = 0
        self._wait = 0

    def next(self) -> int:
        """Tokens to propose in the step that is being composed; 0 while it pauses. Call once a step."""
        if self._wait:
            self._wait -= 1
            return 0
        return self._length

    def note(self, num_proposed: int, num_accepted: int) -> None:
        """What came of a proposal. One that was not made (`num_proposed` 0) says nothing."""
        if num_proposed == 0:
            return
        assert 0 <= num_accepted <= num_proposed
        if num_accepted == 0:
            self._length = max(1, self._length // 2)
            if self._length == 1:
                self._pause = min(MAX_PAUSE, 2 * self._pause or 1)
                self._wait = self._pause
            return
        self._pause = 0
        if num_accepted == num_proposed:
            self._length = min(self._max_length, 2 * self._length)
        else:
            # One more than what stood: long enough to notice when more would.
            self._length = min(self._max_length, num_accepted + 1)
