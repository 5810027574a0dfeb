"""Bounds of every field the two endpoints share, the rules between fields, and the fields that are not built."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from poot.api.schema.chat import decode_chat
from poot.api.schema.common import GenerationFields
from poot.api.schema.completions import decode_completion
from poot.errors import BadRequest, NotFound, RequestError

Decode = Callable[..., GenerationFields]


def decode_with_chat(**fields: Any) -> GenerationFields:
    body = {"messages": [{"role": "user", "content": "hi"}], **fields}
    return decode_chat(json.dumps(body).encode(), "the-model")


def decode_with_completion(**fields: Any) -> GenerationFields:
    return decode_completion(json.dumps({"prompt": "hi", **fields}).encode(), "the-model")


@pytest.fixture(params=[decode_with_chat, decode_with_completion], ids=["chat", "completion"])
def decode(request: pytest.FixtureRequest) -> Decode:
    function: Decode = request.param
    return function


GOOD: dict[str, list[Any]] = {
    "model": ["the-model", None],
    "max_tokens": [1, 10**18, None],
    "max_completion_tokens": [1, 10**18, None],
    "min_tokens": [0, 5, None],
    "temperature": [0, 0.0, 1, 2, 2.0, 1e-400, None],
    "top_p": [1e-9, 0.5, 1, None],
    "top_k": [0, 1, 10**18, None],
    "min_p": [0, 0.05, 1, None],
    "seed": [0, -1, -(2**63), 2**64 - 1, None],
    "stop": ["a", [], ["a"], ["a"] * 16, None],
    "ignore_eos": [True, False, None],
    "presence_penalty": [-2, 0, 2.0, None],
    "frequency_penalty": [-2, 0.5, 2, None],
    "repetition_penalty": [1e-9, 1, 10, None],
    "stop_token_ids": [[], [0], [10**18], [5] * 128, None],
    "include_stop_str_in_output": [True, False, None],
    "skip_special_tokens": [True, False, None],
    "return_token_ids": [True, False, None],
    "return_timings": [True, False, None],
    "n": [1, 128, None],
    "stream": [True, False, None],
    "user": ["", "someone", None],
    "safety_identifier": ["x", None],
    "prompt_cache_key": ["x", None],
}

BAD: dict[str, list[Any]] = {
    "model": [1, ["the-model"]],
    "max_tokens": [0, -1, 1.5, 5.0, "5", True],
    "max_completion_tokens": [0, "5"],
    "min_tokens": [-1, 1.5, "0"],
    "temperature": [-0.001, 2.001, "1", True, []],
    "top_p": [0, -0.1, 1.001, "1"],
    "top_k": [-1, 1.0, "1"],
    "min_p": [-0.001, 1.001, "0"],
    "seed": [2**64, -(2**63) - 1, 10**30, 1.0, "1", True],
    "stop": ["", [""], ["a", ""], ["a"] * 17, 5, [5], {}],
    "ignore_eos": [1, "true"],
    "logit_bias": [{"5": 100.5}, {"5": -101}, {"x": 1}, {"-1": 1}, {"1.0": 1}, {"5": "1"}, {"5": True}, [], 0],
    "presence_penalty": [-2.001, 2.001, "0", False],
    "frequency_penalty": [-2.001, 2.001, False],
    "repetition_penalty": [0, -1, 10.001, True],
    "stop_token_ids": [[-1], [1.0], ["1"], [True], 5, [5] * 129],
    "include_stop_str_in_output": [1, "true"],
    "skip_special_tokens": [0, "false"],
    "return_token_ids": [1],
    "return_timings": [1],
    "n": [0, 129, -1, 1.0, "1"],
    "stream": [1, "true"],
    "stream_options": [[], "x"],
    "user": [5, {}],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in GOOD.items() for value in values])
def test_values_in_range_are_taken(decode: Decode, name: str, value: Any) -> None:
    assert getattr(decode(**{name: value}), name) == value


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in BAD.items() for value in values])
def test_values_out_of_range_or_of_another_type_are_400_and_named(decode: Decode, name: str, value: Any) -> None:
    with pytest.raises(BadRequest) as caught:
        decode(**{name: value})
    assert (caught.value.param or "").split("[")[0] == name
    assert name in caught.value.message


def test_an_unknown_field_is_named(decode: Decode) -> None:
    with pytest.raises(BadRequest, match="unknown field: temprature") as caught:
        decode(temprature=1)
    assert caught.value.param == "temprature"


def test_another_model_is_404(decode: Decode) -> None:
    with pytest.raises(NotFound) as caught:
        decode(model="gpt-4o")
    assert (caught.value.param, caught.value.code) == ("model", "model_not_found")


def test_the_two_names_of_the_token_limit_must_agree(decode: Decode) -> None:
    assert decode(max_tokens=3, max_completion_tokens=3).token_limit == 3
    assert decode(max_completion_tokens=4).token_limit == 4
    assert decode().token_limit is None
    with pytest.raises(BadRequest) as caught:
        decode(max_tokens=3, max_completion_tokens=4)
    assert caught.value.param == "max_completion_tokens"


def test_min_tokens_may_not_exceed_the_limit(decode: Decode) -> None:
    decode(max_tokens=3, min_tokens=3)
    with pytest.raises(BadRequest) as caught:
        decode(max_tokens=3, min_tokens=4)
    assert caught.value.param == "min_tokens"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": False, "stream_options": {}}, "stream_options"),
        ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
        ({"stream": True, "stream_options": {"surprise": 1}}, "stream_options.surprise"),
        ({"stream": True, "stream_options": {"include_obfuscation": True}}, "stream_options.include_obfuscation"),
    ],
)
def test_stream_options_are_checked(decode: Decode, fields: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequest) as caught:
        decode(**fields)
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("options", "expected"),
    [(None, False), ({}, False), ({"include_usage": False}, False), ({"include_usage": True}, True)],
)
def test_usage_in_a_stream_is_asked_for(decode: Decode, options: Any, expected: bool) -> None:
    assert decode(stream=True, stream_options=options).includes_usage is expected


NEUTRAL: dict[str, list[Any]] = {
    "response_format": [{"type": "text"}],
    "guided_json": [],
    "guided_regex": [],
    "guided_choice": [],
    "guided_grammar": [],
    "metadata": [{}],
    "store": [False],
    "service_tier": ["auto", "default"],
}

ASKING: dict[str, list[Any]] = {
    "response_format": [{"type": "json_object"}, {}, "text"],
    "guided_json": [{}],
    "guided_regex": ["a*"],
    "guided_choice": [["a"]],
    "guided_grammar": [""],
    "metadata": [{"a": "b"}],
    "store": [True],
    "service_tier": ["flex"],
}


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in NEUTRAL.items() for value in [*values, None]]
)
def test_what_is_not_built_passes_where_it_asks_for_nothing(decode: Decode, name: str, value: Any) -> None:
    decode(**{name: value})


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in ASKING.items() for value in values])
def test_what_is_not_built_is_refused_by_name(decode: Decode, name: str, value: Any) -> None:
    with pytest.raises(BadRequest, match=f"^{name} is not available yet$") as caught:
        decode(**{name: value})
    assert caught.value.param == name


def test_biases_go_by_token_id(decode: Decode) -> None:
    assert decode(logit_bias={"5": -100, "0": 100, "261": 0.5}).logit_bias == {5: -100, 0: 100, 261: 0.5}
    assert len(decode(logit_bias={str(token): 1 for token in range(1024)}).logit_bias or {}) == 1024
    with pytest.raises(BadRequest) as caught:
        decode(logit_bias={str(token): 1 for token in range(1025)})
    assert caught.value.param == "logit_bias"


def test_no_tokens_at_all_are_asked_for_with_an_echo_only(decode: Decode) -> None:
    with pytest.raises(BadRequest, match="max_tokens: expected at least 1") as caught:
        decode(max_tokens=0)
    assert caught.value.param == "max_tokens"
    assert decode_with_completion(max_tokens=0, echo=True).token_limit == 0


def test_stop_is_always_a_tuple(decode: Decode) -> None:
    assert decode(stop="x").stop_strings == ("x",)
    assert decode(stop=["x", "y"]).stop_strings == ("x", "y")
    assert decode().stop_strings == ()


def test_what_the_openai_client_sends_by_default_is_taken(decode: Decode) -> None:
    try:
        decode(model="the-model", frequency_penalty=0, presence_penalty=0, logit_bias=None, n=1, top_p=1, user="u")
    except RequestError as error:
        pytest.fail(str(error))
