"""How often one sequence holds each token, kept up token by token for the penalties."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt


class TokenCounts:
    """The distinct tokens of a sequence, with how often each was generated.

    Arrays as long as the sequence can become are made at once, so that a token costs a look-up and an addition.

    Args:
        prompt_ids: the prompt.
        max_generated: most tokens that will be added.
    """

    def __init__(self, prompt_ids: Sequence[int], max_generated: int) -> None:
        self._index = {token_id: index for index, token_id in enumerate(dict.fromkeys(prompt_ids))}
        capacity = len(self._index) + max_generated
        self._ids = np.zeros(capacity, np.int64)
        self._ids[: len(self._index)] = list(self._index)
        self._counts = np.zeros(capacity, np.float32)
        self.num_tokens = len(prompt_ids)

    def extend(self, token_ids: Sequence[int]) -> None:
        """Adds generated tokens."""
        for token_id in token_ids:
            index = self._index.setdefault(token_id, len(self._index))
            self._ids[index] = token_id
            self._counts[index] += 1
        self.num_tokens += len(token_ids)

    def arrays(self, extra: Sequence[int] = ()) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
        """Ids and counts, `[num_distinct]` each, copied: a step keeps them while later tokens are added.

        Args:
            extra: tokens to count as generated this once.
        """
        count = len(self._index)
        if not extra:
            return self._ids[:count].copy(), self._counts[:count].copy()
        index = {token_id: self._index.get(token_id, -1) for token_id in extra}
        new = [token_id for token_id, place in index.items() if place < 0]
        index |= {token_id: count + place for place, token_id in enumerate(new)}
        ids = np.concatenate([self._ids[:count], np.array(new, np.int64)])
        counts = np.concatenate([self._counts[:count], np.zeros(len(new), np.float32)])
        for token_id in extra:
            counts[index[token_id]] += 1
        return ids, counts
