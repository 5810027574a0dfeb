"""Prompt lookup: what followed the last few tokens the last time they stood in this sequence.

Source: Saxena, Prompt Lookup Decoding (2023). Where the earlier text ends before enough tokens are proposed, the
proposal continues from its own beginning, as LZ77's overlapping copies do (Ziv and Lempel 1977): text with a period
shorter than the proposal is proposed whole.
"""

from __future__ import annotations

from collections.abc import Sequence


class LookupIndex:
    """The n-grams of one sequence and where each last ended.

    Takes one dictionary entry a token; a proposal costs one look-up, however long the sequence is.

    Args:
        ngram: tokens that have to agree before anything is proposed, at least 1.
    """

    __slots__ = ("_last_ends", "_ngram", "_num_indexed")

    def __init__(self, ngram: int) -> None:
        assert ngram >= 1
        self._ngram = ngram
        self._last_ends: dict[tuple[int, ...], int] = {}
        self._num_indexed = 0

    def propose(self, token_ids: Sequence[int], num_tokens: int) -> tuple[int, ...]:
        """Up to `num_tokens` tokens that may follow `token_ids`; empty where its end is new.

        Args:
            token_ids: the whole sequence so far: what it was at the last call, and what was added since.
        """
        ngram, ends = self._ngram, self._last_ends
        length = len(token_ids)
        if length <= ngram:
            return ()
        # The n-gram that ends the sequence is looked up before it is entered, so that it does not find itself.
        for end in range(max(self._num_indexed + 1, ngram), length):
            ends[tuple(token_ids[end - ngram : end])] = end
        self._num_indexed = length - 1
        start = ends.get(tuple(token_ids[length - ngram :]))
        if start is None or num_tokens < 1:
            return ()
        proposal = list(token_ids[start : start + num_tokens])
        period = length - start
        while len(proposal) < num_tokens:
            proposal.append(proposal[len(proposal) - period])
        return tuple(proposal)
