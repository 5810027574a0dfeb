from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from poot.engine.sampling.token_counts import TokenCounts

tokens = st.lists(st.integers(0, 12), max_size=20)


@given(tokens, st.lists(tokens, max_size=5))
def test_every_token_held_is_counted_as_often_as_it_was_generated(prompt: list[int], pieces: list[list[int]]) -> None:
    counts = TokenCounts(prompt, sum(map(len, pieces)))
    generated: list[int] = []
    for piece in pieces:
        counts.extend(piece)
        generated += piece
        assert counts.num_tokens == len(prompt) + len(generated)
        ids, values = counts.arrays()
        wanted = Counter(generated)
        assert dict(zip(ids.tolist(), values.tolist(), strict=True)) == {
            token: float(wanted[token]) for token in {*prompt, *generated}
        }


def test_a_step_keeps_its_arrays_while_tokens_are_added() -> None:
    counts = TokenCounts([1, 2], 3)
    counts.extend([2])
    ids, values = counts.arrays()
    counts.extend([2, 3])
    assert (ids.tolist(), values.tolist()) == ([1, 2], [0.0, 1.0])
