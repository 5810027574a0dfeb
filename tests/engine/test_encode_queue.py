"""Passes: every text once, budgets kept, short requests soon, nobody starved."""

from __future__ import annotations

from collections import Counter

import hypothesis.strategies as st
import numpy as np
from hypothesis import given

from poot.devices.encode import EncodeBucket, Pooling
from poot.engine.encode_queue import EncodeQueue, EncodeRequest, PassText
from poot.engine.encode_step import build_encode_step, rehearsal_pass
from poot.engine.encoding import EncodeText


def request(*lengths: int, pooling: Pooling = Pooling.MEAN) -> EncodeRequest:
    return EncodeRequest(texts=[EncodeText(np.arange(length)) for length in lengths], pooling=pooling)


def lengths(composed: list[PassText]) -> list[int]:
    return [taken.text.num_tokens for taken in composed]


def drain(queue: EncodeQueue) -> list[list[PassText]]:
    passes = []
    while composed := queue.compose():
        passes.append(composed)
    return passes


@given(
    requests=st.lists(st.lists(st.integers(1, 40), min_size=1, max_size=9), max_size=6),
    max_texts=st.integers(1, 8),
    token_budget=st.integers(1, 50),
)
def test_every_text_is_in_one_pass_and_budgets_are_kept(
    requests: list[list[int]], max_texts: int, token_budget: int
) -> None:
    queue = EncodeQueue(max_texts=max_texts, token_budget=token_budget)
    made = [request(*texts) for texts in requests]
    for one in made:
        queue.add(one)
    assert queue.num_waiting_texts == sum(map(len, requests))
    passes = drain(queue)
    seen = Counter((id(taken.request), taken.index) for composed in passes for taken in composed)
    assert seen == Counter((id(one), index) for one in made for index in range(len(one.texts)))
    for composed in passes:
        assert len(composed) <= max_texts
        assert len(composed) == 1 or sum(lengths(composed)) <= token_budget
        assert lengths(composed) == sorted(lengths(composed))
    assert queue.num_waiting_texts == 0


def test_a_short_request_beside_a_long_one_is_in_the_next_pass() -> None:
    queue = EncodeQueue(max_texts=8, token_budget=100)
    long, short = request(*[50] * 40), request(10, 10)
    queue.add(long)
    assert len(queue.compose()) == 2  # runs while the short one arrives
    queue.add(short)
    composed = queue.compose()
    assert {taken.index for taken in composed if taken.request is short} == {0, 1}
    assert any(taken.request is long for taken in composed)


def test_short_requests_that_keep_coming_do_not_starve_a_long_text() -> None:
    queue = EncodeQueue(max_texts=4, token_budget=100)
    long = request(100, 100, 100)
    queue.add(long)
    num_passes = 0
    while long.left:
        for _ in range(4):
            queue.add(request(25))
        queue.compose()
        num_passes += 1
        assert num_passes <= 6
    assert num_passes == 6  # every second pass is its own, after one that took nothing of it


def test_a_short_request_waits_for_one_pass_more_at_most() -> None:
    queue = EncodeQueue(max_texts=4, token_budget=100)
    queue.add(request(*[100] * 20))
    for _ in range(5):
        queue.compose()
        short = request(5)
        queue.add(short)
        queue.compose()
        queue.compose()
        assert not short.left


def test_what_is_removed_is_not_computed() -> None:
    queue = EncodeQueue(max_texts=1, token_budget=100)
    gone, kept = request(1, 1, 1), request(9)
    queue.add(gone)
    queue.add(kept)
    queue.compose()
    queue.remove(gone)
    assert [taken.request for composed in drain(queue) for taken in composed] == [kept]


def test_a_step_lays_texts_end_to_end() -> None:
    first = EncodeText(np.array([5, 6, 7]), np.array([0, 1, 1]), pool_start=2)
    second = EncodeText(np.array([8, 9]))
    taken = [
        PassText(EncodeRequest(texts=[second], pooling=Pooling.CLS), 0),
        PassText(EncodeRequest(texts=[first], pooling=Pooling.MEAN), 0),
    ]
    step = build_encode_step(taken)
    assert step.token_ids.tolist() == [8, 9, 5, 6, 7]
    assert step.positions.tolist() == [0, 1, 0, 1, 2]
    assert step.token_types.tolist() == [0, 0, 0, 1, 1]
    assert step.text_starts.tolist() == [0, 2, 5]
    assert step.pooling == (Pooling.CLS, Pooling.MEAN)
    assert step.pool_starts.tolist() == [0, 2]


@given(num_texts=st.integers(1, 40), num_tokens=st.integers(1, 300), max_text_tokens=st.integers(1, 300))
def test_the_rehearsal_is_a_pass_within_its_bucket(num_texts: int, num_tokens: int, max_text_tokens: int) -> None:
    bucket = EncodeBucket(
        num_texts=num_texts, num_tokens=max(num_tokens, max_text_tokens), max_text_tokens=max_text_tokens
    )
    step = rehearsal_pass(bucket)
    text_lengths = np.diff(step.text_starts)
    assert text_lengths.min() >= 1
    assert text_lengths.max() >= max_text_tokens
    assert step.num_texts <= num_texts
    assert max_text_tokens <= step.num_tokens <= bucket.num_tokens
