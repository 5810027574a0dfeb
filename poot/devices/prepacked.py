"""Dense linear maps laid out by oneDNN for many rows, with what follows a product fused into it.

torch carries oneDNN and reaches it for f32 only on ARM by default; on x86 it takes MKL. Measured on two cores of an
AMD EPYC with AVX-512, products of MiniLM's shapes with 64 to 2,048 rows: oneDNN over a weight laid out beforehand 160
to 204 GFLOP/s, MKL 70 to 165. The operators are torch's own (torch.compile's CPU backend emits them) but private; where
they are missing, `is_available` says so and MKL serves.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch

from poot.devices.base import Activation

# Rows that the layout is chosen for; a product may have any number. 32 to 2,048 gave the same speed within 5 %.
_TYPICAL_ROWS = 256

# What the fused operator calls an activation, and the algorithm it wants named.
_FUSED = {
    Activation.GELU: ("gelu", "none"),
    Activation.GELU_TANH: ("gelu", "tanh"),
    Activation.RELU: ("relu", ""),
    Activation.SILU: ("swish", ""),
    Activation.TANH: ("tanh", ""),
}


@cache
def is_available() -> bool:
    """Whether this torch has the operators."""
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]  # torch leaves it so
        return False
    operators = torch.ops.mkldnn
    return hasattr(operators, "_reorder_linear_weight") and hasattr(operators, "_linear_pointwise")


@dataclass(frozen=True, slots=True, eq=False)
class Prepacked:
    """One laid-out map `[out_features, in_features]` with its bias. Results are fresh tensors."""

    weight: torch.Tensor
    bias: torch.Tensor | None

    def multiply(self, x: torch.Tensor, kind: Activation | None = None) -> torch.Tensor:
        """`x @ weight.T + bias`, then the activation, for f32 `[num_rows, in_features]`."""
        name, algorithm = ("none", "") if kind is None else _FUSED[kind]
        product: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, name, [], algorithm)
        return product

    def multiply_add(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """`x @ weight.T + bias + residual`."""
        total: torch.Tensor = torch.ops.mkldnn._linear_pointwise.binary(x, residual, self.weight, self.bias, "add")
        return total


def prepack(weight: torch.Tensor, bias: torch.Tensor | None) -> Prepacked:
    """`weight`, f32 `[out_features, in_features]`, in a copy of about the same size. Only where `is_available`."""
    return Prepacked(torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), _TYPICAL_ROWS), bias)
