"""A strict reader of command lines: a table of options in, typed values or one typed error out.

It knows nothing of poot's own flags (those are in `flags.py`). What it refuses, argparse would accept: an option given
twice, an abbreviation, a value that starts like an option, digits that are not ASCII.

The grammar. `--name value` and `--name=value` are the same; a value that itself starts with `--` needs the second
form. `--` ends the options. An option is written out in full and given at most once. Everything else that does not
start with `-` is positional, and so is `-` alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar, cast

from poot.errors import ConfigError

Value = TypeVar("Value")
Value_co = TypeVar("Value_co", covariant=True)

# Options without a bound of their own stop here: far above any use, and small enough for every system interface.
MAX_COUNT = 2**31 - 1
# How much of a value an error message repeats.
MAX_QUOTED_CHARACTERS = 80


class BadValue(Exception):
    """Raised by a value parser; `read_arguments` turns it into a `ConfigError` that names option and value.

    `str(error)`, when not empty, says more than "is not allowed" does.
    """


@dataclass(frozen=True, kw_only=True, eq=False)
class Option(Generic[Value_co]):
    """One option: how it is written, what it takes and what it means.

    Attributes:
        name: with its dashes.
        metavar: what the value is called in the help text, or None for an option without a value.
        default: the default as the help text and the documentation say it.
        allowed: what a value may be, as error messages, help text and documentation say it.
        help: what it does, with the unit of its value.
        parse: turns the text of a value into a value; raises `BadValue`. Given "" for an option without a value.
    """

    name: str
    metavar: str | None
    default: str
    allowed: str
    help: str
    parse: Callable[[str], Value_co]


@dataclass(frozen=True, kw_only=True)
class OptionGroup:
    """Options that the help text shows under one heading."""

    title: str
    options: tuple[Option[object], ...]


class Arguments:
    """What a command line held: values by option, and positionals."""

    def __init__(self, values: Mapping[Option[object], object], positionals: tuple[str, ...]) -> None:
        self._values = values
        self.positionals = positionals

    def get(self, option: Option[Value]) -> Value | None:
        """The value of `option`, or None where it was not given."""
        return cast("Value | None", self._values.get(option))

    def has(self, option: Option[object]) -> bool:
        """Whether `option` was given."""
        return option in self._values


def quote(text: str) -> str:
    """`text` between quotes on one line: control characters escaped, the end of a long text cut off."""
    shown = text if len(text) <= MAX_QUOTED_CHARACTERS else text[: MAX_QUOTED_CHARACTERS - 3] + "..."
    return repr(shown)


def read_arguments(
    arguments: Sequence[str], options: Sequence[Option[object]], *, positionals: Sequence[str]
) -> Arguments:
    """The command line `arguments` (without the program's name), read in order.

    Args:
        options: the whole table.
        positionals: the names of the positional arguments; more than these are refused.

    Raises:
        ConfigError: the first thing that is wrong, naming option, value and what is allowed.
    """
    table = {option.name: option for option in options}
    values: dict[Option[object], object] = {}
    found: list[str] = []
    rest = list(arguments)
    while rest:
        argument = rest.pop(0)
        if argument == "--":
            found.extend(rest)
            break
        if not argument.startswith("-") or argument == "-":
            found.append(argument)
            continue
        name, equals, text = argument.partition("=")
        option = table.get(name)
        if option is None:
            raise ConfigError(f"unknown option {quote(name)}; --help lists the options, and none can be abbreviated")
        if option in values:
            raise ConfigError(f"{name} is given more than once; allowed: once")
        if option.metavar is None:
            if equals:
                raise ConfigError(f"{name} takes no value, and was given {quote(text)}")
        elif not equals:
            if not rest or rest[0].startswith("--"):
                raise ConfigError(f"{name} needs a value {option.metavar}; allowed: {option.allowed}")
            text = rest.pop(0)
        values[option] = _parse_value(option, text)
    if len(found) > len(positionals):
        raise ConfigError(f"unexpected argument {quote(found[len(positionals)])}; allowed: {' '.join(positionals)}")
    for name, text in zip(positionals, found, strict=False):
        if not text:
            raise ConfigError(f"{name} is empty; allowed: a value, or leave it out")
    return Arguments(values, tuple(found))


def _parse_value(option: Option[Value], text: str) -> Value:
    try:
        return option.parse(text)
    except BadValue as error:
        detail = f" ({error})" if str(error) else ""
        message = f"{option.name}: {quote(text)} is not allowed{detail}; allowed: {option.allowed}"
        raise ConfigError(message) from error


def parse_decimal(text: str) -> int:
    """A number written in plain ASCII decimal digits: no sign, no space, no underscore, no other digits of Unicode.

    Raises:
        BadValue: anything else, and a number so long that it cannot be meant.
    """
    if not (text.isascii() and text.isdecimal()):
        raise BadValue("not a whole number in plain decimal digits")
    if len(text) > 100:  # int() refuses over 4300 digits with an error of its own
        raise BadValue("too large")
    return int(text)


def integer(low: int, high: int = MAX_COUNT) -> Callable[[str], int]:
    """A parser of whole numbers from `low` to `high`, both included."""

    def parse(text: str) -> int:
        number = parse_decimal(text)
        if number < low:
            raise BadValue("too small")
        if number > high:
            raise BadValue("too large")
        return number

    return parse


def describe_range(low: int, high: int = MAX_COUNT) -> str:
    """How the range of `integer` is written in messages and documentation."""
    return f"a whole number from {low} to {high}"


def present(text: str) -> bool:
    """The parser of an option without a value."""
    return True
