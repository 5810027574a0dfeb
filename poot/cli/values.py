"""The grammars of the values that are more than a number, and the files that flags name.

A parser of this module takes the text of one value and raises `BadValue`; the reader adds the option's name and what
is allowed. A function that reads a file is called after the whole command line has parsed.
"""

from __future__ import annotations

import ipaddress
import re
from pathlib import Path

from poot.cli.reader import BadValue, integer, quote
from poot.config import (
    Address,
    Backend,
    DraftLookup,
    DraftModel,
    FdAddress,
    Placement,
    PlacementKind,
    TcpAddress,
    UnixAddress,
)
from poot.errors import ConfigError

ADDRESS_FORMS = "HOST:PORT, [IPV6]:PORT, unix:PATH or fd://N, with PORT from 0 (the kernel chooses) to 65535"

# sun_path holds 108 bytes on Linux, the closing zero among them (unix(7)); 104 on macOS and the BSDs.
MAX_UNIX_PATH_BYTES = 103
# Templates of real models are up to some tens of KiB.
MAX_TEMPLATE_BYTES = 1024 * 1024
MAX_KEY_BYTES = 4096

_HOST_NAME = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(\.(?!-)[A-Za-z0-9_-]{1,63})*\.?")
_LOOKS_NUMERIC = re.compile(r"[0-9.]+")
# RFC 6750 section 2.1: b64token.
_BEARER_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*")
_JINJA_OPENINGS = ("{{", "{%", "{#")

_parse_port = integer(0, 65535)
_parse_descriptor = integer(0)
_parse_ordinal = integer(0)
_parse_positive = integer(1)


def parse_address(text: str) -> Address:
    """ADDR: where to listen."""
    if text.startswith("unix:"):
        path = text.removeprefix("unix:")
        if not path:
            raise BadValue("the path is empty")
        if len(path.encode("utf-8", "surrogateescape")) > MAX_UNIX_PATH_BYTES:
            raise BadValue(f"the path is longer than the {MAX_UNIX_PATH_BYTES} bytes of a socket address")
        return UnixAddress(path=path)
    if text.startswith("fd://"):
        return FdAddress(fd=_parse_descriptor(text.removeprefix("fd://")))
    host, colon, port = text.rpartition(":")
    if not colon:
        raise BadValue("no port")
    number = _parse_port(port)
    if host.startswith("[") and host.endswith("]"):
        return TcpAddress(host=_ipv6(host[1:-1]), port=number)
    if ":" in host:
        raise BadValue("an IPv6 address is written between square brackets")
    return TcpAddress(host=_host(host), port=number)


def _ipv6(text: str) -> str:
    try:
        return str(ipaddress.IPv6Address(text))
    except ValueError as error:
        raise BadValue("not an IPv6 address between the brackets") from error


def _host(text: str) -> str:
    if _LOOKS_NUMERIC.fullmatch(text):
        # Resolvers read 127.1 and 0177.0.0.1 as addresses of their own; only the usual form is meant here.
        try:
            return str(ipaddress.IPv4Address(text))
        except ValueError as error:
            raise BadValue("not an IPv4 address") from error
    if not _HOST_NAME.fullmatch(text) or len(text) > 253:
        raise BadValue("not a host name or IP address")
    return text


def parse_backend(text: str) -> Backend:
    """--backend: one of its names, written exactly so."""
    try:
        return Backend(text)
    except ValueError as error:
        raise BadValue from error


def parse_placement(text: str) -> Placement:
    """--placement: `single`, or a kind and the ordinals of its GPUs."""
    if text == PlacementKind.SINGLE.value:
        return Placement()
    kind, colon, list_text = text.partition(":")
    if not colon or kind not in (PlacementKind.PIPELINE.value, PlacementKind.TENSOR.value):
        raise BadValue
    ordinals = tuple(_parse_ordinal(ordinal) for ordinal in list_text.split(","))
    if len(set(ordinals)) != len(ordinals):
        raise BadValue("an ordinal is repeated")
    if len(ordinals) < 2:
        raise BadValue("a group needs at least two ordinals")
    return Placement(kind=PlacementKind(kind), ordinals=ordinals)


def parse_draft_lookup(text: str) -> DraftLookup:
    """--draft-lookup: split at the first colon."""
    ngram, colon, num_draft_tokens = text.partition(":")
    if not colon:
        raise BadValue("no colon")
    return DraftLookup(ngram=_parse_positive(ngram), num_draft_tokens=_parse_positive(num_draft_tokens))


def parse_draft_model(text: str) -> DraftModel:
    """--draft-model: split at the last colon, so that the path may contain colons."""
    path, colon, num_draft_tokens = text.rpartition(":")
    if not colon:
        raise BadValue("no colon")
    return DraftModel(path=parse_path(path), num_draft_tokens=_parse_positive(num_draft_tokens))


def parse_path(text: str) -> Path:
    """A path that is not empty; whether anything is there is found out when it is read."""
    if not text:
        raise BadValue("the path is empty")
    return Path(text)


def parse_template(text: str) -> str:
    """--chat-template: the source of a template. That it compiles is checked by the template engine, when it loads."""
    if not has_jinja_syntax(text):
        raise BadValue("it has no jinja syntax, so it names a built-in template")
    return text


def has_jinja_syntax(text: str) -> bool:
    """Whether `text` holds an expression, a statement or a comment of jinja."""
    return any(opening in text for opening in _JINJA_OPENINGS)


def read_template_file(option: str, path: Path) -> str:
    """The template that `path` holds.

    Args:
        option: the flag that named the file, for messages.

    Raises:
        ConfigError: the file cannot be read, is not UTF-8, is too large, or holds no jinja syntax.
    """
    source = _read_text(option, path, MAX_TEMPLATE_BYTES)
    if not has_jinja_syntax(source):
        raise ConfigError(
            f"{option}: {quote(str(path))} has no jinja syntax; allowed: a file that holds a jinja template"
        )
    return source


def read_key_file(option: str, path: Path) -> str:
    """The bearer token that `path` holds on its one line; a newline at its end is not part of it.

    Raises:
        ConfigError: the file cannot be read or holds anything else. The message never repeats what it holds.
    """
    line = _read_text(option, path, MAX_KEY_BYTES).removesuffix("\n").removesuffix("\r")
    if not _BEARER_TOKEN.fullmatch(line):
        raise ConfigError(
            f"{option}: {quote(str(path))} does not hold one bearer token; "
            "allowed: one line of letters, digits and - . _ ~ + /, ended by = signs or not"
        )
    return line


def _read_text(option: str, path: Path, max_bytes: int) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(max_bytes + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ConfigError(f"{option}: {quote(str(path))} cannot be read ({reason}); allowed: a file") from error
    if len(data) > max_bytes:
        raise ConfigError(f"{option}: {quote(str(path))} is too large; allowed: at most {max_bytes} bytes")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{option}: {quote(str(path))} is not UTF-8 (at byte {error.start}); allowed: UTF-8 text"
        ) from error
