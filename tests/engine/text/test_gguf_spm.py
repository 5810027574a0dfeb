from __future__ import annotations

import dataclasses
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from hypothesis import given
from hypothesis import strategies as st

from poot.engine.checkpoint import open_checkpoint
from poot.engine.text import Tokenizer, load_tokenizer
from poot.engine.text.gguf_spm import derive_merges
from poot.errors import CheckpointError
from tests.engine.text.makers import CORPUS, gguf_checkpoint, sentencepiece_metadata, train_sentencepiece
from tests.models import require_model

REFERENCE: list[dict[str, Any]] = json.loads((Path(__file__).parents[2] / "data/gemma-3-270m-q4_k_m.json").read_text())

USER_DEFINED = ("<tool>", "▁▁")

TEXTS = st.text(st.sampled_from("abeo dT.=-\n東é🙂<>")) | st.lists(
    st.tuples(st.sampled_from("a =-."), st.integers(1, 12)), max_size=5
).map(lambda runs: "".join(character * count for character, count in runs))


@cache
def load(has_prefix: bool) -> tuple[sentencepiece.SentencePieceProcessor, Tokenizer]:
    # GGUF finds added tokens before it puts a space first, SentencePiece after: they differ on added runs of spaces.
    user_defined = USER_DEFINED[:1] if has_prefix else USER_DEFINED
    processor = train_sentencepiece(add_dummy_prefix=has_prefix, user_defined=user_defined)
    metadata = sentencepiece_metadata(processor, user_defined=user_defined, add_space_prefix=has_prefix)
    return processor, load_tokenizer(gguf_checkpoint(metadata))


@pytest.mark.parametrize("has_prefix", [True, False])
@pytest.mark.parametrize("text", [*CORPUS, "", " ", "▁", "a▁b", "<0x41>"])
def test_ids_are_sentencepieces(text: str, has_prefix: bool) -> None:
    processor, tokenizer = load(has_prefix)
    assert tokenizer.encode(text, add_special=False) == processor.encode(text)


@given(TEXTS)
def test_any_text_has_sentencepieces_ids(text: str) -> None:
    processor, tokenizer = load(False)
    assert tokenizer.encode(text, add_special=False) == processor.encode(text)


@given(st.text(max_size=30))
def test_any_text_round_trips_through_bytes(text: str) -> None:
    _, tokenizer = load(False)
    ids = tokenizer.encode(text, add_special=False, parse_special=False)
    assert tokenizer.decode(ids) == text.replace("▁", " ")  # the one character SentencePiece cannot tell from a space


def test_special_text_never_grows_into_a_special_token() -> None:
    _, tokenizer = load(False)
    assert tokenizer.encode("</s>", add_special=False) == [2]
    assert 2 not in tokenizer.encode("</s>", add_special=False, parse_special=False)


def test_a_space_is_put_first_and_after_every_added_token() -> None:
    processor, tokenizer = load(True)
    ids = tokenizer.encode("the</s>dog", add_special=False)
    assert ids == [*processor.encode("the"), 2, *processor.encode("dog")]


def test_phi3s_special_tokens_swallow_the_line_end_after_them() -> None:
    processor, _ = load(False)
    phi3 = gguf_checkpoint(sentencepiece_metadata(processor, add_space_prefix=False))
    phi3 = dataclasses.replace(phi3, config={**phi3.config, "general.name": "Phi-3 Mini 4k"})
    tokenizer = load_tokenizer(phi3)
    fox = processor.encode("fox")
    assert tokenizer.encode("</s>\n fox", add_special=False) == [2, *fox]
    assert tokenizer.encode("<s>\nfox", add_special=False) == [1, *processor.encode("\nfox")]


def test_a_bos_is_added_unless_the_file_says_otherwise() -> None:
    processor, tokenizer = load(False)
    assert tokenizer.encode("a", add_special=True) == [1, *processor.encode("a")]
    silent = sentencepiece_metadata(processor, add_bos_token=False, add_eos_token=True)
    assert load_tokenizer(gguf_checkpoint(silent)).encode("", add_special=True) == [2]


def test_unnamed_special_tokens_are_llamas() -> None:
    processor, _ = load(False)
    metadata = sentencepiece_metadata(processor)
    for name in ("bos", "eos", "unknown"):
        del metadata[f"{name}_token_id"]
    tokenizer = load_tokenizer(gguf_checkpoint(metadata))
    assert (tokenizer.bos_id, tokenizer.eos_ids) == (1, frozenset({2}))
    assert tokenizer.variables == {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}


def test_a_byte_token_is_its_byte() -> None:
    processor, tokenizer = load(False)
    assert tokenizer.token_bytes(processor.piece_to_id("<0xE6>")) == b"\xe6"
    assert tokenizer.token_bytes(processor.piece_to_id("<unk>")) == b""


def test_merges_are_ordered_by_score_and_skip_added_tokens() -> None:
    tokens = ["a", "b", "c", "ab", "bc", "abc", "<b", "<bc"]
    scores = [0.0, 0.0, 0.0, -2.0, -1.0, -3.0, 0.0, 0.0]
    types = [1, 1, 1, 1, 1, 1, 3, 4]
    assert derive_merges(tokens, types, scores) == [("b", "c"), ("a", "b"), ("ab", "c"), ("a", "bc")]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a   b", ["a", "▁▁▁", "b"]),
        ("a> <b", ["a", ">▁<", "b"]),
        ("> a", [">▁", "a"]),
        ("a a", ["a", "▁a"]),
        ("ab▁a", ["a", "b", "▁a"]),
    ],
)
def test_pieces_join_over_spaces_where_the_vocabulary_has_such(text: str, expected: list[str]) -> None:
    pieces = ["a", "b", "<", ">", "▁", "▁▁", "▁▁▁", ">▁", ">▁<", "▁a"]
    tokens = ["<unk>", "<s>", "</s>", *pieces]
    tokenizer = load_tokenizer(
        gguf_checkpoint(
            {
                "model": "llama",
                "tokens": tokens,
                "token_type": [2, 3, 3, *[1] * len(pieces)],
                "scores": [float(-index) for index in range(len(tokens))],
                "add_space_prefix": False,
            }
        )
    )
    assert [tokens[token_id] for token_id in tokenizer.encode(text, add_special=False)] == expected


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scores": [0.0]}, "scores is a list of 1"),
        ({"scores": None}, "scores is null"),
        ({"add_space_prefix": 1}, "add_space_prefix is 1"),
    ],
)
def test_a_malformed_vocabulary_is_refused_by_name(changes: dict[str, Any], message: str) -> None:
    processor, _ = load(False)
    with pytest.raises(CheckpointError, match=message):
        load_tokenizer(gguf_checkpoint(sentencepiece_metadata(processor, **changes)))


@cache
def load_gemma3() -> Tokenizer:
    return load_tokenizer(open_checkpoint(require_model("gemma3")))


@pytest.mark.parametrize("entry", REFERENCE, ids=lambda entry: entry["prompt"])
def test_gemma3_ids_and_text_are_the_references(entry: dict[str, Any]) -> None:
    tokenizer = load_gemma3()
    assert tokenizer.encode(entry["prompt"], add_special=True) == entry["ids"]
    assert tokenizer.decode(entry["ids"]) == entry["prompt"]
    assert tokenizer.decode(entry["greedy_ids"]) == entry["greedy_text"]


def test_gemma3_special_tokens() -> None:
    tokenizer = load_gemma3()
    assert (tokenizer.vocab_size, tokenizer.bos_id, tokenizer.adds_bos) == (262144, 2, True)
    assert tokenizer.eos_ids == {1, 106}
    assert tokenizer.token_text(106) == "<end_of_turn>"
