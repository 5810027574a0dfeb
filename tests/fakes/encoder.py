"""A text side of embeddings and scores in which every byte is a token, and vectors that a test can work out by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from poot.engine.encoding import EncodeProfile, EncodeText, FloatArray, Pooling
from poot.errors import BadRequest

START, SEPARATOR = 256, 257
"""Before every text, and between a query and a document."""

EMBEDDER = EncodeProfile(embeds=True, dim=3, max_tokens=20, pooling=Pooling.MEAN)
CROSS_ENCODER = EncodeProfile(embeds=False, dim=1, max_tokens=20, pooling=Pooling.CLS)

VectorOf = Callable[[EncodeText], Sequence[float]]


class FakeTextEncoder:
    """`TextEncoder` over UTF-8 bytes."""

    def __init__(self, profile: EncodeProfile = EMBEDDER, **changes: object) -> None:
        self.profile = replace(profile, **changes)  # type: ignore[arg-type]  # fields by name

    def texts(
        self, texts: Sequence[str], *, prompt: str | None = None, max_tokens: int | None = None
    ) -> list[EncodeText]:
        return [_text([START, *((prompt or "") + text).encode()][:max_tokens]) for text in texts]

    def tokens(self, token_ids: Sequence[int], *, max_tokens: int | None = None) -> EncodeText:
        if any(not 0 <= token_id <= SEPARATOR for token_id in token_ids):
            raise BadRequest("no such token", param="input")
        return _text(token_ids[:max_tokens])

    def pairs(
        self,
        query: str,
        documents: Sequence[str],
        *,
        max_tokens_per_document: int | None = None,
        max_tokens: int | None = None,
    ) -> list[EncodeText]:
        return [
            _text([START, *query.encode(), SEPARATOR, *document.encode()[:max_tokens_per_document]][:max_tokens])
            for document in documents
        ]


def _text(token_ids: Sequence[int]) -> EncodeText:
    return EncodeText(np.array(token_ids, np.int64))


def sum_and_length(text: EncodeText) -> Sequence[float]:
    """A vector of an embedder's three features."""
    return (float(text.token_ids.sum()), text.num_tokens, 1.0)


def vectors(texts: Sequence[EncodeText], vector_of: VectorOf) -> FloatArray:
    return np.array([vector_of(text) for text in texts], np.float32)
