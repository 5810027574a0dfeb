"""Reranking: order, scores, the dialects' shapes, and what is refused and how."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest

from poot.engine.encoding import EncodeText, ScoreActivation
from tests.fakes.encoder import CROSS_ENCODER, SEPARATOR, START, FakeTextEncoder
from tests.fakes.engine import FakeEngine
from tests.fakes.exchange import FakeExchange
from tests.fakes.service import FakeService

pytestmark = pytest.mark.anyio

DOCUMENTS = ["bb", "a", "ccc", "d"]


def logit(text: EncodeText) -> Sequence[float]:
    """A pair's logit: the length of its document less two."""
    ids = text.token_ids.tolist()
    return [len(ids) - ids.index(SEPARATOR) - 1 - 2.0]


def service(**profile: Any) -> FakeService:
    encoder = FakeTextEncoder(CROSS_ENCODER, **profile)
    return FakeService(FakeEngine(encoder=encoder, vector_of=logit, generates=False))


async def rerank(
    served: FakeService, documents: Any = DOCUMENTS, *, path: str = "/v1/rerank", **fields: Any
) -> FakeExchange:
    return await served.post(path, {"query": "q", "documents": documents, **fields})


def sigmoid(value: float) -> float:
    return 1 / (1 + math.exp(-value))


@pytest.mark.parametrize("path", ["/v1/rerank", "/rerank"])
async def test_results_are_sorted_by_score_and_ties_by_index(path: str) -> None:
    exchange = await rerank(service(), path=path)
    assert exchange.status == 200
    answer = exchange.answer
    assert [result["index"] for result in answer["results"]] == [2, 0, 1, 3]
    scores = [result["relevance_score"] for result in answer["results"]]
    assert scores == pytest.approx([sigmoid(1), sigmoid(0), sigmoid(-1), sigmoid(-1)], abs=1e-6)
    # Four pairs of a start, the query's byte and a separator, and seven bytes of documents.
    assert answer["usage"] == {"prompt_tokens": 19, "total_tokens": 19}
    assert (answer["object"], answer["model"], answer["meta"]["tokens"]["input_tokens"]) == ("list", "fake-model", 19)
    assert exchange.annotations["prompt_tokens"] == 19


async def test_raw_scores_are_logits() -> None:
    answer = (await rerank(service(), raw_scores=True)).answer
    assert [result["relevance_score"] for result in answer["results"]] == [1, 0, -1, -1]


async def test_the_models_own_activation_counts() -> None:
    answer = (await rerank(service(activation=ScoreActivation.IDENTITY))).answer
    assert [result["relevance_score"] for result in answer["results"]] == [1, 0, -1, -1]


@pytest.mark.parametrize(("top_n", "indices"), [(1, [2]), (3, [2, 0, 1]), (99, [2, 0, 1, 3])])
async def test_top_n(top_n: int, indices: list[int]) -> None:
    answer = (await rerank(service(), top_n=top_n)).answer
    assert [result["index"] for result in answer["results"]] == indices


async def test_documents_come_back_when_asked_for() -> None:
    answer = (await rerank(service(), [{"text": "bb"}, "a"], return_documents=True)).answer
    assert [result["document"] for result in answer["results"]] == [{"text": "bb"}, {"text": "a"}]
    assert "document" not in (await rerank(service())).answer["results"][0]


async def test_text_embeddings_inference_gets_its_bare_list() -> None:
    served = service()
    body = {"query": "q", "texts": ["bb", "ccc"], "raw_scores": True, "return_text": True}
    answer = (await served.post("/rerank", body)).answer
    assert answer == [{"index": 1, "score": 1.0, "text": "ccc"}, {"index": 0, "score": 0.0, "text": "bb"}]


async def test_documents_are_cut_and_pairs_where_truncate_is_set() -> None:
    served = service()
    await rerank(served, ["x" * 50, "y"], max_tokens_per_doc=3)
    await rerank(served, ["x" * 50, "y"], truncate=True)
    lengths = [[text.num_tokens for text in texts] for texts, _ in served.engine.encoded]
    assert lengths == [[6, 4], [20, 4]]


async def test_a_model_that_embeds_gives_cosines_with_its_prompts() -> None:
    def vector(text: EncodeText) -> Sequence[float]:
        return {b"Q: q": (1, 0, 0), b"D: same": (2, 0, 0), b"D: half": (3, 3, 0)}[bytes(text.token_ids[1:].tolist())]

    encoder = FakeTextEncoder(
        prompts={"query": "Q: ", "document": "D: "}, query_prompt="query", document_prompt="document"
    )
    served = FakeService(FakeEngine(encoder=encoder, vector_of=vector))
    answer = (await rerank(served, ["half", "same"])).answer
    assert [result["index"] for result in answer["results"]] == [1, 0]
    assert [result["relevance_score"] for result in answer["results"]] == pytest.approx([1, math.sqrt(0.5)], abs=1e-6)
    assert answer["usage"]["prompt_tokens"] == 5 + 8 + 8


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({"query": "q"}, "documents", "either documents or texts"),
        ({"query": "q", "documents": ["a"], "texts": ["a"]}, "documents", "either documents or texts"),
        ({"documents": ["a"]}, "query", "required"),
        ({"query": "", "documents": ["a"]}, "query", "empty"),
        ({"query": "q", "documents": []}, "documents", "empty"),
        ({"query": "q", "documents": ["a", ""]}, "documents[1]", "empty"),
        ({"query": "q", "documents": ["a", {"text": ""}]}, "documents[1]", "empty"),
        ({"query": "q", "texts": [""]}, "texts[0]", "empty"),
        ({"query": "q", "documents": ["a"] * 2049}, "documents", "2048"),
        ({"query": "q", "documents": ["a"], "top_n": 0}, "top_n", ">= 1"),
        ({"query": "q", "documents": ["a"], "max_tokens_per_doc": 0}, "max_tokens_per_doc", ">= 1"),
        ({"query": "q", "documents": ["a"], "return_text": True}, "return_text", "does not go with documents"),
        ({"query": "q", "texts": ["a"], "return_documents": True}, "return_documents", "does not go with texts"),
        ({"query": "q", "documents": ["a"], "max_chunks_per_doc": 2}, "max_chunks_per_doc", "not available"),
        ({"query": "q", "documents": ["a"], "rank_fields": ["title"]}, "rank_fields", "not available"),
        ({"query": "q", "texts": ["a"], "truncation_direction": "Left"}, "truncation_direction", "only Right"),
        ({"query": "q", "documents": ["a"], "colour": 1}, "colour", "unknown field"),
    ],
)
async def test_refusals_name_the_field(body: dict[str, Any], param: str, words: str) -> None:
    served = service()
    exchange = await served.post("/v1/rerank", body)
    error = exchange.answer["error"]
    assert (exchange.status, error["param"]) == (400, param)
    assert words in error["message"]
    assert served.engine.encoded == []


async def test_a_pair_that_is_too_long_is_named_with_both_counts() -> None:
    exchange = await rerank(service(), ["a", "x" * 30])
    error = exchange.answer["error"]
    assert (exchange.status, error["code"], error["param"]) == (400, "context_length_exceeded", "documents[1]")
    assert "33 tokens" in error["message"]
    assert "at most 20" in error["message"]


async def test_a_query_that_is_too_long_for_a_model_that_embeds() -> None:
    served = FakeService(FakeEngine(encoder=FakeTextEncoder()))
    exchange = await served.post("/v1/rerank", {"query": "q" * 30, "documents": ["a"]})
    assert exchange.answer["error"]["param"] == "query"


async def test_a_model_that_neither_embeds_nor_scores_says_so() -> None:
    exchange = await rerank(FakeService(FakeEngine()))
    assert (exchange.status, exchange.answer["error"]["code"]) == (400, "unsupported_capability")


async def test_a_pair_holds_query_and_document() -> None:
    served = service()
    await rerank(served, ["a"])
    ((texts, _),) = served.engine.encoded
    assert texts[0].token_ids.tolist() == [START, ord("q"), SEPARATOR, ord("a")]
