"""From a loaded model to a recorded program, over real checkpoints on the cpu device."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import pytest

from poot.config import EngineConfig
from poot.devices.base import Bucket, Forward, MemoryBudget, Pending, Program, Step
from poot.devices.encode import EncodeBucket
from poot.devices.torch_device import CpuDevice
from poot.engine.models.served import load_served
from poot.engine.runner import Prepared, kv_layout, prepare
from poot.errors import CapacityError
from poot.server import Served
from tests.engine.models.checkpoints import HEAD_DIM, HIDDEN, KV_HEADS, LAYERS, VOCAB, WIDTH, hub_checkpoint
from tests.engine.text.makers import chat_tokenizer

# It and its halves end inside a KV block, and four rows of it waste more than one block.
MODEL_LIMIT = 3990
CHECKPOINT = hub_checkpoint(config={"max_position_embeddings": MODEL_LIMIT})

# What is left to try after each refusal, from what is asked for (4 rows, 4096 positions) down.
WALK = [(4, 3990), (2, 3990), (1, 3990), (1, 1995), (1, 997), (1, 498), (1, 249), (1, 128)]


class RecordedDevice(CpuDevice):
    """The cpu device on one thread, remembering the steps its programs ran."""

    def __init__(self) -> None:
        super().__init__(threads=1)
        self.steps: list[Step] = []

    def record(self, forward: Forward, bucket: Bucket) -> Program:
        return RecordedProgram(super().record(forward, bucket), self.steps)


@dataclass(frozen=True)
class RecordedProgram:
    program: Program
    steps: list[Step]

    @property
    def launch_computes(self) -> bool:
        return self.program.launch_computes

    def launch(self, step: Step) -> Pending:
        self.steps.append(step)
        return self.program.launch(step)


def prepared(available_bytes: int, device: CpuDevice | None = None) -> Prepared:
    """The checkpoint, prepared for what is asked for by default on a device that offers so many bytes."""
    device = device or CpuDevice(threads=1)
    config = EngineConfig()
    model = load_served(CHECKPOINT, device, tokenizer=chat_tokenizer(), max_seq=config.max_seq)
    budget = MemoryBudget(total_bytes=2**40, available_bytes=available_bytes)
    return prepare(model, device, config, budget)


def expected_terms(num_rows: int, max_seq: int) -> dict[str, int]:
    """Every term of the plan: weights and KV counted here, working memory by the device's own bounds."""
    head_widths = HIDDEN + 2 * KV_HEADS * HEAD_DIM  # query, key and value
    layer = 2 * HIDDEN + HIDDEN * (head_widths + HIDDEN) + 3 * HIDDEN * WIDTH
    rope_tables = 2 * MODEL_LIMIT * HEAD_DIM // 2
    sizes = {
        "hidden_size": HIDDEN,
        "intermediate_size": WIDTH,
        "vocab_size": VOCAB,
        "max_positions": max_seq,
        "num_heads": HIDDEN // HEAD_DIM,
        "num_kv_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
    }
    device = CpuDevice(threads=1)
    return {
        "weights": 4 * (2 * VOCAB * HIDDEN + HIDDEN + LAYERS * layer + rope_tables),
        "kv": num_rows * 2 * 4 * LAYERS * KV_HEADS * HEAD_DIM * ((max_seq + 15) // 16 * 16),
        "step": device.step_bytes(Bucket(num_rows=num_rows, num_tokens=512, max_positions=max_seq), spec_sizes=sizes),
        "encode": device.encode_bytes(
            EncodeBucket(
                num_texts=num_rows,
                num_tokens=max(max_seq, min(512, num_rows * max_seq)),
                max_text_tokens=max_seq,
            ),
            spec_sizes=sizes,
        ),
    }


def test_the_pool_holds_max_seq_positions_for_every_row() -> None:
    layout = kv_layout([(3, 64), (1, 128)], num_rows=4, max_seq=100)
    assert layout.num_blocks == 4 * 7  # ceil(100 / 16)
    assert layout.layers == ((3, 64), (1, 128))


@pytest.mark.parametrize(("num_rows", "max_seq"), WALK)
def test_a_budget_of_exactly_a_plans_bytes_fits_and_a_byte_less_takes_the_next_halving(
    num_rows: int, max_seq: int
) -> None:
    terms = expected_terms(num_rows, max_seq)
    total = sum(terms.values())
    plan = prepared(total).plan
    assert (plan.num_rows, plan.max_seq, plan.terms) == (num_rows, max_seq, terms)
    assert plan.total_bytes == plan.available_bytes == total

    if (num_rows, max_seq) != WALK[-1]:
        smaller = WALK[WALK.index((num_rows, max_seq)) + 1]
        plan = prepared(total - 1).plan
        assert (plan.num_rows, plan.max_seq) == smaller
        assert plan.terms == expected_terms(*smaller)
        assert (plan.asked_rows, plan.asked_max_seq) == (4, 4096)


def test_a_byte_less_than_the_smallest_plan_is_refused_before_anything_is_allocated() -> None:
    terms = expected_terms(1, 128)
    device = CpuDevice(threads=1)
    with pytest.raises(CapacityError) as caught:
        prepared(sum(terms.values()) - 1, device)
    assert caught.value.terms == terms
    assert caught.value.available_bytes == sum(terms.values()) - 1
    for name, size in terms.items():
        assert f"{name} {size}" in str(caught.value)
    assert device.statistics()["workspace_bytes"] == 0


def test_the_log_has_each_halving_each_term_and_the_sum(caplog: pytest.LogCaptureFixture) -> None:
    totals = [sum(expected_terms(*workload).values()) for workload in WALK]
    terms = expected_terms(1, 3990)
    with caplog.at_level(logging.INFO, logger="poot.plan"):
        prepared(totals[2])
    tried = f"{totals[2]} available), trying"
    assert [record.message for record in caplog.records if record.name == "poot.plan"] == [
        f"plan: rows 4, max_seq 3990 does not fit ({totals[0]} bytes needed, {tried} rows 2, max_seq 3990",
        f"plan: rows 2, max_seq 3990 does not fit ({totals[1]} bytes needed, {tried} rows 1, max_seq 3990",
        *(f"plan: {name} {terms[name]} bytes" for name in ("weights", "kv", "step", "encode")),
        f"plan: rows 1, max_seq 3990, {totals[2]} of {totals[2]} bytes available",
    ]


@pytest.mark.parametrize(("num_rows", "max_seq"), [(4, 3990), (2, 3990), (1, 498), (1, 128)])
def test_the_rehearsal_reaches_what_was_settled_within_its_terms(num_rows: int, max_seq: int) -> None:
    device = RecordedDevice()
    terms = expected_terms(num_rows, max_seq)
    prepared(sum(terms.values()), device)
    (step,) = device.steps
    assert step.context_lengths.tolist() == [max_seq] * num_rows
    assert step.num_tokens == min(512, max_seq + num_rows - 1)
    assert step.slots.max() == num_rows * -(-max_seq // 16) * 16 - 1 - (-max_seq % 16)
    assert 0 < device.statistics()["workspace_bytes"] <= terms["step"] + terms["encode"]


def test_what_is_served_says_what_it_was_fitted_to() -> None:
    device = CpuDevice(threads=1)
    tokenizer = chat_tokenizer()
    model = load_served(CHECKPOINT, device, tokenizer=tokenizer, max_seq=4096)
    terms = expected_terms(2, 3990)
    budget = MemoryBudget(total_bytes=2**40, available_bytes=sum(terms.values()) + 5)
    made = prepare(model, device, EngineConfig(), budget)
    info = Served(checkpoint=CHECKPOINT, device=device, model=model, prepared=made, tokenizer=tokenizer, chat=None).info
    assert (info.rows, info.max_seq, info.terms) == (2, 3990, terms)
    assert (info.weight_bytes, info.kv_bytes) == (terms["weights"], terms["kv"])
    assert info.plan == made.plan
    assert made.plan.available_bytes - made.plan.total_bytes == 5
