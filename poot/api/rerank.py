"""POST /v1/rerank and /rerank: how well each document answers a query.

A cross-encoder reads the query with each document and gives a score. With a model that embeds, the score is the cosine
of the query's embedding and the document's, each with the model's own prompt for it.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Any

import anyio
import anyio.to_thread
import numpy as np

from poot.api.answer import INLINE_BODY_BYTES, PREPARE_THREADS
from poot.api.gate import RouteMatch
from poot.api.limits import Places
from poot.api.responses import json_response
from poot.api.schema.rerank import RerankRequest, decode_rerank
from poot.api.served import ServedEngine
from poot.engine.encoding import EncodeText, FloatArray, TextEncoder, finish, score
from poot.errors import ContextLengthExceeded, UnsupportedCapability
from poot.net.exchange import Exchange


@dataclass(frozen=True, kw_only=True, slots=True)
class PreparedRerank:
    """Everything one request asks of the engine.

    Attributes:
        texts: a pair for each document; of a model that embeds, the query and then the documents.
    """

    request: RerankRequest
    documents: list[str]
    texts: list[EncodeText]

    @property
    def num_tokens(self) -> int:
        return sum(text.num_tokens for text in self.texts)


class RerankEndpoint:
    """The handler of both routes.

    Args:
        receiving: the places for requests that read their body.
    """

    def __init__(self, engine: ServedEngine, receiving: Places) -> None:
        self._engine = engine
        self._receiving = receiving
        self._threads = anyio.CapacityLimiter(PREPARE_THREADS)

    async def __call__(self, exchange: Exchange, match: RouteMatch) -> int:
        with self._receiving.hold():
            body = await exchange.read_body(match.route.max_body_bytes)
        engine = self._engine
        if len(body) <= INLINE_BODY_BYTES:
            prepared = prepare(body, engine)
        else:
            # Changes nothing outside itself, so a client that went away need not be waited for.
            prepared = await anyio.to_thread.run_sync(
                prepare, body, engine, abandon_on_cancel=True, limiter=self._threads
            )
        assert engine.encoder is not None
        exchange.annotate(prompt_tokens=prepared.num_tokens)
        vectors = await engine.encode(prepared.texts, engine.encoder.profile.pooling)
        scores = relevance(vectors, engine.encoder, is_raw=bool(prepared.request.raw_scores))
        await exchange.send(json_response(answer(prepared, scores, engine.model.model_id)))
        return 200


def prepare(body: bytes, engine: ServedEngine) -> PreparedRerank:
    """What the body of a request asks of the engine.

    Raises:
        BadRequest, NotFound: as `decode_rerank` says.
        UnsupportedCapability: the model neither embeds nor scores.
        ContextLengthExceeded: a text is longer than the model reads, and `truncate` is not set.
    """
    request = decode_rerank(body, engine.model.model_id)
    encoder = engine.encoder
    if encoder is None:
        raise UnsupportedCapability("this model neither embeds nor scores texts")
    documents = request.document_texts
    texts = _embedded(request, documents, encoder) if encoder.profile.embeds else _paired(request, documents, encoder)
    limit = encoder.profile.max_tokens
    name, offset = request.documents_name, len(texts) - len(documents)
    for index, text in enumerate(texts):
        if text.num_tokens > limit:
            param = "query" if index < offset else f"{name}[{index - offset}]"
            what = "with the query" if offset == 0 else "with special tokens"
            raise ContextLengthExceeded(
                f"{param} has {text.num_tokens} tokens {what}; this model reads at most {limit} "
                "(truncate: true cuts it)",
                param=param,
            )
    return PreparedRerank(request=request, documents=documents, texts=texts)


def _paired(request: RerankRequest, documents: list[str], encoder: TextEncoder) -> list[EncodeText]:
    return encoder.pairs(
        request.query,
        documents,
        max_tokens_per_document=request.max_tokens_per_doc,
        max_tokens=encoder.profile.max_tokens if request.truncate else None,
    )


def _embedded(request: RerankRequest, documents: list[str], encoder: TextEncoder) -> list[EncodeText]:
    profile = encoder.profile
    limit = profile.max_tokens if request.truncate else None
    document_limit = request.max_tokens_per_doc if limit is None else min(limit, request.max_tokens_per_doc or limit)
    query_prompt, document_prompt = (
        None if name is None else profile.prompts[name] for name in (profile.query_prompt, profile.document_prompt)
    )
    return [
        *encoder.texts([request.query], prompt=query_prompt, max_tokens=limit),
        *encoder.texts(documents, prompt=document_prompt, max_tokens=document_limit),
    ]


def relevance(vectors: FloatArray, encoder: TextEncoder, *, is_raw: bool) -> FloatArray:
    """A score for each document, f32 `[num_documents]`.

    Args:
        vectors: as `Engine.encode` gives them for `PreparedRerank.texts`.
        is_raw: a cross-encoder's logit, before its activation. A cosine has no other form.
    """
    profile = encoder.profile
    if not profile.embeds:
        logits = vectors[:, 0]
        return logits if is_raw else score(logits, profile.activation)
    normalized = finish(vectors, dimensions=None, normalize=True)
    cosines: FloatArray = normalized[1:] @ normalized[0]
    return cosines


def answer(prepared: PreparedRerank, scores: FloatArray, model_id: str) -> Any:
    """The answer's JSON, most relevant first, ties by index: a bare list for text-embeddings-inference's dialect, an
    object that Cohere's and Jina's clients both read for all others."""
    request, documents = prepared.request, prepared.documents
    order = np.argsort(-scores, kind="stable")[: request.top_n].tolist()
    values = scores.tolist()
    if request.is_tei:
        return [
            {"index": index, "score": values[index], **({"text": documents[index]} if request.returns_text else {})}
            for index in order
        ]
    results = [
        {
            "index": index,
            "relevance_score": values[index],
            **({"document": {"text": documents[index]}} if request.returns_text else {}),
        }
        for index in order
    ]
    num_tokens = prepared.num_tokens
    return {
        "id": f"rerank-{uuid.uuid4().hex}",
        "object": "list",
        "model": model_id,
        "results": results,
        "usage": {"prompt_tokens": num_tokens, "total_tokens": num_tokens},
        "meta": {"api_version": {"version": "2"}, "tokens": {"input_tokens": num_tokens, "output_tokens": 0}},
    }
