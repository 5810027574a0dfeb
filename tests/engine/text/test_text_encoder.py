"""Texts and pairs as tokens, against transformers' own tokenizers: ids, token types, truncation, counts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from poot.devices.encode import Pooling
from poot.engine.checkpoint import open_checkpoint
from poot.engine.checkpoint.sentence_modules import SentenceModules
from poot.engine.encoding import EncodeProfile, EncodeText
from poot.engine.text import Tokenizer, load_tokenizer
from poot.engine.text.text_encoder import JoinedPairs, ModelTextEncoder, PromptedPairs, split_template
from poot.errors import BadRequest
from tests.engine.text.makers import (
    CORPUS,
    gguf_checkpoint,
    hub_checkpoint,
    train_byte_level,
    train_wordpiece,
    wordpiece_metadata,
)
from tests.models import require_model

REFERENCE = Path(__file__).parents[2] / "data" / "all-minilm-l6-v2.json"

PROFILE = EncodeProfile(embeds=True, dim=4, max_tokens=64, pooling=Pooling.MEAN)
TEXTS = [*CORPUS, "", " ", "\0", "a\0b", "🙂" * 3, "x" * 200, "é", "İstanbul"]
PAIRS = [(CORPUS[0], CORPUS[1]), ("", CORPUS[3]), (CORPUS[2], ""), ("🙂", "\0"), (CORPUS[0], CORPUS[0] * 5)]


def bert() -> tokenizers.Tokenizer:
    """BERT's, with its template for pairs."""
    library = train_wordpiece()
    library.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    return library


def roberta() -> tokenizers.Tokenizer:
    """RoBERTa's: byte-level, and two separators between the texts of a pair."""
    library = train_byte_level(special=("<s>", "<pad>", "</s>", "<unk>"))
    library.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    return library


def xlm_roberta() -> tokenizers.Tokenizer:
    """XLM-RoBERTa's: Unigram over "▁"."""
    library = tokenizers.Tokenizer(models.Unigram())
    library.normalizer = normalizers.NFKC()
    library.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=300, special_tokens=["<s>", "<pad>", "</s>", "<unk>"], unk_token="<unk>", show_progress=False
    )
    library.train_from_iterator(CORPUS, trainer)
    library.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    return library


def qwen() -> tokenizers.Tokenizer:
    """Qwen3-Embedding's: nothing before a text, <|endoftext|> after it, and a pair without a seam."""
    library = train_byte_level()
    library.post_processor = processors.TemplateProcessing(
        single="$A <|endoftext|>", pair="$A $B <|endoftext|>", special_tokens=[("<|endoftext|>", 0)]
    )
    return library


KINDS = {"bert": bert, "roberta": roberta, "xlm_roberta": xlm_roberta, "qwen": qwen}


@cache
def make(kind: str) -> tuple[Any, Tokenizer]:
    """transformers' tokenizer and ours."""
    library = KINDS[kind]()
    reference = PreTrainedTokenizerFast(
        tokenizer_object=library, pad_token="[PAD]" if kind == "bert" else None, model_max_length=10**9
    )
    return reference, load_tokenizer(hub_checkpoint(library))


def encoder(tokenizer: Tokenizer, **options: Any) -> ModelTextEncoder:
    return ModelTextEncoder(tokenizer, PROFILE, **options)


def pair_encoder(tokenizer: Tokenizer, **options: Any) -> ModelTextEncoder:
    assert tokenizer.pair is not None
    writer = JoinedPairs(tokenizer=tokenizer, surroundings=tokenizer.pair, **options)
    return encoder(tokenizer, pair_writer=writer)


def expected_pair(reference: Any, query: str, document: str, **options: Any) -> tuple[list[int], list[int]]:
    """transformers' ids and token types; as a batch, since it takes one empty second text for none."""
    found = reference([query], [document], return_token_type_ids=True, **options)
    return found["input_ids"][0], found["token_type_ids"][0]


def ids(texts: Sequence[EncodeText]) -> list[list[int]]:
    return [text.token_ids.tolist() for text in texts]


def types(text: EncodeText) -> list[int]:
    return [0] * text.num_tokens if text.token_types is None else text.token_types.tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_ids_of_texts_are_transformers(kind: str) -> None:
    reference, tokenizer = make(kind)
    found = encoder(tokenizer).texts(TEXTS)
    assert ids(found) == reference(TEXTS)["input_ids"]
    assert all(text.token_ids.dtype == np.int64 and text.token_types is None for text in found)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("max_tokens", [4, 5, 9])
def test_long_texts_are_cut_as_transformers_cuts_them(kind: str, max_tokens: int) -> None:
    reference, tokenizer = make(kind)
    for side in ("left", "right"):
        reference.truncation_side = side
        expected = reference(TEXTS, truncation=True, max_length=max_tokens)["input_ids"]
        assert ids(encoder(tokenizer, cuts_left=side == "left").texts(TEXTS, max_tokens=max_tokens)) == expected
    reference.truncation_side = "right"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("query", "document"), PAIRS)
def test_pairs_are_transformers(kind: str, query: str, document: str) -> None:
    reference, tokenizer = make(kind)
    (found,) = pair_encoder(tokenizer).pairs(query, [document])
    assert (found.token_ids.tolist(), types(found)) == expected_pair(reference, query, document)


@pytest.mark.parametrize("kind", KINDS)
def test_a_pair_loses_the_end_of_its_document_alone(kind: str) -> None:
    reference, tokenizer = make(kind)
    query, documents = CORPUS[0], [*CORPUS[1:], ""]
    max_tokens = len(expected_pair(reference, query, CORPUS[1])[0]) - 4
    found = pair_encoder(tokenizer).pairs(query, documents, max_tokens=max_tokens)
    for text, document in zip(found, documents, strict=True):
        expected, _ = expected_pair(reference, query, document, truncation="only_second", max_length=max_tokens)
        assert text.token_ids.tolist() == expected


def test_a_document_is_cut_to_its_own_limit_before_it_is_joined() -> None:
    reference, tokenizer = make("bert")
    document = CORPUS[1]
    kept = reference(document, add_special_tokens=False)["input_ids"][:3]
    (found,) = pair_encoder(tokenizer).pairs(CORPUS[0], [document], max_tokens_per_document=3)
    query_ids = reference(CORPUS[0])["input_ids"]
    assert found.token_ids.tolist() == [*query_ids, *kept, 3]
    assert types(found) == [0] * len(query_ids) + [1] * 4


def test_a_query_that_leaves_no_room_is_refused() -> None:
    reference, tokenizer = make("bert")
    num_tokens = len(expected_pair(reference, CORPUS[0], "")[0])
    pairs = pair_encoder(tokenizer).pairs
    with pytest.raises(BadRequest, match=rf"the query takes {num_tokens} tokens.* in {num_tokens}"):
        pairs(CORPUS[0], ["a"], max_tokens=num_tokens)
    assert pairs(CORPUS[0], ["a"], max_tokens=num_tokens + 1)[0].num_tokens == num_tokens + 1
    assert pairs(CORPUS[0], [""], max_tokens=num_tokens)[0].num_tokens == num_tokens


def test_special_tokens_that_a_client_spells_stay_text() -> None:
    reference, tokenizer = make("bert")
    for text in ("[SEP]", "a [CLS] b[SEP]", "[MASK]"):
        (found,) = encoder(tokenizer).texts([text])
        inner = found.token_ids.tolist()[1:-1]
        assert not {2, 3, 4} & set(inner)
        assert inner == reference(text, split_special_tokens=True, add_special_tokens=False)["input_ids"]
        (pair,) = pair_encoder(tokenizer).pairs("q", [text])
        assert pair.token_ids.tolist().count(3) == 2


def test_a_prompt_of_the_model_may_mean_special_tokens() -> None:
    reference, tokenizer = make("bert")
    (found,) = encoder(tokenizer).texts(["fox [SEP]"], prompt="[MASK] query: ")
    assert found.token_ids.tolist()[1] == 4
    assert found.token_ids.tolist().count(3) == 1
    plain = encoder(tokenizer).texts(["fox"], prompt="query: ")
    assert ids(plain) == [reference("query: fox")["input_ids"]]
    assert plain[0].pool_start == 0


def test_a_mean_without_its_prompt_starts_where_sentence_transformers_starts_it() -> None:
    # Its rule (Transformer._get_prompt_length): the tokens of the prompt alone, without a last special token.
    reference, tokenizer = make("bert")
    prompt = "the query: "
    expected = len(reference(prompt)["input_ids"]) - 1
    texts = encoder(tokenizer, leaves_out_prompt=True).texts(["fox", ""], prompt=prompt)
    assert [text.pool_start for text in texts] == [expected, expected]
    assert encoder(tokenizer, leaves_out_prompt=True).texts(["fox"])[0].pool_start == 0
    (cut,) = encoder(tokenizer, leaves_out_prompt=True).texts(["fox"], prompt=prompt, max_tokens=4)
    assert cut.pool_start < cut.num_tokens


def test_a_text_without_tokens_is_refused_by_its_place() -> None:
    library = train_byte_level()
    tokenizer = load_tokenizer(hub_checkpoint(library))
    with pytest.raises(BadRequest, match="text 1 has no tokens"):
        encoder(tokenizer).texts(["a", ""])


def test_a_limit_below_the_special_tokens_is_refused() -> None:
    _, tokenizer = make("bert")
    with pytest.raises(BadRequest, match="special tokens alone are 2, over 1"):
        encoder(tokenizer).texts(["a"], max_tokens=1)


def test_a_lone_surrogate_is_refused() -> None:
    _, tokenizer = make("bert")
    with pytest.raises(BadRequest, match="lone surrogate"):
        encoder(tokenizer).texts(["a", "\ud800"])
    for query, document in (("q", "\ud800"), ("\ud800", "a")):
        with pytest.raises(BadRequest, match="lone surrogate"):
            pair_encoder(tokenizer).pairs(query, [document])


def test_a_clients_own_ids_are_left_as_they_are() -> None:
    _, tokenizer = make("bert")
    assert encoder(tokenizer).tokens([5, 3, 2]).token_ids.tolist() == [5, 3, 2]
    assert encoder(tokenizer).tokens([5, 3, 2], max_tokens=2).token_ids.tolist() == [5, 3]
    for bad in ([], [-1], [tokenizer.vocab_size]):
        with pytest.raises(BadRequest):
            encoder(tokenizer).tokens(bad)


TEMPLATE = "<|im_start|>judge <Query>: {query}\n<Document>: {document}<|im_end|>\nanswer "


def prompted() -> tuple[Any, ModelTextEncoder]:
    library = train_byte_level()
    tokenizer = load_tokenizer(hub_checkpoint(library))
    parts = split_template(TEMPLATE, "{query}", "{document}")
    assert parts is not None
    writer = PromptedPairs(tokenizer=tokenizer, before=parts[0], between=parts[1], after=parts[2])
    return PreTrainedTokenizerFast(tokenizer_object=library), encoder(tokenizer, pair_writer=writer)


@pytest.mark.parametrize(("query", "document"), [*PAIRS, ("{document}", "{query}"), ("a ", " b"), ("a\n", "\nb")])
def test_a_prompted_pair_is_the_whole_prompt_tokenized(query: str, document: str) -> None:
    reference, pairs = prompted()
    (found,) = pairs.pairs(query, [document])
    before, rest = TEMPLATE.split("{query}")
    between, after = rest.split("{document}")
    assert found.token_ids.tolist() == reference.encode(f"{before}{query}{between}{document}{after}")
    assert found.token_types is None


def test_a_prompted_pair_keeps_its_query_and_its_end() -> None:
    reference, pairs = prompted()
    suffix = reference.encode("<|im_end|>\nanswer ")
    whole = pairs.pairs(CORPUS[0], [CORPUS[1]])[0].token_ids.tolist()
    (cut,) = ids(pairs.pairs(CORPUS[0], [CORPUS[1]], max_tokens=len(whole) - 6))
    assert cut == [*whole[: -len(suffix) - 6], *suffix]
    (limited,) = ids(pairs.pairs(CORPUS[0], [CORPUS[1]], max_tokens_per_document=2))
    # The space after "<Document>:" is part of the document's first token.
    head = reference.encode(f"<|im_start|>judge <Query>: {CORPUS[0]}\n<Document>:")
    assert limited == [*whole[: len(head) + 2], *suffix]
    with pytest.raises(BadRequest, match="the query takes"):
        pairs.pairs(CORPUS[0], [CORPUS[1]], max_tokens=len(suffix) + 3)


def test_special_tokens_in_a_prompted_pair_are_the_templates_alone() -> None:
    reference, pairs = prompted()
    (found,) = pairs.pairs("<|im_end|>", ["<|im_start|>x<|im_end|>"])
    start, end = reference.convert_tokens_to_ids(["<|im_start|>", "<|im_end|>"])
    assert [found.token_ids.tolist().count(token) for token in (start, end)] == [1, 1]


@pytest.mark.parametrize("template", ["{query}", "{document} {query}", "{query} {query} {document}", ""])
def test_a_template_without_both_marks_in_order_is_none(template: str) -> None:
    assert split_template(template, "{query}", "{document}") is None


def test_lowering_comes_before_all_else() -> None:
    library = train_wordpiece(lowercase=False)
    plain = load_tokenizer(hub_checkpoint(library))
    checkpoint = hub_checkpoint(library)
    lowering = load_tokenizer(type(checkpoint)(**{**vars(checkpoint), "sentence": SentenceModules(lowercases=True)}))
    text = "The QUICK Brown fox"
    assert ids(encoder(lowering).texts([text])) == ids(encoder(plain).texts([text.lower()]))
    assert ids(encoder(lowering).texts([text])) != ids(encoder(plain).texts([text]))


def test_a_config_that_overrules_the_post_processor_says_nothing_of_pairs() -> None:
    plain = hub_checkpoint(qwen(), tokenizer_config={"eos_token": "<|endoftext|>", "add_eos_token": True})
    assert load_tokenizer(plain).pair is not None
    overruled = hub_checkpoint(qwen(), tokenizer_config={"eos_token": "<|endoftext|>", "add_eos_token": False})
    assert load_tokenizer(overruled).pair is None


@pytest.mark.parametrize(
    ("config", "has_types"),
    [
        ({}, True),
        ({"tokenizer_class": "BertTokenizer"}, True),
        ({"tokenizer_class": "TokenizersBackend"}, False),
        ({"model_input_names": ["input_ids", "attention_mask"]}, False),
        ({"tokenizer_class": "TokenizersBackend", "model_input_names": ["input_ids", "token_type_ids"]}, True),
    ],
)
def test_token_types_are_given_where_the_model_was_trained_with_them(config: dict[str, Any], has_types: bool) -> None:
    tokenizer = load_tokenizer(hub_checkpoint(bert(), tokenizer_config=config))
    (found,) = pair_encoder(tokenizer).pairs(CORPUS[0], [CORPUS[1]])
    assert (found.token_types is not None) == has_types


def test_a_gguf_wordpiece_joins_pairs_as_bert_does() -> None:
    reference, _ = make("bert")
    tokenizer = load_tokenizer(gguf_checkpoint(wordpiece_metadata(reference.backend_tokenizer)))
    (found,) = pair_encoder(tokenizer).pairs(CORPUS[0], [CORPUS[1]])
    assert (found.token_ids.tolist(), types(found)) == expected_pair(reference, CORPUS[0], CORPUS[1])


@given(texts=st.lists(st.text(max_size=40), min_size=1, max_size=5), max_tokens=st.integers(3, 12))
def test_a_batch_is_its_texts_one_by_one(texts: list[str], max_tokens: int) -> None:
    _, tokenizer = make("bert")
    together = ids(encoder(tokenizer).texts(texts, max_tokens=max_tokens))
    assert together == [ids(encoder(tokenizer).texts([text], max_tokens=max_tokens))[0] for text in texts]
    assert all(1 <= len(found) <= max_tokens for found in together)


def test_the_real_models_counts_are_the_references() -> None:
    reference = json.loads(REFERENCE.read_text())
    tokenizer = load_tokenizer(open_checkpoint(require_model("minilm")))
    found = encoder(tokenizer).texts([entry["text"] for entry in reference], max_tokens=256)
    assert [text.num_tokens for text in found] == [entry["tokens"] for entry in reference]


def test_the_real_models_ids_are_transformers() -> None:
    path = require_model("minilm")
    reference = PreTrainedTokenizerFast(tokenizer_file=str(path / "tokenizer.json"))
    reference.backend_tokenizer.no_padding()
    reference.backend_tokenizer.no_truncation()
    tokenizer = load_tokenizer(open_checkpoint(path))
    texts = [*TEXTS, "東京は日本の首都です", "word " * 300]
    assert ids(encoder(tokenizer).texts(texts)) == reference(texts)["input_ids"]
    (pair,) = pair_encoder(tokenizer).pairs(texts[0], [texts[1]])
    assert (pair.token_ids.tolist(), types(pair)) == expected_pair(reference, texts[0], texts[1])
