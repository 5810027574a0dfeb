"""The cpu device's operations of encode passes: those beside the ones that steps use too."""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F

from poot.devices.base import Activation, Linear
from poot.devices.cpu_encode import CpuPass
from poot.devices.cpu_text_attention import attend_texts
from poot.devices.encode import Pooling
from poot.devices.packed import PackedLinear
from poot.devices.workspace import Workspace


class CpuTextOps:
    """Part of `CpuOps`, which hands it the workspace; one pass at a time."""

    _workspace: Workspace
    _pass: CpuPass | None = None

    def begin_pass(self, encode_pass: CpuPass) -> None:
        """Text operations that follow belong to `encode_pass`."""
        self._pass = encode_pass

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
        num_tokens, num_heads, head_dim = query.shape
        out = self._workspace.take("text attention", num_tokens, (num_heads * head_dim,))
        if self._workspace.is_tracing:
            return out
        assert self._pass is not None
        attend_texts(
            query,
            key,
            value,
            out,
            self._pass.runs,
            scale=scale,
            reach=reach,
            softcap=softcap,
            distance_bias=distance_bias,
        )
        return out

    def pool(self, x: torch.Tensor) -> torch.Tensor:
        assert self._pass is not None
        out = self._workspace.take("pool", self._pass.num_texts, (x.shape[1],))
        if self._workspace.is_tracing:
            return out
        for text, (pooling, first, last) in enumerate(self._pass.pooled):
            if pooling is Pooling.MEAN:
                torch.mean(x[first:last], dim=0, out=out[text])
            else:
                out[text] = x[first if pooling is Pooling.CLS else last - 1]
        return out

    def activate(self, x: torch.Tensor, kind: Activation) -> torch.Tensor:
        match kind:
            case Activation.GELU:
                return F.gelu(x)
            case Activation.GELU_TANH:
                return F.gelu(x, approximate="tanh")
            case Activation.RELU:
                return x.relu_()
            case Activation.SILU:
                return F.silu(x, inplace=True)
            case Activation.TANH:
                return x.tanh_()

    def linear_activated(self, weight: Linear, x: torch.Tensor, kind: Activation) -> torch.Tensor:
        prepacked = cast("PackedLinear", weight).prepacked
        if prepacked is None or self._workspace.is_tracing:
            return self.activate(self.linear(weight, x), kind)
        return prepacked.multiply(x, kind)

    def linear_added(self, weight: Linear, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        prepacked = cast("PackedLinear", weight).prepacked
        if prepacked is None or self._workspace.is_tracing:
            return residual.add_(self.linear(weight, x))
        return prepacked.multiply_add(x, residual)

    def linear(self, weight: Linear, x: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError  # CpuOps has it

    def gated_gelu(self, gate_up: torch.Tensor) -> torch.Tensor:
        half = gate_up.shape[1] // 2
        out = self._workspace.take("gated", gate_up.shape[0], (half,))
        if self._workspace.is_tracing:
            return out
        return torch.mul(F.gelu(gate_up[:, :half]), gate_up[:, half:], out=out)
