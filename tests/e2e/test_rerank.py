"""Reranking over HTTP: the real MiniLM by cosine, and a small cross-encoder, against sentence-transformers."""

from __future__ import annotations

import json
import urllib.error
from collections.abc import Iterator
from pathlib import Path

import cohere
import httpx
import numpy as np
import pytest
import transformers
from sentence_transformers import CrossEncoder, SentenceTransformer

from tests.e2e.process import ServerProcess, serving
from tests.engine.models.sentence_models import randomized, save
from tests.engine.models.test_served_encoders import BERT, make_tokenizer
from tests.models import require_model

QUERY = "young cat"
DOCUMENTS = ["the stock market fell", "a cute kitten", "dogs bark", "a kitten is a young cat", "Tokyo"]


@pytest.fixture(scope="module")
def minilm() -> Iterator[ServerProcess]:
    with serving(require_model("minilm")) as server:
        yield server


def test_an_embedder_ranks_by_cosine_and_coheres_client_reads_it(minilm: ServerProcess) -> None:
    answer = minilm.post("/v1/rerank", {"query": QUERY, "documents": DOCUMENTS, "top_n": 3})
    parsed = cohere.V2RerankResponse.model_validate(answer)
    library = SentenceTransformer(str(require_model("minilm")), device="cpu")
    cosines = library.encode(DOCUMENTS) @ library.encode(QUERY)
    expected = np.argsort(-cosines, kind="stable")[:3]
    assert [result.index for result in parsed.results] == expected.tolist()
    scores = [result.relevance_score for result in parsed.results]
    np.testing.assert_allclose(scores, cosines[expected], atol=1e-5, rtol=0)


def test_coheres_first_client_asks_v1_rerank(minilm: ServerProcess) -> None:
    with httpx.Client(timeout=60) as http:
        client = cohere.Client(api_key="unused", base_url=minilm.url, httpx_client=http)
        answer = client.rerank(query=QUERY, documents=list(DOCUMENTS), model="minilm", top_n=2, return_documents=True)
    assert [result.index for result in answer.results][:1] == [3]
    document = answer.results[0].document
    assert document is not None
    assert document.text == DOCUMENTS[3]


def test_a_cross_encoder_scores_as_sentence_transformers_does(tmp_path: Path) -> None:
    config = transformers.BertConfig(**BERT, num_labels=1)
    folder = save(randomized(transformers.BertForSequenceClassification(config)), make_tokenizer(), tmp_path / "cross")
    expected = CrossEncoder(str(folder), device="cpu").predict([(QUERY, document) for document in DOCUMENTS])
    with serving(folder) as server:
        answer = server.post("/v1/rerank", {"query": QUERY, "documents": DOCUMENTS})
        scores = {result["index"]: result["relevance_score"] for result in answer["results"]}
        np.testing.assert_allclose([scores[index] for index in range(5)], expected, atol=1e-5, rtol=0)
        with pytest.raises(urllib.error.HTTPError) as caught:
            server.post("/v1/embeddings", {"input": "text"})
        with caught.value as refused:
            assert json.load(refused)["error"]["code"] == "unsupported_capability"
        assert server.get("/health")["task"] == "rerank"
        assert server.sample("poot_encode_texts_waiting") == 0
