"""Logits to tokens: temperature, top-k, top-p, min-p, and one draw, row by row.

Each row is worked on alone, in numpy, with one random number of its own (`poot.devices.philox`). So a token depends on
the row's logits, its parameters and (seed, choice, position), and on nothing else in the batch.

The filters apply one after the other, each to what the one before left, renormalised:

    temperature   logits / temperature; 0 takes the largest logit, the lowest id of equals
    top-k         the k most likely tokens, exactly; of equals the lower ids
    top-p         the smallest set of most likely tokens whose mass reaches p, the token that crosses it included
                  (Holtzman et al. 2020, section 3.1); of equals the lower ids
    min-p         tokens at least min_p times as likely as the most likely one (Nguyen et al. 2024, section 3)

The draw inverts the cumulative distribution over the kept tokens in order of id. Nothing here sorts a whole
vocabulary: top-k partitions, and top-p finds where the kept tokens end in a histogram and sorts only there.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from poot.devices.base import FloatArray, LongArray, SampleLogprobs, SamplingBatch, StepResult
from poot.devices.philox import uniform

# Up to this many candidates a sort is faster than a histogram of the row first.
_SORT_AT = 8192

# Tokens whose weights are summed before the draw looks into them one by one.
_BLOCK = 1024


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
        allowed = row
        if banned:
            allowed = row.copy()
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
        kept = _most_likely(logits, top_k)
        weights = weights[kept]
    top_p = float(batch.top_p[index])
    if top_p < 1:
        values = logits if kept is None else logits[kept]
        chosen = _heaviest(values, weights, top_p * float(weights.sum(dtype=np.float64)))
        kept = chosen if kept is None else kept[chosen]
        weights = weights[chosen]
    min_p = np.float32(batch.min_p[index])
    if min_p > 0:
        chosen = np.flatnonzero(weights >= min_p)  # the most likely token has weight 1
        kept = chosen if kept is None else kept[chosen]
        weights = weights[chosen]
    drawn = _invert(weights, point)
    return drawn if kept is None else int(kept[drawn])


def _most_likely(values: FloatArray, count: int) -> LongArray:
    """Indices of the `count` largest values, ascending; of equals the lower indices. No value is NaN."""
    cut = np.partition(values, len(values) - count)[len(values) - count]
    above = np.flatnonzero(values > cut)
    equal = np.flatnonzero(values == cut)[: count - len(above)]
    return np.sort(np.concatenate([above, equal]))


def _heaviest(values: FloatArray, weights: FloatArray, target: float) -> LongArray:
    """Indices, ascending, of the shortest prefix of the tokens by falling value whose weights sum to `target`.

    Equal values are ordered by index. Weights are f32 in [0, 1], no smaller for a larger value, and `target` is at most
    their sum.
    """
    # Tokens below this weight are not needed: all of them together weigh less than what may stay outside.
    spare = float(weights.sum(dtype=np.float64)) - target
    candidates = np.flatnonzero(weights >= np.float32(spare / len(weights) * (1 - 1e-6)))
    if len(candidates) <= _SORT_AT:
        return np.sort(candidates[_prefix(values[candidates], weights[candidates], target)])
    # A histogram over the upper bits of the weights, 128 bins an octave, finds the bin in which the prefix ends.
    bins = (weights.view(np.uint32) >> 16).astype(np.intp)
    mass_from_top = np.cumsum(np.bincount(bins, weights=weights)[::-1])
    passed = min(int(np.searchsorted(mass_from_top, target)), len(mass_from_top) - 1)
    last_bin = len(mass_from_top) - 1 - passed
    inside = np.flatnonzero(bins == last_bin)
    if passed:
        target -= float(mass_from_top[passed - 1])
    is_kept = bins > last_bin
    is_kept[inside[_prefix(values[inside], weights[inside], target)]] = True
    return np.flatnonzero(is_kept)


def _prefix(values: FloatArray, weights: FloatArray, target: float) -> LongArray:
    """Indices of the shortest prefix by falling value, then index, whose weights sum to `target`; all if none does."""
    order = np.argsort(-values, kind="stable")
    cumulative = np.cumsum(weights[order], dtype=np.float64)
    return order[: int(np.searchsorted(cumulative, target)) + 1]


def _invert(weights: FloatArray, point: float) -> int:
    """The first index whose cumulative weight passes `point`, a share of the whole in [0, 1)."""
    starts = np.arange(0, len(weights), _BLOCK)
    blocks = np.cumsum(np.add.reduceat(weights, starts, dtype=np.float64))
    target = point * float(blocks[-1])
    block = min(int(np.searchsorted(blocks, target, side="right")), len(blocks) - 1)
    if block:
        target -= float(blocks[block - 1])
    first = block * _BLOCK
    cumulative = np.cumsum(weights[first : first + _BLOCK], dtype=np.float64)
    # Rounding may leave the target at or past the block's end, whose last token with any weight is then meant.
    end = int(np.searchsorted(cumulative, cumulative[-1], side="left"))
    return first + min(int(np.searchsorted(cumulative, target, side="right")), end)


def _logprobs(logits: torch.Tensor, token: int, count: int) -> SampleLogprobs:
    """Log-probabilities of `token` and of the `count` most likely tokens, under the model's own distribution."""
    values: Any = torch.log_softmax(logits, dim=-1).numpy()
    top: tuple[tuple[int, float], ...] = ()
    if count:
        ids = _most_likely(values, min(count, len(values)))
        ids = ids[np.argsort(-values[ids], kind="stable")]
        top = tuple((int(i), float(values[i])) for i in ids)
    return SampleLogprobs(float(values[token]), top)
