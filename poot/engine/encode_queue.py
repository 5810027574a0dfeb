"""Which texts of which requests the next encode pass computes. Pure policy: no torch, nothing async.

Everything that waits at the same time shares passes. A pass is filled under a budget of tokens and of texts. Requests
give what fits, the one with the fewest tokens left first: a short request that arrives beside a long one is in the
next pass, whole as a rule, and the long one fills what is left over. So that no stream of short requests holds it up
for ever, the request that waits longest goes first where the last pass took nothing of it; a short request is
therefore held up by one pass more at most.

Within a request the longest texts go first, so that its last passes are small ones. Within a pass texts stand in order
of length, which puts equal lengths side by side.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from poot.devices.encode import Pooling
from poot.engine.encoding import EncodeText


@dataclass(eq=False, kw_only=True, slots=True)
class EncodeRequest:
    """The texts of one request, and which of them no pass has taken yet.

    Attributes:
        left: indices of `texts` that wait, the shortest first.
        num_left_tokens: their tokens.
        num_unfinished: texts that wait or are in a pass.
    """

    texts: Sequence[EncodeText]
    pooling: Pooling
    left: list[int] = field(init=False)
    num_left_tokens: int = field(init=False)
    num_unfinished: int = field(init=False)

    def __post_init__(self) -> None:
        # Of equal lengths the first text goes first: it stands last here.
        self.left = sorted(range(len(self.texts)), key=lambda index: (self.texts[index].num_tokens, -index))
        self.num_left_tokens = sum(text.num_tokens for text in self.texts)
        self.num_unfinished = len(self.texts)


@dataclass(frozen=True, slots=True)
class PassText:
    """One text of a pass: `request.texts[index]`."""

    request: EncodeRequest
    index: int

    @property
    def text(self) -> EncodeText:
        return self.request.texts[self.index]


class EncodeQueue:
    """Requests in the order of their arrival.

    Args:
        max_texts: the most texts of one pass.
        token_budget: the most tokens of one pass, but for a single text that is longer and goes alone.
    """

    def __init__(self, *, max_texts: int, token_budget: int) -> None:
        assert max_texts >= 1
        assert token_budget >= 1
        self._max_texts = max_texts
        self._token_budget = token_budget
        self._waiting: dict[EncodeRequest, None] = {}
        self._last_served: frozenset[EncodeRequest] = frozenset()

    @property
    def num_waiting_texts(self) -> int:
        return sum(len(request.left) for request in self._waiting)

    def add(self, request: EncodeRequest) -> None:
        """Lets the texts of `request` wait."""
        if request.left:
            self._waiting[request] = None

    def remove(self, request: EncodeRequest) -> None:
        """Drops what waits of `request`; what is in a pass is not called back."""
        self._waiting.pop(request, None)

    def compose(self) -> list[PassText]:
        """The next pass, in order of length; empty where nothing waits. Its texts wait no longer."""
        composed: list[PassText] = []
        room = self._token_budget
        for request in self._in_turn():
            # From the longest text downwards: a shorter one may fit where a longer one does not.
            for position in range(len(request.left) - 1, -1, -1):
                if len(composed) == self._max_texts or room <= 0:
                    break
                if not composed or request.texts[request.left[position]].num_tokens <= room:
                    composed.append(_take(request, position))
                    room -= composed[-1].text.num_tokens
            if not request.left:
                del self._waiting[request]
        self._last_served = frozenset(taken.request for taken in composed)
        composed.sort(key=lambda taken: taken.text.num_tokens)
        return composed

    def _in_turn(self) -> list[EncodeRequest]:
        """Waiting requests in the order in which the next pass takes of them."""
        if not self._waiting:
            return []
        oldest = next(iter(self._waiting))
        # sorted keeps the order of arrival among equals.
        turn = sorted(self._waiting, key=lambda request: request.num_left_tokens)
        if self._last_served and oldest not in self._last_served:
            turn.remove(oldest)
            turn.insert(0, oldest)
        return turn


def _take(request: EncodeRequest, position: int) -> PassText:
    index = request.left.pop(position)
    request.num_left_tokens -= request.texts[index].num_tokens
    return PassText(request, index)
