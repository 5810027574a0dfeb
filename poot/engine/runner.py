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
from poot.engine.speculate.loading import LoadedDraft
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
class PreparedDraft:
    """A draft model's decode program.

    Attributes:
        token_budget: most tokens of a step.
    """

    program: Program
    vocab_size: int
    token_budget: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Prepared:
    """Programs ready to serve, and the plan they were fitted to.

    Attributes:
        program: None where the model does not generate.
        token_budget, mixed_token_budget: most tokens of a step without and with decoding rows, proposals not counted.
        max_draft_tokens: most tokens proposed for a row in one step; 0 where nothing is proposed.
        draft: None where no model proposes.
    """

    program: Program | None
    encode: PreparedEncode
    plan: Plan
    kv_bytes: int
    token_budget: int
    mixed_token_budget: int
    rehearsal_seconds: float
    max_draft_tokens: int = 0
    draft: PreparedDraft | None = None


def kv_layout(layers: Sequence[tuple[int, int]], num_rows: int, max_seq: int) -> KvLayout:
    """A pool in which every row can reach max_seq; `layers` lists (num_kv_heads, head_dim)."""
    return KvLayout(num_blocks=num_rows * -(-max_seq // KV_BLOCK_SIZE), layers=tuple(layers))


def prepare(
    model: ServedModel,
    device: Device,
    config: EngineConfig,
    budget: MemoryBudget,
    draft: LoadedDraft | None = None,
) -> Prepared:
    """Fits, allocates, records and rehearses a model: its decode shapes where it generates, and its encode shapes.

    Args:
        draft: the model that proposes tokens; its terms are part of the plan.
        budget: device memory as it was before the model was loaded.

    Raises:
        CapacityError: the workload does not fit even at one row of 128 positions.
    """
    decoder = model.decoder
    encode_budget = ENCODE_TOKEN_BUDGET if decoder is None else TOKEN_BUDGET

    num_draft_tokens = 0 if config.draft is None else config.draft.num_draft_tokens

    def bucket(num_rows: int, max_seq: int) -> Bucket:
        # Proposals come on top of a mixed step; a step of prompts alone has none.
        proposed = num_rows * num_draft_tokens
        return Bucket(
            num_rows=num_rows,
            num_tokens=max(TOKEN_BUDGET, max(MIXED_TOKEN_BUDGET, num_rows) + proposed),
            max_positions=max_seq,
            samples_a_row=1 + num_draft_tokens,
        )

    def draft_bucket(num_rows: int, max_seq: int) -> Bucket:
        # A row that was accepted whole lacks two tokens; what is left lets others catch up.
        return Bucket(num_rows=num_rows, num_tokens=max(MIXED_TOKEN_BUDGET, 2 * num_rows), max_positions=max_seq)

    def encode_bucket(num_rows: int, max_seq: int) -> EncodeBucket:
        num_tokens = max(max_seq, min(encode_budget, num_rows * max_seq))
        return EncodeBucket(num_texts=num_rows, num_tokens=num_tokens, max_text_tokens=max_seq)

    def terms(num_rows: int, max_seq: int) -> dict[str, int]:
        needed = {"weights": device.weight_bytes()}
        if decoder is not None:
            sizes = {**model.spec_sizes, "max_positions": max_seq}
            needed["kv"] = device.kv_bytes(kv_layout(decoder.kv_layers, num_rows, max_seq))
            needed["step"] = device.step_bytes(bucket(num_rows, max_seq), spec_sizes=sizes)
        if draft is not None:
            sizes = {**draft.model.spec_sizes, "max_positions": max_seq}
            needed["draft weights"] = draft.device.weight_bytes()
            needed["draft kv"] = draft.device.kv_bytes(kv_layout(draft.decoder.kv_layers, num_rows, max_seq))
            needed["draft step"] = draft.device.step_bytes(draft_bucket(num_rows, max_seq), spec_sizes=sizes)
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
            rehearsal_step(
                num_rows=plan.num_rows,
                max_seq=plan.max_seq,
                token_budget=settled.num_tokens,
                num_draft_tokens=num_draft_tokens,
            )
        ).tokens()
    prepared_draft = None if draft is None else _prepare_draft(draft, plan, draft_bucket(plan.num_rows, plan.max_seq))
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
        token_budget=max(TOKEN_BUDGET, plan.num_rows),
        mixed_token_budget=max(MIXED_TOKEN_BUDGET, plan.num_rows),
        rehearsal_seconds=time.monotonic() - started,
        max_draft_tokens=num_draft_tokens,
        draft=prepared_draft,
    )


def _prepare_draft(draft: LoadedDraft, plan: Plan, bucket: Bucket) -> PreparedDraft:
    """Allocates the draft's pool, which is laid out like the target's, and rehearses its largest step."""
    draft.device.allocate_kv(kv_layout(draft.decoder.kv_layers, plan.num_rows, plan.max_seq))
    program = draft.device.record(draft.decoder.forward, bucket)
    program.launch(
        rehearsal_step(num_rows=plan.num_rows, max_seq=plan.max_seq, token_budget=bucket.num_tokens)
    ).tokens()
    return PreparedDraft(program=program, vocab_size=draft.model.vocab_size, token_budget=bucket.num_tokens)
