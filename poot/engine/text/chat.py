"""A conversation to token ids: guard what the client wrote, render, encode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from poot.engine.checkpoint.types import Checkpoint
from poot.engine.text.guard import choose_guard, guard_value
from poot.engine.text.template import ChatTemplate
from poot.engine.text.tokenizer import Tokenizer
from poot.errors import BadRequest, UnsupportedCapability


def select_template(checkpoint: Checkpoint, source: str | None, origin: str | None) -> ChatTemplate | None:
    """The template chats are rendered through: the operator's, else the model's own, else None.

    Raises:
        ConfigError: the operator's does not compile.
        CheckpointError: the model's own does not.
    """
    if source is not None:
        return ChatTemplate(source, origin=origin or "--chat-template")
    if checkpoint.chat_template is None:
        return None
    return ChatTemplate(checkpoint.chat_template, path=str(checkpoint.path))


def render_chat(
    template: ChatTemplate | None,
    tokenizer: Tokenizer,
    messages: Sequence[Mapping[str, Any]],
    *,
    add_generation_prompt: bool = True,
    continues_final: bool = False,
    tools: Sequence[Mapping[str, Any]] | None = None,
    documents: Sequence[Mapping[str, Any]] | None = None,
    variables: Mapping[str, Any] | None = None,
) -> list[int]:
    """The prompt of a chat as token ids.

    The text of special tokens in anything the client sent stays text; the template's own become tokens.

    Args:
        template: from `select_template`.
        continues_final: end within the last message, after its content, which is a string.
        messages, tools, documents: trees of JSON values, as the client sent them; not changed.
        variables: further values for the template; they take precedence over the tokenizer's bos_token and the like.

    Raises:
        UnsupportedCapability: there is no template.
        BadRequest: the template refused the conversation, or a text holds a lone surrogate.
    """
    if template is None:
        raise UnsupportedCapability(
            "this model has no chat template; start the server with --chat-template or --chat-template-file",
            param="messages",
        )
    given = {"messages": messages, "tools": tools, "documents": documents, "variables": variables or {}}
    guard = choose_guard(given, template.source)
    end_mark = choose_guard(given, template.source, guard) if continues_final else ""
    if continues_final:
        *before, last = messages
        given["messages"] = [*before, {**last, "content": last["content"] + end_mark + " "}]
    guarded = guard_value(given, guard, tokenizer.special_tokens)
    rendered = template.render(
        guarded["messages"],
        add_generation_prompt=add_generation_prompt,
        tools=guarded["tools"],
        documents=guarded["documents"],
        variables={**tokenizer.variables, **guarded["variables"]},
        guard=guard,
    )
    if continues_final:
        rendered = _cut_at(rendered, end_mark)
    return tokenizer.encode_guarded(rendered, guard)


def _cut_at(rendered: str, end_mark: str) -> str:
    """The text before the last `end_mark`, which was put into the message with a space behind it.

    Where that space is gone the template trims messages, and what would have been trimmed before the mark goes too, as
    in Hugging Face's `apply_chat_template`.

    Raises:
        BadRequest: the template did not write the mark.
    """
    before, mark, after = rendered.rpartition(end_mark)
    if not mark:
        raise BadRequest(
            "continue_final_message: the chat template does not write the end of the last message's content",
            param="continue_final_message",
        )
    before = before.replace(end_mark, "")
    return before if after.startswith(" ") else before.rstrip()
