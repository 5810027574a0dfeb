"""The three marks of fill-in-the-middle; `fim` finds those of a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FimTokens:
    """The ids of the three marks."""

    prefix_id: int
    suffix_id: int
    middle_id: int

    def prompt(self, before: Sequence[int], after: Sequence[int]) -> list[int]:
        """What a model continues with the text between `before` and `after`."""
        return [self.prefix_id, *before, self.suffix_id, *after, self.middle_id]
