"""The checks of a decoded HTTP/2 field list: fields in, a `Head` or one typed error out (RFC 9113 sections 8.2, 8.3).

The same strictness as `head` has for HTTP/1.1, so that a request means the same however it came: refused with 400 are
pseudo-header fields that are missing, repeated, unknown or out of place, names with upper case or no token, values with
control characters or outer white space, fields about a connection, and a Host that contradicts `:authority`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from poot.errors import HeadersTooLarge
from poot.net.exchange import Head
from poot.net.http.head import FIELD_VALUE, HOST, MAX_HEAD_BYTES, malformed, parse_target

FIELD_OVERHEAD_BYTES = 32
"""What a field counts beside its name and value (section 6.5.2)."""

_NAME = re.compile(rb"[!#$%&'*+\-.^_`|~0-9a-z]+")
_METHOD = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_PSEUDO_FIELDS = frozenset((b":method", b":scheme", b":authority", b":path"))
_CONNECTION_FIELDS = frozenset((b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"))


def parse_fields(fields: list[tuple[bytes, bytes]]) -> Head:
    """The head in a request's fields.

    Raises:
        BadRequest: what is malformed, in words without the peer's bytes.
        HeadersTooLarge: the list is over `MAX_HEAD_BYTES` by the measure of SETTINGS_MAX_HEADER_LIST_SIZE.
    """
    if sum(len(name) + len(value) for name, value in fields) + FIELD_OVERHEAD_BYTES * len(fields) > MAX_HEAD_BYTES:
        raise HeadersTooLarge(f"the request head is over {MAX_HEAD_BYTES} bytes")
    pseudo: dict[bytes, bytes] = {}
    for name, value in fields:
        if not name.startswith(b":"):
            break
        if name not in _PSEUDO_FIELDS or name in pseudo:
            raise malformed("a pseudo-header field that is unknown or repeated")
        pseudo[name] = value
    headers = tuple(fields[len(pseudo) :])
    check_fields(headers)
    method, target = pseudo.get(b":method", b""), pseudo.get(b":path", b"")
    if not _METHOD.fullmatch(method):
        raise malformed("no method")
    if method != b"CONNECT":
        if pseudo.get(b":scheme") not in (b"http", b"https"):
            raise malformed("a scheme that is neither http nor https")
        if not target.startswith((b"/", b"*")):
            raise malformed("the path does not begin with a slash")
    path, query, _ = parse_target(method, target)
    authority = _authority(pseudo.get(b":authority"), headers)
    return Head(
        method=method.decode("ascii"),
        path=path.decode("ascii"),
        query=query.decode("ascii"),
        authority=authority.decode("ascii") if authority is not None else None,
        headers=headers,
        http_version="2",
    )


def check_fields(fields: Iterable[tuple[bytes, bytes]]) -> None:
    """Checks regular fields: those of a head behind the pseudo-header fields, or all of a trailer.

    Raises:
        BadRequest: one is malformed.
    """
    for name, value in fields:
        if not _NAME.fullmatch(name):
            raise malformed(_describe_name(name))
        if not FIELD_VALUE.fullmatch(value):
            raise malformed("a control character in a header field")
        if value[:1] in (b" ", b"\t") or value[-1:] in (b" ", b"\t"):
            raise malformed("white space around a header field's value")
        if name in _CONNECTION_FIELDS or (name == b"te" and value.lower() != b"trailers"):
            raise malformed("a header field about the connection, which HTTP/2 does not have")


def _authority(authority: bytes | None, headers: tuple[tuple[bytes, bytes], ...]) -> bytes | None:
    hosts = [value for name, value in headers if name == b"host"]
    if len(hosts) > 1:
        raise malformed("more than one Host field")
    if authority is None:
        authority = hosts[0] if hosts else None
    elif hosts and hosts[0] != authority:
        raise malformed("a Host field that contradicts the authority")
    if authority is not None and not HOST.fullmatch(authority):
        raise malformed("an authority that is no host and port")
    return authority


def _describe_name(name: bytes) -> str:
    if name.startswith(b":"):
        return "a pseudo-header field behind a regular one"
    if name != name.lower():
        return "a header field name that is not in lower case"
    return "a header field name that is no token"
