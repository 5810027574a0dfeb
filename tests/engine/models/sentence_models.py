"""Small decoders with a tokenizer, as embedders and rerankers are saved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
import torch
import transformers
from sentence_transformers import SentenceTransformer
from tokenizers import decoders, models, pre_tokenizers, processors, trainers

from poot.engine.checkpoint import open_checkpoint
from poot.engine.models.served import ServedModel, load_served
from poot.engine.text import load_tokenizer
from tests.engine.models.encode_pass import run_pass
from tests.engine.text.makers import CORPUS
from tests.fakes.reference_device import ReferenceDevice

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
VOCAB_SIZE = 520
TEXTS = [CORPUS[1], "a", CORPUS[0], CORPUS[3], CORPUS[2] * 2]

QWEN3 = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
}


def make_tokenizer(*, adds_end: bool = False) -> transformers.PreTrainedTokenizerFast:
    """Qwen's kind of tokenizer, small, in which "yes" and "no" are tokens; Qwen3-Embedding's adds <|endoftext|>."""
    library = tokenizers.Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    library.train_from_iterator([*CORPUS, *["yes", "no"] * 50], trainer)
    if adds_end:
        library.post_processor = processors.TemplateProcessing(
            single="$A <|endoftext|>", pair="$A $B <|endoftext|>", special_tokens=[("<|endoftext|>", 0)]
        )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=library, pad_token="<|endoftext|>", eos_token="<|im_end|>", padding_side="left"
    )


def randomized(model: Any, seed: int = 1) -> Any:
    """`model` with weights far larger than transformers' own, so that a wrong step shows."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(1 + 0.3 * noise if "norm" in name else noise / parameter.shape[-1] ** 0.5)
    return model.float().eval()


def save(model: Any, tokenizer: transformers.PreTrainedTokenizerFast, folder: Path) -> Path:
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def load(folder: Path, *, max_seq: int = 512) -> ServedModel:
    checkpoint = open_checkpoint(folder)
    return load_served(checkpoint, ReferenceDevice(), tokenizer=load_tokenizer(checkpoint), max_seq=max_seq)


def embeddings(served: ServedModel, texts: list[str], *, prompt: str | None = None) -> torch.Tensor:
    """Normalized embeddings of `texts` in one pass, as the API would ask for them."""
    encoder = served.text_encoder(served.model_limit)
    found = encoder.texts(texts, prompt=prompt, max_tokens=served.model_limit)
    return torch.nn.functional.normalize(run_pass(served.encode_forward, found, encoder.profile.pooling), dim=-1)


def logits(served: ServedModel, query: str, documents: list[str]) -> torch.Tensor:
    """Logits `[num_documents]` of the query with each document."""
    encoder = served.text_encoder(served.model_limit)
    pairs = encoder.pairs(query, documents, max_tokens=served.model_limit)
    return run_pass(served.encode_forward, pairs, encoder.profile.pooling)[:, 0]


def reference(model: SentenceTransformer, texts: list[str], **options: Any) -> torch.Tensor:
    """sentence-transformers' own embeddings, normalized."""
    return torch.from_numpy(np.asarray(model.encode(texts, normalize_embeddings=True, **options)))
