from __future__ import annotations

from poot.engine.text.end_tokens import find_end_tokens


def test_named_and_well_known_tokens_end_a_generation() -> None:
    added = {"<|im_end|>": 5, "<|im_start|>": 4, "<end_of_turn>": 9}
    assert find_end_tokens([1], added) == {1, 5, 9}


def test_end_of_message_goes_on_in_the_harmony_format() -> None:
    added = {"<|end|>": 7, "<|return|>": 2, "<|call|>": 12}
    assert find_end_tokens([2], added) == {2, 12}
    assert find_end_tokens([7], added) == {2, 7, 12}
    assert find_end_tokens([], {"<|end|>": 7}) == {7}
