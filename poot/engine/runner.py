"""From a loaded model to a recorded program: plan, allocate, record, rehearse.

Everything here happens before the listener opens. Afterwards the device allocates nothing any more.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass

from poot.config import EngineConfig
from poot.devices.base import KV_BLOCK_SIZE, Bucket, Device, KvLayout, MemoryBudget, Program
from poot.engine.models import DecoderModel
from poot.engine.plan import Plan, fit
from poot.engine.step import rehearsal_step

logger = logging.getLogger("poot.plan")

# Rows fitted for when --rows is not given (configuration reference).
DEFAULT_DECODER_ROWS = 4

# Most tokens of one step. On a CPU the cost of unpacking a layer's weights is spread over the chunk, so longer chunks
# prefill faster, up to about here; vLLM's CPU default is 2048 and llama.cpp's physical batch 512.
TOKEN_BUDGET = 512

# The same while some row decodes: its next token waits for the whole step, so the chunk beside it is kept short.
MIXED_TOKEN_BUDGET = 128


@dataclass(frozen=True, kw_only=True, slots=True)
class Prepared:
    """A program ready to serve, and the plan it was fitted to."""

    program: Program
    plan: Plan
    kv_bytes: int
    token_budget: int
    mixed_token_budget: int
    rehearsal_seconds: float


def kv_layout(layers: Sequence[tuple[int, int]], num_rows: int, max_seq: int) -> KvLayout:
    """A pool in which every row can reach max_seq; `layers` lists (num_kv_heads, head_dim)."""
    return KvLayout(num_blocks=num_rows * -(-max_seq // KV_BLOCK_SIZE), layers=tuple(layers))


def prepare_decoder(model: DecoderModel, device: Device, config: EngineConfig, budget: MemoryBudget) -> Prepared:
    """Fits, allocates, records and rehearses a decoder.

    Args:
        budget: device memory as it was before the model was loaded.

    Raises:
        CapacityError: the workload does not fit even at one row of 128 positions.
    """
    spec = model.spec
    sizes = {
        "hidden_size": spec.hidden_size,
        "intermediate_size": max(layer.intermediate_size for layer in spec.layers),
        "vocab_size": spec.vocab_size,
        "max_positions": spec.max_positions,
        "num_heads": max(layer.num_heads for layer in spec.layers),
        "num_kv_heads": max(layer.num_kv_heads for layer in spec.layers),
        "head_dim": max(layer.head_dim for layer in spec.layers),
    }

    def bucket(num_rows: int, max_seq: int) -> Bucket:
        return Bucket(num_rows=num_rows, num_tokens=max(TOKEN_BUDGET, num_rows), max_positions=max_seq)

    def terms(num_rows: int, max_seq: int) -> dict[str, int]:
        return {
            "weights": device.weight_bytes(),
            "kv": device.kv_bytes(kv_layout(model.kv_layers, num_rows, max_seq)),
            "step": device.step_bytes(bucket(num_rows, max_seq), spec_sizes={**sizes, "max_positions": max_seq}),
        }

    plan = fit(
        num_rows=config.rows if config.rows is not None else DEFAULT_DECODER_ROWS,
        max_seq=config.max_seq,
        model_limit=spec.max_positions,
        budget=budget,
        terms=terms,
    )
    for name, size in plan.terms.items():
        logger.info("plan: %s %d bytes", name, size)
    logger.info(
        "plan: rows %d, max_seq %d, %d of %d bytes available",
        plan.num_rows,
        plan.max_seq,
        plan.total_bytes,
        plan.available_bytes,
    )
    device.allocate_kv(kv_layout(model.kv_layers, plan.num_rows, plan.max_seq))
    settled = bucket(plan.num_rows, plan.max_seq)
    program = device.record(model.forward, settled)
    step = rehearsal_step(num_rows=plan.num_rows, max_seq=plan.max_seq, token_budget=settled.num_tokens)
    started = time.monotonic()
    program.launch(step).tokens()
    return Prepared(
        program=program,
        plan=plan,
        kv_bytes=plan.terms["kv"],
        token_budget=settled.num_tokens,
        mixed_token_budget=max(MIXED_TOKEN_BUDGET, plan.num_rows),
        rehearsal_seconds=time.monotonic() - started,
    )
