"""Attention over the paged KV pool in plain torch: what every attention kernel is held against.

It gathers a row's keys and values and computes every score, one row at a time, so it is slow and easy to read.
"""

from __future__ import annotations

import torch

from poot.devices.base import KV_BLOCK_SIZE


def attention(
    query: torch.Tensor,
    key_pool: torch.Tensor,
    value_pool: torch.Tensor,
    block_tables: torch.Tensor,
    query_starts: torch.Tensor,
    context_lengths: torch.Tensor,
    *,
    scale: float,
    window: int | None,
    softcap: float | None,
) -> torch.Tensor:
    """Causal attention of each token over its own row, `[num_tokens, num_heads * head_dim]` in the dtype of `query`.

    A token at position p sees positions max(0, p - window + 1) to p. Query head h reads KV head
    h // (num_heads / num_kv_heads) (Ainslie et al. 2023).

    Args:
        query: `[num_tokens, num_heads, head_dim]`.
        key_pool, value_pool: `[num_slots, num_kv_heads, head_dim]`.
        block_tables: int32 `[num_rows, max_blocks]`.
        query_starts: int32 `[num_rows + 1]`.
        context_lengths: int32 `[num_rows]`.
        softcap: c in c * tanh(score / c), None for none.
    """
    num_tokens, num_heads, head_dim = query.shape
    group = num_heads // key_pool.shape[1]
    out = torch.zeros((num_tokens, num_heads, head_dim), dtype=query.dtype, device=query.device)
    starts = query_starts.tolist()
    for row, length in enumerate(context_lengths.tolist()):
        first, last = starts[row], starts[row + 1]
        positions = torch.arange(length, device=query.device)
        blocks = block_tables[row].to(torch.int64)[positions // KV_BLOCK_SIZE]
        slots = blocks * KV_BLOCK_SIZE + positions % KV_BLOCK_SIZE
        keys = key_pool[slots].to(query.dtype).repeat_interleave(group, dim=1)  # [length, num_heads, head_dim]
        values = value_pool[slots].to(query.dtype).repeat_interleave(group, dim=1)
        scores = torch.einsum("qhd,khd->hqk", query[first:last], keys) * scale
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        query_positions = positions[length - (last - first) :].unsqueeze(1)
        hidden = positions > query_positions
        if window is not None:
            hidden |= positions <= query_positions - window
        weights = torch.softmax(scores.masked_fill(hidden, float("-inf")), dim=-1)
        out[first:last] = torch.einsum("hqk,khd->qhd", weights, values)
    return out.reshape(num_tokens, num_heads * head_dim)
