"""Embeddings: forms of input, what is refused and how, and that both encodings carry the same numbers."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from typing import Any

import anyio
import numpy as np
import pytest

from poot.engine.encoding import EncodeText, Pooling
from poot.errors import BadRequest
from tests.fakes.encoder import CROSS_ENCODER, START, FakeTextEncoder
from tests.fakes.engine import FakeEngine
from tests.fakes.exchange import FakeExchange, post_head
from tests.fakes.service import FakeService

pytestmark = pytest.mark.anyio


def service(**profile: Any) -> FakeService:
    return FakeService(FakeEngine(encoder=FakeTextEncoder(**profile), generates=False))


async def embed(served: FakeService, given: Any, **fields: Any) -> FakeExchange:
    return await served.post("/v1/embeddings", {"input": given, **fields})


async def refused(served: FakeService, given: Any, **fields: Any) -> tuple[int, str | None, str]:
    exchange = await embed(served, given, **fields)
    error = exchange.answer["error"]
    assert served.engine.encoded == []
    return exchange.status or 0, error["param"], error["message"]


async def test_an_answer_has_openais_shape_and_counts_real_tokens() -> None:
    exchange = await embed(service(), ["a", "bcd"], normalize=False, user="me", model="fake-model")
    assert exchange.status == 200
    assert exchange.answer == {
        "object": "list",
        "data": [
            {"object": "embedding", "index": 0, "embedding": [256.0 + 97, 2.0, 1.0]},
            {"object": "embedding", "index": 1, "embedding": [256.0 + 98 + 99 + 100, 4.0, 1.0]},
        ],
        "model": "fake-model",
        "usage": {"prompt_tokens": 6, "total_tokens": 6},
    }
    assert exchange.annotations == {"texts": 2, "prompt_tokens": 6}


@pytest.mark.parametrize(
    ("given", "tokens"),
    [
        ("ab", [[START, 97, 98]]),
        (["ab", "c"], [[START, 97, 98], [START, 99]]),
        ([97, 98], [[97, 98]]),
        ([[97], [98, 99]], [[97], [98, 99]]),
    ],
)
async def test_four_forms_of_input(given: Any, tokens: list[list[int]]) -> None:
    served = service()
    assert (await embed(served, given)).status == 200
    ((texts, pooling),) = served.engine.encoded
    assert [text.token_ids.tolist() for text in texts] == tokens
    assert pooling is Pooling.MEAN


async def test_vectors_have_length_one_unless_asked_otherwise() -> None:
    vector = np.array((await embed(service(), "ab")).answer["data"][0]["embedding"])
    assert np.linalg.norm(vector) == pytest.approx(1, abs=1e-6)
    expected = np.array([START + 97 + 98, 3, 1], np.float64)
    np.testing.assert_allclose(vector, expected / np.linalg.norm(expected), atol=1e-6)


async def test_base64_and_floats_are_the_same_numbers_to_the_bit() -> None:
    words = [f"word {index}" for index in range(50)]
    floats = (await embed(service(), words, encoding_format="float")).answer["data"]
    packed = (await embed(service(), words, encoding_format="base64")).answer["data"]
    for one, other in zip(floats, packed, strict=True):
        decoded = np.frombuffer(base64.b64decode(other["embedding"]), "<f4")
        assert np.array(one["embedding"], np.float32).tobytes() == decoded.tobytes()


async def test_a_large_answer_is_the_same_as_small_ones() -> None:
    words = [f"w{index}" for index in range(2048)]  # body and answer go through worker threads
    data = (await embed(service(), words, normalize=False)).answer["data"]
    assert [item["index"] for item in data] == list(range(2048))
    assert data[7]["embedding"] == (await embed(service(), "w7", normalize=False)).answer["data"][0]["embedding"]


async def test_a_cut_vector_is_normalized_again() -> None:
    vector = (await embed(service(dimensions=(2,)), "ab", dimensions=2)).answer["data"][0]["embedding"]
    expected = np.array([START + 97 + 98, 3], np.float64)
    np.testing.assert_allclose(vector, expected / np.linalg.norm(expected), atol=1e-6)


@pytest.mark.parametrize(
    ("profile", "allowed", "refused_"),
    [({"dimensions": (2,)}, [2, 3], [1, 4]), ({"any_dimension": True}, [1, 2, 3], [4])],
)
async def test_dimensions_are_those_the_config_declares(
    profile: dict[str, Any], allowed: list[int], refused_: list[int]
) -> None:
    for size in allowed:
        assert len((await embed(service(**profile), "ab", dimensions=size)).answer["data"][0]["embedding"]) == size
    for size in refused_:
        assert (await refused(service(**profile), "ab", dimensions=size))[:2] == (400, "dimensions")


async def test_a_float_is_written_so_that_it_reads_back_to_the_same_bits() -> None:
    # Least and largest of f32, a subnormal, and neighbours of 0.1.
    numbers = np.array([1e-45, np.finfo(np.float32).max, -0.0, 0.1, np.nextafter(np.float32(0.1), 1)], np.float32)
    served = FakeService(FakeEngine(encoder=FakeTextEncoder(dim=5), vector_of=lambda text: numbers.tolist()))
    vector = (await embed(served, "a", normalize=False)).answer["data"][0]["embedding"]
    assert np.array(vector, np.float32).tobytes() == numbers.tobytes()


async def test_pooling_and_prompts_reach_the_engine() -> None:
    served = service(prompts={"q": "find: "})
    await embed(served, "ab", pooling="last", prompt_name="q")
    ((texts, pooling),) = served.engine.encoded
    assert (bytes(texts[0].token_ids[1:].tolist()), pooling) == (b"find: ab", Pooling.LAST)


async def test_the_models_default_prompt_is_used() -> None:
    served = service(prompts={"d": "doc: "}, default_prompt="d")
    await embed(served, "ab")
    assert bytes(served.engine.encoded[0][0][0].token_ids[1:].tolist()) == b"doc: ab"


@pytest.mark.parametrize(
    ("fields", "num_tokens"),
    [({"truncate": True}, 20), ({"truncate_prompt_tokens": 5}, 5), ({"truncate_prompt_tokens": -1}, 20)],
)
async def test_truncation(fields: dict[str, Any], num_tokens: int) -> None:
    served = service()
    exchange = await embed(served, ["x" * 100, "y"], **fields)
    assert exchange.answer["usage"]["prompt_tokens"] == num_tokens + 2
    assert [text.num_tokens for text in served.engine.encoded[0][0]] == [num_tokens, 2]


@pytest.mark.parametrize(
    ("given", "fields", "param", "words"),
    [
        ("", {}, "input", "empty"),
        ([], {}, "input", "empty"),
        (["a", ""], {}, "input[1]", "empty"),
        ([[97], []], {}, "input[1]", "empty"),
        (["a", 97], {}, "input[1]", "mixed"),
        ([97, [98]], {}, "input[1]", "mixed"),
        (["a"] * 2049, {}, "input", "2048"),
        ([300], {}, "input", "no such token"),
        ([[97], [300]], {}, "input[1]", "no such token"),
        ("a", {"dimensions": 2}, "dimensions", "declares none"),
        ("a", {"dimensions": 3}, "dimensions", "declares none"),
        ("a", {"dimensions": 0}, "dimensions", ">= 1"),
        ("a", {"encoding_format": "hex"}, "encoding_format", "none of the values"),
        ("a", {"pooling": "max"}, "pooling", "none of the values"),
        ("a", {"normalize": 1}, "normalize", "bool"),
        ("a", {"prompt_name": "q"}, "prompt_name", "no such prompt"),
        ([97], {"prompt_name": "q"}, "prompt_name", "token ids"),
        ("a", {"truncate_prompt_tokens": 0}, "truncate_prompt_tokens", "at least 1"),
        ("a", {"truncate_prompt_tokens": 21}, "truncate_prompt_tokens", "at most 20"),
        ("a", {"truncate_prompt_tokens": -2}, "truncate_prompt_tokens", ">= -1"),
        ("a", {"truncate": False, "truncate_prompt_tokens": 3}, "truncate_prompt_tokens", "contradict"),
        ("a", {"colour": "red"}, "colour", "unknown field"),
    ],
)
async def test_refusals_name_the_field(given: Any, fields: dict[str, Any], param: str, words: str) -> None:
    status, named, message = await refused(service(), given, **fields)
    assert (status, named) == (400, param)
    assert words in message


async def test_a_text_that_is_too_long_is_named_with_both_counts() -> None:
    exchange = await embed(service(), ["a", "x" * 30])
    error = exchange.answer["error"]
    assert (exchange.status, error["code"], error["param"]) == (400, "context_length_exceeded", "input[1]")
    assert "31 tokens" in error["message"]
    assert "at most 20" in error["message"]


class Speechless(FakeTextEncoder):
    """Has no token for spaces, and adds two special tokens to a text that is cut."""

    def texts(
        self, texts: Sequence[str], *, prompt: str | None = None, max_tokens: int | None = None
    ) -> list[EncodeText]:
        if max_tokens is not None and max_tokens < 2:
            raise BadRequest("special tokens alone are 2")
        if any(text.isspace() for text in texts):
            raise BadRequest("no tokens")
        return super().texts(texts, prompt=prompt, max_tokens=max_tokens)


@pytest.mark.parametrize(
    ("given", "fields", "param"),
    [
        (["a", " "], {}, "input[1]"),
        (" ", {"truncate": True}, "input"),
        ("a", {"truncate_prompt_tokens": 1}, "truncate_prompt_tokens"),
    ],
)
async def test_what_the_encoder_refuses_is_named(given: Any, fields: dict[str, Any], param: str) -> None:
    served = FakeService(FakeEngine(encoder=Speechless()))
    assert (await refused(served, given, **fields))[:2] == (400, param)


async def test_the_known_prompts_are_listed() -> None:
    assert "its prompts: a, b" in (await refused(service(prompts={"b": "", "a": ""}), "x", prompt_name="c"))[2]


async def test_another_model_is_404() -> None:
    assert (await refused(service(), "a", model="other"))[:2] == (404, "model")


@pytest.mark.parametrize("encoder", [None, FakeTextEncoder(CROSS_ENCODER)])
async def test_a_model_without_embeddings_says_so(encoder: FakeTextEncoder | None) -> None:
    served = FakeService(FakeEngine(encoder=encoder))
    exchange = await embed(served, "a")
    assert (exchange.status, exchange.answer["error"]["code"]) == (400, "unsupported_capability")


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
async def test_an_encoder_does_not_generate(path: str) -> None:
    body = {"prompt": "a"} if path == "/v1/completions" else {"messages": [{"role": "user", "content": "a"}]}
    exchange = await service().post(path, body)
    assert (exchange.status, exchange.answer["error"]["code"]) == (400, "unsupported_capability")


async def test_draining_is_503() -> None:
    served = service()
    served.engine.is_draining = True
    assert (await embed(served, "a")).status == 503


async def test_a_client_that_leaves_cancels_its_texts() -> None:
    engine = FakeEngine(encoder=FakeTextEncoder(), generates=False, is_stepped=True)
    served = FakeService(engine)
    body = json.dumps({"input": "a"}).encode()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(FakeExchange(post_head("/v1/embeddings", body), body).run, served.api)
        await anyio.wait_all_tasks_blocked()
        assert served.metric("admission_pending") == 1
        tasks.cancel_scope.cancel()
    assert engine.num_cancelled == 1
    assert served.metric("admission_pending") == 0
