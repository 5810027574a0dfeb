"""POST /v1/embeddings: texts in, vectors out, in OpenAI's shape."""

from __future__ import annotations

import base64
from dataclasses import dataclass

import anyio
import anyio.to_thread
import numpy as np

from poot.api.answer import INLINE_BODY_BYTES, PREPARE_THREADS
from poot.api.frames import encode
from poot.api.gate import RouteMatch
from poot.api.limits import Places
from poot.api.responses import JSON_CONTENT_TYPE
from poot.api.schema.embeddings import WHOLE_MODEL, EmbeddingRequest, decode_embeddings
from poot.api.served import ServedEngine
from poot.engine.encoding import EncodeProfile, EncodeText, FloatArray, Pooling, TextEncoder, finish
from poot.errors import BadRequest, ContextLengthExceeded, UnsupportedCapability
from poot.net.exchange import Exchange, Response

INLINE_VALUES = 16 * 1024
"""Vectors of up to so many numbers are written on the event loop, in up to about 2 ms as decimals."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PreparedEmbeddings:
    """Everything one request asks of the engine."""

    request: EmbeddingRequest
    texts: list[EncodeText]
    pooling: Pooling

    @property
    def num_tokens(self) -> int:
        return sum(text.num_tokens for text in self.texts)


class EmbeddingsEndpoint:
    """The handler of the route.

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
        exchange.annotate(texts=len(prepared.texts), prompt_tokens=prepared.num_tokens)
        vectors = await engine.encode(prepared.texts, prepared.pooling)
        if vectors.size <= INLINE_VALUES:
            answered = answer(prepared, vectors, engine.model.model_id)
        else:
            answered = await anyio.to_thread.run_sync(
                answer, prepared, vectors, engine.model.model_id, abandon_on_cancel=True, limiter=self._threads
            )
        headers = ((b"content-type", JSON_CONTENT_TYPE),)
        await exchange.send(Response(status=200, headers=headers, body=answered))
        return 200


def prepare(body: bytes, engine: ServedEngine) -> PreparedEmbeddings:
    """What the body of a request asks of the engine.

    Raises:
        BadRequest, NotFound: as `decode_embeddings` says; a prompt or a number of dimensions the model does not have.
        UnsupportedCapability: the model gives no embeddings.
        ContextLengthExceeded: an input is longer than the model reads, and the request does not say to cut it.
    """
    request = decode_embeddings(body, engine.model.model_id)
    encoder = engine.encoder
    if encoder is None:
        raise UnsupportedCapability(f"this model gives no embeddings (its task is {engine.model.task})")
    if not encoder.profile.embeds:
        raise UnsupportedCapability("this model scores pairs of texts and gives no embeddings; use /v1/rerank")
    profile = encoder.profile
    _check_dimensions(request, profile)
    texts = _texts(request, encoder)
    for index, text in enumerate(texts):
        param = request.param_of(index)
        if text.num_tokens > profile.max_tokens:
            raise ContextLengthExceeded(
                f"{param} has {text.num_tokens} tokens with special tokens; this model reads at most "
                f"{profile.max_tokens} (truncate: true cuts it)",
                param=param,
            )
    pooling = profile.pooling if request.pooling is None else Pooling(request.pooling)
    return PreparedEmbeddings(request=request, texts=texts, pooling=pooling)


def _texts(request: EmbeddingRequest, encoder: TextEncoder) -> list[EncodeText]:
    inputs = request.inputs
    limit = _limit(request, encoder.profile)
    texts = [item for item in inputs if isinstance(item, str)]
    if texts:
        prompt = _prompt(request, encoder.profile)
        try:
            return encoder.texts(texts, prompt=prompt, max_tokens=limit)
        except BadRequest as error:
            param = _param_at_fault(request, encoder, texts, prompt)
            raise BadRequest(f"{param}: {error.message}", param=param) from error
    found = []
    for index, item in enumerate(inputs):
        assert not isinstance(item, str)
        try:
            found.append(encoder.tokens(item, max_tokens=limit))
        except BadRequest as error:
            param = request.param_of(index)
            raise BadRequest(f"{param}: {error.message}", param=param) from error
    return found


def _param_at_fault(request: EmbeddingRequest, encoder: TextEncoder, texts: list[str], prompt: str | None) -> str:
    """The path of what the encoder refused: the first text that it refuses alone and uncut, else the limit."""
    for index, text in enumerate(texts):
        try:
            encoder.texts([text], prompt=prompt)
        except BadRequest:
            return request.param_of(index)
    return "truncate" if request.truncate_prompt_tokens is None else "truncate_prompt_tokens"


def _limit(request: EmbeddingRequest, profile: EncodeProfile) -> int | None:
    """Tokens to cut inputs to; None cuts nothing.

    Raises:
        BadRequest: more than the model reads.
    """
    asked = request.truncate_prompt_tokens
    if asked is None:
        return profile.max_tokens if request.truncate else None
    if asked > profile.max_tokens:
        raise BadRequest(
            f"truncate_prompt_tokens: this model reads at most {profile.max_tokens}", param="truncate_prompt_tokens"
        )
    return profile.max_tokens if asked == WHOLE_MODEL else asked


def _prompt(request: EmbeddingRequest, profile: EncodeProfile) -> str | None:
    """The instruction that goes before every text.

    Raises:
        BadRequest: a name the model has no prompt under.
    """
    name = request.prompt_name if request.prompt_name is not None else profile.default_prompt
    if name is None:
        return None
    if name not in profile.prompts:
        known = ", ".join(sorted(profile.prompts)) or "none"
        raise BadRequest(f"prompt_name: this model has no such prompt; its prompts: {known}", param="prompt_name")
    return profile.prompts[name]


def _check_dimensions(request: EmbeddingRequest, profile: EncodeProfile) -> None:
    asked = request.dimensions
    if asked is None:
        return
    if profile.any_dimension:
        allowed, is_allowed = f"1 to {profile.dim}", asked <= profile.dim
    elif profile.dimensions:
        sizes = sorted({*profile.dimensions, profile.dim})
        allowed, is_allowed = ", ".join(map(str, sizes)), asked in sizes
    else:
        # Even its own size: a vector that was not trained to be cut is not offered as one that was.
        raise BadRequest(
            f"dimensions: this model's config declares none, so its vectors always have {profile.dim}",
            param="dimensions",
        )
    if not is_allowed:
        raise BadRequest(f"dimensions: this model's vectors have {allowed}", param="dimensions")


def answer(prepared: PreparedEmbeddings, vectors: FloatArray, model_id: str) -> bytes:
    """The answer's JSON. As floats or in base64 the numbers are the same f32, to the bit.

    Row by row: one call for all would keep the event loop from running for 80 ms on 2048 vectors of 384 floats, in
    whichever thread it is made.
    """
    request = prepared.request
    finished = finish(vectors, dimensions=request.dimensions, normalize=request.normalize is not False)
    if request.encoding_format == "base64":
        # Little-endian f32, as OpenAI's clients read it, straight from each row's memory.
        rows = (b'"%b"' % base64.b64encode(row) for row in finished.astype(np.dtype("<f4"), copy=False))
    else:
        # As doubles: their shortest decimals read back to the same f32.
        rows = (encode(row.tolist()) for row in finished)
    parts = [b'{"object":"list","data":[']
    for index, row in enumerate(rows):
        comma = b"," if index else b""
        parts.append(b'%b{"object":"embedding","index":%d,"embedding":%b}' % (comma, index, row))
    num_tokens = prepared.num_tokens
    rest = encode({"model": model_id, "usage": {"prompt_tokens": num_tokens, "total_tokens": num_tokens}})
    return b"".join([*parts, b"],", rest[1:]])  # once: 2048 vectors are 17 MB
