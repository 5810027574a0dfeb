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

    def arrays(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
        """Ids and counts, `[num_distinct]` each, copied: a step keeps them while later tokens are added."""
        count = len(self._index)
        return self._ids[:count].copy(), self._counts[:count].copy()
