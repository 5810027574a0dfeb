"""The text of --help, made from the table of flags."""

from __future__ import annotations

import textwrap

from poot.cli.flags import ADDRESS_DEFAULT, GROUPS
from poot.cli.reader import Option
from poot.cli.values import ADDRESS_FORMS

_WIDTH = 100
_INDENT = " " * 6


def help_text() -> str:
    """What --help prints: usage, positionals, every option by group, ending in a newline."""
    lines = [
        "poot-serve: one process that serves one model over HTTP, with an API that OpenAI clients speak.",
        "",
        "Usage: poot-serve [OPTIONS] [MODEL] [ADDR]",
        "",
        "Arguments:",
        "  MODEL",
        *_wrap("A safetensors directory or a .gguf file. Default: the demo model, if it was fetched."),
        "  ADDR",
        *_wrap(f"Where to listen: {ADDRESS_FORMS}. Default: {ADDRESS_DEFAULT}."),
    ]
    for group in GROUPS:
        lines += ["", f"{group.title}:"]
        for option in group.options:
            lines += _describe(option)
    lines += [
        "",
        "An option is written out in full, as --name value or --name=value, at most once. Logging is set",
        "by RUST_LOG (default info). Exit status: 0 served and drained, 1 could not start, 2 wrong command line.",
    ]
    return "\n".join(lines) + "\n"


def _describe(option: Option[object]) -> list[str]:
    if option.metavar is None:
        return [f"  {option.name}", *_wrap(option.help)]
    return [
        f"  {option.name} {option.metavar}",
        *_wrap(option.help),
        *_wrap(f"Allowed: {option.allowed}. Default: {option.default}."),
    ]


def _wrap(text: str) -> list[str]:
    return textwrap.wrap(
        text, _WIDTH, initial_indent=_INDENT, subsequent_indent=_INDENT, break_on_hyphens=False, break_long_words=False
    )
