from __future__ import annotations

import json
import re
from datetime import datetime
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from poot.engine.checkpoint import open_checkpoint
from poot.engine.text import ChatTemplate, check_chat_template, is_named_template
from poot.errors import BadRequest, CheckpointError, ConfigError
from tests.engine.text.makers import train_byte_level
from tests.models import require_model

# Templates in the manner of the families, written for these tests.
CHATML = """{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}
"""

LLAMA3 = """{{- bos_token }}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\nToday Date: " + strftime_now("%Y") + "\\n\\n" }}
{{- system_message + "<|eot_id|>" }}
{%- for message in messages %}
    {%- if message.role not in ('user', 'assistant', 'tool') %}{% continue %}{% endif %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}
    {{- message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if tools is not none %}
    {%- for tool in tools %}{{ tool | tojson(indent=4) }}{% endfor %}
{%- endif %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""

MISTRAL = """{{ bos_token }}{% for message in messages %}
{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{ raise_exception('roles must alternate user/assistant/user/assistant/...') }}
{% endif %}
{% if message['role'] == 'user' %}
{{ '[INST] ' + message['content'] + ' [/INST]' }}
{% else %}
{% generation %}{{ message['content'] + eos_token}}{% endgeneration %}
{% endif %}
{% endfor %}"""

GEMMA = """{{ bos_token }}
{%- set ns = namespace(first='') -%}
{%- for message in messages -%}
    {%- if message['role'] == 'assistant' -%}
        {%- set role = 'model' -%}
    {%- else -%}
        {%- set role = message['role'] -%}
    {%- endif -%}
    {{ '<start_of_turn>' + role + '\\n' }}
    {%- if message['content'] is string -%}
        {{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {%- for item in message['content'] -%}
            {%- if item['type'] == 'text' -%}{{ item['text'] | trim }}{%- endif -%}
        {%- endfor -%}
    {%- else -%}
        {{ raise_exception("Invalid content type") }}
    {%- endif -%}
    {{ '<end_of_turn>\\n' }}
    {%- set ns.first = 'no' -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<start_of_turn>model\\n' }}{%- endif -%}
{# loop controls and keyword arguments of tojson #}
{%- for number in range(10) %}
    {%- if number == 2 %}{% break %}{% endif %}
    {{- {'b': '<é>', 'a': number} | tojson(sort_keys=true, ensure_ascii=true, separators=(',', ':')) }}
{%- endfor -%}
"""

INDENTED = """
  {% for message in messages %}
    {% if message.role == 'user' %}
 {{ message.content }}
    {# gone with its line #}
    {% endif %}
  {% endfor %}
"""

USER: list[dict[str, Any]] = [{"role": "user", "content": "  What is 2 < 3 & 'x'?  "}]
TALK = [*USER, {"role": "assistant", "content": "Yes\n"}, {"role": "user", "content": "東京 🙂\n\n"}]
TOOLS = [{"type": "function", "function": {"name": "<f>", "description": "d'é"}}]


@pytest.fixture(scope="module")
def reference() -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(
        tokenizer_object=train_byte_level(), bos_token="<|endoftext|>", eos_token="<|im_end|>"
    )


@pytest.mark.parametrize(
    "source", [CHATML, LLAMA3, MISTRAL, GEMMA, INDENTED], ids=["chatml", "llama3", "mistral", "gemma", "indented"]
)
@pytest.mark.parametrize("messages", [USER, TALK], ids=["user", "talk"])
@pytest.mark.parametrize("tools", [None, TOOLS], ids=["plain", "tools"])
@pytest.mark.parametrize("add_generation_prompt", [True, False])
def test_text_is_what_transformers_renders(
    reference: PreTrainedTokenizerFast,
    source: str,
    messages: list[dict[str, Any]],
    tools: list[dict[str, Any]] | None,
    add_generation_prompt: bool,
) -> None:
    expected = reference.apply_chat_template(
        messages, tools=tools, chat_template=source, add_generation_prompt=add_generation_prompt, tokenize=False
    )
    rendered = ChatTemplate(source).render(
        messages,
        tools=tools,
        add_generation_prompt=add_generation_prompt,
        variables={"bos_token": "<|endoftext|>", "eos_token": "<|im_end|>"},
    )
    assert rendered == expected


@pytest.mark.parametrize("messages", [USER, TALK, [{"role": "system", "content": "Be brief."}, *USER]])
def test_smollm2s_own_template_renders_as_in_transformers(
    reference: PreTrainedTokenizerFast, messages: list[dict[str, Any]]
) -> None:
    source = open_checkpoint(require_model("smollm2")).chat_template
    assert source is not None
    expected = reference.apply_chat_template(messages, chat_template=source, add_generation_prompt=True, tokenize=False)
    assert ChatTemplate(source).render(messages) == expected


def test_strftime_now_is_the_clocks() -> None:
    template = ChatTemplate("{{ strftime_now('%d %b %Y') }}", now=lambda: datetime(2026, 2, 3))
    assert template.render([]) == "03 Feb 2026"


def test_a_variable_cannot_stand_in_for_the_conversation() -> None:
    template = ChatTemplate("{{ messages | length }} {{ x }}")
    assert template.render([], variables={"messages": [1, 2, 3], "x": "y"}) == "0 y"


def test_documents_are_given_to_the_template() -> None:
    assert ChatTemplate("{{ documents[0].text }}").render([], documents=[{"text": "d"}]) == "d"


@pytest.mark.parametrize("indent", [None, 2])
def test_tojson_is_jsons_dumps(indent: int | None) -> None:
    value = {"b": ["é", "\x7f", "🙂", "<&'>", None, 1.5, True], "a": {"é": 1}}
    for ensure_ascii in (True, False):
        template = ChatTemplate("{{ messages[0] | tojson(ensure_ascii=flag, indent=indent) }}")
        rendered = template.render([value], variables={"flag": ensure_ascii, "indent": indent})
        assert rendered == json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)


def test_the_templates_own_refusal_is_the_answer() -> None:
    with pytest.raises(BadRequest, match=r"^roles must alternate user/assistant/user/assistant/\.\.\.$") as caught:
        ChatTemplate(MISTRAL).render([{"role": "assistant", "content": "hi"}], variables={"bos_token": "<s>"})
    assert (caught.value.status, caught.value.param) == (400, "messages")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{{ messages[0].content + 1 }}", "the chat template failed: "),
        ("{{ messages[0].nonesuch.deeper }}", "has no attribute 'nonesuch'"),
        ("{{ nonesuch() }}", "'nonesuch' is undefined"),
        ("{{ 1 / (messages | length - 1) }}", "division by zero"),
        ("{{ messages[0].content | int | tojson(indent=object) }}", "the chat template failed"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion"),
        ("{% include 'x' %}", "the chat template failed"),
        ("{{ range(1000000) | list }}", "Range too big"),
        ("{% for _ in range(99999) %}{{ 'x' * 1000 }}{% endfor %}", "more than 16 Mi characters"),
    ],
)
def test_a_template_that_fails_answers_400_with_its_message(source: str, message: str) -> None:
    with pytest.raises(BadRequest, match=re.escape(message)):
        ChatTemplate(source).render([{"role": "user", "content": "hi"}])


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.__class__ }}",
        "{{ cycler.__init__.__globals__.os.system('true') }}",
        "{{ raise_exception.__globals__ }}",
        "{{ (messages | attr('__class__')).mro() }}",
        "{{ self.__init__.__globals__ }}",
        "{{ '{0.__class__.__init__.__globals__}'.format(messages) }}",
        "{% set x = messages.append(1) %}",
        "{% set x = messages[0].update({'role': 'system'}) %}",
        "{{ messages[0].content.__class__.__base__ }}",
        "{{ lipsum.__globals__['os'].popen('true').read() }}",
        "{{ strftime_now.__closure__[0].cell_contents }}",
    ],
)
def test_a_way_out_of_the_sandbox_is_refused(source: str) -> None:
    messages = [{"role": "user", "content": "hi"}]
    with pytest.raises(BadRequest):
        ChatTemplate(source).render(messages)
    assert messages == [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize(
    "source", ["{{ 'a' * 10 ** 9 }}", "{{ 10 ** 9 * [1] }}", "{{ 7 ** 10000000 }}", "{{ 9 ** 4000 }}"]
)
def test_a_giant_product_is_refused_before_it_is_made(source: str) -> None:
    # These are constants, which jinja2 would multiply out in the constructor.
    with pytest.raises(BadRequest, match=r"the result of \*\*? is too large"):
        ChatTemplate(source).render([])


def test_products_of_usual_sizes_are_what_python_says() -> None:
    source = "{{ '-' * 3 }} {{ 2 * [1] }} {{ 2 ** 10 * 3 }} {{ 2 ** -1 }} {{ 1.5 * 2 }} {{ 'a' * -1 }}|"
    assert ChatTemplate(source).render([]) == f"{'-' * 3} {2 * [1]} {2**10 * 3} {2**-1} {1.5 * 2} |"


@pytest.mark.parametrize(
    "source", ["{% if %}", "{{ x", "{% nonesuch %}", "{% generation %}", "{{ x | nonesuch }}", "{{ 'a' * -x ) }}"]
)
def test_a_template_that_does_not_compile_is_whoevers_it_is(source: str) -> None:
    with pytest.raises(ConfigError, match=r"^--chat-template: the chat template does not compile: .* in line 1$"):
        check_chat_template(source, "--chat-template")
    with pytest.raises(CheckpointError, match=r"^model.gguf: the chat template does not compile: "):
        ChatTemplate(source, path="model.gguf")


@pytest.mark.parametrize("name", ["chatml", "llama3", "", "a } b", "<|im_start|>"])
def test_a_name_is_refused_as_a_built_in_template(name: str) -> None:
    assert is_named_template(name)
    with pytest.raises(ConfigError, match=r"^--chat-template: .* has no jinja syntax"):
        check_chat_template(name, "--chat-template")


@pytest.mark.parametrize("source", ["{{ messages }}", "{% if x %}{% endif %}", "{# note #}", CHATML])
def test_jinja_is_no_name(source: str) -> None:
    assert not is_named_template(source)
    check_chat_template(source, "--chat-template")
