"""The fields of completions alone: the forms of a prompt, logprobs, echo and suffix."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poot.api.schema.completions import MAX_PROMPTS, CompletionRequest, decode_completion
from poot.errors import BadRequest, RequestError
from tests.api.schema.test_decode import json_values


def decode(**fields: Any) -> CompletionRequest:
    return decode_completion(json.dumps(fields).encode(), "the-model")


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("text", ["text"]),
        ("", [""]),
        (["a", "b"], ["a", "b"]),
        ([1, 2], [[1, 2]]),
        ([[1], [2, 3]], [[1], [2, 3]]),
        ([[]], [[]]),
    ],
)
def test_a_prompt_has_four_forms(prompt: Any, prompts: Any) -> None:
    assert decode(prompt=prompt).prompts == prompts


@pytest.mark.parametrize(
    ("prompt", "param"),
    [
        (None, "prompt"),
        (5, "prompt"),
        ({}, "prompt"),
        ([], "prompt"),
        (["a", 1], "prompt[1]"),
        ([1, [1]], "prompt[1]"),
        ([[1], "a"], "prompt[1]"),
        ([1.0], "prompt[0]"),
        ([True], "prompt[0]"),
        ([[1, "a"]], "prompt[0][1]"),
        ([[[1]]], "prompt[0][0]"),
        ([None], "prompt[0]"),
    ],
)
def test_any_other_prompt_is_named(prompt: Any, param: str) -> None:
    with pytest.raises(BadRequest) as caught:
        decode(prompt=prompt)
    assert caught.value.param == param


def test_a_prompt_is_required() -> None:
    with pytest.raises(BadRequest, match="prompt is required") as caught:
        decode()
    assert caught.value.param == "prompt"


def test_prompts_times_n_are_bounded() -> None:
    decode(prompt=["a"] * MAX_PROMPTS)
    decode(prompt=["a"] * 16, n=128)
    for fields in ({"prompt": ["a"] * (MAX_PROMPTS + 1)}, {"prompt": ["a"] * 17, "n": 128}):
        with pytest.raises(BadRequest, match="at most 2048") as caught:
            decode(**fields)
        assert caught.value.param == "prompt"


@pytest.mark.parametrize("value", [0, 5, 20, None])
def test_logprobs_are_zero_to_twenty(value: int | None) -> None:
    assert decode(prompt="a", logprobs=value).logprobs == value


@pytest.mark.parametrize("value", [-1, 21, True, 1.0, "1"])
def test_other_logprobs_are_refused(value: Any) -> None:
    with pytest.raises(BadRequest) as caught:
        decode(prompt="a", logprobs=value)
    assert caught.value.param == "logprobs"


@pytest.mark.parametrize("fields", [{"echo": False}, {"echo": None}, {"suffix": ""}, {"suffix": None}])
def test_echo_and_suffix_pass_where_they_ask_for_nothing(fields: dict[str, Any]) -> None:
    decode(prompt="a", **fields)


@pytest.mark.parametrize("fields", [{"echo": True}, {"echo": 0}, {"suffix": "x"}])
def test_echo_and_suffix_are_refused_by_name(fields: dict[str, Any]) -> None:
    with pytest.raises(BadRequest, match="is not available yet"):
        decode(prompt="a", **fields)


def test_fields_of_chats_are_unknown_here() -> None:
    with pytest.raises(BadRequest, match="unknown field: messages"):
        decode(prompt="a", messages=[])


FIELDS = list(CompletionRequest.__struct_fields__)


@given(st.dictionaries(st.sampled_from([*FIELDS, "unknown"]), json_values, max_size=6))
def test_any_json_object_is_a_request_or_a_request_error(fields: dict[str, Any]) -> None:
    try:
        request = decode(**{"prompt": "a", **fields})
    except RequestError:
        return
    assert "unknown" not in fields
    assert request.prompts
