"""Embeddings of the real all-MiniLM-L6-v2 over HTTP, through the clients that people have."""

from __future__ import annotations

import base64
import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
from pydantic import SecretStr

from tests.e2e.process import ServerProcess, serving
from tests.models import require_model

# sentence-transformers' own vectors of this model, rounded to 6 decimals, with its token counts.
REFERENCE = json.loads((Path(__file__).parents[1] / "data" / "all-minilm-l6-v2.json").read_text())
LONGEST = 256  # tokens the model reads: max_seq_length of its sentence_bert_config.json
CLS, SEP = 101, 102


@pytest.fixture(scope="module")
def minilm() -> Iterator[ServerProcess]:
    with serving(require_model("minilm"), "--backend", "cpu") as server:
        yield server


@pytest.fixture
def client(minilm: ServerProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{minilm.url}/v1", api_key="unused", max_retries=0, timeout=120) as client:
        yield client


def embed(server: ServerProcess, given: Any, **fields: Any) -> tuple[np.ndarray[Any, np.dtype[np.float64]], int]:
    """The vectors and the number of tokens."""
    answer = server.post("/v1/embeddings", {"input": given, **fields})
    assert [item["index"] for item in answer["data"]] == list(range(len(answer["data"])))
    return np.array([item["embedding"] for item in answer["data"]]), answer["usage"]["prompt_tokens"]


def cosine(one: Any, other: Any) -> float:
    return float(np.dot(one, other) / (np.linalg.norm(one) * np.linalg.norm(other)))


def spoken(index: int) -> str:
    return f"{index} " + " ".join(["kitten", "car", "dog", "Tokyo"][: index % 5]) * (1 + index % 7)


@pytest.mark.parametrize("case", REFERENCE, ids=lambda case: repr(case["text"][:20]))
def test_a_vector_and_its_token_count_are_the_references(minilm: ServerProcess, case: dict[str, Any]) -> None:
    # The empty text is none an input may be; its two special tokens are.
    (vector,), num_tokens = embed(minilm, case["text"] or [CLS, SEP], truncate=True)
    assert cosine(vector, case["embedding"]) >= 0.99999
    assert num_tokens == case["tokens"]
    assert np.linalg.norm(vector) == pytest.approx(1, abs=1e-6)


def test_a_batch_in_any_order_is_what_each_text_is_alone(minilm: ServerProcess) -> None:
    texts = [case["text"] for case in REFERENCE if case["text"]]
    alone = np.concatenate([embed(minilm, text, truncate=True)[0] for text in texts])
    for order in (range(len(texts)), reversed(range(len(texts)))):
        indices = list(order)
        batch, _ = embed(minilm, [texts[index] for index in indices], truncate=True)
        np.testing.assert_allclose(batch, alone[indices], atol=1e-5)


@pytest.mark.parametrize("num_texts", [32, 33, 2048])
def test_more_texts_than_rows_keep_their_order(minilm: ServerProcess, num_texts: int) -> None:
    texts = [spoken(index) for index in range(num_texts)]
    vectors, num_tokens = embed(minilm, texts)
    counts = []
    for index in (0, 1, num_texts // 2, num_texts - 1):
        (alone,), count = embed(minilm, texts[index])
        counts.append(count)
        np.testing.assert_allclose(vectors[index], alone, atol=1e-5)
    assert num_tokens >= num_texts * min(counts)


def test_the_official_client_gets_the_same_bits_in_base64(client: openai.OpenAI) -> None:
    texts = [spoken(index) for index in range(20)]
    packed = client.embeddings.create(model="minilm", input=texts)  # base64 unless told otherwise
    floats = client.embeddings.create(model="minilm", input=texts, encoding_format="float")
    assert packed.usage == floats.usage
    for one, other in zip(packed.data, floats.data, strict=True):
        assert np.array(one.embedding, np.float32).tobytes() == np.array(other.embedding, np.float32).tobytes()


def test_base64_is_little_endian_f32(minilm: ServerProcess) -> None:
    answer = minilm.post("/v1/embeddings", {"input": "a cute kitten", "encoding_format": "base64"})
    vector = np.frombuffer(base64.b64decode(answer["data"][0]["embedding"], validate=True), "<f4")
    assert cosine(vector, REFERENCE[0]["embedding"]) >= 0.99999


def test_a_long_text_is_refused_with_both_counts_or_cut(client: openai.OpenAI, minilm: ServerProcess) -> None:
    text = "word " * 20_000  # 100k characters; each "word" is one token
    with pytest.raises(openai.BadRequestError) as caught:
        client.embeddings.create(model="minilm", input=["short", text])
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "input[1]")
    assert "20002" in caught.value.message
    assert "256" in caught.value.message
    (reference,) = [case for case in REFERENCE if case["tokens"] == LONGEST]
    vectors, num_tokens = embed(minilm, [text, "short"], truncate=True)
    assert num_tokens == LONGEST + 3
    assert cosine(vectors[0], reference["embedding"]) >= 0.99999
    (cut,), num_tokens = embed(minilm, text, truncate_prompt_tokens=12)
    assert num_tokens == 12
    np.testing.assert_allclose(cut, embed(minilm, "word " * 10)[0][0], atol=1e-5)


def test_an_empty_text_is_refused_by_name(client: openai.OpenAI) -> None:
    for given, param in (("", "input"), (["a", ""], "input[1]")):
        with pytest.raises(openai.BadRequestError) as caught:
            client.embeddings.create(model="minilm", input=given)
        assert caught.value.param == param


@pytest.mark.parametrize(
    ("text", "like"),
    [
        # BERT's basic tokenizer drops NUL and other control characters (Devlin et al., `_clean_text`).
        ("\0", [CLS, SEP]),
        ("a cute\0 kitten", "a cute kitten"),
        (" \t\n", [CLS, SEP]),
        # What transformers' tokenizer of this model gives: 100 is [UNK], 18401 kitten.
        ("\U0001f642", [CLS, 100, SEP]),
        ("\U0001f642 kitten", [CLS, 100, 18401, SEP]),
    ],
)
def test_odd_texts_are_what_the_tokenizer_makes_of_them(minilm: ServerProcess, text: str, like: Any) -> None:
    np.testing.assert_allclose(embed(minilm, text)[0], embed(minilm, like)[0], atol=1e-5)


def test_a_text_of_special_tokens_alone_has_a_vector(minilm: ServerProcess) -> None:
    vectors, _ = embed(minilm, ["[CLS]", "[SEP][SEP]", "[PAD]", "[MASK]"])
    assert np.isfinite(vectors).all()
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)


def test_what_the_model_does_not_do_is_refused(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.embeddings.create(model="minilm", input="a", dimensions=128)
    assert caught.value.param == "dimensions"
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model="minilm", prompt="a")
    assert caught.value.code == "unsupported_capability"
    with pytest.raises(openai.NotFoundError) as missing:
        client.embeddings.create(model="text-embedding-3-small", input="a")
    assert missing.value.code == "model_not_found"


def test_langchains_class_works(minilm: ServerProcess) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the package itself, while it is imported
        from langchain_openai import OpenAIEmbeddings
    embeddings = OpenAIEmbeddings(
        model="minilm",
        base_url=f"{minilm.url}/v1",
        api_key=SecretStr("unused"),
        # With it, the ids of OpenAI's own tokenizer would be sent.
        check_embedding_ctx_length=False,
    )
    cases = REFERENCE[:3]
    assert cosine(embeddings.embed_query(cases[0]["text"]), cases[0]["embedding"]) >= 0.99999
    vectors = embeddings.embed_documents([case["text"] for case in cases])
    for vector, case in zip(vectors, cases, strict=True):
        assert cosine(vector, case["embedding"]) >= 0.99999


def test_llamaindexs_class_works(minilm: ServerProcess) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from llama_index.embeddings.openai_like import OpenAILikeEmbedding
    embeddings = OpenAILikeEmbedding(
        model_name="minilm", api_base=f"{minilm.url}/v1", api_key="unused", embed_batch_size=2
    )
    cases = REFERENCE[:3]
    assert cosine(embeddings.get_query_embedding(cases[0]["text"]), cases[0]["embedding"]) >= 0.99999
    vectors = embeddings.get_text_embedding_batch([case["text"] for case in cases])
    for vector, case in zip(vectors, cases, strict=True):
        assert cosine(vector, case["embedding"]) >= 0.99999
