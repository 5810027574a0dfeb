"""Proposal lengths: never above the flag, seldom where nothing is accepted, back where everything is."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given

from poot.engine.speculate.adaptive import MAX_PAUSE, ProposalLength


@given(max_length=st.integers(1, 32), shares=st.lists(st.floats(0, 1), max_size=200))
def test_a_length_is_never_above_the_flag(max_length: int, shares: list[float]) -> None:
    length = ProposalLength(max_length)
    for share in shares:
        proposed = length.next()
        assert 0 <= proposed <= max_length
        length.note(proposed, int(share * proposed))


def test_where_nothing_is_accepted_attempts_become_rare() -> None:
    length = ProposalLength(8)
    proposed = []
    for _ in range(1000):
        proposed.append(length.next())
        length.note(proposed[-1], 0)
    # 8, 4, 2, then ones with pauses of 1, 2, 4 ... 64 steps: in 1000 steps 10 to reach the longest pause, and
    # (1000 - 127 - 10) / 65 more.
    assert sum(number > 0 for number in proposed) <= 10 + 14
    assert sum(proposed) <= 8 + 4 + 2 + 24


def test_where_everything_is_accepted_the_flag_is_reached_again() -> None:
    length = ProposalLength(8)
    for _ in range(1000):
        length.note(length.next(), 0)
    num_steps = 0
    while (proposed := length.next()) < 8:
        length.note(proposed, proposed)
        num_steps += 1
    assert num_steps <= MAX_PAUSE + 4


def test_part_of_a_proposal_shortens_the_next_to_one_more() -> None:
    length = ProposalLength(8)
    assert length.next() == 8
    length.note(8, 3)
    assert length.next() == 4


def test_a_step_without_a_proposal_says_nothing() -> None:
    length = ProposalLength(8)
    length.note(0, 0)
    assert length.next() == 8
