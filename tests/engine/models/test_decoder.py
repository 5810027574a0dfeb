"""Model code keeps the promises of `Ops`: results are used before they may be overwritten, and rows it need not
compute are not computed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from poot.devices.base import KV_BLOCK_SIZE, KvLayout, Linear, Ops, Step, StepTensors
from poot.engine.checkpoint import open_checkpoint
from poot.engine.models import DecoderModel, load_model
from tests.engine.models.checkpoints import hub_checkpoint
from tests.engine.models.small_models import CASES, VOCAB_SIZE, SmallModel
from tests.fakes.driver import greedy_sampling
from tests.fakes.reference_device import ReferenceDevice, ReferenceOps

PROMPT = [(37 * index + 11) % (VOCAB_SIZE - 3) + 3 for index in range(23)]


class ForgetfulOps:
    """Gives each operation one buffer per shape, as a device with planned buffers may, and spoils `add`'s input.

    Whatever model code still holds from an earlier call of the same name and shape becomes NaN before the next result
    is handed over.
    """

    def __init__(self, ops: ReferenceOps) -> None:
        self._ops = ops
        self._last: dict[tuple[Any, ...], torch.Tensor] = {}

    def __getattr__(self, name: str) -> Callable[..., torch.Tensor | None]:
        operation = getattr(self._ops, name)

        def call(*arguments: Any, **options: Any) -> torch.Tensor | None:
            given: torch.Tensor | None = operation(*arguments, **options)
            if given is None:
                return None
            result = given.clone()
            if name in ("add", "scale", "softcap"):
                arguments[0].fill_(torch.nan)  # "may reuse the memory of x"
            key = (name, tuple(result.shape))
            if key in self._last:
                self._last[key].fill_(torch.nan)
            self._last[key] = result
            return result

        return call


def step_of(ids: list[int], sample_indices: list[int]) -> Step:
    """One row of `ids` from position 0."""
    count = len(ids)
    return Step(
        token_ids=np.array(ids, np.int64),
        positions=np.arange(count, dtype=np.int64),
        slots=np.arange(count, dtype=np.int64),
        query_starts=np.array([0, count], np.int32),
        context_lengths=np.array([count], np.int32),
        block_tables=np.arange(-(-count // KV_BLOCK_SIZE), dtype=np.int32).reshape(1, -1),
        sample_indices=np.array(sample_indices, np.int64),
        sampling=greedy_sampling(sample_indices),
    )


def forward(model: DecoderModel, wrap: Callable[[ReferenceOps], Any], step: Step) -> torch.Tensor:
    """The logits of `step` over a fresh KV pool."""
    layout = KvLayout(num_blocks=4, layers=model.kv_layers)
    pools = [[torch.full((4 * KV_BLOCK_SIZE, heads, dim), torch.nan) for heads, dim in layout.layers] for _ in range(2)]
    ops: Ops = wrap(ReferenceOps(step, *pools))
    tensors = StepTensors(
        token_ids=torch.from_numpy(step.token_ids),
        positions=torch.from_numpy(step.positions),
        sample_indices=torch.from_numpy(step.sample_indices),
    )
    return model.forward(ops, tensors)


@pytest.mark.parametrize("name", CASES)
def test_no_result_is_used_after_it_may_be_overwritten(small_model: Callable[[str], SmallModel], name: str) -> None:
    model = load_model(open_checkpoint(small_model(name).directory), ReferenceDevice(), max_positions=64)
    step = step_of(PROMPT, [len(PROMPT) - 1])
    expected = forward(model, lambda ops: ops, step)
    assert expected.isfinite().all()
    torch.testing.assert_close(forward(model, ForgetfulOps, step), expected)


class CountingOps(ReferenceOps):
    """Notes the rows and outputs of every linear map, and the operations called."""

    def __init__(self, step: Step, keys: list[torch.Tensor], values: list[torch.Tensor]) -> None:
        super().__init__(step, keys, values)
        self.linears: list[tuple[int, int]] = []

    def linear(self, weight: Linear, x: torch.Tensor) -> torch.Tensor:
        self.linears.append((len(x), weight.out_features))
        return super().linear(weight, x)


def test_only_sampled_rows_pass_the_head() -> None:
    model = load_model(hub_checkpoint(), ReferenceDevice(), max_positions=64)
    seen: list[CountingOps] = []

    def wrap(ops: ReferenceOps) -> CountingOps:
        seen.append(CountingOps(ops._step, ops._keys, ops._values))
        return seen[0]

    logits = forward(model, wrap, step_of([3, 4, 5, 6, 7], [1, 4]))
    assert logits.shape == (2, 40)
    assert seen[0].linears[-1] == (2, 40)
    # query-key-value, output, gate-up, down of two layers, then the head
    assert seen[0].linears[:-1] == [(5, 32), (5, 16), (5, 48), (5, 16)] * 2


def test_a_step_without_samples_gives_no_logits() -> None:
    model = load_model(hub_checkpoint(), ReferenceDevice(), max_positions=64)
    assert forward(model, lambda ops: ops, step_of([3, 4, 5], [])).shape == (0, 40)
