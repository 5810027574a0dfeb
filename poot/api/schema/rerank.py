"""The request of POST /v1/rerank and /rerank, as Cohere (v1, v2), Jina and text-embeddings-inference spell it."""

from __future__ import annotations

from typing import Any

import msgspec

from poot.api.schema.common import Count, check_model
from poot.api.schema.decode import decode
from poot.errors import BadRequest

MAX_DOCUMENTS = 2048
"""As many as inputs of an embedding request. Cohere advises at most 1,000, Jina takes 2,048."""


class Document(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A document as an object, as Cohere v1 and Jina take them beside plain strings."""

    text: str


class RerankRequest(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """As decoded. None is unset, as JSON null is."""

    query: str
    documents: list[str | Document] | None = None
    # text-embeddings-inference's name, and what tells its dialect.
    texts: list[str] | None = None
    model: str | None = None
    top_n: Count | None = None
    return_documents: bool | None = None
    return_text: bool | None = None
    max_tokens_per_doc: Count | None = None
    raw_scores: bool | None = None
    truncate: bool | None = None
    user: str | None = None
    # Known, and not served: see `_refuse_unavailable`.
    max_chunks_per_doc: Any = None
    rank_fields: Any = None
    truncation_direction: Any = None

    @property
    def is_tei(self) -> bool:
        """Whether the answer is text-embeddings-inference's bare list."""
        return self.texts is not None

    @property
    def documents_name(self) -> str:
        """The field that the documents came in."""
        return "texts" if self.is_tei else "documents"

    @property
    def document_texts(self) -> list[str]:
        """The documents, whichever way they were given."""
        if self.texts is not None:
            return self.texts
        assert self.documents is not None
        return [document if isinstance(document, str) else document.text for document in self.documents]

    @property
    def returns_text(self) -> bool:
        """Whether results hold their document."""
        return bool(self.return_text if self.is_tei else self.return_documents)


_decoder = msgspec.json.Decoder(RerankRequest)


def decode_rerank(body: bytes, model_id: str) -> RerankRequest:
    """The checked request in `body`, for the server of `model_id`.

    Raises:
        BadRequest: as `decode` says; no documents, too many, or an empty one; an empty query; a field that is not
            served, or one of another dialect.
        NotFound: another model than the served one.
    """
    request = decode(body, _decoder)
    check_model(request.model, model_id)
    _refuse_unavailable(request)
    if (request.documents is None) == (request.texts is None):
        raise BadRequest("documents: give either documents or texts", param="documents")
    name = request.documents_name
    other = "return_documents" if request.is_tei else "return_text"
    if getattr(request, other) is not None:
        raise BadRequest(f"{other} does not go with {name}", param=other)
    if not request.query:
        raise BadRequest("query: the query is empty", param="query")
    documents = request.document_texts
    if not documents:
        raise BadRequest(f"{name}: the list is empty", param=name)
    if len(documents) > MAX_DOCUMENTS:
        raise BadRequest(f"{name}: {len(documents)} documents; at most {MAX_DOCUMENTS}", param=name)
    for index, document in enumerate(documents):
        if not document:
            raise BadRequest(f"{name}[{index}]: the document is empty", param=f"{name}[{index}]")
    return request


def _refuse_unavailable(request: RerankRequest) -> None:
    """Refuses fields that are known and not served, by name; their neutral values pass."""
    if request.truncation_direction not in (None, "Right", "right"):
        raise BadRequest("truncation_direction: only Right is served", param="truncation_direction")
    if request.max_chunks_per_doc is not None and request.max_chunks_per_doc != 1:
        raise BadRequest("max_chunks_per_doc is not available: a document is one text", param="max_chunks_per_doc")
    if request.rank_fields is not None and request.rank_fields != ["text"]:
        raise BadRequest("rank_fields is not available: a document is its text", param="rank_fields")
