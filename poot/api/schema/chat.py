"""The request of POST /v1/chat/completions."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from poot.api.schema.common import GenerationFields, LogprobCount, Unavailable, check_common
from poot.api.schema.decode import decode
from poot.errors import BadRequest, UnsupportedCapability


class ContentPart(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """One part of a message. Only text is built; the others are known, to be refused by what they are."""

    type: Literal["text", "image_url", "input_audio", "file", "video_url", "refusal"]
    text: str | None = None
    refusal: Any = None
    image_url: Any = None
    input_audio: Any = None
    file: Any = None
    video_url: Any = None


class CalledFunction(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """`arguments` is the text of a JSON object; empty is one without any."""

    name: str
    arguments: str = ""


class ToolCall(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A call that the assistant made, as an answer has it; `index` is that of a stream's pieces."""

    function: CalledFunction
    id: str | None = None
    type: Literal["function"] = "function"
    index: int | None = None


class Message(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """One message of a conversation.

    The fields after `name` are those clients send back from an answer, and of a tool's result.
    """

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[ContentPart] | None = None
    name: str | None = None
    refusal: Any = None
    annotations: Any = None
    audio: Any = None
    function_call: Any = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: Any = None


class ChatRequest(GenerationFields, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """As decoded."""

    messages: Annotated[list[Message], msgspec.Meta(min_length=1)]
    logprobs: bool | None = None
    top_logprobs: LogprobCount | None = None
    tools: Any = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    functions: Any = None
    function_call: Any = None
    modalities: Any = None
    audio: Any = None
    prediction: Any = None
    reasoning_effort: Any = None
    verbosity: Any = None
    web_search_options: Any = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template: Any = None
    chat_template_kwargs: dict[str, Any] | None = None

    @property
    def adds_generation_prompt(self) -> bool:
        """Whether the assistant's turn is begun after the messages: unless the last of them is to be continued."""
        if self.add_generation_prompt is None:
            return not self.continue_final_message
        return self.add_generation_prompt

    @property
    def num_logprobs(self) -> int | None:
        """Top log-probabilities to report with each token, None for none at all."""
        return (self.top_logprobs or 0) if self.logprobs else None


def _is_empty(given: Any) -> bool:
    return given in ([], {})


_UNAVAILABLE = Unavailable(
    {
        "tools": _is_empty,
        "tool_choice": lambda given: given in ("none", "auto"),  # without tools, auto is none
        "functions": _is_empty,
        "function_call": lambda given: given in ("none", "auto"),
        "modalities": lambda given: given == ["text"],
        "audio": lambda given: False,
        "prediction": lambda given: False,
        "reasoning_effort": lambda given: given == "none",
        "verbosity": lambda given: given == "medium",
        "web_search_options": lambda given: False,
        "chat_template": lambda given: False,
    }
)
_MESSAGE_UNAVAILABLE = ("audio", "function_call")
_TEMPLATE_ARGUMENTS = frozenset({"messages", "tools", "documents", "add_generation_prompt"})
_arguments_decoder = msgspec.json.Decoder(dict[str, Any])
_decoder = msgspec.json.Decoder(ChatRequest)


def decode_chat(body: bytes, model_id: str) -> ChatRequest:
    """The checked request in `body`, for the server of `model_id`.

    Raises:
        BadRequest, NotFound, UnsupportedCapability: as `decode`, `check_common` and `template_messages` say.
    """
    request = decode(body, _decoder)
    check_common(request, model_id)
    _UNAVAILABLE.refuse(request)
    if request.top_logprobs and not request.logprobs:
        raise BadRequest("top_logprobs needs logprobs: true", param="top_logprobs")
    if request.continue_final_message and request.add_generation_prompt:
        raise BadRequest(
            "continue_final_message and add_generation_prompt: a message cannot be continued and followed by a new one",
            param="continue_final_message",
        )
    for name in _TEMPLATE_ARGUMENTS.intersection(request.chat_template_kwargs or ()):
        raise BadRequest(f"chat_template_kwargs.{name}: has a field of its own", param=f"chat_template_kwargs.{name}")
    return request


def template_messages(request: ChatRequest) -> list[dict[str, Any]]:
    """The conversation as a chat template sees it: `role`, `content` as one string, and what else a message holds.

    Text parts are joined with a newline, as vLLM and llama.cpp do for templates that take strings. `developer` is
    OpenAI's newer name for `system`, which is the one templates know. The content of a message that only calls tools is
    empty, and the arguments of a call are an object, as Hugging Face's templates expect them.

    Raises:
        UnsupportedCapability: an image, audio or file part.
        BadRequest: a part without text, content missing, or arguments that are no JSON object.
    """
    return [_template_message(message, f"messages[{index}]") for index, message in enumerate(request.messages)]


def _template_message(message: Message, path: str) -> dict[str, Any]:
    if message.role == "function":
        raise BadRequest(f"{path}.role: 'function' is not available; use 'tool'", param=f"{path}.role")
    for name in _MESSAGE_UNAVAILABLE:
        given = getattr(message, name)
        if given is not None and not _is_empty(given):
            raise BadRequest(f"{path}.{name} is not available yet", param=f"{path}.{name}")
    if message.tool_calls and message.role != "assistant":
        raise BadRequest(f"{path}.tool_calls: only an assistant calls tools", param=f"{path}.tool_calls")
    if message.content is None and not message.tool_calls:
        raise BadRequest(f"{path}.content: a message needs content", param=f"{path}.content")
    role = "system" if message.role == "developer" else message.role
    content = "" if message.content is None else _content_text(message.content, f"{path}.content")
    rendered: dict[str, Any] = {"role": role, "content": content}
    if message.name is not None:
        rendered["name"] = message.name
    if message.tool_calls:
        rendered["tool_calls"] = [
            _template_call(call, f"{path}.tool_calls[{index}]") for index, call in enumerate(message.tool_calls)
        ]
    if message.tool_call_id is not None:
        rendered["tool_call_id"] = message.tool_call_id
    return rendered


def _template_call(call: ToolCall, path: str) -> dict[str, Any]:
    arguments: dict[str, Any] = {}
    if call.function.arguments.strip():
        try:
            arguments = decode(call.function.arguments.encode(), _arguments_decoder)
        except BadRequest as error:
            where = f"{path}.function.arguments"
            raise BadRequest(f"{where}: not the text of a JSON object", param=where) from error
    rendered: dict[str, Any] = {
        "type": "function",
        "function": {"name": call.function.name, "arguments": arguments},
    }
    return rendered if call.id is None else {"id": call.id, **rendered}


def _content_text(content: str | list[ContentPart], path: str) -> str:
    if isinstance(content, str):
        return content
    texts = []
    for index, part in enumerate(content):
        part_path = f"{path}[{index}]"
        if part.type != "text":
            raise UnsupportedCapability(
                f"{part_path}: this model takes text, and no {part.type} part", param=f"{part_path}.type"
            )
        if part.text is None:
            raise BadRequest(f"{part_path}.text: a text part needs text", param=f"{part_path}.text")
        texts.append(part.text)
    return "\n".join(texts)
