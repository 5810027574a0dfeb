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
from poot.devices.encode import EncodeBucket, EncodeProgram
from poot.engine.encode_step import rehearsal_pass
from poot.engine.models.served import ServedModel
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


# The same for an encode pass of an encoder, whose time a short request waits for: longer passes gained nothing in
# products of MiniLM's size, and their activations leave the second-level cache.
ENCODE_TOKEN_BUDGET = 2048

# Rows, that is texts of one pass, fitted for when --rows is not given (configuration reference).
DEFAULT_ENCODER_ROWS = 32


@dataclass(frozen=True, kw_only=True, slots=True)
class PreparedEncode:
    """An encode program ready to serve.

    Attributes:
        token_budget: most tokens of a pass of several texts; one text alone may be as long as texts are served.
    """

    program: EncodeProgram
    max_texts: int
    token_budget: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Prepared:
    """Programs ready to serve, and the plan they were fitted to.

    `program` is None where the model does not generate.
    """

    program: Program | None
    encode: PreparedEncode
    plan: Plan
    kv_bytes: int
    token_budget: int
    mixed_token_budget: int
    rehearsal_seconds: float


def kv_layout(layers: Sequence[tuple[int, int]], num_rows: int, max_seq: int) -> KvLayout:
    """A pool in which every row can reach max_seq; `layers` lists (num_kv_heads, head_dim)."""
    return KvLayout(num_blocks=num_rows * -(-max_seq // KV_BLOCK_SIZE), layers=tuple(layers))


def prepare(model: ServedModel, device: Device, config: EngineConfig, budget: MemoryBudget) -> Prepared:
    """Fits, allocates, records and rehearses a model: its decode shapes where it generates, and its encode shapes.

    Args:
        budget: device memory as it was before the model was loaded.

    Raises:
        CapacityError: the workload does not fit even at one row of 128 positions.
    """
    decoder = model.decoder
    encode_budget = ENCODE_TOKEN_BUDGET if decoder is None else TOKEN_BUDGET

    def bucket(num_rows: int, max_seq: int) -> Bucket:
        return Bucket(num_rows=num_rows, num_tokens=max(TOKEN_BUDGET, num_rows), max_positions=max_seq)

    def encode_bucket(num_rows: int, max_seq: int) -> EncodeBucket:
        num_tokens = max(max_seq, min(encode_budget, num_rows * max_seq))
        return EncodeBucket(num_texts=num_rows, num_tokens=num_tokens, max_text_tokens=max_seq)

    def terms(num_rows: int, max_seq: int) -> dict[str, int]:
        needed = {"weights": device.weight_bytes()}
        if decoder is not None:
            sizes = {**model.spec_sizes, "max_positions": max_seq}
            needed["kv"] = device.kv_bytes(kv_layout(decoder.kv_layers, num_rows, max_seq))
            needed["step"] = device.step_bytes(bucket(num_rows, max_seq), spec_sizes=sizes)
        needed["encode"] = device.encode_bytes(encode_bucket(num_rows, max_seq), spec_sizes=model.spec_sizes)
        return needed

    default_rows = DEFAULT_ENCODER_ROWS if decoder is None else DEFAULT_DECODER_ROWS
    plan = fit(
        num_rows=config.rows if config.rows is not None else default_rows,
        max_seq=config.max_seq,
        model_limit=model.model_limit,
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
    settled = bucket(plan.num_rows, plan.max_seq)
    program = None
    if decoder is not None:
        device.allocate_kv(kv_layout(decoder.kv_layers, plan.num_rows, plan.max_seq))
        program = device.record(decoder.forward, settled)
    settled_encode = encode_bucket(plan.num_rows, plan.max_seq)
    encode_program = device.record_encode(model.encode_forward, settled_encode)
    started = time.monotonic()
    if program is not None:
        program.launch(
            rehearsal_step(num_rows=plan.num_rows, max_seq=plan.max_seq, token_budget=settled.num_tokens)
        ).tokens()
    # Of the budget's size: one text of a decoder's max_seq would take seconds, in the same buffers.
    rehearsed = min(encode_budget, settled_encode.num_tokens)
    encode_program.launch(
        rehearsal_pass(
            EncodeBucket(num_texts=plan.num_rows, num_tokens=rehearsed, max_text_tokens=min(plan.max_seq, rehearsed))
        )
    ).vectors()
    return Prepared(
        program=program,
        encode=PreparedEncode(
            program=encode_program,
            max_texts=plan.num_rows,
            token_budget=min(encode_budget, settled_encode.num_tokens),
        ),
        plan=plan,
        kv_bytes=plan.terms.get("kv", 0),
        token_budget=settled.num_tokens,
        mixed_token_budget=max(MIXED_TOKEN_BUDGET, plan.num_rows),
        rehearsal_seconds=time.monotonic() - started,
    )
