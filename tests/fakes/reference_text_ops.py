"""The operations of encode passes in the plainest torch there is: the half of `ReferenceOps` that looks at texts."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch

from poot.devices.base import Activation, Embedding, FloatArray, Linear
from poot.devices.encode import EncodeStep, Pooling

_ACTIVATIONS = {
    Activation.GELU: torch.nn.GELU(),
    Activation.GELU_TANH: torch.nn.GELU(approximate="tanh"),
    Activation.RELU: torch.nn.ReLU(),
    Activation.SILU: torch.nn.SiLU(),
    Activation.TANH: torch.nn.Tanh(),
}


class ReferenceTextOps:
    """Text operations of the pass `encode_step`; None in a step, which has no texts."""

    encode_step: EncodeStep | None = None

    def embed(self, table: Embedding, token_ids: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError

    def linear(self, weight: Linear, x: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError

    def _lengths(self) -> list[int]:
        assert self.encode_step is not None
        starts = self.encode_step.text_starts.tolist()
        return [end - start for start, end in pairwise(starts)]

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
        lengths = self._lengths()
        outputs = []
        for q, k, v in zip(*(torch.split(x, lengths) for x in (query, key, value)), strict=True):
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
        step = self.encode_step
        assert step is not None
        rows = []
        for text, pooling, start in zip(torch.split(x, self._lengths()), step.pooling, step.pool_starts, strict=True):
            if pooling is Pooling.MEAN:
                rows.append(text[int(start) :].mean(0))
            else:
                rows.append(text[0 if pooling is Pooling.CLS else -1])
        return torch.stack(rows)

    def embed_added(self, table: Embedding, token_ids: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return x + self.embed(table, token_ids)

    def activate(self, x: torch.Tensor, kind: Activation) -> torch.Tensor:
        result: torch.Tensor = _ACTIVATIONS[kind](x)
        return result

    def linear_activated(self, weight: Linear, x: torch.Tensor, kind: Activation) -> torch.Tensor:
        return self.activate(self.linear(weight, x), kind)

    def linear_added(self, weight: Linear, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        return self.linear(weight, x) + residual

    def gated_gelu(self, gate_up: torch.Tensor) -> torch.Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        return torch.nn.functional.gelu(gate) * up


@dataclass(frozen=True, slots=True)
class ReferenceVectors:
    """A finished pass."""

    result: FloatArray

    def vectors(self) -> FloatArray:
        return self.result
