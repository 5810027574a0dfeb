from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from poot.engine.checkpoint import open_checkpoint
from poot.engine.text import Tokenizer, load_tokenizer
from poot.errors import CheckpointError
from tests.engine.text.makers import CORPUS, gguf_checkpoint, train_wordpiece, wordpiece_metadata
from tests.models import require_model


@cache
def load(lowercase: bool) -> tuple[tokenizers.Tokenizer, Tokenizer]:
    library = train_wordpiece(lowercase=lowercase)
    metadata = wordpiece_metadata(library, **{"normalizer.lowercase": lowercase})
    return library, load_tokenizer(gguf_checkpoint(metadata))


@pytest.mark.parametrize("lowercase", [True, False])
@pytest.mark.parametrize("text", [*CORPUS, "", "ÀÉ The-dog's 東京", "zzzz " + "q" * 101, "a [MASK] b", "[SEP]"])
def test_ids_are_those_of_the_library_it_was_trained_with(text: str, lowercase: bool) -> None:
    library, tokenizer = load(lowercase)
    assert tokenizer.encode(text, add_special=True) == library.encode(text).ids
    assert tokenizer.encode(text, add_special=False) == library.encode(text, add_special_tokens=False).ids


@given(st.text(st.sampled_from("abeo dT.-é東[MASK]")))
def test_any_text_has_the_librarys_ids(text: str) -> None:
    library, tokenizer = load(True)
    assert tokenizer.encode(text, add_special=True) == library.encode(text).ids


def test_special_text_is_text_when_not_parsed() -> None:
    _, tokenizer = load(True)
    assert not {2, 3, 4} & set(tokenizer.encode("[CLS] [SEP] [MASK]", add_special=False, parse_special=False))


def test_words_are_joined_with_spaces() -> None:
    _, tokenizer = load(True)
    assert tokenizer.decode(tokenizer.encode("the quick dog", add_special=True)) == " the quick dog"


def test_minilm_from_gguf_metadata_has_the_ids_of_its_tokenizer_json() -> None:
    checkpoint = open_checkpoint(require_model("minilm"))
    assert checkpoint.tokenizer_json is not None
    library = tokenizers.Tokenizer.from_str(checkpoint.tokenizer_json)
    library.no_padding()
    ids = library.get_vocab()
    tokens = sorted(ids, key=lambda text: ids[text])
    special = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"}
    # As convert_hf_to_gguf.py lays a BERT vocabulary out; [unused7] and the like stay as they are.
    metadata: dict[str, Any] = {
        "model": "bert",
        "tokens": [
            text[2:] if text.startswith("##") else text if text in special or text.startswith("[unused") else f"▁{text}"
            for text in tokens
        ],
        "token_type": [3 if text in special else 5 if text.startswith("[unused") else 1 for text in tokens],
    }
    tokenizer = load_tokenizer(gguf_checkpoint(metadata))
    for text in [*CORPUS, "A cute kitten, Zürich 2024!", "unaffable ##able"]:
        assert tokenizer.encode(text, add_special=True) == library.encode(text).ids


def test_an_unknown_token_need_not_be_marked_special() -> None:
    metadata = wordpiece_metadata(train_wordpiece())
    metadata["token_type"][1] = 1
    assert load_tokenizer(gguf_checkpoint(metadata)).encode("ф", add_special=False) == [1]


def test_a_missing_unknown_token_is_refused() -> None:
    metadata = wordpiece_metadata(train_wordpiece())
    del metadata["unknown_token_id"]  # the format's default, 100, is a normal token of this vocabulary
    metadata["tokens"] = metadata["tokens"][:50]
    metadata["token_type"] = metadata["token_type"][:50]
    with pytest.raises(CheckpointError, match="unknown_token_id is missing"):
        load_tokenizer(gguf_checkpoint(metadata))
