"""Fill-in-the-middle: the tokens by which a model is told what stands before and after the text it is to write.

Bavarian et al. 2022, "Efficient Training of Language Models to Fill in the Middle": documents are cut in three and
reordered. The order here is prefix, suffix, middle ("PSM"), which every family below is trained with.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from poot.engine.text.fim_tokens import FimTokens
from poot.engine.text.tokenizer import Tokenizer

# How families name (before the prefix, before the suffix, before the middle).
_NAMES = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen coder, CodeGemma
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder, Granite code
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),  # SantaCoder
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),  # DeepSeek coder
    ("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"),  # GLM
    ("▁<PRE>", "▁<SUF>", "▁<MID>"),  # Code Llama
)

# Keys of GGUF metadata, the present ones and those before them (gguf-py, constants.py).
_GGUF_KEYS = (
    ("tokenizer.ggml.fim_pre_token_id", "tokenizer.ggml.fim_suf_token_id", "tokenizer.ggml.fim_mid_token_id"),
    ("tokenizer.ggml.prefix_token_id", "tokenizer.ggml.suffix_token_id", "tokenizer.ggml.middle_token_id"),
)


def find_fim_tokens(tokenizer: Tokenizer, config: Mapping[str, Any]) -> FimTokens | None:
    """The model's marks, or None where it has none: those its GGUF metadata name, else by the names of known families.

    Args:
        config: `Checkpoint.config`.
    """
    for keys in _GGUF_KEYS:
        ids = [config.get(key) for key in keys]
        named = [token_id for token_id in ids if isinstance(token_id, int) and 0 <= token_id < tokenizer.vocab_size]
        if len(named) == len(keys):
            return FimTokens(*named)
    for names in _NAMES:
        found = [token_id for token_id in map(tokenizer.token_id, names) if token_id is not None]
        if len(found) == len(names):
            return FimTokens(*found)
    return None
