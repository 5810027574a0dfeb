"""Invariant: a command line becomes a configuration, or is refused with a `ConfigError` or `StartupError` of one line.

The bytes are the arguments, divided by NUL. Those that would have files read are passed over.
"""

from __future__ import annotations

from poot.cli import parse_command_line
from poot.errors import ConfigError, StartupError


def check(data: bytes) -> None:
    """Raises AssertionError when the invariant is broken; anything else that is raised breaks it too."""
    if b"file" in data:
        return
    arguments = [argument.decode("utf-8", "surrogateescape") for argument in data.split(b"\0")]
    try:
        parse_command_line(arguments)
    except (ConfigError, StartupError) as error:
        assert "\n" not in str(error)
