"""Cuts by pre-tokenizer name, against llama.cpp's ids (tests/data/text/pretokenizers.json) and by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import pre_tokenizers

from poot.engine.text import load_tokenizer
from poot.engine.text.pretokenizers import PRETOKENIZERS
from poot.engine.text.vocabulary import byte_level_alphabet
from tests.engine.text.makers import gguf_checkpoint

DATA: dict[str, Any] = json.loads((Path(__file__).parents[2] / "data/text/pretokenizers.json").read_text())

# Where poot follows a model's own tokenizer.json and llama.cpp does not: combining marks and upper case beyond ASCII
# (its engine has no \p{M} or \p{Lu}), digits one by one in DeepSeek's, NFC in Qwen's, Unicode white space.
MARKS = {"e\u0301cole cafe\u0301", "हिन्दी में", "А́нна Привет мир"}
DIGITS = {"abc123def4567 89 1234567", "東京タワー は 333m です。", "$100 + 5% = <x> ^~|`", "٣٤٥٦٧ ½²³", "1,234.56 1e10"}
SPACES = {"nbsp\u00a0em\u2003ideo\u3000x"}
COMPOSED = {"e\u0301cole cafe\u0301"}
DELIBERATE = {
    "deepseek-coder": SPACES,
    "deepseek-llm": DIGITS | SPACES,
    **dict.fromkeys(("tekken", "gpt-4o", "kanana2", "llama4", "talkie", "minimax-m2"), MARKS),
    **dict.fromkeys(("qwen2", "qwen35"), COMPOSED),
}

NAMES = [(name, group["ids"]) for group in DATA["groups"] for name in group["names"]]


def metadata(name: str) -> dict[str, Any]:
    """The small vocabulary of the data file: the bytes by code point of their characters, then the merges' results."""
    merges: list[str] = DATA["merges"]
    tokens = [*sorted(byte_level_alphabet().values()), *(merge.replace(" ", "") for merge in merges)]
    return {"model": "gpt2", "pre": name, "tokens": tokens, "token_type": [1] * len(tokens), "merges": merges}


@pytest.mark.parametrize(("name", "expected"), NAMES, ids=[name for name, _ in NAMES])
def test_ids_are_those_of_llama_cpp(name: str, expected: list[list[int]]) -> None:
    tokenizer = load_tokenizer(gguf_checkpoint(metadata(name)))
    different = {
        case
        for case, ids in zip(DATA["cases"], expected, strict=True)
        if tokenizer.encode(case, add_special=False) != ids
    }
    assert different == DELIBERATE.get(name, set())


def words(name: str, text: str) -> list[str]:
    splits = [pre_tokenizers.Split(tokenizers.Regex(pattern), "isolated") for pattern in PRETOKENIZERS[name].patterns]
    return [word for word, _ in pre_tokenizers.Sequence(splits).pre_tokenize_str(text)]


# Written out from the rules in the models' tokenizer.json, character class by character class.
@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("gpt-2", "I've 12345  x\n\ny", ["I", "'ve", " 12345", " ", " x", "\n", "\n", "y"]),
        ("smollm", "a12 3", ["a", "1", "2", " ", "3"]),
        ("llama3", "I'VE 12345  x\n\n y!\n", ["I", "'VE", " ", "123", "45", " ", " x", "\n\n", " y", "!\n"]),
        ("qwen2", "I'VE 123", ["I", "'VE", " ", "1", "2", "3"]),
        ("qwen2", "e\u0301x", ["e", "\u0301x"]),
        ("qwen35", "e\u0301x", ["e\u0301x"]),
        ("tekken", "HelloWorld ÀB it's", ["Hello", "World", " ÀB", " it", "'s"]),
        ("tekken", "path//\n a12", ["path", "//\n", " a", "1", "2"]),
        ("tekken", "e\u0301cole हिन्दी", ["e\u0301cole", " हिन्दी"]),
        ("gpt-4o", "HelloWorld it's 12345", ["Hello", "World", " it's", " ", "123", "45"]),
        ("gpt-4o", "АннаПривет", ["Анна", "Привет"]),
        ("deepseek-llm", "ab 12 東京", ["ab", " ", "1", "2", " ", "東京"]),
        ("deepseek-coder", "a\u3000b c", ["a", "\u3000", "b", " c"]),  # U+3000 is in its CJK range, cut later on
        ("deepseek-v3", "1234東京タワー.foo", ["123", "4", "東京タワー", ".foo"]),
        ("falcon", "a-b 1234", ["a", "-", "b", " ", "123", "4"]),
        ("default", "a+b 1234", ["a", "+", "b", " ", "123", "4"]),
    ],
)
def test_words(name: str, text: str, expected: list[str]) -> None:
    assert words(name, text) == expected


def test_every_name_is_compared() -> None:
    assert {name for name, _ in NAMES} == set(PRETOKENIZERS) - {"gpt2"}  # an alias that only some converters write


@pytest.mark.parametrize("name", sorted(PRETOKENIZERS))
def test_no_character_is_lost_between_words(name: str) -> None:
    for case in DATA["cases"]:
        assert "".join(words(name, case)) == case


def test_a_word_of_the_vocabulary_is_one_token_only_where_the_kind_says_so() -> None:
    changed = metadata("llama3")
    changed["tokens"] = [*changed["tokens"], "zqx"]  # no merges lead to it
    changed["token_type"] = [*changed["token_type"], 1]
    last = len(changed["tokens"]) - 1
    assert load_tokenizer(gguf_checkpoint(changed)).encode("zqx", add_special=False) == [last]
    assert last not in load_tokenizer(gguf_checkpoint({**changed, "pre": "dbrx"})).encode("zqx", add_special=False)


def test_qwen_composes_as_its_own_tokenizer_does() -> None:
    tokenizer = load_tokenizer(gguf_checkpoint(metadata("qwen2")))
    assert tokenizer.encode("cafe\u0301", add_special=False) == tokenizer.encode("caf\u00e9", add_special=False)
