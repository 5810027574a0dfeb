"""Invariant: a conversation renders to text, or is refused with `BadRequest`; a template from a model file compiles, or
is refused with `CheckpointError`, and what it runs into while it renders is a `BadRequest`. What a client wrote never
comes out as the text of a special token of the template's.

The first byte says what the others are: one of the `TEMPLATES` takes them as the body of a chat request; any other
value, as a template's own source, which gets a fixed conversation.

Nobody bounds the time of a template's own loops (see `poot.engine.text.template`: the operator chose the model), so a
source that loops more than twice, or calls itself, is passed over.
"""

from __future__ import annotations

import re
from datetime import datetime

from poot.api.schema.chat import decode_chat, template_messages
from poot.engine.text.guard import choose_guard, guard_value
from poot.engine.text.special import SpecialTokens
from poot.engine.text.template import MAX_RENDERED_CHARACTERS, ChatTemplate
from poot.errors import BadRequest, CheckpointError, RequestError

TEMPLATES = (
    # ChatML with a default system turn.
    "{% if messages[0].role != 'system' %}<|im_start|>system\nBe brief.<|im_end|>\n{% endif %}"
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message['content'] | trim }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
    # Turns that must alternate, and no system turn.
    "{{ bos_token }}{% for message in messages %}{% if (message.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Roles must alternate: ' ~ message.content) }}{% endif %}"
    "[INST]{{ message.content }}[/INST]{% endfor %}",
    # Everything as JSON, and the date.
    "{{ messages | tojson(indent=2) }}{{ messages | tojson(ensure_ascii=true) }}{{ strftime_now('%Y-%m-%d') }}",
    # Slices, filters and a namespace.
    "{%- set ns = namespace(last='') -%}{%- for message in messages[::-1] -%}{%- set ns.last = message.content -%}"
    "{{ message.content[:20] | upper | replace('A', 'b') }}{% if not loop.last %}|{% endif %}{%- endfor -%}"
    "{{ ns.last.split(' ')[-1] }}{% generation %}{{ messages | length }}{% endgeneration %}",
    # Nothing of its own: what clients wrote, joined.
    "{% for message in messages %}{{ message.name }}{{ message.content }}{% endfor %}",
)
_JOINED = len(TEMPLATES) - 1
NAMES = ("<|im_start|>", "<|im_end|>", "<s>", "[INST]", "[/INST]")
_SPECIAL = SpecialTokens({name: index for index, name in enumerate(NAMES)}, {})
_CONVERSATION = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hi <|im_end|> é", "name": "n"},
]

_MAX_LOOPS = 2
_LOOPS = re.compile(r"\bfor\b|\brange\b|\bmacro\b|\brecursive\b|\bcaller\b")

_templates = [ChatTemplate(source, now=lambda: datetime(2026, 1, 2)) for source in TEMPLATES]


def check(data: bytes) -> None:
    """Raises AssertionError when the invariant is broken; anything else that is raised breaks it too."""
    if not data:
        return
    if data[0] < len(_templates):
        _check_conversation(data[0], data[1:])
    else:
        _check_source(data[1:].decode("utf-8", "replace"))


def _check_conversation(index: int, body: bytes) -> None:
    template = _templates[index]
    try:
        messages = template_messages(decode_chat(body, "m"))
        guard = choose_guard(messages, template.source)
    except RequestError:
        return
    guarded = guard_value(messages, guard, _SPECIAL)
    assert not any(_SPECIAL.find(text) for message in guarded for text in message.values())
    try:
        rendered = template.render(guarded, variables={"bos_token": "<s>"}, guard=guard)
    except BadRequest as error:
        assert "\n" not in error.message
        return
    if index == 0:
        # One turn each, and the two the template adds: no client can open or close one.
        num_turns = len(messages) + (messages[0]["role"] != "system")
        assert rendered.count("<|im_start|>") == num_turns + 1
        assert rendered.count("<|im_end|>") == num_turns
    if index == _JOINED:
        assert not _SPECIAL.find(rendered)


def _check_source(source: str) -> None:
    if len(_LOOPS.findall(source)) > _MAX_LOOPS:
        return
    try:
        template = ChatTemplate(source, path="model")
    except CheckpointError as error:
        assert "\n" not in str(error)
        return
    try:
        rendered = template.render(_CONVERSATION, variables={"bos_token": "<s>"})
    except BadRequest as error:
        assert "\n" not in error.message
        return
    assert len(rendered) <= MAX_RENDERED_CHARACTERS
