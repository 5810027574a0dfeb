"""Logging as RUST_LOG asks for it: levels by target, one line an event, on standard error.

A line is `time level target message key=value ...`. Values that hold white space, quotes or control characters are
written as JSON strings, and control characters in a message are escaped, so that bytes from a peer can never forge a
line. `cli.py` reads the environment and passes the value of RUST_LOG in.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import threading
import time
from dataclasses import dataclass
from typing import TextIO

from poot.errors import ConfigError

TRACE = 5
_OFF = logging.CRITICAL + 10

_LEVELS = {
    "error": logging.ERROR,
    "warn": logging.WARNING,
    "info": logging.INFO,
    "debug": logging.DEBUG,
    "trace": TRACE,
    "off": _OFF,
}
_NAMES = {logging.CRITICAL: "ERROR", **{number: name.upper() for name, number in _LEVELS.items()}}
_ALLOWED = "error, warn, info, debug, trace or off, or target=level directives separated by commas"
_TARGET = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:(?:::|\.)[A-Za-z_][A-Za-z0-9_]*)*")
_PLAIN_VALUE = re.compile(r"[!#-<>-\[\]-~]+")  # printable ASCII without space, quote, = and backslash
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


@dataclass(frozen=True, kw_only=True, slots=True)
class LogFilter:
    """A parsed RUST_LOG: the level of everything, and the levels of targets and what lies below them."""

    default: int = logging.INFO
    targets: tuple[tuple[str, int], ...] = ()


def parse_filter(value: str | None) -> LogFilter:
    """The filter a value of RUST_LOG asks for; unset or empty is info.

    Directives are separated by commas: a level sets the default, `target=level` one target and what lies below it. A
    target is written `poot::net` or `poot.net`; levels in any case. Of a repeated target the last counts.

    Raises:
        ConfigError: a directive that is neither. Nothing is skipped.
    """
    if value is None or not value.strip():
        return LogFilter()
    default = logging.INFO
    targets: dict[str, int] = {}
    for directive in value.split(","):
        target, equals, level_name = directive.strip().rpartition("=")
        level = _LEVELS.get(level_name.strip().lower())
        target = target.strip()
        if level is None or (equals and not _TARGET.fullmatch(target)):
            raise ConfigError(f"RUST_LOG: {directive.strip()!r} does not parse; allowed: {_ALLOWED}")
        if equals:
            targets[target.replace("::", ".")] = level
        else:
            default = level
    return LogFilter(default=default, targets=tuple(targets.items()))


class Logger:
    """Writes events of one target. Fields are given as keywords and come out as key=value after the message."""

    def __init__(self, target: str) -> None:
        self._logger = logging.getLogger(target)

    def is_enabled(self, level: int) -> bool:
        """Whether an event of this level would be written; for events that cost something to put together."""
        return self._logger.isEnabledFor(level)

    def error(self, message: str, **fields: object) -> None:
        self._log(logging.ERROR, message, fields)

    def warn(self, message: str, **fields: object) -> None:
        self._log(logging.WARNING, message, fields)

    def info(self, message: str, **fields: object) -> None:
        self._log(logging.INFO, message, fields)

    def debug(self, message: str, **fields: object) -> None:
        self._log(logging.DEBUG, message, fields)

    def trace(self, message: str, **fields: object) -> None:
        self._log(TRACE, message, fields)

    def exception(self, message: str, error: BaseException, **fields: object) -> None:
        """An error with its traceback, for the broad `except` at a task boundary."""
        self._logger.error("%s", message, extra={"fields": fields}, exc_info=error)

    def _log(self, level: int, message: str, fields: dict[str, object]) -> None:
        if self._logger.isEnabledFor(level):
            self._logger.handle(_Record(self._logger.name, level, message, fields))


class _Record(logging.LogRecord):
    """An event without the caller's file, line and task, which no line shows and which cost more than the line."""

    def __init__(self, name: str, level: int, message: str, fields: dict[str, object]) -> None:
        # Not the base's, which is what takes the time; every attribute it documents is here for formatters of others.
        self.name, self.levelno, self.levelname = name, level, logging.getLevelName(level)
        self.msg, self.args, self.fields = message, None, fields
        self.pathname = self.filename = self.module = ""
        self.lineno = 0
        self.funcName = ""
        self.exc_info = None
        self.exc_text = None
        self.stack_info = None
        self.created = time.time()
        self.msecs = int(self.created * 1000) % 1000 + 0.0
        self.relativeCreated = 0.0
        self.thread, self.threadName = threading.get_ident(), threading.current_thread().name
        self.process, self.processName = os.getpid(), "MainProcess"
        self.taskName = None


def get_logger(target: str) -> Logger:
    """The logger of a target such as `poot.net`; modules pass `__name__`."""
    return Logger(target)


class LineFormatter(logging.Formatter):
    """One line an event; a traceback follows on indented lines."""

    def __init__(self) -> None:
        super().__init__()
        self._second = -1
        self._time = ""

    def format(self, record: logging.LogRecord) -> str:
        if (second := int(record.created)) != self._second:
            self._second = second
            self._time = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
        level = _NAMES.get(record.levelno, record.levelname)
        line = f"{self._time}.{int(record.msecs):03d}Z {level} {record.name} {_escape(record.getMessage())}"
        fields: dict[str, object] = getattr(record, "fields", {})
        for key, value in fields.items():
            line += f" {key}={_field_value(value)}"
        if record.exc_info:
            line += "\n" + "\n".join(f"    {part}" for part in self.formatException(record.exc_info).splitlines())
        return line


class _LineHandler(logging.StreamHandler[TextIO]):
    """The one handler `configure` installs; told apart from handlers of others by its class."""


def configure(value: str | None, *, stream: TextIO | None = None, target: str | None = None) -> None:
    """Sends every log record that RUST_LOG's value lets through to `stream` (standard error) as one line.

    Replaces what an earlier call set up: its handler, and the levels of its targets.

    Args:
        target: takes over the records of this target and those below it alone, where the process is somebody else's.

    Raises:
        ConfigError: the value does not parse.
    """
    chosen = parse_filter(value)
    reset()
    handler = _LineHandler(stream if stream is not None else sys.stderr)
    handler.setFormatter(LineFormatter())
    logger = logging.getLogger(target)
    logger.addHandler(handler)
    logger.setLevel(chosen.default)
    if target is not None:
        logger.propagate = False
        _configured.append(target)
    for name, level in chosen.targets:
        logging.getLogger(name).setLevel(level)
        _configured.append(name)


def reset() -> None:
    """Takes back what `configure` set up."""
    logging.getLogger().setLevel(logging.WARNING)
    loggers = [logging.getLogger(), *map(logging.getLogger, _configured)]
    _configured.clear()
    for logger in loggers[1:]:
        logger.setLevel(logging.NOTSET)
        logger.propagate = True
    for logger in loggers:
        for handler in [handler for handler in logger.handlers if isinstance(handler, _LineHandler)]:
            logger.removeHandler(handler)


# `logging` keeps levels for the whole process; what is remembered here is what `reset` has to take back.
_configured: list[str] = []


def _escape(text: str) -> str:
    if text.isascii() and text.isprintable():
        return text
    return _CONTROL.sub(lambda match: match.group().encode("unicode_escape").decode("ascii"), text)


def _field_value(value: object) -> str:
    if type(value) is int:
        return str(value)
    if isinstance(value, float):
        return f"{value:.3f}".rstrip("0").rstrip(".") if value else "0"
    text = str(value)
    return text if _PLAIN_VALUE.fullmatch(text) else json.dumps(text)
