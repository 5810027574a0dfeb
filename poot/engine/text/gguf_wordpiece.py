"""tokenizer.ggml.model = bert: WordPiece, laid out with "▁" before beginnings instead of "##" before continuations."""

from __future__ import annotations

import tokenizers
from tokenizers import models, normalizers, pre_tokenizers

from poot.engine.checkpoint.types import Checkpoint
from poot.engine.text.gguf_vocabulary import KEY, GgufVocabulary, TokenType, read_gguf_vocabulary
from poot.engine.text.library import add_tokens, build, library_vocabulary
from poot.engine.text.special import NAME_START, SpecialTokens
from poot.engine.text.tokenizer import PairSurroundings, TokenizerParts
from poot.engine.text.vocabulary import WORD_START, PieceStyle, Vocabulary
from poot.errors import CheckpointError

# What the format says where the file does not: the ids of Google's BERT vocabularies (llama.cpp src/llama-vocab.cpp).
DEFAULT_IDS = {"bos": 101, "unknown": 100, "seperator": 102, "padding": 0, "mask": 103}

# BERT's own limit; a longer word is unknown (google-research/bert tokenization.py).
MAX_WORD_CHARACTERS = 100


def read_gguf_wordpiece(checkpoint: Checkpoint) -> TokenizerParts:
    """A WordPiece tokenizer from GGUF metadata: [CLS] text [SEP], and [CLS] first [SEP] second [SEP] for a pair.

    The second text and the [SEP] after it have token type 1, as BERT was trained; llama.cpp knows type 0 alone.

    Raises:
        CheckpointError: the vocabulary is malformed or names no unknown token.
    """
    vocabulary = read_gguf_vocabulary(checkpoint)
    where = vocabulary.reader.where
    special_tokens = build(lambda: SpecialTokens(vocabulary.special, vocabulary.user_defined), where=where)
    library = build(lambda: _build_library(vocabulary, special_tokens), where=where)
    bos_id = vocabulary.special_id("bos", DEFAULT_IDS["bos"])
    separator_id = vocabulary.special_id("seperator", DEFAULT_IDS["seperator"])
    prefix, suffix = vocabulary.added("bos", True, bos_id), vocabulary.added("sep", True, separator_id)
    return TokenizerParts(
        library=library,
        vocabulary=Vocabulary(
            vocabulary.tokens,
            PieceStyle.WORDPIECE_STARTED,
            special_ids=vocabulary.special.values(),
            literal_ids=vocabulary.user_defined.values(),
        ),
        special_tokens=special_tokens,
        prefix_ids=prefix,
        suffix_ids=suffix,
        pair=PairSurroundings(
            prefix_ids=prefix,
            middle_ids=suffix,
            suffix_ids=suffix,
            prefix_types=(0,) * len(prefix),
            first_type=0,
            middle_types=(0,) * len(suffix),
            second_type=1,
            suffix_types=(1,) * len(suffix),
        ),
        bos_id=bos_id,
        variables=vocabulary.variables(**DEFAULT_IDS),
    )


def _build_library(vocabulary: GgufVocabulary, special_tokens: SpecialTokens) -> tokenizers.Tokenizer:
    unknown_id = vocabulary.special_id("unknown", DEFAULT_IDS["unknown"])
    if unknown_id is None:
        message = f"{KEY}unknown_token_id is missing; WordPiece needs it"
        raise CheckpointError(message, path=vocabulary.reader.where)
    pieces = library_vocabulary(_continuations_marked(vocabulary), special_tokens)
    (unknown,) = (piece for piece, token_id in pieces.items() if token_id == unknown_id)
    model = models.WordPiece(
        vocab=pieces,
        unk_token=unknown,
        max_input_chars_per_word=MAX_WORD_CHARACTERS,
    )
    library = tokenizers.Tokenizer(model)
    lowercase = vocabulary.reader.optional_bool(f"{KEY}normalizer.lowercase", True)
    strip_accents = vocabulary.reader.optional_bool(f"{KEY}normalizer.strip_accents", lowercase)
    library.normalizer = normalizers.BertNormalizer(lowercase=lowercase, strip_accents=strip_accents)
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    add_tokens(library, special_tokens, vocabulary.user_defined)
    return library


def _continuations_marked(vocabulary: GgufVocabulary) -> dict[str, int]:
    """The vocabulary as the library wants it: "word" and "##piece"."""
    pieces: dict[str, int] = {}
    for token_id, text in enumerate(vocabulary.tokens):
        if vocabulary.types[token_id] not in (TokenType.NORMAL, TokenType.UNUSED):
            piece = text
        elif text.startswith(WORD_START):
            piece = text[len(WORD_START) :]
        else:
            piece = f"##{text}"
        if pieces.setdefault(piece, token_id) != token_id:
            pieces[f"{NAME_START}{token_id}"] = (
                token_id  # two spellings of one piece: the first is used, the id stays known
            )
    return pieces
