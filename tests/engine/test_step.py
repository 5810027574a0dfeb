from __future__ import annotations

import numpy as np

from poot.devices.base import KV_BLOCK_SIZE
from poot.engine.scheduler import Chunk, StepPlan
from poot.engine.sequence import GenerationRequest, SamplingParams, Sequence
from poot.engine.step import build_step, rehearsal_step


def sequence_at(
    token_ids: list[int], block_table: list[int], *, num_prompt_tokens: int, min_tokens: int = 0, seed: int = 0
) -> Sequence:
    sequence = Sequence(
        request=GenerationRequest(
            prompt_ids=tuple(token_ids[:num_prompt_tokens]),
            sampling=SamplingParams(temperature=0.5, top_k=3, top_p=0.9, min_p=0.1, seed=seed, num_logprobs=2),
            max_tokens=8,
            min_tokens=min_tokens,
            choice=1,
        ),
        token_ids=token_ids,
        num_prompt_tokens=num_prompt_tokens,
        max_total_tokens=num_prompt_tokens + 8,
        stop_ids=frozenset({9, 4}),
    )
    sequence.block_table = block_table
    return sequence


def test_a_decoding_row_beside_two_chunks_lies_end_to_end() -> None:
    decoding = sequence_at([*range(100, 117), 55], [3, 1], num_prompt_tokens=16, min_tokens=3, seed=2**64 - 1)
    middle = sequence_at(list(range(200, 240)), [5, 0, 7], num_prompt_tokens=40)
    last = sequence_at([60, 61, 62], [2], num_prompt_tokens=3)
    plan = StepPlan((Chunk(decoding, 17, 1, True), Chunk(middle, 15, 3, False), Chunk(last, 0, 3, True)))
    step = build_step(plan, max_blocks=4)
    assert step.token_ids.tolist() == [55, 215, 216, 217, 60, 61, 62]
    assert step.positions.tolist() == [17, 15, 16, 17, 0, 1, 2]
    # slot = block * 16 + position % 16, the block being table[position // 16]
    assert step.slots.tolist() == [1 * 16 + 1, 5 * 16 + 15, 0, 1, 32, 33, 34]
    assert step.query_starts.tolist() == [0, 1, 4, 7]
    assert step.context_lengths.tolist() == [18, 18, 3]
    assert step.block_tables.tolist() == [[3, 1, 0, 0], [5, 0, 7, 0], [2, 0, 0, 0]]
    assert step.sample_indices.tolist() == [0, 6]
    sampling = step.sampling
    assert sampling.seed.tolist() == [2**64 - 1, 0]
    assert sampling.position.tolist() == [18, 3]
    assert sampling.choice.tolist() == [1, 1]
    assert sampling.banned == ((4, 9), ())  # two of three tokens were generated: stop ids are still banned
    assert sampling.num_logprobs == (2, 2)
    assert np.allclose(sampling.temperature, 0.5)


def test_dtypes_are_those_of_the_step_buffer() -> None:
    step = build_step(StepPlan((Chunk(sequence_at([1], [0], num_prompt_tokens=1), 0, 1, True),)), max_blocks=1)
    for array in (step.token_ids, step.positions, step.slots, step.sample_indices):
        assert array.dtype == np.int64
    for array32 in (step.query_starts, step.context_lengths, step.block_tables):
        assert array32.dtype == np.int32


def test_the_rehearsal_reaches_the_last_position_of_every_row() -> None:
    step = rehearsal_step(num_rows=3, max_seq=40, token_budget=16)
    assert step.num_tokens == 16
    assert step.query_starts.tolist() == [0, 14, 15, 16]
    assert step.positions.tolist() == [*range(26, 40), 39, 39]
    assert step.context_lengths.tolist() == [40, 40, 40]
    blocks_a_row = 3
    assert step.slots[-1] == (2 * blocks_a_row + 2) * KV_BLOCK_SIZE + 39 % KV_BLOCK_SIZE
    assert len(set(step.slots.tolist())) == 16


def test_the_rehearsal_of_a_short_max_seq_stays_inside_it() -> None:
    step = rehearsal_step(num_rows=1, max_seq=5, token_budget=512)
    assert step.positions.tolist() == [0, 1, 2, 3, 4]
