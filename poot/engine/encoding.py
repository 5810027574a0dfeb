"""What embedding and reranking share below HTTP: texts as tokens, what a model makes of them, and the last steps.

    text ── TextEncoder ──▶ EncodeText ── Engine.encode ──▶ vectors ── finish ──▶ an embedding
                                                              └──── score ──▶ a relevance score

No torch here and nothing async.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

import numpy as np

from poot.devices.base import FloatArray, LongArray
from poot.devices.encode import Pooling

__all__ = [
    "EncodeProfile",
    "EncodeText",
    "FloatArray",
    "Pooling",
    "ScoreActivation",
    "TextEncoder",
    "finish",
    "score",
]


class ScoreActivation(Enum):
    """What a cross-encoder's config makes of its logit."""

    IDENTITY = "identity"
    SIGMOID = "sigmoid"


@dataclass(frozen=True, slots=True)
class EncodeText:
    """One text (or query and document) ready for the device.

    Attributes:
        token_ids: int64 `[num_tokens]`, special tokens included, at least one.
        token_types: int64 `[num_tokens]`, or None where all are 0.
        pool_start: first token that a mean takes in; 0 unless the model leaves an instruction out.
    """

    token_ids: LongArray
    token_types: LongArray | None = None
    pool_start: int = 0

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)


@dataclass(frozen=True, kw_only=True, slots=True)
class EncodeProfile:
    """What one served model does with texts.

    Attributes:
        embeds: whether `Engine.encode` gives embeddings; a cross-encoder gives one logit a pair instead.
        dim: features of a vector (1 for a cross-encoder).
        max_tokens: most tokens of a text, special tokens included: the model's own limit, capped by --max-seq as
            settled by the plan.
        pooling: the model's own; what a request that names none gets.
        dimensions: shorter lengths the config declares (Matryoshka); empty where it declares none. See
            `any_dimension`.
        any_dimension: the config says that vectors may be cut anywhere up to `dim`.
        prompts: named instructions put before a text (config_sentence_transformers.json).
        default_prompt: the one of `prompts` that a request that names none gets, or None.
        query_prompt, document_prompt: the ones of `prompts` that reranking with a bi-encoder uses, or None.
        activation: of a cross-encoder's score.
    """

    embeds: bool
    dim: int
    max_tokens: int
    pooling: Pooling
    dimensions: tuple[int, ...] = ()
    any_dimension: bool = False
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str | None = None
    query_prompt: str | None = None
    document_prompt: str | None = None
    activation: ScoreActivation = ScoreActivation.SIGMOID


class TextEncoder(Protocol):
    """A model's texts as tokens. Every method may be called from any thread and holds it for about 0.5 s a MiB."""

    @property
    def profile(self) -> EncodeProfile: ...

    def texts(
        self, texts: Sequence[str], *, prompt: str | None = None, max_tokens: int | None = None
    ) -> list[EncodeText]:
        """Each text with the special tokens the model expects, `prompt` (an instruction, not its name) before it.

        Args:
            max_tokens: cut the content of longer texts to this many tokens, special tokens included; None cuts
                nothing, and the caller checks lengths.

        Raises:
            BadRequest: a text holds a lone surrogate; `param` names no item.
        """

    def tokens(self, token_ids: Sequence[int], *, max_tokens: int | None = None) -> EncodeText:
        """A client's own token ids as they are; nothing is added. Cut at the end where `max_tokens` says so.

        Raises:
            BadRequest: an id outside the vocabulary.
        """

    def pairs(
        self,
        query: str,
        documents: Sequence[str],
        *,
        max_tokens_per_document: int | None = None,
        max_tokens: int | None = None,
    ) -> list[EncodeText]:
        """The query with each document, as a cross-encoder was trained to read them. Only where not `profile.embeds`.

        Args:
            max_tokens_per_document: cut each document to this many tokens before it is joined.
            max_tokens: cut documents (never the query) until a pair fits; None cuts nothing.

        Raises:
            BadRequest: a lone surrogate; a query that alone leaves no room under `max_tokens`.
        """


def finish(vectors: FloatArray, *, dimensions: int | None, normalize: bool) -> FloatArray:
    """Embeddings as a client gets them: cut to `dimensions`, then of length 1 where `normalize`.

    Args:
        vectors: f32 `[num_texts, dim]`.

    Returns:
        f32 `[num_texts, dimensions]`, contiguous. A vector of zeros stays zeros.
    """
    cut = vectors if dimensions is None else vectors[:, :dimensions]
    if not normalize:
        return np.ascontiguousarray(cut)
    # As torch.nn.functional.normalize, which sentence-transformers uses: the length is at least 1e-12.
    lengths = np.maximum(np.linalg.norm(cut, axis=1, keepdims=True), np.float32(1e-12))
    return np.ascontiguousarray(cut / lengths, np.float32)


def score(logits: FloatArray, activation: ScoreActivation) -> FloatArray:
    """Relevance scores of a cross-encoder's logits, f32, any shape."""
    if activation is ScoreActivation.IDENTITY:
        return logits
    # exp of the negative magnitude never overflows.
    small = np.exp(-np.abs(logits))
    return np.asarray(np.where(logits >= 0, 1, small) / (1 + small), np.float32)
