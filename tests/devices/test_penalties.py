"""Bias and penalties against transformers' logits processors and OpenAI's formula, and in the sampler."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import RepetitionPenaltyLogitsProcessor

from poot.devices.penalties import LogitEdits, apply_edits
from poot.devices.sampler import sample
from tests.devices.steps import sampling

VOCAB = 24
token_lists = st.lists(st.integers(0, VOCAB - 1), max_size=30)


def edits_of(
    prompt: list[int], generated: list[int], *, bias: dict[int, float] | None = None, **penalties: float
) -> LogitEdits:
    counts = Counter(generated)
    held = sorted({*prompt, *generated})
    bias = bias or {}
    return LogitEdits(
        bias_ids=np.array(list(bias), np.int64),
        bias=np.array(list(bias.values()), np.float32),
        token_ids=np.array(held, np.int64),
        counts=np.array([counts[token] for token in held], np.float32),
        **penalties,
    )


def make_logits(seed: int) -> torch.Tensor:
    return 4 * torch.randn(1, VOCAB, generator=torch.Generator().manual_seed(seed))


@given(token_lists, token_lists, st.floats(0.05, 10), st.integers(0, 99))
@settings(max_examples=60)
def test_the_repetition_penalty_is_transformers(
    prompt: list[int], generated: list[int], penalty: float, seed: int
) -> None:
    logits = make_logits(seed)
    ids = torch.tensor([[*prompt, *generated]], dtype=torch.int64)
    wanted = RepetitionPenaltyLogitsProcessor(penalty)(ids, logits.clone())
    edited = logits[0].numpy().copy()
    apply_edits(edited, edits_of(prompt, generated, repetition=penalty))
    np.testing.assert_allclose(edited, wanted[0].numpy(), rtol=1e-6)


@given(token_lists, token_lists, st.floats(-2, 2), st.floats(-2, 2), st.integers(0, 99))
@settings(max_examples=60)
def test_presence_and_frequency_are_openais_formula_over_generated_tokens(
    prompt: list[int], generated: list[int], presence: float, frequency: float, seed: int
) -> None:
    logits = make_logits(seed)[0].double().numpy()
    # mu[j] -> mu[j] - c[j] * alpha_frequency - float(c[j] > 0) * alpha_presence
    wanted = [
        mu - generated.count(j) * frequency - float(generated.count(j) > 0) * presence for j, mu in enumerate(logits)
    ]
    edited = logits.astype(np.float32)
    apply_edits(edited, edits_of(prompt, generated, presence=presence, frequency=frequency))
    np.testing.assert_allclose(edited, wanted, atol=1e-5)


def test_bias_comes_before_the_penalties_and_frequency_after_repetition() -> None:
    logits = np.array([-1.0, 2.0, 0.5, 3.0], np.float32)
    # 0: -1 + 5 = 4, halved 2, minus 1.5 * 2 generated and 0.25 once; 1 is the prompt's; 2 has a bias alone.
    apply_edits(logits, edits_of([1], [0, 0], bias={0: 5, 2: -100}, repetition=2, frequency=1.5, presence=0.25))
    assert logits.tolist() == [-1.25, 1.0, -99.5, 3.0]


def edit_batch(*edits: LogitEdits | None, **fields: Any) -> Any:
    return sampling(len(edits), edits=edits, **fields)


def test_a_bias_of_a_hundred_decides_and_of_minus_a_hundred_rules_out() -> None:
    logits = make_logits(5).expand(300, -1)
    positions = np.arange(300)
    only = edits_of([], [], bias={7: 100})
    assert set(sample(logits, edit_batch(*[only] * 300, temperature=2, position=positions)).token_ids) == {7}
    best = int(logits[0].argmax())
    never = edits_of([], [], bias={best: -100})
    assert best not in sample(logits, edit_batch(*[never] * 300, temperature=1, position=positions)).token_ids


def test_a_row_with_edits_changes_no_other_and_not_the_logits() -> None:
    logits = make_logits(1).repeat(3, 1)
    kept = logits.clone()
    best = int(logits[0].argmax())
    result = sample(logits, edit_batch(None, edits_of([], [best], presence=2, frequency=2, repetition=10), None))
    assert result.token_ids[0] == result.token_ids[2] == best != result.token_ids[1]
    assert torch.equal(logits, kept)


def test_a_banned_token_stays_banned_whatever_its_bias() -> None:
    batch = edit_batch(edits_of([], [], bias={3: 100}), banned=((3,),))
    assert sample(make_logits(2), batch).token_ids != (3,)


def test_logprobs_are_those_before_the_edits() -> None:
    logits = make_logits(3)
    (plain,) = sample(logits, sampling(1, num_logprobs=(5,))).logprobs
    (edited,) = sample(logits, edit_batch(edits_of([], [], bias={9: 100}), num_logprobs=(5,))).logprobs
    assert plain is not None
    assert edited is not None
    assert edited.top == plain.top
    assert edited.logprob == pytest.approx(float(torch.log_softmax(logits.double(), -1)[0, 9]), abs=1e-5)


def test_greedy_after_penalties_is_transformers_choice() -> None:
    for seed in range(40):
        logits = make_logits(seed)
        generated = [
            int(token) for token in torch.randint(0, VOCAB, (12,), generator=torch.Generator().manual_seed(seed))
        ]
        wanted = RepetitionPenaltyLogitsProcessor(1.7)(torch.tensor([generated]), logits.clone()).argmax()
        assert sample(logits, edit_batch(edits_of([], generated, repetition=1.7))).token_ids == (int(wanted),)
