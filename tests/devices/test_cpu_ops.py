"""Norms, rope, gates and the other small operations of the cpu device against f64, written another way."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from poot.devices.base import KvLayout, Ops, RopeTable, StepTensors, Weight
from poot.devices.formats import Format
from poot.devices.torch_device import CpuDevice
from tests.devices.steps import make_step, run

TOLERANCE = 2e-6


@pytest.fixture(params=[True, False], ids=["native", "torch"])
def device(request: pytest.FixtureRequest) -> CpuDevice:
    device = CpuDevice(use_native=request.param, threads=1)
    device.allocate_kv(KvLayout(num_blocks=8, layers=((1, 8),)))
    return device


def apply(device: CpuDevice, function: Callable[[Ops], torch.Tensor], num_tokens: int = 24) -> torch.Tensor:
    step = make_step([(num_tokens, num_tokens)], max_positions=128)
    return run(device, step, lambda ops, tensors: function(ops)).double()


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def assert_close(result: torch.Tensor, wanted: torch.Tensor) -> None:
    torch.testing.assert_close(result, wanted, atol=TOLERANCE, rtol=TOLERANCE)


@pytest.mark.parametrize("with_weight", [True, False])
@pytest.mark.parametrize("shape", [(24, 40), (1, 576), (24, 3, 16)], ids=str)
def test_rms_norm(device: CpuDevice, shape: tuple[int, ...], with_weight: bool) -> None:
    x = 3 * randn(*shape)
    weight = randn(shape[-1], seed=1) if with_weight else None
    wanted = F.rms_norm(x.double(), x.shape[-1:], None if weight is None else weight.double(), 1e-2)
    assert_close(apply(device, lambda ops: ops.rms_norm(x, weight, 1e-2)), wanted)


def test_rms_norm_of_a_slice(device: CpuDevice) -> None:
    heads = randn(24, 5, 16)
    weight = randn(16, seed=1)
    wanted = F.rms_norm(heads[:, 3:].double(), (16,), weight.double(), 1e-6)
    assert_close(apply(device, lambda ops: ops.rms_norm(heads[:, 3:], weight, 1e-6)), wanted)


def test_two_norms_of_one_shape_stand_side_by_side(device: CpuDevice) -> None:
    x, y = randn(24, 16), randn(24, 16, seed=1)

    def function(ops: Ops) -> torch.Tensor:
        first = ops.rms_norm(x, None, 1e-6)
        return torch.cat([first, ops.rms_norm(y, None, 1e-6)])

    assert_close(apply(device, function), F.rms_norm(torch.cat([x, y]).double(), (16,), None, 1e-6))


def test_layer_norm(device: CpuDevice) -> None:
    x, weight, bias = randn(24, 40), randn(40, seed=1), randn(40, seed=2)
    wanted = F.layer_norm(x.double(), (40,), weight.double(), bias.double(), 1e-5)
    assert_close(apply(device, lambda ops: ops.layer_norm(x, weight, bias, 1e-5)), wanted)


def test_add_and_scale(device: CpuDevice) -> None:
    x, y = randn(24, 40), randn(24, 40, seed=1)
    assert_close(apply(device, lambda ops: ops.add(x.clone(), y)), x.double() + y.double())
    assert_close(apply(device, lambda ops: ops.add(x.clone(), y, 0.25)), x.double() + 0.25 * y.double())
    assert_close(apply(device, lambda ops: ops.scale(x.clone(), 12.5)), 12.5 * x.double())


def test_softcap(device: CpuDevice) -> None:
    x = 40 * randn(24, 40)
    assert_close(apply(device, lambda ops: ops.softcap(x.clone(), 30.0)), 30 * torch.tanh(x.double() / 30))


def test_gather(device: CpuDevice) -> None:
    x = randn(24, 40)
    indices = torch.tensor([23, 0, 5])
    assert_close(apply(device, lambda ops: ops.gather(x, indices)), x[[23, 0, 5]].double())


@pytest.mark.parametrize("num_tokens", [1, 24])
def test_gates(device: CpuDevice, num_tokens: int) -> None:
    gate_up = 3 * randn(num_tokens, 88)
    gate, up = gate_up.double().chunk(2, dim=1)
    assert_close(apply(device, lambda ops: ops.gated_silu(gate_up)), gate / (1 + torch.exp(-gate)) * up)
    tanh = torch.tanh(math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3))
    assert_close(apply(device, lambda ops: ops.gated_gelu_tanh(gate_up)), 0.5 * gate * (1 + tanh) * up)


@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize("rotary_dim", [16, 8])
@pytest.mark.parametrize("is_slice", [True, False])
def test_rope_turns_pairs(device: CpuDevice, interleaved: bool, rotary_dim: int, is_slice: bool) -> None:
    angles = torch.outer(torch.arange(50.0), 10000.0 ** (-torch.arange(rotary_dim // 2) / 8))
    table = RopeTable(torch.cos(angles), torch.sin(angles), rotary_dim, interleaved)
    positions = torch.arange(13, 37)
    stored = randn(24, 5, 16)
    heads = stored[:, :3] if is_slice else stored[:, :3].contiguous()

    # A rotation is a multiplication of complex numbers.
    rotary = heads[..., :rotary_dim].double()
    if interleaved:
        pairs = torch.complex(rotary[..., 0::2], rotary[..., 1::2])
    else:
        pairs = torch.complex(*rotary.chunk(2, dim=-1))
    turned = pairs * torch.polar(torch.ones_like(angles).double(), angles.double())[positions][:, None]
    parts = [turned.real, turned.imag]
    wanted = heads.double()
    wanted[..., :rotary_dim] = torch.stack(parts, dim=-1).flatten(-2) if interleaved else torch.cat(parts, dim=-1)

    result = apply(device, lambda ops: ops.rope(heads, table, positions))
    torch.testing.assert_close(result, wanted, atol=TOLERANCE, rtol=TOLERANCE)


def test_embedding_ids_beyond_the_table_are_an_error_not_a_read(device: CpuDevice) -> None:
    table = device.embedding(Weight("embedding", (4, 8), Format.F32, randn(4, 8)))
    step = make_step([(1, 1)], max_positions=128)

    def function(ops: Ops, tensors: StepTensors) -> torch.Tensor:
        return ops.embed(table, torch.tensor([4]))

    with pytest.raises((IndexError, RuntimeError)):
        run(device, step, function)
