from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from poot.engine.checkpoint import open_checkpoint
from poot.engine.text import Tokenizer, load_tokenizer
from poot.engine.text.vocabulary import byte_level_alphabet
from poot.errors import BadRequest, CheckpointError
from tests.engine.text.makers import CORPUS, byte_level_metadata, gguf_checkpoint, train_byte_level
from tests.models import require_model

REFERENCE: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[2] / "data/smollm2-135m-instruct-q4_1.json").read_text()
)

LIBRARY = train_byte_level(ordinary=["<think>", "</think>"])
METADATA = byte_level_metadata(LIBRARY, bos_token_id=0, eos_token_id=2)


@cache
def load_smollm2() -> Tokenizer:
    return load_tokenizer(open_checkpoint(require_model("smollm2")))


@cache
def load_small() -> Tokenizer:
    return load_tokenizer(gguf_checkpoint(METADATA))


@pytest.fixture
def smollm2() -> Tokenizer:
    return load_smollm2()


@pytest.fixture
def small() -> Tokenizer:
    return load_small()


@pytest.mark.parametrize(
    "entry", [entry for entry in REFERENCE if "prompt" in entry], ids=lambda entry: entry["prompt"]
)
def test_smollm2_ids_and_text_are_the_references(smollm2: Tokenizer, entry: dict[str, Any]) -> None:
    assert smollm2.encode(entry["prompt"], add_special=True) == entry["ids"]
    assert smollm2.decode(entry["ids"]) == entry["prompt"]
    assert smollm2.decode(entry["greedy_ids"]) == entry["greedy_text"]


def test_smollm2_special_tokens(smollm2: Tokenizer) -> None:
    assert smollm2.vocab_size == 49152
    assert smollm2.bos_id == 1
    assert not smollm2.adds_bos
    assert smollm2.eos_ids == {0, 2}
    assert smollm2.token_text(2) == "<|im_end|>"
    assert smollm2.is_special(2)
    assert smollm2.variables["eos_token"] == "<|im_end|>"


@given(st.text(max_size=40))
@settings(deadline=None)
def test_smollm2_keeps_every_byte_it_has_a_token_for(text: str) -> None:
    tokenizer = load_smollm2()
    ids = tokenizer.encode(text, add_special=False, parse_special=False)
    pieces = set(tokenizer.vocabulary.pieces)
    known = {byte for byte, character in byte_level_alphabet().items() if character in pieces}
    expected = bytes(byte for byte in text.encode() if byte in known)
    assert b"".join(map(tokenizer.token_bytes, ids)) == expected
    detokenizer = tokenizer.detokenizer()
    assert "".join(map(detokenizer.push, ids)) + detokenizer.flush() == expected.decode("utf-8", "replace")


@pytest.mark.parametrize("text", [*CORPUS, "<|im_start|>user\nhi<|im_end|>", "a<think>b</think> c", "", " "])
def test_ids_are_those_of_the_library_it_was_trained_with(small: Tokenizer, text: str) -> None:
    assert small.encode(text, add_special=False) == LIBRARY.encode(text).ids


@given(st.text(st.sampled_from("abe 12\n'.<|>imthkné🙂")))
def test_any_text_has_the_librarys_ids(text: str) -> None:
    assert load_small().encode(text, add_special=False) == LIBRARY.encode(text).ids


def test_special_text_is_text_when_not_parsed(small: Tokenizer) -> None:
    ids = small.encode("<|im_end|>", add_special=False, parse_special=False)
    assert 2 not in ids
    assert small.decode(ids) == "<|im_end|>"


def test_user_defined_tokens_are_matched_always(small: Tokenizer) -> None:
    think = METADATA["tokens"].index("<think>")
    assert think in small.encode("a<think>b", add_special=False, parse_special=False)
    assert small.token_bytes(think) == b"<think>"
    assert not small.is_special(think)


def test_bos_and_eos_are_added_as_the_file_says() -> None:
    tokenizer = load_tokenizer(gguf_checkpoint({**METADATA, "add_bos_token": True, "add_eos_token": True}))
    (plain,) = tokenizer.encode("a", add_special=False)
    assert tokenizer.encode("a", add_special=True) == [0, plain, 2]
    assert tokenizer.adds_bos
    assert tokenizer.adds_eos


def test_llama3_kinds_add_bos_where_the_file_is_silent() -> None:
    assert load_tokenizer(gguf_checkpoint({**METADATA, "pre": "llama-bpe"})).adds_bos
    assert not load_tokenizer(gguf_checkpoint({**METADATA, "pre": "llama-bpe", "add_bos_token": False})).adds_bos
    assert not load_tokenizer(gguf_checkpoint({**METADATA, "pre": "qwen2"})).adds_bos


def test_a_turn_end_that_a_converter_called_user_defined_is_special() -> None:
    types = list(METADATA["token_type"])
    types[2] = 4
    tokenizer = load_tokenizer(gguf_checkpoint({**METADATA, "token_type": types, "eos_token_id": 0}))
    assert tokenizer.eos_ids == {0, 2}
    assert tokenizer.token_bytes(2) == b""


def test_an_end_of_turn_id_of_the_file_ends_a_generation() -> None:
    tokenizer = load_tokenizer(gguf_checkpoint({**METADATA, "eot_token_id": 7, "eom_token_id": 8}))
    assert tokenizer.eos_ids == {0, 2, 7, 8}


def test_a_lone_surrogate_is_refused(small: Tokenizer) -> None:
    with pytest.raises(BadRequest, match="lone surrogate at character 2"):
        small.encode("ab\ud800", add_special=False)


def test_client_ids_out_of_range_are_refused(small: Tokenizer) -> None:
    small.check_ids([0, small.vocab_size - 1], param="prompt")
    for bad in (-1, small.vocab_size):
        with pytest.raises(BadRequest, match=f"token id {bad} is out of range") as caught:
            small.check_ids([bad], param="prompt")
        assert caught.value.param == "prompt"


def without(key: str) -> dict[str, Any]:
    return {name: value for name, value in METADATA.items() if name != key}


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        (without("pre"), "tokenizer.ggml.pre is missing"),
        ({**METADATA, "pre": "nonesuch"}, "tokenizer.ggml.pre 'nonesuch' is not supported"),
        ({**METADATA, "pre": 5}, "tokenizer.ggml.pre is 5"),
        (without("tokens"), "tokenizer.ggml.tokens is missing"),
        (without("merges"), "tokenizer.ggml.merges is missing"),
        ({**METADATA, "tokens": []}, "tokens has 0 entries"),
        ({**METADATA, "tokens": [*METADATA["tokens"][:-1], METADATA["tokens"][9]]}, "the same text at 9 and"),
        ({**METADATA, "tokens": [*METADATA["tokens"][:-1], "x" * 1025]}, "has 1025 characters"),
        ({**METADATA, "token_type": METADATA["token_type"][:-1]}, "token_type is a list of"),
        ({**METADATA, "merges": ["ab"]}, "merges.0. is 'ab'"),
        ({**METADATA, "merges": ["a "]}, "merges.0. is 'a '"),
        ({**METADATA, "merges": ["nope nope"]}, "does not load: .*nope"),
        ({**METADATA, "bos_token_id": 10**6}, "bos_token_id is 1000000"),
        ({**without("bos_token_id"), "add_bos_token": True}, "names no token of the vocabulary"),
    ],
)
def test_a_malformed_vocabulary_is_refused_by_name(metadata: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        load_tokenizer(gguf_checkpoint(metadata))


def test_added_tokens_nested_in_each_other_a_thousand_deep_are_refused() -> None:
    tokens = [
        *METADATA["tokens"],
        *("~" * length for length in range(1, 1000) if "~" * length not in METADATA["tokens"]),
    ]
    types = [*METADATA["token_type"], *[3] * (len(tokens) - len(METADATA["tokens"]))]
    with pytest.raises(CheckpointError, match="nested too deeply"):
        load_tokenizer(gguf_checkpoint({**METADATA, "tokens": tokens, "token_type": types}))


def test_tokens_without_text_keep_their_ids() -> None:
    tokens = [*METADATA["tokens"], "", ""]
    types = [*METADATA["token_type"], 5, 5]
    tokenizer = load_tokenizer(gguf_checkpoint({**METADATA, "tokens": tokens, "token_type": types}))
    assert tokenizer.vocab_size == len(tokens)
