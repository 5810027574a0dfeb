"""Damaged tokenizers load, or are refused with the one error of a broken model file; nothing else is raised."""

from __future__ import annotations

import copy
import json
import random
from functools import cache
from typing import Any

import pytest

from poot.engine.checkpoint.types import Checkpoint
from poot.engine.text import load_tokenizer
from poot.errors import CheckpointError, EngineError
from tests.engine.text.makers import (
    byte_level_metadata,
    gguf_checkpoint,
    hub_checkpoint,
    sentencepiece_metadata,
    train_byte_level,
    train_sentencepiece,
    train_wordpiece,
    wordpiece_metadata,
)

VALUES: list[Any] = [None, -1, 0, 1, 3, 5, 299, 2**31, "", "a", "a b", "é" * 2000, [], {}, [1], ["a", "b"], True, 1.5]
VALUES += [float("nan"), {"type": "ByteLevel"}, {"a": 0, "b": 5}]


def tree_paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where something in a tree of JSON values can be replaced; a few places of each long list."""
    items: list[tuple[Any, Any]] = []
    if isinstance(value, dict):
        items = list(value.items())
    elif isinstance(value, list):
        items = list(enumerate(value))[:20]
    return [path, *(inner for key, item in items[:80] for inner in tree_paths(item, (*path, key)))]


def damage(value: Any, chance: random.Random) -> Any:
    """A copy of `value` with up to four things in it replaced or taken away."""
    damaged = copy.deepcopy(value)
    for _ in range(chance.randint(1, 4)):
        *above, last = chance.choice([path for path in tree_paths(damaged) if path])
        place = damaged
        for key in above:
            place = place[key]
        if chance.random() < 0.25:
            del place[last]
        else:
            place[last] = copy.deepcopy(chance.choice(VALUES))
    return damaged


@cache
def originals() -> dict[str, Any]:
    byte_level = train_byte_level(ordinary=["<think>"], vocab_size=300)
    return {
        "gpt2": byte_level_metadata(byte_level, bos_token_id=0, eos_token_id=2, add_bos_token=True),
        "llama": sentencepiece_metadata(train_sentencepiece(add_dummy_prefix=True), add_space_prefix=True),
        "bert": wordpiece_metadata(train_wordpiece()),
        "byte level json": json.loads(byte_level.to_str()),
        "wordpiece json": json.loads(train_wordpiece().to_str()),
    }


def checkpoint(name: str, content: Any) -> Checkpoint:
    if "json" in name:
        return hub_checkpoint(json.dumps(content), tokenizer_config={"bos_token": "<|im_start|>"})
    return gguf_checkpoint(content)


@pytest.mark.parametrize("name", ["gpt2", "llama", "bert", "byte level json", "wordpiece json"])
@pytest.mark.parametrize("seed", range(40))
def test_a_damaged_tokenizer_loads_or_is_refused(name: str, seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(5):
        try:
            tokenizer = load_tokenizer(checkpoint(name, damage(originals()[name], chance)))
        except CheckpointError:
            continue
        assert tokenizer.decode(range(-2, tokenizer.vocab_size + 2)) is not None
        try:
            ids = tokenizer.encode("ab <s> xé[CLS]東<|im_end|>", add_special=True)
        except EngineError:
            continue  # a model without the unknown token it needs shows only here
        assert all(0 <= token_id < tokenizer.vocab_size for token_id in ids)


def test_undamaged_ones_load() -> None:
    for name, content in originals().items():
        assert load_tokenizer(checkpoint(name, content)).vocab_size > 200
