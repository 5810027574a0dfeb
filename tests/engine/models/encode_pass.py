"""One encode pass in plain torch: what `Ops` means there, one text at a time, without a device's program."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from poot.devices.base import Activation, Ops, SamplingBatch, Step
from poot.devices.encode import EncodeForward, EncodeTensors, Pooling
from poot.engine.encoding import EncodeText
from tests.fakes.reference_device import ReferenceOps

_ACTIVATIONS = {
    Activation.GELU: torch.nn.GELU(),
    Activation.GELU_TANH: torch.nn.GELU(approximate="tanh"),
    Activation.RELU: torch.nn.ReLU(),
    Activation.SILU: torch.nn.SiLU(),
    Activation.TANH: torch.nn.Tanh(),
}


class TextOps(ReferenceOps):
    """The operations of an encode pass over texts of `lengths` tokens. There is no KV pool."""

    def __init__(self, lengths: Sequence[int], pooling: Pooling, pool_starts: Sequence[int]) -> None:
        super().__init__(_no_step(), [], [])
        self._lengths = list(lengths)
        self._pooling = pooling
        self._pool_starts = list(pool_starts)

    def text_attention(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *,
        scale: float,
        reach: tuple[int | None, int | None],
        softcap: float | None = None,
        distance_bias: torch.Tensor | None = None,
    ) -> torch.Tensor:
        groups = query.shape[1] // key.shape[1]
        before, after = reach
        outputs = []
        for q, k, v in zip(*(torch.split(x, self._lengths) for x in (query, key, value)), strict=True):
            scores = torch.einsum("qhd,khd->hqk", q, k.repeat_interleave(groups, dim=1)) * scale
            places = torch.arange(len(q))
            distance = places.unsqueeze(0) - places.unsqueeze(1)  # key minus query
            if distance_bias is not None:
                radius = distance_bias.shape[1] // 2
                scores = scores + distance_bias[:, distance.clamp(-radius, radius) + radius]
            if softcap is not None:
                scores = softcap * torch.tanh(scores / softcap)
            if before is not None:
                scores = scores.masked_fill(distance < -before, -torch.inf)
            if after is not None:
                scores = scores.masked_fill(distance > after, -torch.inf)
            mixed = torch.einsum("hqk,khd->qhd", scores.softmax(-1), v.repeat_interleave(groups, dim=1))
            outputs.append(mixed.flatten(1))
        return torch.cat(outputs)

    def pool(self, x: torch.Tensor) -> torch.Tensor:
        rows = []
        for text, start in zip(torch.split(x, self._lengths), self._pool_starts, strict=True):
            if self._pooling is Pooling.MEAN:
                rows.append(text[start:].mean(0))
            else:
                rows.append(text[0 if self._pooling is Pooling.CLS else -1])
        return torch.stack(rows)

    def gated_gelu(self, gate_up: torch.Tensor) -> torch.Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        return torch.nn.functional.gelu(gate) * up

    def activate(self, x: torch.Tensor, kind: Activation) -> torch.Tensor:
        result: torch.Tensor = _ACTIVATIONS[kind](x)
        return result


def run_pass(
    forward: EncodeForward,
    texts: Sequence[EncodeText | list[int]],
    pooling: Pooling,
    wrap: Callable[[Ops], Ops] = lambda ops: ops,
) -> torch.Tensor:
    """What `forward` gives for `texts` in one pass, f32 `[num_texts, features]`; `wrap` may replace its operations."""
    items = [text if isinstance(text, EncodeText) else EncodeText(np.array(text, np.int64)) for text in texts]
    lengths = [item.num_tokens for item in items]
    types = [np.zeros(item.num_tokens, np.int64) if item.token_types is None else item.token_types for item in items]
    tensors = EncodeTensors(
        token_ids=torch.from_numpy(np.concatenate([item.token_ids for item in items])),
        positions=torch.cat([torch.arange(length) for length in lengths]),
        token_types=torch.from_numpy(np.concatenate(types)),
    )
    with torch.inference_mode():
        return forward(wrap(TextOps(lengths, pooling, [item.pool_start for item in items])), tensors)


def _no_step() -> Step:
    nothing_f32, nothing_i32 = np.zeros(0, np.float32), np.zeros(0, np.int32)
    nothing = np.zeros(0, np.int64)
    sampling = SamplingBatch(
        temperature=nothing_f32,
        top_k=nothing_i32,
        top_p=nothing_f32,
        min_p=nothing_f32,
        seed=np.zeros(0, np.uint64),
        choice=nothing_i32,
        position=nothing_i32,
        banned=(),
        num_logprobs=(),
    )
    return Step(
        token_ids=nothing,
        positions=nothing,
        slots=nothing,
        query_starts=nothing_i32,
        context_lengths=nothing_i32,
        block_tables=nothing_i32.reshape(0, 0),
        sample_indices=nothing,
        sampling=sampling,
    )
