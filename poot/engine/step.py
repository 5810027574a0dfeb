"""A step's plan turned into the arrays a device program reads. Numpy only; nothing here waits or decides."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, replace

import numpy as np

from poot.devices.base import KV_BLOCK_SIZE, CarriedTokens, IntArray, SampleLogprobs, SamplingBatch, ScoredTokens, Step
from poot.devices.penalties import LogitEdits
from poot.engine.sampling.token_counts import TokenCounts
from poot.engine.scheduler import Chunk, StepPlan
from poot.engine.sequence import SamplingParams, Sequence


@dataclass(frozen=True, slots=True)
class StepRow:
    """One row of a step before it is laid out.

    Attributes:
        start: position of the first of `token_ids`.
        num_samples: a token is drawn after each of the last so many of `token_ids`.
        draft: tokens taken to follow the sequence's own, up to the last of `token_ids`.
    """

    sequence: Sequence
    start: int
    token_ids: SequenceOf[int]
    num_samples: int
    draft: tuple[int, ...] = ()


def build_step(plan: StepPlan, *, max_blocks: int) -> Step:
    """The step buffer's values for `plan`; `max_blocks` is the width of a block table."""
    rows = [
        StepRow(
            chunk.sequence,
            chunk.start,
            [*chunk.sequence.token_ids[chunk.start : chunk.start + chunk.num_tokens], *chunk.draft],
            chunk.num_samples,
            chunk.draft,
        )
        for chunk in plan.chunks
    ]
    step = build_rows(rows, max_blocks=max_blocks)
    scored, carried = _scored_tokens(plan, step.query_starts), _carried_tokens(plan, step.query_starts)
    return step if scored is None and carried is None else replace(step, scored=scored, carried=carried)


def build_rows(rows: SequenceOf[StepRow], *, max_blocks: int) -> Step:
    """The step buffer's values for `rows`, none of whose prompts is scored."""
    num_rows = len(rows)
    lengths = np.fromiter((len(row.token_ids) for row in rows), np.int32, num_rows)
    starts = np.fromiter((row.start for row in rows), np.int32, num_rows)
    query_starts = np.zeros(num_rows + 1, np.int32)
    np.cumsum(lengths, out=query_starts[1:])
    num_tokens = int(query_starts[-1])

    token_ids = np.empty(num_tokens, np.int64)
    block_tables = np.zeros((num_rows, max_blocks), np.int32)
    sample_indices: list[int] = []
    for number, row in enumerate(rows):
        first, last = int(query_starts[number]), int(query_starts[number + 1])
        token_ids[first:last] = row.token_ids
        table = row.sequence.block_table
        block_tables[number, : len(table)] = table
        sample_indices += range(last - row.num_samples, last)
    row_of_token = np.repeat(np.arange(num_rows), lengths)
    positions = np.arange(num_tokens, dtype=np.int64) + (starts - query_starts[:-1])[row_of_token]
    blocks = block_tables[row_of_token, positions // KV_BLOCK_SIZE].astype(np.int64)
    return Step(
        token_ids=token_ids,
        positions=positions,
        slots=blocks * KV_BLOCK_SIZE + positions % KV_BLOCK_SIZE,
        query_starts=query_starts,
        context_lengths=starts + lengths,
        block_tables=block_tables,
        sample_indices=np.array(sample_indices, np.int64),
        sampling=_sampling_batch(rows),
    )


def _num_scored(chunk: Chunk) -> int:
    """Tokens of a chunk whose next one is the prompt's, where the prompt's log-probabilities are asked for."""
    if chunk.sequence.request.num_prompt_logprobs is None:
        return 0
    return max(0, min(chunk.num_tokens, chunk.sequence.num_prompt_tokens - 1 - chunk.start))


def _scored_tokens(plan: StepPlan, query_starts: IntArray) -> ScoredTokens | None:
    indices: list[int] = []
    token_ids: list[int] = []
    num_logprobs: list[int] = []
    for row, chunk in enumerate(plan.chunks):
        if count := _num_scored(chunk):
            first = int(query_starts[row])
            indices += range(first, first + count)
            token_ids += chunk.sequence.token_ids[chunk.start + 1 : chunk.start + 1 + count]
            num_logprobs += [chunk.sequence.request.num_prompt_logprobs or 0] * count
    if not indices:
        return None
    return ScoredTokens(np.array(indices, np.int64), tuple(token_ids), tuple(num_logprobs))


def _carried_tokens(plan: StepPlan, query_starts: IntArray) -> CarriedTokens | None:
    pairs = [
        (int(query_starts[row]), chunk.carried_sample)
        for row, chunk in enumerate(plan.chunks)
        if chunk.carried_sample is not None
    ]
    if not pairs:
        return None
    indices, samples = np.array(pairs, np.int64).T
    return CarriedTokens(indices, samples)


def prompt_scores(
    plan: StepPlan, scores: tuple[SampleLogprobs, ...]
) -> Iterator[tuple[Sequence, int, tuple[SampleLogprobs, ...]]]:
    """A step's `scores`, split by sequence: (sequence, position of the first scored token, its scores)."""
    if not scores:
        return
    done = 0
    for chunk in plan.chunks:
        if count := _num_scored(chunk):
            yield chunk.sequence, chunk.start + 1, scores[done : done + count]
            done += count
    assert done == len(scores)


def _sampling_batch(rows: SequenceOf[StepRow]) -> SamplingBatch:
    # Each sample with the draft tokens before it: a token is drawn as if they had been generated.
    samples = [
        (row.sequence, row.draft[: len(row.draft) - row.num_samples + 1 + number])
        for row in rows
        for number in range(row.num_samples)
    ]
    params = [sequence.request.sampling for sequence, _ in samples]
    return SamplingBatch(
        temperature=np.array([p.temperature for p in params], np.float32),
        top_k=np.array([p.top_k for p in params], np.int32),
        top_p=np.array([p.top_p for p in params], np.float32),
        min_p=np.array([p.min_p for p in params], np.float32),
        seed=np.array([p.seed for p in params], np.uint64),
        choice=np.array([s.request.choice for s, _ in samples], np.int32),
        position=np.array([len(s.token_ids) + len(draft) for s, draft in samples], np.int32),
        banned=tuple(
            tuple(sorted(s.stop_ids)) if s.num_generated_tokens + len(draft) < s.request.min_tokens else ()
            for s, draft in samples
        ),
        num_logprobs=tuple(p.num_logprobs for p in params),
        edits=tuple(_logit_edits(s, draft) for s, draft in samples) if any(map(_is_edited, params)) else (),
    )


_NO_IDS = np.empty(0, np.int64)
_NO_VALUES = np.empty(0, np.float32)


def _is_edited(params: SamplingParams) -> bool:
    return params.has_penalties or bool(params.logit_bias)


def _logit_edits(sequence: Sequence, draft: SequenceOf[int]) -> LogitEdits | None:
    """Bias and penalties for the token after `draft`; brings the sequence's counts up to the tokens it holds."""
    params = sequence.request.sampling
    if not _is_edited(params):
        return None
    token_ids, counts = _NO_IDS, _NO_VALUES
    if params.has_penalties:
        held = sequence.counts
        if held is None:
            prompt_ids = sequence.token_ids[: sequence.num_prompt_tokens]
            held = sequence.counts = TokenCounts(prompt_ids, sequence.max_total_tokens - sequence.num_prompt_tokens)
        held.extend(sequence.token_ids[held.num_tokens :])
        token_ids, counts = held.arrays(draft)
    return LogitEdits(
        bias_ids=np.array([token_id for token_id, _ in params.logit_bias], np.int64),
        bias=np.array([bias for _, bias in params.logit_bias], np.float32),
        token_ids=token_ids,
        counts=counts,
        presence=params.presence_penalty,
        frequency=params.frequency_penalty,
        repetition=params.repetition_penalty,
    )


def rehearsal_step(*, num_rows: int, max_seq: int, token_budget: int, num_draft_tokens: int = 0) -> Step:
    """The largest step a plan admits: one chunk that ends at max_seq, and every other row decoding up to there.

    Run once before serving, it touches every buffer the plan counted. Blocks are the pool's first ones. A row that
    decodes verifies `num_draft_tokens`, and the chunk draws as many tokens as such a row.
    """
    max_blocks = -(-max_seq // KV_BLOCK_SIZE)
    decoding = min(1 + num_draft_tokens, max_seq)
    chunk = max(decoding, min(token_budget - (num_rows - 1) * decoding, max_seq))
    lengths = np.array([chunk] + [decoding] * (num_rows - 1), np.int32)
    query_starts = np.zeros(num_rows + 1, np.int32)
    np.cumsum(lengths, out=query_starts[1:])
    num_tokens = int(query_starts[-1])
    block_tables = np.arange(num_rows * max_blocks, dtype=np.int32).reshape(num_rows, max_blocks)
    row_of_token = np.repeat(np.arange(num_rows), lengths)
    positions = np.arange(num_tokens, dtype=np.int64) + (max_seq - query_starts[1:])[row_of_token]
    blocks = block_tables[row_of_token, positions // KV_BLOCK_SIZE].astype(np.int64)
    sample_indices = (query_starts[1:, None].astype(np.int64) + np.arange(-decoding, 0)).reshape(-1)
    num_samples = len(sample_indices)
    return Step(
        token_ids=np.zeros(num_tokens, np.int64),
        positions=positions,
        slots=blocks * KV_BLOCK_SIZE + positions % KV_BLOCK_SIZE,
        query_starts=query_starts,
        context_lengths=np.full(num_rows, max_seq, np.int32),
        block_tables=block_tables,
        sample_indices=sample_indices,
        sampling=SamplingBatch(
            temperature=np.ones(num_samples, np.float32),
            top_k=np.zeros(num_samples, np.int32),
            top_p=np.full(num_samples, 0.9, np.float32),
            min_p=np.zeros(num_samples, np.float32),
            seed=np.zeros(num_samples, np.uint64),
            choice=np.zeros(num_samples, np.int32),
            position=np.full(num_samples, max_seq, np.int32),
            banned=((),) * num_samples,
            num_logprobs=(20,) * num_samples,
        ),
    )
