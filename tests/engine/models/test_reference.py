"""Real models end to end on the cpu device against figures that another implementation computed in f32.

The files in tests/data hold, for each prompt, the ten likeliest next tokens with logits, the logsumexp, and a greedy
continuation with the gap between the best and second-best logit of every step.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from poot.devices.torch_device import CpuDevice
from poot.engine.checkpoint import open_checkpoint
from poot.engine.models import load_model
from tests.fakes.driver import Driver
from tests.models import require_model

DATA = Path(__file__).parents[2] / "data"
TOLERANCE = 2e-3
# Below this gap between the best two logits, another order of summation may honestly prefer the other token.
SMALLEST_GAP = 0.02


def read(name: str) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = json.loads((DATA / name).read_text(encoding="utf-8"))
    return entries


@pytest.mark.parametrize(
    ("model_name", "file_name"),
    [("smollm2", "smollm2-135m-instruct-q4_1.json"), ("gemma3", "gemma-3-270m-q4_k_m.json")],
)
def test_real_model_gives_the_reference_logits_and_greedy_tokens(model_name: str, file_name: str) -> None:
    path = require_model(model_name)
    device = CpuDevice()
    model = load_model(open_checkpoint(path), device, max_positions=256)
    driver = Driver(model, device, max_seq=128)
    num_compared = 0
    for entry in read(file_name):
        driver.reset()
        logits = driver.run([(0, entry["ids"])])[-1]
        top = logits[torch.tensor(entry["top10_ids"])]
        assert float((top - torch.tensor(entry["top10_logits"])).abs().max()) < TOLERANCE
        assert float(logits.logsumexp(0)) == pytest.approx(entry["logsumexp"], abs=TOLERANCE)
        assert int(logits.topk(10).values[-1:].le(top.max()).all())
        for token_id, gap in zip(entry["greedy_ids"], entry["greedy_gap"], strict=True):
            if gap < SMALLEST_GAP:
                break
            assert int(logits.argmax()) == token_id
            num_compared += 1
            logits = driver.run([(0, [token_id])])[-1]
    assert num_compared > 50
