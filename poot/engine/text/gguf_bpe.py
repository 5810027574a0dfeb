"""tokenizer.ggml.model = gpt2: byte-level BPE with the merges in the file."""

from __future__ import annotations

import tokenizers
from tokenizers import models, normalizers, pre_tokenizers

from poot.engine.checkpoint.fields import quote
from poot.engine.checkpoint.types import Checkpoint
from poot.engine.text.gguf_vocabulary import KEY, GgufVocabulary, read_gguf_vocabulary
from poot.engine.text.library import add_tokens, build, library_vocabulary
from poot.engine.text.pretokenizers import PRETOKENIZERS, Pretokenizer
from poot.engine.text.special import SpecialTokens
from poot.engine.text.tokenizer import TokenizerParts
from poot.engine.text.vocabulary import PieceStyle, Vocabulary
from poot.errors import CheckpointError


def read_gguf_bpe(checkpoint: Checkpoint) -> TokenizerParts:
    """A byte-level BPE tokenizer from GGUF metadata.

    tokenizer.ggml.add_space_prefix is not read, as in llama.cpp: byte-level vocabularies have no such rule.

    Raises:
        CheckpointError: tokenizer.ggml.pre is absent or unknown, or the vocabulary or its merges are malformed.
    """
    vocabulary = read_gguf_vocabulary(checkpoint)
    kind = _read_pretokenizer(vocabulary)
    where = vocabulary.reader.where
    special_tokens = build(lambda: SpecialTokens(vocabulary.special, vocabulary.user_defined), where=where)
    library = build(lambda: _build_library(vocabulary, kind, special_tokens), where=where)
    bos_id = vocabulary.special_id("bos")
    return TokenizerParts(
        library=library,
        vocabulary=Vocabulary(
            vocabulary.tokens,
            PieceStyle.BYTE_LEVEL,
            special_ids=vocabulary.special.values(),
            literal_ids=vocabulary.user_defined.values(),
        ),
        special_tokens=special_tokens,
        prefix_ids=vocabulary.added("bos", kind.adds_bos and bos_id is not None, bos_id),
        suffix_ids=vocabulary.added("eos", False, vocabulary.special_id("eos")),
        bos_id=bos_id,
        eos_ids=vocabulary.end_ids(),
        variables=vocabulary.variables(),
    )


def _read_pretokenizer(vocabulary: GgufVocabulary) -> Pretokenizer:
    key = f"{KEY}pre"
    name = vocabulary.reader.require_str(key)
    if name not in PRETOKENIZERS:
        known = ", ".join(sorted(PRETOKENIZERS))
        message = f"{key} {quote(name)} is not supported; poot knows {known}"
        raise CheckpointError(message, path=vocabulary.reader.where)
    return PRETOKENIZERS[name]


def _build_library(
    vocabulary: GgufVocabulary, kind: Pretokenizer, special_tokens: SpecialTokens
) -> tokenizers.Tokenizer:
    model = models.BPE(
        vocab=library_vocabulary(vocabulary.ids, special_tokens),
        merges=_read_merges(vocabulary),
        ignore_merges=kind.takes_whole_words,
    )
    library = tokenizers.Tokenizer(model)
    if kind.composes:
        library.normalizer = normalizers.NFC()
    splits = [pre_tokenizers.Split(tokenizers.Regex(pattern), "isolated") for pattern in kind.patterns]
    library.pre_tokenizer = pre_tokenizers.Sequence(
        [*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    add_tokens(library, special_tokens, vocabulary.user_defined, stripping=vocabulary.stripping)
    return library


def _read_merges(vocabulary: GgufVocabulary) -> list[tuple[str, str]]:
    """The merges, first applied first. One is written "left right"; a piece never holds a space but at its start."""
    key = f"{KEY}merges"
    merges = []
    for index, merge in enumerate(vocabulary.reader.string_list(key)):
        space = merge.find(" ", 1)
        left, right = merge[:space], merge[space + 1 :]
        if space < 0 or not right:
            message = f"{key}[{index}] is {quote(merge)}; it must be two pieces with a space between"
            raise CheckpointError(message, path=vocabulary.reader.where)
        merges.append((left, right))
    return merges
