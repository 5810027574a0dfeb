"""Fill-in-the-middle marks: found by the names of families, or by the ids in GGUF metadata."""

from __future__ import annotations

from typing import Any

import gguf
import pytest
from transformers import PreTrainedTokenizerFast

from poot.engine.text.fim import find_fim_tokens
from poot.engine.text.fim_tokens import FimTokens
from poot.engine.text.tokenizer import Tokenizer
from tests.engine.text.makers import chat_tokenizer, train_byte_level
from tests.fakes.tokenizer import byte_tokenizer

QWEN = ["<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>"]
DEEPSEEK = ["<｜fim▁hole｜>", "<｜fim▁begin｜>", "<｜fim▁end｜>"]


def tokenizer_with(ordinary: list[str]) -> tuple[Tokenizer, PreTrainedTokenizerFast]:
    return chat_tokenizer(ordinary=ordinary), PreTrainedTokenizerFast(
        tokenizer_object=train_byte_level(ordinary=ordinary)
    )


@pytest.mark.parametrize(
    ("pieces", "names"),
    [
        (QWEN, ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")),
        (DEEPSEEK, ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>")),
    ],
)
def test_marks_are_found_by_name(pieces: list[str], names: tuple[str, str, str]) -> None:
    tokenizer, reference = tokenizer_with(pieces)
    ids = [reference.convert_tokens_to_ids(name) for name in names]
    fim = find_fim_tokens(tokenizer, {})
    assert fim == FimTokens(*ids)
    # A model's own order of training: prefix, suffix, middle (Qwen2.5-Coder's model card).
    text = f"{names[0]}def f(x):{names[1]}return y{names[2]}"
    before = tokenizer.encode("def f(x):", add_special=False)
    after = tokenizer.encode("return y", add_special=False)
    assert fim.prompt(before, after) == reference.encode(text)


def test_two_of_three_marks_are_none() -> None:
    assert find_fim_tokens(tokenizer_with(QWEN[:2])[0], {}) is None
    assert find_fim_tokens(byte_tokenizer(), {}) is None


def test_ids_in_gguf_metadata_go_before_names() -> None:
    keys = gguf.Keys.Tokenizer
    tokenizer, _ = tokenizer_with(QWEN)
    present = {keys.FIM_PRE_ID: 5, keys.FIM_SUF_ID: 6, keys.FIM_MID_ID: 7}
    older: dict[str, Any] = {keys.PREFIX_ID: 8, keys.SUFFIX_ID: 9, keys.MIDDLE_ID: 10}
    assert find_fim_tokens(tokenizer, {**older, **present}) == FimTokens(5, 6, 7)
    assert find_fim_tokens(tokenizer, older) == FimTokens(8, 9, 10)
    by_name = find_fim_tokens(tokenizer, {})
    for broken in ({keys.FIM_PRE_ID: 5}, {**present, keys.FIM_MID_ID: 10**6}, {**present, keys.FIM_SUF_ID: "6"}):
        assert find_fim_tokens(tokenizer, broken) == by_name
