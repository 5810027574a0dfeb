"""tokenizer.ggml.model = t5: SentencePiece Unigram, as XLM-RoBERTa and its multilingual descendants have it.

The likeliest cut of a text into pieces by their scores (Kudo 2018, arXiv 1804.10959); the `tokenizers` library computes
it. Text is first normalized by the model's own character map (tokenizer.ggml.precompiled_charsmap, SentencePiece's
format), then runs of spaces become one where the file says so.
"""

from __future__ import annotations

from typing import Any

import tokenizers
from tokenizers import models, normalizers, pre_tokenizers

from poot.engine.checkpoint.types import Checkpoint
from poot.engine.text.gguf_vocabulary import KEY, GgufVocabulary, TokenType, read_gguf_vocabulary
from poot.engine.text.library import add_tokens, build
from poot.engine.text.special import SpecialTokens
from poot.engine.text.tokenizer import PairSurroundings, TokenizerParts
from poot.engine.text.vocabulary import WORD_START, PieceStyle, Vocabulary
from poot.errors import CheckpointError

# What the format says where the file does not (llama.cpp src/llama-vocab.cpp, the vocabulary of T5).
DEFAULT_EOS_ID = 1
DEFAULT_UNKNOWN_ID = 2

_CHARACTER_MAP = f"{KEY}precompiled_charsmap"


def read_gguf_unigram(checkpoint: Checkpoint) -> TokenizerParts:
    """A Unigram tokenizer from GGUF metadata.

    A pair is first, end, separator, second, end, each where the file adds it (llama.cpp's layout for reranking), which
    for XLM-RoBERTa is <s> first </s> </s> second </s>.

    Raises:
        CheckpointError: the vocabulary or the character map is malformed.
    """
    vocabulary = read_gguf_vocabulary(checkpoint)
    where = vocabulary.reader.where
    special_tokens = build(lambda: SpecialTokens(vocabulary.special, vocabulary.user_defined), where=where)
    library = build(lambda: _build_library(vocabulary, special_tokens), where=where)
    bos_id = vocabulary.special_id("bos")
    eos_id = vocabulary.special_id("eos", DEFAULT_EOS_ID)
    separator_id = vocabulary.special_id("seperator", eos_id)
    prefix = vocabulary.added("bos", False, bos_id)
    suffix = vocabulary.added("eos", True, eos_id)
    # Files of XLM-RoBERTa name their separator and do not say that it is added.
    middle = (*suffix, *vocabulary.added("sep", vocabulary.reader.has(f"{KEY}seperator_token_id"), separator_id))
    return TokenizerParts(
        library=library,
        vocabulary=Vocabulary(
            vocabulary.tokens,
            PieceStyle.SENTENCEPIECE,
            special_ids=vocabulary.special.values(),
            literal_ids=vocabulary.user_defined.values(),
        ),
        special_tokens=special_tokens,
        prefix_ids=prefix,
        suffix_ids=suffix,
        pair=PairSurroundings(
            prefix_ids=prefix,
            middle_ids=middle,
            suffix_ids=suffix,
            prefix_types=(0,) * len(prefix),
            first_type=0,
            middle_types=(0,) * len(middle),
            second_type=0,
            suffix_types=(0,) * len(suffix),
        ),
        bos_id=bos_id,
        eos_ids=vocabulary.end_ids(DEFAULT_EOS_ID),
        variables=vocabulary.variables(eos=DEFAULT_EOS_ID, unknown=DEFAULT_UNKNOWN_ID),
    )


def _build_library(vocabulary: GgufVocabulary, special_tokens: SpecialTokens) -> tokenizers.Tokenizer:
    scores = vocabulary.reader.float_list(f"{KEY}scores", length=len(vocabulary.tokens))
    unknown_id = vocabulary.special_id("unknown", DEFAULT_UNKNOWN_ID)
    pieces = [
        (_piece(text, kind, special_tokens), score)
        for text, kind, score in zip(vocabulary.tokens, vocabulary.types, scores, strict=True)
    ]
    byte_fallback = any(kind == TokenType.BYTE for kind in vocabulary.types)
    library = tokenizers.Tokenizer(models.Unigram(pieces, unk_id=unknown_id, byte_fallback=byte_fallback))
    steps: list[Any] = []
    if character_map := _read_character_map(vocabulary):
        steps.append(normalizers.Precompiled(character_map))
    if vocabulary.reader.optional_bool(f"{KEY}remove_extra_whitespaces", False):
        steps += [normalizers.Strip(), normalizers.Replace(tokenizers.Regex(" {2,}"), " ")]
    library.normalizer = normalizers.Sequence(steps)
    adds_space = vocabulary.reader.optional_bool(f"{KEY}add_space_prefix", True)
    library.pre_tokenizer = pre_tokenizers.Metaspace(
        replacement=WORD_START, prepend_scheme="always" if adds_space else "never"
    )
    add_tokens(library, special_tokens, vocabulary.user_defined)
    return library


def _piece(text: str, kind: int, special_tokens: SpecialTokens) -> str:
    return special_tokens.names.get(text, text) if kind in (TokenType.CONTROL, TokenType.UNKNOWN) else text


def _read_character_map(vocabulary: GgufVocabulary) -> bytes:
    """The map's bytes, which files hold as signed or unsigned integers."""
    if not vocabulary.reader.has(_CHARACTER_MAP):
        return b""
    values = vocabulary.reader.int_list(_CHARACTER_MAP, minimum=-128, maximum=255)
    content = bytes(value & 0xFF for value in values)
    # The library panics on a map that says it is longer than it is: four bytes of length, then the trie.
    if len(content) < 4 or int.from_bytes(content[:4], "little") + 4 > len(content):
        raise CheckpointError(f"{_CHARACTER_MAP} is cut off", path=vocabulary.reader.where)
    return content
