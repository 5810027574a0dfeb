"""Attention within each text of an encode pass, in torch: the cpu device's packed variable-length attention.

Texts lie end to end and none is padded. Neighbouring texts of one length are taken together, so that a batch of equal
lengths costs one call; a text that stands alone costs one call of its own. Where every position of a text sees every
other, or all before it, torch's fused attention does the work without a mask. Windows, biases by distance and
soft-caps are taken in tiles of queries, so that no mask is larger than a tile.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
import torch.nn.functional as F

from poot.devices.base import IntArray

# Queries of a tile where scores need a mask.
QUERY_TILE = 128

# How many positions (before, after) its own a token sees; None is all of them.
Reach = tuple[int | None, int | None]


@dataclass(frozen=True, slots=True)
class TextRun:
    """Neighbouring texts of one length: `num_texts` of `length` tokens each, from token `first` on."""

    first: int
    num_texts: int
    length: int

    @property
    def last(self) -> int:
        return self.first + self.num_texts * self.length


def runs_of(text_starts: IntArray) -> tuple[TextRun, ...]:
    """The runs that the texts between `text_starts` `[num_texts + 1]` make, in order."""
    lengths = np.diff(text_starts)
    changes = np.flatnonzero(np.diff(lengths)) + 1
    bounds = [0, *changes.tolist(), len(lengths)]
    return tuple(
        TextRun(int(text_starts[start]), stop - start, int(lengths[start])) for start, stop in pairwise(bounds)
    )


def attend_texts(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    out: torch.Tensor,
    runs: Sequence[TextRun],
    *,
    scale: float,
    reach: Reach,
    softcap: float | None,
    distance_bias: torch.Tensor | None,
) -> None:
    """Writes the attention of every token within its own text to `out`.

    Args:
        query: f32 `[num_tokens, num_heads, head_dim]`, may be strided.
        key, value: f32 `[num_tokens, num_kv_heads, head_dim]`, may be strided.
        out: f32 `[num_tokens, num_heads * head_dim]`.
        runs: cover the tokens in order.
        reach, softcap, distance_bias: as in `Ops.text_attention`.
    """
    is_plain = softcap is None and distance_bias is None
    for run in runs:
        queries, keys, values = (_heads(x, run) for x in (query, key, value))
        before, after = (_capped(side, run.length) for side in reach)
        attended = out[run.first : run.last].view(run.num_texts, run.length, query.shape[1], -1)
        if is_plain and before is None and (after is None or after == 0):
            result = F.scaled_dot_product_attention(
                queries, keys, values, scale=scale, is_causal=after == 0 and run.length > 1, enable_gqa=True
            )
            attended.copy_(result.transpose(1, 2))
            continue
        for start in range(0, run.length, QUERY_TILE):
            stop = min(start + QUERY_TILE, run.length)
            low = 0 if before is None else max(0, start - before)
            high = run.length if after is None else min(run.length, stop + after)
            mask = _mask(start, stop, low, high, before, after, distance_bias)
            tile = (queries[:, :, start:stop], keys[:, :, low:high], values[:, :, low:high])
            if softcap is None:
                result = F.scaled_dot_product_attention(*tile, attn_mask=mask, scale=scale, enable_gqa=True)
            else:
                result = _softcapped(*tile, mask, scale, softcap)
            attended[:, start:stop].copy_(result.transpose(1, 2))


def _heads(x: torch.Tensor, run: TextRun) -> torch.Tensor:
    """A run's part of `x` as `[num_texts, num_heads, length, head_dim]`, without a copy."""
    stride, *inner = x.stride()
    shape = (run.num_texts, run.length, *x.shape[1:])
    texts = x.as_strided(shape, (run.length * stride, stride, *inner), x.storage_offset() + run.first * stride)
    return texts.transpose(1, 2)


def _capped(side: int | None, length: int) -> int | None:
    """A reach that ends within the text; None where the whole side is seen."""
    return None if side is None or side >= length - 1 > 0 else side


def _mask(
    start: int, stop: int, low: int, high: int, before: int | None, after: int | None, bias: torch.Tensor | None
) -> torch.Tensor:
    """What is added to the scores of queries `[start, stop)` and keys `[low, high)`, f32 `[num_heads or 1, ...]`."""
    distance = torch.arange(low, high)[None, :] - torch.arange(start, stop)[:, None]
    if bias is None:
        mask = torch.zeros((1, *distance.shape))
    else:
        largest = bias.shape[1] // 2
        mask = bias[:, distance.clamp(-largest, largest) + largest]
    if before is not None:
        mask.masked_fill_(distance < -before, float("-inf"))
    if after is not None:
        mask.masked_fill_(distance > after, float("-inf"))
    return mask


def _softcapped(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor, scale: float, softcap: float
) -> torch.Tensor:
    """softmax(softcap * tanh(scale * q k / softcap) + mask) v for `[num_texts, num_heads, length, head_dim]`."""
    group = queries.shape[1] // keys.shape[1]
    keys, values = (x.repeat_interleave(group, dim=1) for x in (keys, values))
    scores = (queries @ keys.transpose(2, 3)).mul_(scale / softcap).tanh_().mul_(softcap).add_(mask)
    return torch.softmax(scores, dim=-1) @ values
