"""Chat templates: a model's own jinja source, rendered in a sandbox.

The language is the one Hugging Face's `apply_chat_template` gives to templates: jinja2 with trimmed blocks, loop
controls, the `generation` tag, `raise_exception`, `strftime_now` and a `tojson` that leaves HTML alone. A template
comes with a model file, or from the operator; it sees the conversation and a few strings, and the sandbox keeps it from
everything else, including changing what it is given.

Bounded: `range` by the sandbox (100,000 items), the text by MAX_RENDERED_CHARACTERS, recursion by the interpreter, and
what one `*` or `**` makes, which jinja2 would work out while it compiles if both sides are constants.
Not bounded: time. A template with nested loops can take as long as it likes, and a client chooses only how long a list
it loops over; the API renders on a worker thread. Nor is the size of a string that is built in other ways.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence, Sized
from datetime import datetime
from typing import Any

import jinja2
import jinja2.exceptions
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.runtime
import jinja2.sandbox

from poot.errors import BadRequest, CheckpointError, ConfigError

# A conversation of 4 MiB, the default body, and what a template adds to it.
MAX_RENDERED_CHARACTERS = 16 * 1024 * 1024

# The variable that tells filters which character `guard` has put into the conversation.
_GUARD = "_guard"

# Of an integer that `*` or `**` makes: 1,200 digits, and far from what takes time to compute.
_MAX_INTEGER_BITS = 4096

JINJA_SYNTAX = ("{{", "{%", "{#")

_BEYOND_ASCII = re.compile(r"[^\x00-\x7e]")  # what json escapes as not ASCII, DEL with it


class _RefusedByTemplate(Exception):
    """The template called raise_exception."""


class _GenerationTag(jinja2.ext.Extension):
    """{% generation %}...{% endgeneration %} marks, for training, what the assistant said. Here it is its contents."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it a plain set, and only reads it

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        # A scope of its own, as in Hugging Face's: what is set inside is not seen after it.
        return jinja2.nodes.Scope(body).set_lineno(line)


def _raise_exception(message: str) -> None:
    raise _RefusedByTemplate(message)


@jinja2.pass_context
def _tojson(
    context: jinja2.runtime.Context,
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    text = json.dumps(value, ensure_ascii=False, indent=indent, separators=separators, sort_keys=sort_keys)
    if not ensure_ascii:
        return text
    guard = context.get(_GUARD)  # escaped, it would stay in the text
    return _BEYOND_ASCII.sub(lambda match: match[0] if match[0] == guard else json.dumps(match[0])[1:-1], text)


class _Sandbox(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """Refuses an unsafe attribute at once, where jinja2 would print nothing in its place, and giant products."""

    # jinja2 leaves these to `call_binop`, when the template is rendered and not when it is compiled.
    intercepted_binops = frozenset(("*", "**"))

    def call_binop(self, context: jinja2.runtime.Context, operator: str, left: Any, right: Any) -> Any:
        if _is_giant(operator, left, right):
            raise jinja2.exceptions.SecurityError(f"the result of {operator} is too large")
        return super().call_binop(context, operator, left, right)

    def unsafe_undefined(self, obj: Any, attribute: str) -> jinja2.Undefined:
        raise jinja2.exceptions.SecurityError(f"access to attribute {attribute!r} of {type(obj).__name__!r} is unsafe")


def _is_giant(operator: str, left: Any, right: Any) -> bool:
    """Whether `left * right` or `left ** right` would be a giant integer or a giant copy of a text or list."""
    if isinstance(left, int) and isinstance(right, int):
        if operator == "**":
            return left.bit_length() * right > _MAX_INTEGER_BITS
        return left.bit_length() + right.bit_length() > _MAX_INTEGER_BITS
    if isinstance(right, int) and isinstance(left, Sized):
        return len(left) * right > MAX_RENDERED_CHARACTERS
    if isinstance(left, int) and isinstance(right, Sized):
        return left * len(right) > MAX_RENDERED_CHARACTERS
    return False


def _make_environment(now: Callable[[], datetime]) -> _Sandbox:
    environment = _Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, jinja2.ext.loopcontrols])
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: now().strftime(form)
    return environment


def is_named_template(value: str) -> bool:
    """Whether a --chat-template value has no jinja syntax, and so names a built-in template rather than being one."""
    return not any(mark in value for mark in JINJA_SYNTAX)


def check_chat_template(source: str, origin: str) -> None:
    """Refuses a template given by the operator that poot cannot render.

    Args:
        source: the flag's value or the file's content.
        origin: the flag, and the file it names, for the message.

    Raises:
        ConfigError: it names a built-in template, or does not compile.
    """
    if is_named_template(source):
        shown = source if len(source) <= 60 else f"{source[:60]}..."
        raise ConfigError(f"{origin}: {shown!r} has no jinja syntax and poot has no built-in templates to name")
    ChatTemplate(source, origin=origin)


class ChatTemplate:
    """A compiled chat template.

    Args:
        source: jinja.
        origin: where it came from: the flag and file, for messages; None for the model's own.
        path: the model file, for messages about its own template.
        now: the clock of strftime_now.

    Raises:
        ConfigError: an operator's template does not compile.
        CheckpointError: the model's own does not.
    """

    def __init__(
        self,
        source: str,
        *,
        origin: str | None = None,
        path: str | None = None,
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        self.source = source
        try:
            self._template = _make_environment(now).from_string(source)
        except Exception as error:  # compiling also evaluates constant expressions, which may fail in any way
            line = f" in line {error.lineno}" if isinstance(error, jinja2.TemplateSyntaxError) else ""
            message = f"the chat template does not compile: {_one_line(error)}{line}"
            if origin is not None:
                raise ConfigError(f"{origin}: {message}") from error
            raise CheckpointError(message, path=path) from error

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
        guard: str | None = None,
    ) -> str:
        """The conversation as one text.

        Args:
            messages: role, content and whatever else the template reads.
            add_generation_prompt: end with the beginning of the assistant's turn.
            tools, documents: given to the template as they are.
            variables: bos_token and the like, and what a request adds for this template; none of them can stand in for
                the arguments above.
            guard: the character that stands inside special tokens in the arguments (see `guard`).

        Raises:
            BadRequest: the template refused the conversation, failed on it, or wrote too much; with its own message.
        """
        context = {
            **(variables or {}),
            "messages": messages,
            "tools": tools,
            "documents": documents,
            "add_generation_prompt": add_generation_prompt,
            _GUARD: guard,
        }
        pieces: list[str] = []
        size = 0
        try:
            for piece in self._template.generate(context):
                pieces.append(piece)
                size += len(piece)
                if size > MAX_RENDERED_CHARACTERS:
                    raise BadRequest("the chat template wrote more than 16 Mi characters", param="messages")
        except BadRequest:
            raise
        except _RefusedByTemplate as error:
            raise BadRequest(_one_line(error), param="messages") from error
        except Exception as error:
            # A template is a program: whatever it runs into is an answer to this request and no one else's.
            raise BadRequest(
                f"the chat template failed: {_one_line(error) or type(error).__name__}", param="messages"
            ) from error
        return "".join(pieces)


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())
