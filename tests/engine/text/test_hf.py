from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from poot.engine.checkpoint import open_checkpoint
from poot.engine.text import Tokenizer, load_tokenizer
from poot.errors import CheckpointError
from tests.engine.text.makers import CORPUS, hub_checkpoint, train_byte_level, train_wordpiece
from tests.models import require_model


@cache
def byte_level() -> tuple[tokenizers.Tokenizer, Tokenizer]:
    library = train_byte_level(ordinary=["<think>"])
    return library, load_tokenizer(hub_checkpoint(library))


def train_metaspace(scheme: str) -> tokenizers.Tokenizer:
    """A tokenizer as Llama's and Mistral's fast ones: BPE over "▁", bytes to fall back on."""
    special = ["<unk>", "<s>", "</s>", "[INST]"]
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=[*special, *(f"<0x{byte:02X}>" for byte in range(256))], show_progress=False
    )
    library = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    library.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
    library.train_from_iterator(CORPUS, trainer)
    content = json.loads(library.to_str())
    content["added_tokens"] = [token for token in content["added_tokens"] if token["content"] in special]
    library = tokenizers.Tokenizer.from_str(json.dumps(content))
    library.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    library.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return library


TEXTS = [*CORPUS, "", " ", "<|im_start|>user\nhi <|im_end|>\n<|im_end|>", "a<think>b", "<s>[INST] hi [INST]x</s> y"]


@pytest.mark.parametrize("text", TEXTS)
def test_byte_level_ids_are_transformers(text: str) -> None:
    library, tokenizer = byte_level()
    reference = PreTrainedTokenizerFast(tokenizer_object=library, bos_token="<|im_start|>", eos_token="<|im_end|>")
    assert tokenizer.encode(text, add_special=False) == reference.encode(text, add_special_tokens=False)
    assert tokenizer.decode(tokenizer.encode(text, add_special=False, parse_special=False)) == text


@pytest.mark.parametrize("scheme", ["first", "always", "never"])
@pytest.mark.parametrize("text", TEXTS)
def test_metaspace_ids_are_transformers(text: str, scheme: str) -> None:
    library = train_metaspace(scheme)
    tokenizer = load_tokenizer(hub_checkpoint(library, tokenizer_config={"bos_token": "<s>", "eos_token": "</s>"}))
    reference = PreTrainedTokenizerFast(tokenizer_object=library, bos_token="<s>", eos_token="</s>", unk_token="<unk>")
    for add_special in (True, False):
        expected = reference.encode(text, add_special_tokens=add_special)
        assert tokenizer.encode(text, add_special=add_special) == expected
    assert tokenizer.adds_bos
    assert tokenizer.eos_ids == {2}


@given(st.text(st.sampled_from("abe 12\n'.<|>imendthkstar_é🙂")))
def test_any_text_has_the_librarys_ids(text: str) -> None:
    library, tokenizer = byte_level()
    assert tokenizer.encode(text, add_special=False) == library.encode(text).ids


def test_minilm_ids_are_its_tokenizer_jsons() -> None:
    checkpoint = open_checkpoint(require_model("minilm"))
    assert checkpoint.tokenizer_json is not None
    library = tokenizers.Tokenizer.from_str(checkpoint.tokenizer_json)
    library.no_padding()
    library.no_truncation()
    tokenizer = load_tokenizer(checkpoint)
    for text in [*CORPUS, "A cute kitten, Zürich 2024!", "[CLS] a [MASK] b [SEP]"]:
        assert tokenizer.encode(text, add_special=True) == library.encode(text).ids


def test_padding_and_truncation_of_the_file_are_off() -> None:
    library = train_wordpiece()
    library.enable_padding(length=16)
    library.enable_truncation(4)
    tokenizer = load_tokenizer(hub_checkpoint(library))
    ids = tokenizer.encode("the quick brown fox jumps", add_special=True)
    assert len(ids) == len(tokenizer.encode("the quick brown fox jumps", add_special=False)) + 2
    assert len(ids) > 4
    assert 0 not in ids


def test_special_text_is_text_when_not_parsed() -> None:
    _, tokenizer = byte_level()
    ids = tokenizer.encode("<|im_end|>", add_special=False, parse_special=False)
    assert 2 not in ids
    assert tokenizer.decode(ids) == "<|im_end|>"


def test_merges_cannot_grow_a_special_token_from_text() -> None:
    content = {
        "version": "1.0",
        "added_tokens": [added_token(3, "abc", special=True)],
        "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "c": 2, "abc": 3, "ab": 4}, "merges": ["a b", "ab c"]},
        "decoder": None,
    }
    tokenizer = load_tokenizer(hub_checkpoint(json.dumps(content)))
    assert tokenizer.encode("abc", add_special=False) == [3]
    assert tokenizer.encode("abc", add_special=False, parse_special=False) == [4, 2]


def added_token(token_id: int, text: str, **changes: Any) -> dict[str, Any]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": False}
    return {"id": token_id, "content": text, **flags, **changes}


def test_white_space_around_a_special_token_is_stripped_where_the_file_says() -> None:
    content = json.loads(train_byte_level().to_str())
    for token in content["added_tokens"]:
        token["rstrip"] = True
    library = tokenizers.Tokenizer.from_str(json.dumps(content))
    tokenizer = load_tokenizer(hub_checkpoint(library))
    text = "<|im_start|> \n a <|im_end|>  b"
    assert tokenizer.encode(text, add_special=False) == library.encode(text).ids


def test_a_normalizer_does_not_hide_special_tokens() -> None:
    library = train_byte_level()
    library.normalizer = normalizers.Lowercase()
    library.add_special_tokens([tokenizers.AddedToken("<|EOT|>", normalized=False)])
    tokenizer = load_tokenizer(hub_checkpoint(library))
    assert tokenizer.encode("A<|EOT|>B", add_special=False) == library.encode("A<|EOT|>B").ids


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"generation_config": {"eos_token_id": [5, 6]}}, {0, 2, 5, 6}),
        ({"config": {"eos_token_id": 7}}, {0, 2, 7}),
        ({"config": {"eos_token_id": 10**6}}, {0, 2}),
        ({"config": {"eos_token_id": None}}, {0, 2}),
        ({"tokenizer_config": {"eos_token": {"content": "<|im_start|>"}}}, {0, 1, 2}),
    ],
)
def test_end_tokens_are_gathered_from_every_file(files: dict[str, Any], expected: set[int]) -> None:
    library, _ = byte_level()  # "<|endoftext|>" and "<|im_end|>" end a turn by their names
    assert load_tokenizer(hub_checkpoint(library, **files)).eos_ids == expected


def test_add_bos_token_of_the_config_overrules_the_post_processor() -> None:
    library = train_metaspace("first")
    named = {"bos_token": "<s>", "eos_token": "</s>"}
    on = load_tokenizer(
        hub_checkpoint(library, tokenizer_config={**named, "add_bos_token": True, "add_eos_token": True})
    )
    assert on.encode("", add_special=True) == [1, 2]
    off = load_tokenizer(hub_checkpoint(library, tokenizer_config={**named, "add_bos_token": False}))
    assert off.encode("", add_special=True) == []


@pytest.mark.parametrize(
    "config",
    [
        {"eos_token": "main"},
        {"additional_special_tokens": ["main", 5]},
        {"additional_special_tokens": [{"content": "main"}]},
        {"added_tokens_decoder": {"5": {"content": "main", "special": True}, "6": {"content": "fox"}}},
    ],
)
def test_tokens_that_the_config_calls_special_are(config: dict[str, Any]) -> None:
    library = train_byte_level(vocab_size=800)
    main = library.token_to_id("main")
    assert main is not None
    tokenizer = load_tokenizer(hub_checkpoint(library, tokenizer_config=config))
    reference = PreTrainedTokenizerFast(tokenizer_object=library)
    reference.add_special_tokens({"additional_special_tokens": ["main"]})
    assert tokenizer.is_special(main)
    for text in ("xmainx", " main fox"):
        assert tokenizer.encode(text, add_special=False) == reference.encode(text, add_special_tokens=False)
        assert main not in tokenizer.encode(text, add_special=False, parse_special=False)


def test_an_added_token_that_the_config_calls_special_is() -> None:
    library, _ = byte_level()
    tokenizer = load_tokenizer(hub_checkpoint(library, tokenizer_config={"additional_special_tokens": ["<think>"]}))
    (think,) = tokenizer.encode("<think>", add_special=False)
    assert tokenizer.is_special(think)


def test_a_named_token_that_the_vocabulary_lacks_is_left_out() -> None:
    library, _ = byte_level()
    tokenizer = load_tokenizer(hub_checkpoint(library, tokenizer_config={"pad_token": "[nonesuch]"}))
    assert tokenizer.vocab_size == library.get_vocab_size()


def test_what_surrounds_a_text_is_found_without_a_token_for_every_letter() -> None:
    content = {
        "version": "1.0",
        "added_tokens": [added_token(0, "<s>", special=True)],
        "model": {"type": "BPE", "vocab": {"<s>": 0, "0": 1}, "merges": []},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]}},
        },
    }
    tokenizer = load_tokenizer(hub_checkpoint(json.dumps(content)))
    assert tokenizer.encode("00", add_special=True) == [0, 1, 1]


def test_template_variables_are_the_configs_tokens() -> None:
    library, _ = byte_level()
    config = {
        "bos_token": {"content": "<|im_start|>", "lstrip": False},
        "pad_token": "<|endoftext|>",
        "eos_token": None,
    }
    tokenizer = load_tokenizer(hub_checkpoint(library, tokenizer_config=config))
    assert tokenizer.variables == {"bos_token": "<|im_start|>", "pad_token": "<|endoftext|>"}


def test_bos_is_found_in_the_models_config_where_the_tokenizers_is_silent() -> None:
    library, _ = byte_level()
    assert load_tokenizer(hub_checkpoint(library, config={"bos_token_id": 1})).bos_id == 1
    assert load_tokenizer(hub_checkpoint(library, config={"bos_token_id": "1"})).bos_id is None


def changed(**changes: Any) -> str:
    return json.dumps({**json.loads(byte_level()[0].to_str()), **changes})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", "no object named model"),
        (changed(model={"type": "Nonesuch"}), "does not load"),
        (changed(added_tokens={"a": 1}), "added_tokens must be a list of objects"),
        (changed(added_tokens=[5]), "added_tokens must be a list of objects"),
        (changed(added_tokens=[{"id": 1}]), "content is missing"),
        (changed(added_tokens=[added_token(-1, "x")]), "id is -1"),
        (changed(added_tokens=[added_token(10**9, "x")]), "id is 1000000000"),
        (changed(added_tokens=[added_token(3_000_000, "x", special=True)]), "has id 3000000, but the vocabulary makes"),
        (changed(added_tokens=[added_token(600, "")]), "content has 0 characters"),
        (changed(decoder={"type": "CTC", "pad_token": "", "word_delimiter_token": "", "cleanup": True}), "CTC"),
        (changed(decoder={"type": "WordPiece", "prefix": "@@", "cleanup": True}), "prefix other than ##"),
        (changed(model={"type": "BPE", "vocab": {"a": 2**31}, "merges": []}), "largest token id"),
        (changed(model={"type": "BPE", "vocab": {"a": 0}, "merges": [5]}), "does not load"),
    ],
)
def test_a_malformed_file_is_refused(text: str, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        load_tokenizer(hub_checkpoint(text))
