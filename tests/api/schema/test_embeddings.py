"""The fields of an embedding request: the forms of an input, ranges, and what contradicts what."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poot.api.schema.embeddings import EmbeddingRequest, decode_embeddings
from poot.errors import BadRequest, NotFound
from tests.api.schema.test_decode import json_values


def decode(**fields: Any) -> EmbeddingRequest:
    return decode_embeddings(json.dumps(fields).encode(), "the-model")


@pytest.mark.parametrize(
    ("given_", "inputs"),
    [
        ("text", ["text"]),
        (" ", [" "]),
        ("\0", ["\0"]),
        (["a", "b"], ["a", "b"]),
        ([1, 2], [[1, 2]]),
        ([[1], [2, 3]], [[1], [2, 3]]),
        (["a"] * 2048, ["a"] * 2048),
        ([1] * 5000, [[1] * 5000]),
    ],
)
def test_an_input_has_four_forms(given_: Any, inputs: Any) -> None:
    assert decode(input=given_).inputs == inputs


def test_null_is_unset() -> None:
    names = [name for name in EmbeddingRequest.__struct_fields__ if name != "input"]
    assert decode(input="a", **dict.fromkeys(names)) == decode(input="a")


@pytest.mark.parametrize(
    "fields",
    [
        {"encoding_format": "float"},
        {"encoding_format": "base64"},
        {"dimensions": 1},
        {"pooling": "mean"},
        {"pooling": "cls"},
        {"pooling": "last"},
        {"normalize": False},
        {"truncate": True, "truncate_prompt_tokens": 1},
        {"truncate_prompt_tokens": -1},
        {"prompt_name": "query"},
        {"user": "u", "model": "the-model"},
    ],
)
def test_every_field_is_taken(fields: dict[str, Any]) -> None:
    request = decode(input="a", **fields)
    for name, value in fields.items():
        assert getattr(request, name) == value


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "input"),
        ({"input": None}, "input"),
        ({"input": 5}, "input"),
        ({"input": {}}, "input"),
        ({"input": ["a", None]}, "input[1]"),
        ({"input": [1, 1.5]}, "input[1]"),
        ({"input": [True]}, "input[0]"),
        ({"input": [["a"]]}, "input[0][0]"),
        ({"input": [["a", "b"]]}, "input[0][0]"),
        ({"input": [[]]}, "input[0]"),
        ({"input": "a", "encoding_format": "base32"}, "encoding_format"),
        ({"input": "a", "encoding_format": 1}, "encoding_format"),
        ({"input": "a", "dimensions": 0}, "dimensions"),
        ({"input": "a", "dimensions": -1}, "dimensions"),
        ({"input": "a", "dimensions": 2.5}, "dimensions"),
        ({"input": "a", "dimensions": "2"}, "dimensions"),
        ({"input": "a", "pooling": "MEAN"}, "pooling"),
        ({"input": "a", "normalize": "true"}, "normalize"),
        ({"input": "a", "truncate": 1}, "truncate"),
        ({"input": "a", "truncate": "END"}, "truncate"),
        ({"input": "a", "truncate_prompt_tokens": True}, "truncate_prompt_tokens"),
        ({"input": "a", "prompt_name": 1}, "prompt_name"),
        ({"input": [[1]], "prompt_name": "query"}, "prompt_name"),
        ({"input": "a", "user": 7}, "user"),
        ({"input": "a", "model": 7}, "model"),
        ({"input": "a", "inputs": ["b"]}, "inputs"),
    ],
)
def test_what_is_refused_is_named(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequest) as caught:
        decode(**fields)
    assert caught.value.param == param


def test_another_model_is_not_found() -> None:
    with pytest.raises(NotFound) as caught:
        decode(input="a", model="other")
    assert (caught.value.param, caught.value.code) == ("model", "model_not_found")


@given(
    st.dictionaries(st.sampled_from(EmbeddingRequest.__struct_fields__), json_values, max_size=4),
    st.one_of(st.just("a"), json_values),
)
def test_any_json_is_decoded_or_refused(fields: dict[str, Any], given_: Any) -> None:
    try:
        request = decode(**{**fields, "input": given_})
    except (BadRequest, NotFound):
        return
    assert 1 <= len(request.inputs) <= 2048
    assert all(request.inputs)
