"""The cpu device as a whole: programs over a small model, and whether its byte counts hold."""

from __future__ import annotations

import dataclasses
import logging
import os

import numpy as np
import pytest
import torch

from poot.config import TimingConfig
from poot.devices import torch_device
from poot.devices.base import Bucket, Forward, KvLayout, Ops, RopeTable, Step, StepTensors, Weight
from poot.devices.formats import Format
from poot.devices.torch_device import CpuDevice
from poot.metrics import TimingDetail
from tests.devices.steps import make_step, sampling

HIDDEN, INTERMEDIATE, VOCAB, NUM_HEADS, NUM_KV_HEADS, HEAD_DIM, NUM_LAYERS = 64, 96, 100, 4, 2, 16, 2
MAX_POSITIONS, NUM_ROWS = 128, 2
LAYOUT = KvLayout(num_blocks=NUM_ROWS * MAX_POSITIONS // 16, layers=((NUM_KV_HEADS, HEAD_DIM),) * NUM_LAYERS)
BUCKET = Bucket(num_rows=NUM_ROWS, num_tokens=80, max_positions=MAX_POSITIONS)
SIZES = {
    "hidden_size": HIDDEN,
    "intermediate_size": INTERMEDIATE,
    "vocab_size": VOCAB,
    "max_positions": MAX_POSITIONS,
    "num_heads": NUM_HEADS,
    "head_dim": HEAD_DIM,
}


def make_weight(rows: int, in_features: int, seed: int) -> Weight:
    data = torch.randn(rows, in_features, generator=torch.Generator().manual_seed(seed)) / in_features**0.5
    return Weight(f"weight {seed}", (rows, in_features), Format.F16, data.to(torch.float16))


def make_forward(device: CpuDevice, *, softcap: float | None = None) -> Forward:
    """A decoder of two layers in the plainest form, the second with a window."""
    table = device.embedding(make_weight(VOCAB, HIDDEN, 1))
    head = device.output_head(table)
    widths = [NUM_HEADS * HEAD_DIM, NUM_KV_HEADS * HEAD_DIM, NUM_KV_HEADS * HEAD_DIM]
    qkv = [
        device.linear([make_weight(width, HIDDEN, 10 * layer + i) for i, width in enumerate(widths, 20)])
        for layer in range(NUM_LAYERS)
    ]
    output = device.linear([make_weight(HIDDEN, widths[0], 2)])
    gate_up = device.linear([make_weight(INTERMEDIATE, HIDDEN, 3), make_weight(INTERMEDIATE, HIDDEN, 4)])
    down = device.linear([make_weight(HIDDEN, INTERMEDIATE, 5)])
    angles = torch.outer(torch.arange(float(MAX_POSITIONS)), 100.0 ** (-torch.arange(HEAD_DIM // 2) / 8))
    rope = RopeTable(torch.cos(angles), torch.sin(angles), HEAD_DIM, False)

    def forward(ops: Ops, tensors: StepTensors) -> torch.Tensor:
        hidden = ops.embed(table, tensors.token_ids)
        for layer in range(NUM_LAYERS):
            projected = ops.linear(qkv[layer], ops.rms_norm(hidden, None, 1e-5))
            heads = projected.view(len(hidden), -1, HEAD_DIM)
            query, key, value = heads.split_with_sizes([NUM_HEADS, NUM_KV_HEADS, NUM_KV_HEADS], 1)
            ops.kv_write(layer, ops.rope(key, rope, tensors.positions), value)
            query = ops.rope(query, rope, tensors.positions)
            attended = ops.attention(layer, query, scale=0.25, window=20 if layer else None, softcap=softcap)
            hidden = ops.add(hidden, ops.linear(output, attended))
            gated = ops.gated_silu(ops.linear(gate_up, ops.rms_norm(hidden, None, 1e-5)))
            hidden = ops.add(hidden, ops.linear(down, gated))
        return ops.linear(head, ops.rms_norm(ops.gather(hidden, tensors.sample_indices), None, 1e-5))

    return forward


def make_device(use_native: bool = True) -> CpuDevice:
    device = CpuDevice(use_native=use_native, threads=1)
    device.allocate_kv(LAYOUT)
    return device


def with_tokens(step: Step, token_ids: list[int]) -> Step:
    batch = sampling(step.num_rows, num_logprobs=(VOCAB,) * step.num_rows)
    return dataclasses.replace(step, token_ids=np.array(token_ids, np.int64), sampling=batch)


def last_logprobs(device: CpuDevice, forward: Forward, sizes: list[int], token_ids: list[int]) -> dict[int, float]:
    """Log-probabilities after `token_ids`, fed in chunks of `sizes`."""
    program = device.record(forward, BUCKET)
    done = 0
    for size in sizes:
        step = make_step([(done + size, size)], max_positions=MAX_POSITIONS)
        result = program.launch(with_tokens(step, token_ids[done : done + size])).tokens()
        done += size
    assert result.logprobs[0] is not None
    return dict(result.logprobs[0].top)


@pytest.mark.parametrize("use_native", [True, False], ids=["native", "torch"])
@pytest.mark.parametrize("softcap", [None, 4.0])
def test_a_prompt_gives_the_same_in_one_piece_in_chunks_and_token_by_token(
    use_native: bool, softcap: float | None
) -> None:
    device = make_device(use_native)
    forward = make_forward(device, softcap=softcap)
    token_ids = np.random.default_rng(0).integers(0, VOCAB, 70).tolist()
    whole = last_logprobs(device, forward, [70], token_ids)
    for sizes in ([50, 20], [33, 1, 2, 34], [1] * 70):
        assert last_logprobs(device, forward, sizes, token_ids) == pytest.approx(whole, abs=2e-5)


def test_timing_changes_no_answer_and_lists_the_operations_of_the_forward_in_order() -> None:
    device = make_device()
    forward = make_forward(device)
    token_ids = np.random.default_rng(0).integers(0, VOCAB, 70).tolist()
    untimed = last_logprobs(device, forward, [60, 10], token_ids)
    log = device.time_steps(TimingConfig(enabled=True))
    assert log.snapshot().retained_steps == 0
    assert last_logprobs(device, forward, [60, 10], token_ids) == untimed
    layer = ["rms_norm", "linear", "rope", "kv_write", "rope", "attention", "linear", "add"]
    layer += ["rms_norm", "linear", "gated_silu", "linear", "add"]
    steps = log.detail()
    assert [(step["step"], step["tokens"]) for step in steps] == [(0, 60), (1, 10)]
    for step in steps:
        names = [dispatch["name"] for dispatch in step["dispatches"]]
        assert names == ["embed", *layer * NUM_LAYERS, "gather", "rms_norm", "linear", "sample"]
    timing = log.snapshot()
    assert (timing.detail, timing.device_seconds, timing.perturbed) == (TimingDetail.COMPLETE, None, False)
    assert timing.dispatches["linear"].count == 2 * (4 * NUM_LAYERS + 1)


def test_a_new_log_leaves_the_old_one_as_it_was() -> None:
    device = make_device()
    forward = make_forward(device)
    first = device.time_steps(TimingConfig(enabled=True))
    last_logprobs(device, forward, [5], [1] * 5)
    second = device.time_steps(TimingConfig(enabled=True))
    last_logprobs(device, forward, [5, 5], [1] * 10)
    assert (first.snapshot().retained_steps, second.snapshot().retained_steps) == (1, 2)


def test_native_kernels_and_torch_agree() -> None:
    token_ids = np.random.default_rng(0).integers(0, VOCAB, 70).tolist()
    both = []
    for use_native in (True, False):
        device = make_device(use_native)
        both.append(last_logprobs(device, make_forward(device), [60, 9, 1], token_ids))
    assert both[0] == pytest.approx(both[1], abs=2e-5)


def test_a_chunk_without_samples_only_fills_the_pool() -> None:
    device = make_device()
    program = device.record(make_forward(device), BUCKET)
    step = with_tokens(make_step([(9, 9)], max_positions=MAX_POSITIONS), [5] * 9)
    step = dataclasses.replace(step, sample_indices=np.empty(0, np.int64), sampling=sampling(0))
    assert program.launch(step).tokens().token_ids == ()


def test_a_step_larger_than_its_bucket_is_our_bug() -> None:
    device = make_device()
    program = device.record(make_forward(device), BUCKET)
    with pytest.raises(AssertionError):
        program.launch(with_tokens(make_step([(81, 81)], max_positions=MAX_POSITIONS), [0] * 81))


@pytest.mark.parametrize("use_native", [True, False], ids=["native", "torch"])
def test_a_step_takes_no_buffers_after_record(use_native: bool) -> None:
    device = make_device(use_native)
    program = device.record(make_forward(device, softcap=3.0), BUCKET)
    recorded = device.statistics()["workspace_bytes"]
    for rows in ([(80, 80)], [(128, 79), (128, 1)], [(1, 1)], [(40, 40), (40, 40)]):
        step = make_step(rows, max_positions=MAX_POSITIONS, shuffle_seed=1)
        program.launch(with_tokens(step, [1] * step.num_tokens)).tokens()
    assert device.statistics()["workspace_bytes"] == recorded
    assert 0 < recorded < device.step_bytes(BUCKET, spec_sizes=SIZES)


def test_without_a_limit_on_positions_a_row_may_fill_the_pool() -> None:
    device = make_device()
    bucket = Bucket(num_rows=NUM_ROWS, num_tokens=80)
    program = device.record(make_forward(device), bucket)
    step = make_step([(MAX_POSITIONS, 80)], max_positions=MAX_POSITIONS, shuffle_seed=1)
    program.launch(with_tokens(step, [1] * 80)).tokens()
    bound = device.step_bytes(bucket, spec_sizes=SIZES)
    assert device.statistics()["workspace_bytes"] < bound
    assert bound > device.step_bytes(BUCKET, spec_sizes=SIZES)


def test_two_programs_share_their_buffers() -> None:
    device = make_device()
    forward = make_forward(device)
    device.record(forward, BUCKET)
    one = device.statistics()["workspace_bytes"]
    device.record(forward, Bucket(num_rows=1, num_tokens=1, max_positions=MAX_POSITIONS))
    assert device.statistics()["workspace_bytes"] == one


def test_bytes_of_weights_and_pool() -> None:
    device = make_device()
    make_forward(device)
    linears = NUM_LAYERS * (NUM_HEADS + 2 * NUM_KV_HEADS) * HEAD_DIM * HIDDEN + HIDDEN * NUM_HEADS * HEAD_DIM
    assert device.weight_bytes() == 2 * (VOCAB * HIDDEN + linears + 3 * HIDDEN * INTERMEDIATE)
    assert device.kv_bytes(LAYOUT) == NUM_LAYERS * 2 * 4 * NUM_ROWS * MAX_POSITIONS * NUM_KV_HEADS * HEAD_DIM


def test_the_device_describes_itself() -> None:
    device = CpuDevice(threads=1)
    assert device.name == "cpu"
    assert "1 thread" in device.description
    assert device.memory().available_bytes > 0
    assert device.statistics()["threads"] == 1


def test_it_computes_on_the_cpus_the_process_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0}, raising=False)
    assert CpuDevice().statistics()["threads"] == 1
    assert torch.get_num_threads() == 1


def test_missing_native_kernels_are_said_once_with_their_cost(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(torch_device, "load_native", lambda: None)
    with caplog.at_level(logging.WARNING, logger="poot.devices"):
        device = CpuDevice(threads=1)
    (record,) = caplog.records
    assert "native kernels" in record.message
    assert "slower" in record.message
    assert device.statistics()["kernels"] == "torch"


def test_a_pool_that_does_not_exist_records_no_program() -> None:
    device = CpuDevice(threads=1)
    with pytest.raises(AssertionError, match="KV pool"):
        device.record(make_forward(device), BUCKET)
