from __future__ import annotations

import dataclasses
import sys
import threading
import time

import pytest

from poot.engine.text import load_tokenizer
from poot.errors import CheckpointError
from tests.engine.text.makers import CORPUS, byte_level_metadata, gguf_checkpoint, hub_checkpoint, train_byte_level


@pytest.mark.parametrize("kind", ["plamo2", "rwkv", None, 5, ["gpt2"]])
def test_an_unknown_kind_of_gguf_vocabulary_is_refused_by_name(kind: object) -> None:
    with pytest.raises(
        CheckpointError, match=r"tokenizer.ggml.model .* is not supported; poot knows bert, gpt2, llama, t5"
    ):
        load_tokenizer(gguf_checkpoint({"model": kind}))


def test_a_directory_without_tokenizer_json_is_refused() -> None:
    checkpoint = dataclasses.replace(hub_checkpoint("{}"), tokenizer_json=None)
    with pytest.raises(CheckpointError, match=r"there is no tokenizer.json"):
        load_tokenizer(checkpoint)


def test_threads_get_the_same_ids_at_once() -> None:
    tokenizer = load_tokenizer(gguf_checkpoint(byte_level_metadata(train_byte_level())))
    texts = [text * 50 for text in CORPUS]
    expected = [tokenizer.encode(text, add_special=False) for text in texts]
    results: dict[int, list[list[int]]] = {}

    def encode(index: int) -> None:
        results[index] = [tokenizer.encode(text, add_special=False, parse_special=index % 2 == 0) for text in texts]

    threads = [threading.Thread(target=encode, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(results[index] == expected for index in range(4))


def test_other_threads_run_while_a_long_text_is_encoded() -> None:
    tokenizer = load_tokenizer(gguf_checkpoint(byte_level_metadata(train_byte_level())))
    text = " ".join(f"{number}th word" for number in range(60_000))
    thread = threading.Thread(target=tokenizer.encode, args=(text,), kwargs={"add_special": False})
    started = time.perf_counter()
    thread.start()
    turns = 0
    while thread.is_alive():
        turns += 1
        thread.join(timeout=sys.getswitchinterval())
    assert turns > 3, f"{turns} turns in {time.perf_counter() - started:.2f} s"
