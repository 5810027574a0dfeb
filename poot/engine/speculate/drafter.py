"""What the engine asks of something that proposes tokens, and the one that proposes by prompt lookup."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from typing import Protocol

from poot.engine.scheduler import Chunk
from poot.engine.speculate.lookup import LookupIndex


class Drafter(Protocol):
    """Proposes tokens. Called on the device thread, where it may use the device, between two steps of the target."""

    def propose(self, chunks: SequenceOf[Chunk]) -> list[tuple[int, ...]]:
        """For each of `chunks`, up to its `max_draft_tokens` tokens that may follow its sequence; empty for none."""


class LookupDrafter:
    """Prompt lookup: `LookupIndex` of each sequence's own text.

    Args:
        ngram: tokens that have to agree before anything is proposed.
    """

    def __init__(self, ngram: int) -> None:
        self._ngram = ngram

    def propose(self, chunks: SequenceOf[Chunk]) -> list[tuple[int, ...]]:
        proposals = []
        for chunk in chunks:
            sequence = chunk.sequence
            if sequence.draft_state is None:
                sequence.draft_state = LookupIndex(self._ngram)
            index: LookupIndex = sequence.draft_state
            proposals.append(index.propose(sequence.token_ids, chunk.max_draft_tokens))
        return proposals
