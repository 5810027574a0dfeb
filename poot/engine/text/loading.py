"""The tokenizer of a checkpoint, whichever form it came in."""

from __future__ import annotations

from poot.engine.checkpoint.fields import quote
from poot.engine.checkpoint.types import Checkpoint, FileFormat
from poot.engine.text.fim import find_fim_tokens
from poot.engine.text.gguf_bpe import read_gguf_bpe
from poot.engine.text.gguf_spm import read_gguf_spm
from poot.engine.text.gguf_unigram import read_gguf_unigram
from poot.engine.text.gguf_vocabulary import KEY
from poot.engine.text.gguf_wordpiece import read_gguf_wordpiece
from poot.engine.text.hf import read_hf_tokenizer
from poot.engine.text.tokenizer import Tokenizer, TokenizerParts
from poot.errors import CheckpointError

_GGUF_READERS = {
    "gpt2": read_gguf_bpe,
    "llama": read_gguf_spm,
    "bert": read_gguf_wordpiece,
    "t5": read_gguf_unigram,
}


def load_tokenizer(checkpoint: Checkpoint) -> Tokenizer:
    """The tokenizer of `checkpoint`: from tokenizer.json, or from GGUF metadata by tokenizer.ggml.model.

    Raises:
        CheckpointError: the tokenizer is absent, malformed, or of a kind poot does not know, which it names.
    """
    tokenizer = Tokenizer(_read_parts(checkpoint))
    tokenizer.fim = find_fim_tokens(tokenizer, checkpoint.config)
    return tokenizer


def _read_parts(checkpoint: Checkpoint) -> TokenizerParts:
    if checkpoint.file_format is FileFormat.SAFETENSORS:
        return read_hf_tokenizer(checkpoint)
    kind = checkpoint.config.get(f"{KEY}model")
    if not isinstance(kind, str) or kind not in _GGUF_READERS:
        known = ", ".join(sorted(_GGUF_READERS))
        message = f"{KEY}model {quote(kind)} is not supported; poot knows {known}"
        raise CheckpointError(message, path=str(checkpoint.path))
    return _GGUF_READERS[kind](checkpoint)
