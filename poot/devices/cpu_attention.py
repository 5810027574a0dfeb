"""Attention of one row's chunk of queries over its keys and values, in torch: the prefill path of the cpu device.

Queries are taken in tiles, each over just the keys it can see. Which keys those are depends only on the distance
between query and key, so one mask, cut to a tile's place, serves every tile, row, layer and step: it is built once,
before serving. torch's fused attention does the work; with a soft-cap, which it lacks, two matrix products do.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from poot.devices.workspace import Workspace

# Queries of a tile. Larger tiles compute more scores that the mask then hides, smaller ones cost more calls; 64 to 256
# are within 10% of each other on a Xeon with AVX-512.
QUERY_TILE = 128

# Scores of a soft-capped tile, in elements: 16 MiB.
_MAX_SCORES = 4 * 1024 * 1024


def reach_of(window: int | None, max_positions: int) -> int:
    """The most positions before its own that a query sees."""
    return max_positions if window is None else min(window - 1, max_positions)


def mask_template(window: int | None, max_positions: int) -> torch.Tensor:
    """What is added to scores: 0 where a query sees a key, -inf elsewhere, f32 `[QUERY_TILE, reach + QUERY_TILE]`.

    Row i is the i-th query of a tile, column m the key at the tile's first position plus m less the reach.
    """
    reach = reach_of(window, max_positions)
    ahead = torch.arange(reach + QUERY_TILE)[None, :] - reach - torch.arange(QUERY_TILE)[:, None]
    hidden = ahead > 0
    if window is not None:
        hidden |= ahead <= -window
    return torch.zeros(ahead.shape).masked_fill_(hidden, float("-inf"))


def attend(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    out: torch.Tensor,
    *,
    first_position: int,
    first_key_position: int,
    scale: float,
    window: int | None,
    softcap: float | None,
    mask: torch.Tensor,
    workspace: Workspace,
) -> None:
    """Writes the attention of one row's queries to `out`.

    Args:
        query: `[num_queries, num_heads, head_dim]`, at `first_position` and following.
        keys, values: `[num_keys, num_kv_heads, head_dim]`, at `first_key_position` and following, up to the last
            query's at least.
        out: `[num_queries, num_heads, head_dim]`, may be strided.
        window, mask: as in `mask_template`.
    """
    num_queries, num_heads, _ = query.shape
    reach = mask.shape[1] - QUERY_TILE
    tile = QUERY_TILE
    if softcap is not None:
        tile = max(1, min(tile, _MAX_SCORES // (num_heads * (first_position + num_queries - first_key_position))))
    for start in range(0, num_queries, tile):
        stop = min(start + tile, num_queries)
        position = first_position + start
        low = max(first_key_position, position - reach)
        seen = slice(low - first_key_position, first_position + stop - first_key_position)
        tile_mask = mask[: stop - start, reach - (position - low) : reach + stop - start]
        heads = query[start:stop].transpose(0, 1)
        tile_keys = keys[seen].transpose(0, 1)
        tile_values = values[seen].transpose(0, 1)
        if softcap is None:
            result = F.scaled_dot_product_attention(
                heads[None], tile_keys[None], tile_values[None], attn_mask=tile_mask, scale=scale, enable_gqa=True
            )[0]
        else:
            result = _softcapped(heads, tile_keys, tile_values, tile_mask, scale, softcap, workspace)
        out[start:stop] = result.transpose(0, 1)


def plan_softcapped(workspace: Workspace) -> None:
    """Takes the score buffer that soft-capped attention works in."""
    workspace.take("scores", _MAX_SCORES, ())


def _softcapped(
    heads: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor,
    scale: float,
    softcap: float,
    workspace: Workspace,
) -> torch.Tensor:
    """softmax(softcap * tanh(scale * q k / softcap) + mask) v for `[num_heads, num_queries, head_dim]` queries."""
    num_heads, num_queries, head_dim = heads.shape
    num_kv_heads, num_keys, _ = keys.shape
    grouped = heads.reshape(num_kv_heads, -1, head_dim)  # the heads that share a key lie side by side
    size = num_heads * num_queries * num_keys
    if size <= _MAX_SCORES:
        scores = workspace.take("scores", _MAX_SCORES, ())[:size].view(num_kv_heads, -1, num_keys)
    else:  # a single query over more keys than the buffer holds
        scores = torch.empty((num_kv_heads, grouped.shape[1], num_keys))
    torch.bmm(grouped, keys.transpose(1, 2), out=scores)
    scores.mul_(scale / softcap).tanh_().mul_(softcap)
    scores.view(num_heads, num_queries, num_keys).add_(mask)
    torch.softmax(scores, dim=-1, out=scores)
    return torch.bmm(scores, values).view(num_heads, num_queries, head_dim)
