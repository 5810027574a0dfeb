"""tokenizer.ggml.model = llama: SentencePiece BPE, whose merges are implied by the pieces' scores.

SentencePiece joins, again and again, the two neighbouring symbols whose concatenation is the piece of highest score,
the leftmost where scores are equal (Kudo and Richardson 2018; sentencepiece src/bpe_model.cc). The `tokenizers` library
joins by a list of pairs, so every split of a piece into two others becomes a pair, ordered by the piece's score, the
way Hugging Face converts these models. Both give the same tokens except where neighbouring joins of equal score
overlap, as in a run of one character: the library prefers one pair everywhere, SentencePiece the leftmost place. Within
a piece, pairs with the longer left part come first, which is what leftmost joining leaves of a run.

Two more differences, of no published model: SentencePiece would join through characters that are no piece themselves,
and takes pieces marked unused apart again after joining.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import tokenizers
from tokenizers import models, normalizers, pre_tokenizers

from poot.engine.checkpoint.types import Checkpoint
from poot.engine.text.gguf_vocabulary import KEY, GgufVocabulary, TokenType, read_gguf_vocabulary
from poot.engine.text.library import add_tokens, build, library_vocabulary
from poot.engine.text.special import SpecialTokens
from poot.engine.text.tokenizer import TokenizerParts
from poot.engine.text.vocabulary import WORD_START, PieceStyle, Vocabulary

# What the format says where the file does not (llama.cpp src/llama-vocab.cpp, the vocabulary of Llama 1 and 2).
DEFAULT_BOS_ID = 1
DEFAULT_EOS_ID = 2
DEFAULT_UNKNOWN_ID = 0

# More characters than this before a "▁" inside pieces, and cutting a text into words would gain nothing.
MAX_WORD_ENDS = 64


def read_gguf_spm(checkpoint: Checkpoint) -> TokenizerParts:
    """A SentencePiece BPE tokenizer from GGUF metadata.

    Raises:
        CheckpointError: the vocabulary is malformed.
    """
    vocabulary = read_gguf_vocabulary(checkpoint)
    where = vocabulary.reader.where
    special_tokens = build(lambda: SpecialTokens(vocabulary.special, vocabulary.user_defined), where=where)
    library = build(lambda: _build_library(vocabulary, special_tokens), where=where)
    bos_id = vocabulary.special_id("bos", DEFAULT_BOS_ID)
    eos_id = vocabulary.special_id("eos", DEFAULT_EOS_ID)
    return TokenizerParts(
        library=library,
        vocabulary=Vocabulary(
            vocabulary.tokens,
            PieceStyle.SENTENCEPIECE,
            special_ids=vocabulary.special.values(),
            literal_ids=vocabulary.user_defined.values(),
        ),
        special_tokens=special_tokens,
        prefix_ids=vocabulary.added("bos", True, bos_id),
        suffix_ids=vocabulary.added("eos", False, eos_id),
        bos_id=bos_id,
        eos_ids=vocabulary.end_ids(DEFAULT_EOS_ID),
        variables=vocabulary.variables(bos=DEFAULT_BOS_ID, eos=DEFAULT_EOS_ID, unknown=DEFAULT_UNKNOWN_ID),
    )


def _build_library(vocabulary: GgufVocabulary, special_tokens: SpecialTokens) -> tokenizers.Tokenizer:
    scores = vocabulary.reader.float_list(f"{KEY}scores", length=len(vocabulary.tokens))
    unknown_id = vocabulary.special_id("unknown", DEFAULT_UNKNOWN_ID)
    unknown = None if unknown_id is None else vocabulary.tokens[unknown_id]
    model = models.BPE(
        vocab=library_vocabulary(vocabulary.ids, special_tokens),
        merges=derive_merges(vocabulary.tokens, vocabulary.types, scores),
        unk_token=None if unknown is None else special_tokens.names.get(unknown, unknown),
        fuse_unk=True,
        byte_fallback=True,
    )
    library = tokenizers.Tokenizer(model)
    escape = normalizers.Replace(" ", WORD_START)
    if vocabulary.reader.optional_bool(f"{KEY}add_space_prefix", True):
        # At the start of a text and after every added token, as in llama.cpp.
        library.normalizer = normalizers.Sequence([normalizers.Prepend(WORD_START), escape])
    else:
        library.normalizer = escape
    words = _word_pattern(vocabulary.tokens, vocabulary.types)
    if words is not None:
        library.pre_tokenizer = pre_tokenizers.Split(tokenizers.Regex(words), "merged_with_next")
    add_tokens(library, special_tokens, vocabulary.user_defined, stripping=vocabulary.stripping)
    return library


def derive_merges(tokens: Sequence[str], types: Sequence[int], scores: Sequence[float]) -> list[tuple[str, str]]:
    """Every pair of pieces whose concatenation is a piece, highest score first.

    Added tokens take no part: they are matched before any joining, and no text may grow into one.
    """
    mergeable = {token for token, kind in zip(tokens, types, strict=True) if kind in _MERGEABLE_TYPES}
    ranked = sorted(
        (index for index, token in enumerate(tokens) if len(token) > 1 and token in mergeable),
        key=lambda index: -scores[index],
    )
    merges: list[tuple[str, str]] = []
    for index in ranked:
        token = tokens[index]
        for cut in range(len(token) - 1, 0, -1):
            left = token[:cut]
            if left in mergeable and (right := token[cut:]) in mergeable:
                merges.append((left, right))
    return merges


_MERGEABLE_TYPES = frozenset({TokenType.NORMAL, TokenType.UNUSED})


def _word_pattern(tokens: Sequence[str], types: Sequence[int]) -> str | None:
    """Where a text may be cut without changing its tokens, as the first character of a word; None for nowhere.

    No piece joins across a "▁" that follows a character which no piece has before a "▁". Cutting there lets the
    library remember whole words, and keeps its work on a long text linear.
    """
    inside: set[str] = set()
    for token, kind in zip(tokens, types, strict=True):
        if kind in _MERGEABLE_TYPES and WORD_START in token[1:]:
            inside.update(before for before, after in pairwise(token) if after == WORD_START)
    inside.add(WORD_START)  # a run of spaces stays whole
    if len(inside) > MAX_WORD_ENDS:
        return None
    members = "".join(f"\\x{{{ord(character):x}}}" for character in sorted(inside))
    return f"(?<![{members}]){WORD_START}"
