"""Logits to tokens: bias and penalties, temperature, top-k, top-p, min-p, and one draw, row by row.

Each row is worked on alone, in numpy, with one random number of its own (`poot.devices.philox`). So a token depends on
the row's logits, its parameters and (seed, choice, position), and on nothing else in the batch.

Bias and penalties (`poot.devices.penalties`) come first, on a copy of the row: log-probabilities are of the model's
own distribution. Then banned tokens are taken out. The filters apply one after the other, each to what the one before
left, renormalised:

    temperature   logits / temperature; 0 takes the largest logit, the lowest id of equals
    top-k         the k most likely tokens, exactly; of equals the lower ids
    top-p         the smallest set of most likely tokens whose mass reaches p, the token that crosses it included
                  (Holtzman et al. 2020, section 3.1); of equals the lower ids
    min-p         tokens at least min_p times as likely as the most likely one (Nguyen et al. 2024, section 3)

The draw inverts the cumulative distribution over the kept tokens in order of id.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from poot.devices.base import (
    FloatArray,
    LongArray,
    SampleLogprobs,
    SamplingBatch,
    ScoredTokens,
    Scoring,
    StepResult,
)
from poot.devices.filters import heaviest, invert, most_likely
from poot.devices.penalties import apply_edits
from poot.devices.philox import uniform


def sample(logits: torch.Tensor, batch: SamplingBatch) -> StepResult:
    """The next token of every row.

    Args:
        logits: f32 `[num_samples, vocab_size]` on the cpu; not changed.
        batch: parameters, `[num_samples]` each.

    A row whose largest logit is not finite (a NaN, an infinity, or every token banned) is listed in the result's
    `failed`, with token id 0; other rows are not affected.
    """
    rows: FloatArray = logits.numpy()
    token_ids: list[int] = []
    logprobs: list[SampleLogprobs | None] = []
    failed: set[int] = set()
    for index, row in enumerate(rows):
        num_logprobs = batch.num_logprobs[index]
        banned = batch.banned[index]
        edits = batch.edits[index] if batch.edits else None
        allowed = row
        if banned or edits is not None:
            allowed = row.copy()
            if edits is not None:
                apply_edits(allowed, edits)
            allowed[list(banned)] = -np.inf
        best = int(allowed.argmax())  # the first of equals; of NaNs the first
        if not np.isfinite(allowed[best]):
            failed.add(index)
            token_ids.append(0)
            logprobs.append(None)
            continue
        token = best if batch.temperature[index] == 0 else _draw(allowed, best, batch, index)
        token_ids.append(token)
        logprobs.append(None if num_logprobs is None else _logprobs(logits[index], token, num_logprobs))
    return StepResult(tuple(token_ids), tuple(logprobs), frozenset(failed))


def _draw(logits: FloatArray, best: int, batch: SamplingBatch, index: int) -> int:
    """One token of a row, by the batch's parameters at `index`; `best` is the id of the largest logit."""
    point = uniform(int(batch.seed[index]), int(batch.choice[index]), int(batch.position[index]))
    with np.errstate(over="ignore"):  # a tiny temperature sends the others to -inf, which is what it asks for
        weights = logits - logits[best]
        weights /= batch.temperature[index]
    np.exp(weights, out=weights)
    kept: LongArray | None = None  # None stands for every token
    top_k = int(batch.top_k[index])
    if 0 < top_k < len(weights):
        # Order by the logits: equal weights may come from different logits that exp rounds to one number.
        kept = most_likely(logits, top_k)
        weights = weights[kept]
    top_p = float(batch.top_p[index])
    if top_p < 1:
        values = logits if kept is None else logits[kept]
        chosen = heaviest(values, weights, top_p * float(weights.sum(dtype=np.float64)))
        kept = chosen if kept is None else kept[chosen]
        weights = weights[chosen]
    min_p = np.float32(batch.min_p[index])
    if min_p > 0:
        chosen = np.flatnonzero(weights >= min_p)  # the most likely token has weight 1
        kept = chosen if kept is None else kept[chosen]
        weights = weights[chosen]
    drawn = invert(weights, point)
    return drawn if kept is None else int(kept[drawn])


class Scorer:
    """Log-probabilities of known next tokens, from logits that come a slice at a time."""

    def __init__(self, scored: ScoredTokens) -> None:
        self._scored = scored
        self.scores: list[SampleLogprobs] = []

    def scoring(self, slice_size: int) -> Scoring:
        """What model code needs to bring the logits."""
        return Scoring(
            tuple(
                torch.from_numpy(self._scored.indices[start : start + slice_size])
                for start in range(0, len(self._scored.indices), slice_size)
            ),
            self._take,
        )

    def _take(self, logits: torch.Tensor) -> None:
        for row in logits:
            index = len(self.scores)
            self.scores.append(_logprobs(row, self._scored.token_ids[index], self._scored.num_logprobs[index]))


def _logprobs(logits: torch.Tensor, token: int, count: int) -> SampleLogprobs:
    """Log-probabilities of `token` and of the `count` most likely tokens, under the model's own distribution."""
    values: Any = torch.log_softmax(logits, dim=-1).numpy()
    top: tuple[tuple[int, float], ...] = ()
    if count:
        ids = most_likely(values, min(count, len(values)))
        ids = ids[np.argsort(-values[ids], kind="stable")]
        top = tuple((int(i), float(values[i])) for i in ids)
    return SampleLogprobs(float(values[token]), top)
