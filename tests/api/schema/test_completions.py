"""The fields of completions alone: the forms of a prompt, logprobs, echo, suffix and best_of."""

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
    for fields in ({"prompt": ["a"] * (MAX_PROMPTS + 1)}, {"prompt": ["a"] * 17, "best_of": 128}):
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


@pytest.mark.parametrize(("name", "value"), [("echo", 0), ("echo", "true"), ("suffix", 5), ("best_of", 0)])
def test_other_kinds_of_echo_suffix_and_best_of_are_refused(name: str, value: Any) -> None:
    with pytest.raises(BadRequest) as caught:
        decode(prompt="a", **{name: value})
    assert caught.value.param == name


def test_an_echo_leaves_no_place_for_a_suffix() -> None:
    decode(prompt="a", echo=True, suffix="")
    with pytest.raises(BadRequest) as caught:
        decode(prompt="a", echo=True, suffix="b")
    assert caught.value.param == "suffix"


@pytest.mark.parametrize(
    ("fields", "num_drawn"),
    [({}, 1), ({"n": 3}, 3), ({"best_of": 4}, 4), ({"n": 2, "best_of": 128}, 128), ({"n": 2, "best_of": 2}, 2)],
)
def test_as_many_are_drawn_as_n_or_best_of_says(fields: dict[str, Any], num_drawn: int) -> None:
    assert decode(prompt="a", **fields).num_drawn == num_drawn


@pytest.mark.parametrize("fields", [{"n": 2, "best_of": 1}, {"best_of": 129}, {"best_of": 2, "stream": True}])
def test_a_best_of_below_n_over_the_limit_or_in_a_stream_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(BadRequest) as caught:
        decode(prompt="a", **fields)
    assert caught.value.param == "best_of"
    decode(prompt="a", n=2, best_of=2, stream=True)


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
