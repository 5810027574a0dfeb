"""Log-probabilities of a prompt's own tokens, against transformers' logits, within the buffers of the plan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from poot.devices.base import KV_BLOCK_SIZE, Bucket, Device, KvLayout, ScoredTokens, Step
from poot.devices.torch_device import CpuDevice
from poot.engine.checkpoint import open_checkpoint
from poot.engine.models import load_model
from tests.engine.models.small_models import MAX_POSITIONS, VOCAB_SIZE, SmallModel
from tests.fakes.driver import greedy_sampling
from tests.fakes.reference_device import ReferenceDevice

PROMPT = [(41 * index + 7) % (VOCAB_SIZE - 3) + 3 for index in range(37)]


def step_of(first: int, last: int) -> Step:
    """Tokens `first` to `last` of the prompt in one row, all of them scored for the one after."""
    positions = np.arange(first, last)
    table = np.arange(-(-len(PROMPT) // KV_BLOCK_SIZE), dtype=np.int32)
    count = min(last, len(PROMPT) - 1) - first
    return Step(
        token_ids=np.array(PROMPT[first:last], np.int64),
        positions=positions.astype(np.int64),
        slots=positions.astype(np.int64),
        query_starts=np.array([0, last - first], np.int32),
        context_lengths=np.array([last], np.int32),
        block_tables=table[None],
        sample_indices=np.array([last - first - 1], np.int64),
        sampling=greedy_sampling([last]),
        scored=ScoredTokens(np.arange(count), tuple(PROMPT[first + 1 : first + 1 + count]), (3,) * count),
    )


@pytest.mark.parametrize("make_device", [CpuDevice, ReferenceDevice])
@pytest.mark.parametrize("name", ["llama", "gemma2-scalar"])
@pytest.mark.parametrize("num_rows", [1, 4])
def test_scores_are_transformers_log_softmax(
    make_device: Callable[[], Device], name: str, num_rows: int, small_model: Callable[[str], SmallModel]
) -> None:
    small = small_model(name)
    device = make_device()
    model = load_model(open_checkpoint(small.directory), device, max_positions=MAX_POSITIONS)
    device.allocate_kv(KvLayout(num_blocks=MAX_POSITIONS // KV_BLOCK_SIZE, layers=model.kv_layers))
    program = device.record(model.forward, Bucket(num_rows=num_rows, num_tokens=20, max_positions=MAX_POSITIONS))
    held = device.statistics().get("workspace_bytes")
    expected = torch.log_softmax(small.logits(PROMPT).double(), -1)
    for first, last in ((0, 20), (20, 37)):
        step = step_of(first, last)
        result = program.launch(step).tokens()
        assert len(result.scores) == min(last, len(PROMPT) - 1) - first
        for position, score in enumerate(result.scores, start=first):
            assert score.logprob == pytest.approx(float(expected[position, PROMPT[position + 1]]), abs=1e-4)
            assert [value for _, value in score.top] == pytest.approx(
                expected[position].topk(3).values.tolist(), abs=1e-4
            )
        # The token that is drawn is the one that is drawn without scores.
        assert program.launch(replace(step, scored=None)).tokens().token_ids == result.token_ids
        assert result.token_ids == (int(expected[last - 1].argmax()),)
    assert device.statistics().get("workspace_bytes") == held
