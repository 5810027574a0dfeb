"""Small checkpoints for the tests of tokenizers: trained here, in the layout of each file format."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import sentencepiece
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from poot.engine.checkpoint.types import Checkpoint, FileFormat
from poot.engine.text import Tokenizer, load_tokenizer

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")

CORPUS = (
    "The quick brown fox jumps over the lazy dog, and the dog doesn't mind.",
    "Pack my box with five dozen liquor jugs; don't drop them!",
    "A naïve café owner in München sold 12345 crêpes for 99.95 each.",
    "東京タワーは東京都港区にある。東京は大きい。",
    "def main():\n    for i in range(10):\n        print(i)\n\n\nmain()",
    "<think> the answer is </think> 42 🙂🙂",
    "   indented   text\twith\ttabs  and  double  spaces ....",
    "aaaa aaaaaa aa aaaaaaaa ======== ---- ....",
)


def gguf_checkpoint(metadata: Mapping[str, Any], chat_template: str | None = None) -> Checkpoint:
    """A checkpoint as GGUF's reader makes it, of `tokenizer.ggml.` keys alone."""
    config = {f"tokenizer.ggml.{key}": value for key, value in metadata.items()}
    return Checkpoint(
        path=Path("model.gguf"),
        file_format=FileFormat.GGUF,
        architecture="llama",
        config=config,
        tensors={},
        chat_template=chat_template,
    )


def hub_checkpoint(
    library: tokenizers.Tokenizer | str,
    *,
    tokenizer_config: Mapping[str, Any] | None = None,
    config: Mapping[str, Any] | None = None,
    generation_config: Mapping[str, Any] | None = None,
) -> Checkpoint:
    """A checkpoint as the directory reader makes it, around one tokenizer.json."""
    return Checkpoint(
        path=Path("model"),
        file_format=FileFormat.SAFETENSORS,
        architecture="LlamaForCausalLM",
        config=config or {},
        tensors={},
        tokenizer_json=library if isinstance(library, str) else library.to_str(),
        tokenizer_config=tokenizer_config or {},
        generation_config=generation_config or {},
    )


def train_byte_level(
    *, special: Sequence[str] = SPECIAL, ordinary: Sequence[str] = (), vocab_size: int = 600
) -> tokenizers.Tokenizer:
    """A byte-level BPE tokenizer that cuts as GPT-2 does, special tokens first in the vocabulary."""
    library = tokenizers.Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(special),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    library.train_from_iterator(CORPUS, trainer)
    library.add_tokens([tokenizers.AddedToken(text, normalized=False) for text in ordinary])
    return library


def byte_level_metadata(library: tokenizers.Tokenizer, **changes: Any) -> dict[str, Any]:
    """The GGUF keys of a byte-level BPE tokenizer, as convert_hf_to_gguf.py writes them."""
    content = json.loads(library.to_str())
    ids = library.get_vocab(with_added_tokens=True)
    types = [1] * len(ids)
    for added in content["added_tokens"]:
        types[added["id"]] = 3 if added["special"] else 4
    return {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": sorted(ids, key=lambda text: ids[text]),
        "token_type": types,
        "merges": [" ".join(merge) for merge in content["model"]["merges"]],
        **changes,
    }


def train_sentencepiece(
    *, add_dummy_prefix: bool, user_defined: Sequence[str] = (), vocab_size: int = 420
) -> sentencepiece.SentencePieceProcessor:
    """A SentencePiece BPE model with bytes to fall back on, as Llama's and Gemma's."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS * 3),
        model_writer=model,
        model_type="bpe",
        vocab_size=vocab_size,
        byte_fallback=True,
        character_coverage=1.0,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        add_dummy_prefix=add_dummy_prefix,
        user_defined_symbols=list(user_defined),
        minloglevel=2,
    )
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())


def sentencepiece_metadata(
    processor: sentencepiece.SentencePieceProcessor, *, user_defined: Sequence[str] = (), **changes: Any
) -> dict[str, Any]:
    """The GGUF keys of a SentencePiece model; user-defined pieces hold plain spaces there."""
    tokens, scores, types = [], [], []
    for token_id in range(processor.vocab_size()):
        piece = processor.id_to_piece(token_id)
        kind = 1
        if processor.is_unknown(token_id):
            kind = 2
        elif processor.is_control(token_id):
            kind = 3
        elif processor.is_byte(token_id):
            kind = 6
        elif piece in user_defined:
            kind, piece = 4, piece.replace("▁", " ")
        tokens.append(piece)
        scores.append(processor.get_score(token_id))
        types.append(kind)
    return {
        "model": "llama",
        "tokens": tokens,
        "scores": scores,
        "token_type": types,
        "bos_token_id": processor.bos_id(),
        "eos_token_id": processor.eos_id(),
        "unknown_token_id": processor.unk_id(),
        **changes,
    }


def train_wordpiece(*, lowercase: bool = True) -> tokenizers.Tokenizer:
    """BERT's tokenizer, small."""
    library = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    library.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    library.decoder = decoders.WordPiece()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    library.train_from_iterator(
        CORPUS, trainers.WordPieceTrainer(vocab_size=300, special_tokens=special, show_progress=False)
    )
    library.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return library


def wordpiece_metadata(library: tokenizers.Tokenizer, **changes: Any) -> dict[str, Any]:
    """The GGUF keys of BERT's tokenizer: beginnings of words marked instead of continuations."""
    ids = library.get_vocab(with_added_tokens=True)
    tokens = []
    for text in sorted(ids, key=lambda text: ids[text]):
        if text.startswith("##"):
            tokens.append(text[2:])
        else:
            tokens.append(text if ids[text] < 5 else f"▁{text}")
    return {
        "model": "bert",
        "tokens": tokens,
        "token_type": [3] * 5 + [1] * (len(tokens) - 5),
        "bos_token_id": 2,
        "seperator_token_id": 3,
        "unknown_token_id": 1,
        "padding_token_id": 0,
        "mask_token_id": 4,
        **changes,
    }


def chat_tokenizer(ordinary: Sequence[str] = ()) -> Tokenizer:
    """A byte-level tokenizer with ChatML's tokens: ids 0 to 2 are SPECIAL."""
    metadata = byte_level_metadata(train_byte_level(ordinary=ordinary), bos_token_id=1, eos_token_id=2)
    return load_tokenizer(gguf_checkpoint(metadata))
