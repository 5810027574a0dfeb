"""Stop strings: where a generated text ends, found while it streams.

The rule. The text ends before the first stop string: of all occurrences the one that begins first, and where several
begin together they end the text at the same place. Text is sent as soon as no stop string can begin in it any more,
so what has been sent never depends on how the text was cut into pieces.

Each stop string runs its own Knuth-Morris-Pratt automaton (Knuth, Morris, Pratt 1977), whose state is how much of the
string's beginning the text ends with; a character costs amortised constant time for each of at most 16 strings. A
match is settled once no other string that begins earlier is still open: a longer string may begin before a shorter one
that is complete already.
"""

from __future__ import annotations

from collections.abc import Sequence


class _Automaton:
    """How many characters of one stop string the text ends with."""

    def __init__(self, stop: str) -> None:
        self.stop = stop
        self.matched = 0
        self._borders = _borders(stop)

    def push(self, character: str) -> bool:
        """Whether the string is complete with `character`. Not to be pushed further once it is."""
        while self.matched and self.stop[self.matched] != character:
            self.matched = self._borders[self.matched - 1]
        if self.stop[self.matched] == character:
            self.matched += 1
        return self.matched == len(self.stop)


def _borders(text: str) -> list[int]:
    """For each prefix of `text`, the length of its longest proper prefix that is also its suffix."""
    borders = [0] * len(text)
    length = 0
    for index in range(1, len(text)):
        while length and text[index] != text[length]:
            length = borders[length - 1]
        if text[index] == text[length]:
            length += 1
        borders[index] = length
    return borders


class StopMatcher:
    """Cuts one sequence's text at its first stop string.

    Args:
        stops: the strings, none of them empty: the edge refuses those.
        includes_stop: end the text after the stop string instead of before it; of several that begin together, after
            the shortest.
    """

    def __init__(self, stops: Sequence[str], *, includes_stop: bool = False) -> None:
        assert all(stops)
        self._automata = [_Automaton(stop) for stop in dict.fromkeys(stops)]
        self._first_characters = frozenset(stop[0] for stop in stops)
        self._held = ""
        self._held_start = 0  # position in the whole text of the first held character
        self._end: int | None = None  # position where the earliest complete stop string begins
        self._cut = 0  # where the text ends for it
        self._includes_stop = includes_stop

    def push(self, text: str) -> tuple[str, bool]:
        """The text that may be sent now, and whether the sequence ends here.

        After an answer of True nothing more may be pushed.
        """
        if not self._held and self._first_characters.isdisjoint(text):  # most tokens of most texts
            self._held_start += len(text)
            return text, False
        self._held += text
        position = self._held_start + len(self._held) - len(text)
        for character in text:
            position += 1
            self._advance(character, position)
            if self._end is not None and not self._automata:
                return self._release(self._cut), True
        return self._release(min(position - automaton.matched for automaton in self._automata)), False

    def flush(self) -> tuple[str, bool]:
        """What was held back, at the end of the sequence, and whether a stop string had ended it after all."""
        if self._end is not None:
            return self._release(self._cut), True
        return self._release(self._held_start + len(self._held)), False

    def _advance(self, character: str, position: int) -> None:
        for automaton in self._automata:
            if automaton.push(character):
                start = position - automaton.matched
                if self._end is None or start < self._end:
                    self._end, self._cut = start, position if self._includes_stop else start
                automaton.matched = 0  # its next occurrence begins later
        if self._end is not None:  # a string stays open only while it would begin before the earliest complete one
            self._automata = [item for item in self._automata if position - item.matched < self._end]

    def _release(self, end: int) -> str:
        released, self._held = self._held[: end - self._held_start], self._held[end - self._held_start :]
        self._held_start = end
        return released
