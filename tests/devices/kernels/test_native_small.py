"""Norm, rope, gates and addition against torch in f64."""

from __future__ import annotations

import pytest
import torch

from poot.devices.base import RopeTable
from poot.devices.kernels.native import NativeKernels
from tests.devices.kernels.native_kernels import native

__all__ = ["native"]

# Numbers where activations bend, underflow or overflow, of both signs.
HARD = torch.tensor(
    [0.0, 1e-40, 1e-20, 1e-7, 1e-3, 0.3, 1.0, 2.0, 5.0, 17.0, 50.0, 87.0, 88.5, 89.5, 104.0, 200.0, 1e5]
)


@pytest.mark.parametrize("dim", [1, 5, 16, 33, 64, 576, 641])
@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("has_weight", [False, True])
def test_rms_norm(native: NativeKernels, dim: int, rows: int, has_weight: bool) -> None:
    x, out = torch.randn((rows, dim)) * 3, torch.empty((rows, dim))
    weight = torch.randn(dim) if has_weight else None
    exact = torch.nn.functional.rms_norm(x.double(), (dim,), None if weight is None else weight.double(), 1e-5)
    native.rms_norm(x, weight, 1e-5, out)
    assert torch.allclose(out.double(), exact, rtol=1e-6, atol=1e-7)
    threaded = torch.empty_like(out)
    native.rms_norm(x, weight, 1e-5, threaded, 3)
    assert torch.equal(threaded, out)
    native.rms_norm(x, weight, 1e-5, x)  # in place
    assert torch.equal(x, out)


def test_rms_norm_takes_heads(native: NativeKernels) -> None:
    x, weight = torch.randn((3, 2, 64)), torch.randn(64)
    out = torch.empty_like(x)
    native.rms_norm(x, weight, 1e-6, out)
    assert torch.allclose(out, torch.nn.functional.rms_norm(x, (64,), weight, 1e-6), rtol=1e-5, atol=1e-6)


def test_rms_norm_keeps_nan_in_its_row(native: NativeKernels) -> None:
    x, out = torch.randn((2, 64)), torch.empty((2, 64))
    x[0, 7] = float("nan")
    native.rms_norm(x, None, 1e-6, out)
    assert out[0].isnan().all()
    assert out[1].isfinite().all()


@pytest.mark.parametrize(("head_dim", "rotary_dim"), [(64, 64), (64, 20), (80, 32), (256, 256), (6, 6)])
@pytest.mark.parametrize("interleaved", [False, True])
def test_rope_turns_each_pair_by_its_angle(
    native: NativeKernels, head_dim: int, rotary_dim: int, interleaved: bool
) -> None:
    half = rotary_dim // 2
    angles = torch.arange(50).double().outer(10000.0 ** (-torch.arange(half).double() / half))
    table = RopeTable(angles.cos().float(), angles.sin().float(), rotary_dim, interleaved)
    fused = torch.randn((3, 5 * head_dim + 7))
    original = fused.clone()
    x = fused[:, 7 : 7 + 4 * head_dim].view(3, 4, head_dim)
    positions = torch.tensor([49, 0, 13])

    # A rotation is the product with e ** (i angle).
    before = x[..., :rotary_dim].double()
    if interleaved:
        pairs = before.reshape(3, 4, half, 2)
    else:
        pairs = before.reshape(3, 4, 2, half).transpose(-1, -2)
    turned = torch.view_as_complex(pairs.contiguous()) * torch.exp(1j * angles[positions])[:, None]
    parts = torch.view_as_real(turned)
    expected = parts.flatten(-2) if interleaved else parts.transpose(-1, -2).flatten(-2)

    native.rope(x, table, positions)
    assert torch.allclose(x[..., :rotary_dim].double(), expected, rtol=0, atol=2e-6)
    untouched = torch.ones_like(fused, dtype=torch.bool)
    untouched[:, 7 : 7 + 4 * head_dim].view(3, 4, head_dim)[..., :rotary_dim] = False
    assert torch.equal(fused[untouched], original[untouched])


@pytest.mark.parametrize("n", [1, 16, 17, 100])
@pytest.mark.parametrize("name", ["gated_silu", "gated_gelu_tanh"])
def test_gates(native: NativeKernels, n: int, name: str) -> None:
    gate = torch.linspace(-12, 12, 3 * n).reshape(3, n)
    up = torch.randn((3, n))
    gate_up, out = torch.cat([gate, up], dim=1), torch.full((3, n), float("nan"))
    if name == "gated_silu":
        exact = torch.nn.functional.silu(gate.double()) * up.double()
    else:
        exact = torch.nn.functional.gelu(gate.double(), approximate="tanh") * up.double()
    getattr(native, name)(gate_up, out)
    assert torch.allclose(out.double(), exact, rtol=1e-5, atol=1e-9)
    threaded = torch.empty_like(out)
    getattr(native, name)(gate_up, threaded, 2)
    assert torch.equal(threaded, out)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_gates_at_the_ends_of_the_range(native: NativeKernels, sign: float) -> None:
    gate = (sign * HARD)[None]
    gate_up, out = torch.cat([gate, torch.ones_like(gate)], dim=1), torch.empty_like(gate)
    native.gated_silu(gate_up, out)
    exact = torch.nn.functional.silu(gate.double())
    assert torch.allclose(out.double(), exact, rtol=1e-6, atol=1e-30)
    native.gated_gelu_tanh(gate_up, out)
    exact = torch.nn.functional.gelu(gate.double(), approximate="tanh")
    # torch's own form cancels at negative gates even in f64; ours goes to zero from the right side.
    assert torch.allclose(out.double(), exact, rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("name", ["gated_silu", "gated_gelu_tanh"])
def test_gates_keep_nan_to_itself(native: NativeKernels, name: str) -> None:
    gate_up, out = torch.ones((1, 34)), torch.empty((1, 17))
    gate_up[0, 3] = gate_up[0, 16] = float("nan")
    getattr(native, name)(gate_up, out)
    assert out[0].isnan().nonzero().flatten().tolist() == [3, 16]


@pytest.mark.parametrize("scale", [1.0, -0.22])
def test_add_scales_and_adds_in_place(native: NativeKernels, scale: float) -> None:
    x, y = torch.randn((3, 77)), torch.randn((3, 77))
    expected = x + scale * y
    native.add(x, y, scale)
    assert torch.allclose(x, expected, rtol=1e-6, atol=1e-7)
