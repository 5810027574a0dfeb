"""tokenizer.ggml.model = t5, against SentencePiece's own Unigram."""

from __future__ import annotations

import io
from functools import cache
from typing import Any

import pytest
import sentencepiece
from hypothesis import given
from hypothesis import strategies as st

from poot.devices.encode import Pooling
from poot.engine.encoding import EncodeProfile
from poot.engine.text import Tokenizer, load_tokenizer
from poot.engine.text.text_encoder import JoinedPairs, ModelTextEncoder
from poot.errors import CheckpointError
from tests.engine.text.makers import CORPUS, gguf_checkpoint


def varint(content: bytes, offset: int) -> tuple[int, int]:
    """A protobuf integer of any length, and the offset behind it."""
    value = shift = 0
    while True:
        byte = content[offset]
        value |= (byte & 0x7F) << shift
        offset, shift = offset + 1, shift + 7
        if byte < 0x80:
            return value, offset


def field(content: bytes, number: int) -> bytes:
    """The bytes of the first length-delimited field `number` of a protobuf message."""
    offset = 0
    while True:
        tag, offset = varint(content, offset)
        if tag & 7 == 2:
            length, offset = varint(content, offset)
            if tag >> 3 == number:
                return content[offset : offset + length]
            offset += length
        elif tag & 7 == 0:
            _, offset = varint(content, offset)
        else:
            offset += 4 if tag & 7 == 5 else 8


@cache
def train() -> tuple[sentencepiece.SentencePieceProcessor, dict[str, Any]]:
    """A small XLM-RoBERTa vocabulary, and the GGUF keys that convert_hf_to_gguf.py writes of one."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS * 3),
        model_writer=model,
        model_type="unigram",
        vocab_size=115,
        character_coverage=1.0,
        bos_id=0,
        pad_id=1,
        eos_id=2,
        unk_id=3,
        minloglevel=2,
    )
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    # sentencepiece_model.proto: ModelProto.normalizer_spec is 3, NormalizerSpec.precompiled_charsmap 2.
    character_map = field(field(model.getvalue(), 3), 2)
    size = processor.vocab_size()
    return processor, {
        "model": "t5",
        "tokens": [processor.id_to_piece(index) for index in range(size)],
        "scores": [processor.get_score(index) for index in range(size)],
        "token_type": [3, 3, 3, 2] + [1] * (size - 4),
        "add_space_prefix": True,
        "remove_extra_whitespaces": True,
        "precompiled_charsmap": list(character_map),
        "bos_token_id": 0,
        "eos_token_id": 2,
        "unknown_token_id": 3,
        "seperator_token_id": 2,
        "add_bos_token": True,
        "add_eos_token": True,
    }


@cache
def load() -> tuple[sentencepiece.SentencePieceProcessor, Tokenizer]:
    processor, metadata = train()
    return processor, load_tokenizer(gguf_checkpoint(metadata))


@pytest.mark.parametrize("text", [*CORPUS, "", " ", "  two  spaces ", "ＡＢＣ①ｶﾞ", "a\nb\tc", "unseen: ☃☃ ж"])
def test_ids_are_sentencepieces(text: str) -> None:
    processor, tokenizer = load()
    assert tokenizer.encode(text, add_special=False) == processor.encode(text)
    assert tokenizer.encode(text, add_special=True) == [0, *processor.encode(text), 2]


@given(st.text(st.sampled_from("abeo dT.=-\n東é①"), max_size=30))
def test_any_text_has_sentencepieces_ids(text: str) -> None:
    processor, tokenizer = load()
    assert tokenizer.encode(text, add_special=False) == processor.encode(text)


def test_a_pair_has_two_ends_between_its_texts() -> None:
    # RobertaProcessing's layout, which XLM-RoBERTa was trained with: <s> A </s> </s> B </s>.
    processor, tokenizer = load()
    assert tokenizer.pair is not None
    profile = EncodeProfile(embeds=False, dim=1, max_tokens=64, pooling=Pooling.CLS)
    writer = JoinedPairs(tokenizer=tokenizer, surroundings=tokenizer.pair)
    (found,) = ModelTextEncoder(tokenizer, profile, pair_writer=writer).pairs(CORPUS[0], [CORPUS[1]])
    first, second = processor.encode(CORPUS[0]), processor.encode(CORPUS[1])
    assert found.token_ids.tolist() == [0, *first, 2, 2, *second, 2]
    assert found.token_types is None


def test_special_tokens_that_a_client_spells_stay_text() -> None:
    _, tokenizer = load()
    ids = tokenizer.encode("a</s><s>", add_special=False, parse_special=False)
    assert not {0, 2} & set(ids)
    assert tokenizer.encode("a</s>", add_special=False)[-1] == 2


def test_signed_bytes_of_the_character_map_are_read() -> None:
    processor, metadata = train()
    signed = [value - 256 if value > 127 else value for value in metadata["precompiled_charsmap"]]
    tokenizer = load_tokenizer(gguf_checkpoint({**metadata, "precompiled_charsmap": signed}))
    assert tokenizer.encode("ＡＢＣ①", add_special=False) == processor.encode("ＡＢＣ①")


@pytest.mark.parametrize("character_map", [[1], [255, 255, 255, 127, 0], [300], ["a"]])
def test_a_malformed_character_map_is_refused(character_map: list[Any]) -> None:
    _, metadata = train()
    with pytest.raises(CheckpointError):
        load_tokenizer(gguf_checkpoint({**metadata, "precompiled_charsmap": character_map}))
