"""Which tokens a filter keeps, and which one a number draws, over arrays as long as a vocabulary.

Nothing here sorts a whole vocabulary: top-k partitions, top-p finds where the kept tokens end in a histogram and sorts
only there, and a draw sums blocks before it looks into one.
"""

from __future__ import annotations

import numpy as np

from poot.devices.base import FloatArray, LongArray

# Up to this many candidates a sort is faster than a histogram of the row first.
_SORT_AT = 8192

# Tokens whose weights are summed before the draw looks into them one by one.
_BLOCK = 1024


def most_likely(values: FloatArray, count: int) -> LongArray:
    """Indices of the `count` largest values, ascending; of equals the lower indices. No value is NaN."""
    cut = np.partition(values, len(values) - count)[len(values) - count]
    above = np.flatnonzero(values > cut)
    equal = np.flatnonzero(values == cut)[: count - len(above)]
    return np.sort(np.concatenate([above, equal]))


def heaviest(values: FloatArray, weights: FloatArray, target: float) -> LongArray:
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


def invert(weights: FloatArray, point: float) -> int:
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
