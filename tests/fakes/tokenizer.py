"""A tokenizer without a file: ids 0 to 255 are the bytes themselves, then a few special tokens."""

from __future__ import annotations

import tokenizers
from tokenizers import models, pre_tokenizers

from poot.engine.text import Tokenizer
from poot.engine.text.library import add_tokens, library_vocabulary
from poot.engine.text.special import SpecialTokens
from poot.engine.text.tokenizer import TokenizerParts
from poot.engine.text.vocabulary import PieceStyle, Vocabulary, byte_level_alphabet

SPECIAL = {"<s>": 256, "</s>": 257, "<|user|>": 258, "<|assistant|>": 259, "<|system|>": 260}
BOS_ID, EOS_ID = 256, 257
VOCAB_SIZE = 261

TEMPLATE = (
    "{% for message in messages %}"
    "{% if message.content == 'refuse me' %}{{ raise_exception('the template says no') }}{% endif %}"
    "<|{{ message.role }}|>{{ message.content }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def byte_tokenizer(*, adds_bos: bool = False) -> Tokenizer:
    """The tokenizer; `encode("ab", ...)` is [97, 98], behind BOS_ID when `adds_bos`."""
    alphabet = byte_level_alphabet()
    ids = {alphabet[byte]: byte for byte in range(256)} | SPECIAL
    special_tokens = SpecialTokens(SPECIAL, {})
    library = tokenizers.Tokenizer(models.BPE(vocab=library_vocabulary(ids, special_tokens), merges=[]))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    add_tokens(library, special_tokens, {})
    pieces: list[str | None] = [*(alphabet[byte] for byte in range(256)), *SPECIAL]
    vocabulary = Vocabulary(pieces, PieceStyle.BYTE_LEVEL, special_ids=SPECIAL.values(), literal_ids=())
    return Tokenizer(
        TokenizerParts(
            library=library,
            vocabulary=vocabulary,
            special_tokens=special_tokens,
            prefix_ids=(BOS_ID,) if adds_bos else (),
            bos_id=BOS_ID,
            eos_ids=frozenset({EOS_ID}),
        )
    )
