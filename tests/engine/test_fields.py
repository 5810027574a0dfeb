"""What a request's sampling fields do to the tokens it gets, end to end through the engine.

Over a program with known logits: against loops written out in f64 with transformers' logits processors, and the same
whatever runs beside a request and however its prompt is chunked.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import anyio
import anyio.lowlevel
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import RepetitionPenaltyLogitsProcessor, SequenceBiasLogitsProcessor

from poot.devices.base import KV_BLOCK_SIZE
from poot.engine.engine import Engine
from poot.engine.sequence import Delta, Event, Finished, GenerationRequest, PromptScored, SamplingParams
from poot.metrics import Metrics
from tests.fakes.engine_info import fake_info
from tests.fakes.inline_executor import InlineExecutor
from tests.fakes.sampled_program import SampledProgram, known_logits
from tests.fakes.tokenizer import EOS_ID, VOCAB_SIZE, byte_tokenizer

pytestmark = pytest.mark.anyio

MAX_SEQ = 64
ROWS = 3
PROMPT = (5, 9, 5, 200, 17, 9, 33, 5, 71, 8, 90, 12, 5)


@asynccontextmanager
async def running(*, token_budget: int = 24, mixed_token_budget: int = 8) -> AsyncIterator[Engine]:
    engine = Engine(
        model=fake_info(rows=ROWS, max_seq=MAX_SEQ, vocab_size=VOCAB_SIZE),
        tokenizer=byte_tokenizer(),
        chat=None,
        program=SampledProgram(num_blocks=ROWS * MAX_SEQ // KV_BLOCK_SIZE, vocab_size=VOCAB_SIZE),
        executor=InlineExecutor(),
        token_budget=token_budget,
        mixed_token_budget=mixed_token_budget,
        metrics=Metrics(),
    )
    async with anyio.create_task_group() as task_group:
        await task_group.start(engine.run)
        yield engine
        task_group.cancel_scope.cancel()


def request(
    *, prompt: tuple[int, ...] = PROMPT, max_tokens: int = 30, choice: int = 0, **sampling: Any
) -> GenerationRequest:
    return GenerationRequest(
        prompt_ids=prompt, sampling=SamplingParams(**sampling), max_tokens=max_tokens, ignore_eos=True, choice=choice
    )


async def events_of(engine: Engine, wanted: GenerationRequest) -> list[Event]:
    async with engine.open(wanted) as events:
        return [event async for event in events]


async def ids_of(engine: Engine, wanted: GenerationRequest) -> list[int]:
    events = await events_of(engine, wanted)
    return [token_id for event in events if isinstance(event, Delta) for token_id in event.token_ids]


def greedy(edit: Callable[[list[int], torch.Tensor], torch.Tensor], count: int = 30) -> list[int]:
    """The likeliest tokens after PROMPT where `edit` changes the logits of each step, given all ids so far."""
    ids = list(PROMPT)
    for _ in range(count):
        ids.append(int(edit(ids, known_logits(ids, VOCAB_SIZE)[None].double())[0].argmax()))
    return ids[len(PROMPT) :]


async def test_a_repetition_penalty_is_transformers_over_prompt_and_text() -> None:
    def edit(ids: list[int], logits: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = RepetitionPenaltyLogitsProcessor(3.0)(torch.tensor([ids]), logits)
        return result

    async with running() as engine:
        drawn = await ids_of(engine, request(temperature=0, repetition_penalty=3.0))
    assert drawn == greedy(edit)
    assert drawn != greedy(lambda ids, logits: logits)


async def test_presence_and_frequency_penalties_are_openais_over_the_text_alone() -> None:
    def edit(ids: list[int], logits: torch.Tensor) -> torch.Tensor:
        counts = np.bincount(ids[len(PROMPT) :], minlength=VOCAB_SIZE)
        return logits - torch.from_numpy(counts * 1.5 + (counts > 0) * -0.75)

    bias = {str(token): 8.0 for token in (3, 5, 9)}  # so that tokens come again

    def biased(ids: list[int], logits: torch.Tensor) -> torch.Tensor:
        return edit(
            ids, SequenceBiasLogitsProcessor([[[int(t)], b] for t, b in bias.items()])(torch.tensor([ids]), logits)
        )

    async with running() as engine:
        drawn = await ids_of(
            engine,
            request(
                temperature=0,
                frequency_penalty=1.5,
                presence_penalty=-0.75,
                logit_bias=tuple((int(token), value) for token, value in bias.items()),
            ),
        )
    assert drawn == greedy(biased)
    assert len(set(drawn)) < len(drawn)


async def test_a_bias_is_transformers_sequence_bias() -> None:
    processor = SequenceBiasLogitsProcessor([[[7], 3.5], [[8], -100.0], [[250], 2.0]])

    def edit(ids: list[int], logits: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = processor(torch.tensor([ids]), logits)
        return result

    async with running() as engine:
        drawn = await ids_of(engine, request(temperature=0, logit_bias=((7, 3.5), (8, -100.0), (250, 2.0))))
    assert drawn == greedy(edit)


SEEDED: dict[str, Any] = {
    "temperature": 0.8,
    "top_p": 0.9,
    "seed": 77,
    "presence_penalty": 0.5,
    "frequency_penalty": 1.0,
    "repetition_penalty": 1.3,
    "logit_bias": ((7, 3.0),),
}


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    token_budget=st.integers(ROWS, 30),
    mixed=st.integers(ROWS, 30),
    others=st.lists(st.tuples(st.integers(1, 40), st.integers(1, 20)), max_size=6),
    count=st.integers(1, 3),
)
def test_seeded_draws_with_penalties_are_the_same_in_any_company(
    token_budget: int, mixed: int, others: list[tuple[int, int]], count: int
) -> None:
    async def main() -> None:
        async with running() as engine:
            alone = [await ids_of(engine, request(choice=choice, **SEEDED)) for choice in range(count)]
        assert len({tuple(ids) for ids in alone}) == count
        together: dict[int, list[int]] = {}

        async with (
            running(token_budget=max(token_budget, mixed), mixed_token_budget=mixed) as engine,
            anyio.create_task_group() as task_group,
        ):

            async def other(length: int, max_tokens: int) -> None:
                await ids_of(engine, request(prompt=(length,) * length, max_tokens=max_tokens, temperature=1.0))

            async def ours(choice: int) -> None:
                together[choice] = await ids_of(engine, request(choice=choice, **SEEDED))

            for choice in range(count):
                task_group.start_soon(ours, choice)
            for length, max_tokens in others:
                task_group.start_soon(other, length, max_tokens)
        assert [together[choice] for choice in range(count)] == alone

    anyio.run(main)


@pytest.mark.parametrize("token_budget", [3, 7, 24])
async def test_prompt_logprobs_are_those_of_each_token_after_the_ones_before_it(token_budget: int) -> None:
    wanted = replace(request(temperature=0, max_tokens=2, num_logprobs=2), num_prompt_logprobs=2)
    async with running(token_budget=token_budget, mixed_token_budget=3) as engine, anyio.create_task_group() as group:
        group.start_soon(ids_of, engine, request(max_tokens=30, temperature=1.0))
        events = await events_of(engine, wanted)
        plain = await ids_of(engine, request(temperature=0, max_tokens=2))
    scored = [event for event in events if isinstance(event, PromptScored)]
    assert len(scored) == 1
    assert events.index(scored[0]) == 1  # after Opened, before the first text
    assert [token.token_id for token in scored[0].logprobs] == list(PROMPT[1:])
    for position, token in enumerate(scored[0].logprobs, start=1):
        expected = torch.log_softmax(known_logits(PROMPT[:position], VOCAB_SIZE).double(), -1)
        assert token.logprob == pytest.approx(float(expected[PROMPT[position]]), abs=1e-5)
        assert [top for top, _, _ in token.top] == expected.topk(2).indices.tolist()
    assert [token_id for event in events if isinstance(event, Delta) for token_id in event.token_ids] == plain


@pytest.mark.parametrize("prompt", [(5,), PROMPT])
async def test_a_prompt_alone_can_be_scored(prompt: tuple[int, ...]) -> None:
    wanted = replace(request(prompt=prompt, temperature=0, max_tokens=0), num_prompt_logprobs=0)
    async with running() as engine:
        _, scored, end = await events_of(engine, wanted)
    assert isinstance(scored, PromptScored)
    assert scored.first_bytes == bytes(prompt[:1])
    assert len(scored.logprobs) == len(prompt) - 1
    assert isinstance(end, Finished)
    assert (end.num_prompt_tokens, end.num_generated_tokens) == (len(prompt), 0)


async def test_a_stop_token_of_the_request_is_banned_below_min_tokens_too() -> None:
    async with running() as engine:
        first = (await ids_of(engine, request(temperature=0, max_tokens=1)))[0]
        wanted = replace(request(temperature=0), stop_token_ids=frozenset({first}))
        assert await ids_of(engine, wanted) == [first]
        later = await ids_of(engine, replace(wanted, min_tokens=3))
        assert first not in later[:3]
        assert len(later) >= 3
        assert await ids_of(engine, replace(wanted, ignore_eos=False, stop_token_ids=frozenset({EOS_ID, first}))) == [
            first
        ]
