"""The fields of chats alone, and the conversation as a template sees it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poot.api.schema.chat import ChatRequest, decode_chat, template_messages
from poot.errors import BadRequest, RequestError, UnsupportedCapability
from tests.api.schema.test_decode import json_values

HELLO = {"role": "user", "content": "hello"}
CALL = {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1, "b": [2]}'}}


def decode(**fields: Any) -> ChatRequest:
    return decode_chat(json.dumps({"messages": [HELLO], **fields}).encode(), "the-model")


def render(*messages: Any) -> list[dict[str, Any]]:
    return template_messages(decode(messages=list(messages)))


def test_messages_reach_the_template_in_order() -> None:
    assert render(
        {"role": "developer", "content": "be brief"},
        {"role": "system", "content": ""},
        {"role": "user", "content": "hi", "name": "ann"},
        {"role": "assistant", "content": "hello"},
    ) == [
        {"role": "system", "content": "be brief"},
        {"role": "system", "content": ""},
        {"role": "user", "content": "hi", "name": "ann"},
        {"role": "assistant", "content": "hello"},
    ]


def test_text_parts_are_joined_by_a_newline() -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    assert render({"role": "user", "content": parts}) == [{"role": "user", "content": "one\ntwo"}]


def test_what_a_client_sends_back_from_an_answer_is_taken() -> None:
    message: dict[str, Any] = {
        "role": "assistant",
        "content": "hello",
        "refusal": None,
        "annotations": [],
        "audio": None,
        "function_call": None,
        "tool_calls": [],
    }
    assert render(message) == [{"role": "assistant", "content": "hello"}]


def test_calls_and_their_results_reach_the_template_with_arguments_as_an_object() -> None:
    assert render(
        HELLO,
        {"role": "assistant", "content": None, "tool_calls": [CALL, {"function": {"name": "now"}}]},
        {"role": "tool", "content": "3", "tool_call_id": "call_1"},
    ) == [
        HELLO,
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": {"a": 1, "b": [2]}}},
                {"type": "function", "function": {"name": "now", "arguments": {}}},
            ],
        },
        {"role": "tool", "content": "3", "tool_call_id": "call_1"},
    ]


@pytest.mark.parametrize(
    ("fields", "adds"),
    [
        ({}, True),
        ({"add_generation_prompt": False}, False),
        ({"continue_final_message": True}, False),
        ({"continue_final_message": True, "add_generation_prompt": False}, False),
        ({"continue_final_message": False, "add_generation_prompt": True}, True),
    ],
)
def test_a_new_turn_is_begun_unless_the_last_message_is_continued(fields: dict[str, Any], adds: bool) -> None:
    assert decode(**fields).adds_generation_prompt is adds


def test_a_message_cannot_be_continued_and_followed() -> None:
    with pytest.raises(BadRequest) as caught:
        decode(add_generation_prompt=True, continue_final_message=True)
    assert caught.value.param == "continue_final_message"


@pytest.mark.parametrize("name", ["messages", "tools", "documents", "add_generation_prompt"])
def test_template_variables_stand_in_for_no_field(name: str) -> None:
    decode(chat_template_kwargs={"enable_thinking": False})
    with pytest.raises(BadRequest) as caught:
        decode(chat_template_kwargs={name: 1})
    assert caught.value.param == f"chat_template_kwargs.{name}"


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        (None, "messages"),
        ([], "messages"),
        ("hi", "messages"),
        (["hi"], "messages[0]"),
        ([{}], "messages[0].role"),
        ([{"content": "x"}], "messages[0].role"),
        ([HELLO, {"role": "robot", "content": "x"}], "messages[1].role"),
        ([{"role": "user"}], "messages[0].content"),
        ([{"role": "user", "content": None}], "messages[0].content"),
        ([{"role": "user", "content": 5}], "messages[0].content"),
        ([{"role": "user", "content": ["x"]}], "messages[0].content[0]"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text"),
        ([{"role": "user", "content": [{"type": "poem"}]}], "messages[0].content[0].type"),
        ([{"role": "user", "content": "x", "surprise": 1}], "messages[0].surprise"),
        ([{"role": "function", "content": "x", "name": "f"}], "messages[0].role"),
        ([{"role": "assistant", "content": "", "function_call": {"name": "f"}}], "messages[0].function_call"),
        ([{"role": "assistant", "tool_calls": []}], "messages[0].content"),
        ([{"role": "assistant", "tool_calls": [{"id": "1"}]}], "messages[0].tool_calls[0].function"),
        ([{"role": "user", "content": "x", "tool_calls": [CALL]}], "messages[0].tool_calls"),
        ([{"role": "assistant", "tool_calls": [{**CALL, "type": "custom"}]}], "messages[0].tool_calls[0].type"),
        (
            [{"role": "assistant", "tool_calls": [CALL, {"function": {"name": "f", "arguments": "[1]"}}]}],
            "messages[0].tool_calls[1].function.arguments",
        ),
    ],
)
def test_a_wrong_message_is_named(messages: Any, param: str) -> None:
    with pytest.raises(BadRequest) as caught:
        template_messages(decode(messages=messages))
    assert caught.value.param == param


@pytest.mark.parametrize("kind", ["image_url", "input_audio", "file", "video_url"])
def test_an_image_sent_to_a_text_model_is_an_unsupported_capability(kind: str) -> None:
    with pytest.raises(UnsupportedCapability) as caught:
        render({"role": "user", "content": [{"type": "text", "text": "look"}, {"type": kind, kind: {}}]})
    assert (caught.value.param, caught.value.code) == ("messages[0].content[1].type", "unsupported_capability")


def test_messages_are_required() -> None:
    with pytest.raises(BadRequest, match="messages is required"):
        decode_chat(b"{}", "the-model")


@pytest.mark.parametrize(
    ("fields", "num_logprobs"),
    [
        ({}, None),
        ({"logprobs": False}, None),
        ({"logprobs": False, "top_logprobs": 0}, None),
        ({"logprobs": True}, 0),
        ({"logprobs": True, "top_logprobs": 0}, 0),
        ({"logprobs": True, "top_logprobs": 20}, 20),
    ],
)
def test_logprobs_are_asked_for_in_two_fields(fields: dict[str, Any], num_logprobs: int | None) -> None:
    assert decode(**fields).num_logprobs == num_logprobs


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"top_logprobs": 1}, "top_logprobs"),
        ({"logprobs": False, "top_logprobs": 1}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": -1}, "top_logprobs"),
        ({"logprobs": 1}, "logprobs"),
    ],
)
def test_other_logprobs_are_refused(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequest) as caught:
        decode(**fields)
    assert caught.value.param == param


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": []},
        {"tool_choice": "none"},
        {"tool_choice": "auto"},
        {"parallel_tool_calls": True},
        {"functions": []},
        {"function_call": "none"},
        {"modalities": ["text"]},
        {"reasoning_effort": "none"},
        {"verbosity": "medium"},
        {"audio": None, "prediction": None, "web_search_options": None, "chat_template": None},
    ],
)
def test_what_is_not_built_passes_where_it_asks_for_nothing(fields: dict[str, Any]) -> None:
    decode(**fields)


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [{"type": "function"}]},
        {"tool_choice": "required"},
        {"functions": [{}]},
        {"function_call": {"name": "f"}},
        {"modalities": ["text", "audio"]},
        {"audio": {}},
        {"prediction": {}},
        {"web_search_options": {}},
        {"reasoning_effort": "high"},
        {"verbosity": "low"},
        {"chat_template": "{{ x }}"},
    ],
)
def test_what_is_not_built_is_refused_by_name(fields: dict[str, Any]) -> None:
    (name,) = fields
    with pytest.raises(BadRequest, match=f"^{name} is not available yet$") as caught:
        decode(**fields)
    assert caught.value.param == name


def test_fields_of_completions_are_unknown_here() -> None:
    with pytest.raises(BadRequest, match="unknown field: echo"):
        decode(echo=False)


FIELDS = list(ChatRequest.__struct_fields__)
MESSAGE_FIELDS = ["role", "content", "name", "tool_calls", "refusal", "unknown"]
messages = st.lists(
    st.dictionaries(st.sampled_from(MESSAGE_FIELDS), json_values | st.just("user"), max_size=3), max_size=2
)


@given(st.dictionaries(st.sampled_from([*FIELDS, "unknown"]), json_values, max_size=6), messages)
def test_any_json_object_is_a_request_or_a_request_error(fields: dict[str, Any], conversation: Any) -> None:
    try:
        request = decode(**{"messages": conversation or [HELLO], **fields})
        template_messages(request)
    except RequestError:
        return
    assert "unknown" not in fields
