"""From an ASGI `http` scope to a `Head` and `Endpoints`: what the host server read, checked once more.

The host has parsed the bytes, so what only the bytes show is its to refuse: bare CR and LF, obs-fold, white space
before a colon, versions, Content-Length fields that it has joined to one (h11 joins equal ones), fields about the
connection over HTTP/2. What is still to be seen is checked here as `http.head` checks it: size of the head, method and
target, field names and values, one well-formed Host.
"""

from __future__ import annotations

from collections.abc import Collection, MutableMapping
from typing import Any
from urllib.parse import quote

from poot.errors import HeadersTooLarge
from poot.net.binding import peer_ip
from poot.net.exchange import Endpoints, Head
from poot.net.http.head import FIELD_NAME, FIELD_VALUE, HOST, MAX_HEAD_BYTES, malformed, parse_target

Scope = MutableMapping[str, Any]

_FIELD_OVERHEAD_BYTES = 4
"""Colon, space and line end, which HTTP/1.1 has for each field."""

_HTTPS_PORT = 443


def read_head(scope: Scope) -> Head:
    """The head in a scope. Its path is what follows `root_path`.

    Raises:
        BadRequest: what is malformed, in words without the peer's bytes.
        HeadersTooLarge: target and fields are over `MAX_HEAD_BYTES`.
    """
    target = _target(scope)
    fields = scope["headers"]
    if len(target) + sum(len(name) + len(value) + _FIELD_OVERHEAD_BYTES for name, value in fields) > MAX_HEAD_BYTES:
        raise HeadersTooLarge(f"the request head is over {MAX_HEAD_BYTES} bytes", close=True)
    headers: list[tuple[bytes, bytes]] = []
    host: bytes | None = None
    for name, value in fields:
        if not FIELD_NAME.fullmatch(name) or not FIELD_VALUE.fullmatch(value):
            raise malformed("a header field name that is no token, or a control character in a value")
        name, value = bytes(name).lower(), bytes(value).strip(b" \t")
        if name == b"host":
            if host is not None:
                raise malformed("more than one Host field")
            if not HOST.fullmatch(value):
                raise malformed("a Host field that is no host and port")
            host = value
        headers.append((name, value))
    method = scope["method"].encode("latin-1")
    if not FIELD_NAME.fullmatch(method):
        raise malformed("a method that is no token")
    path, query, authority = parse_target(method, target)
    if authority is None:
        authority = host
    return Head(
        method=method.decode("ascii"),
        path=path.decode("ascii"),
        query=query.decode("ascii"),
        authority=_with_port(authority.decode("ascii"), scope.get("scheme", "http")) if authority is not None else None,
        headers=tuple(headers),
        http_version=scope["http_version"],
    )


def read_endpoints(scope: Scope, head: Head | None, names: Collection[str]) -> Endpoints:
    """Both ends of a request's connection. Where the head's authority is one of `names`, that name is the local end.

    Args:
        head: None when it could not be read.
        names: hosts in lower case, without port, that the host server is reached by.
    """
    client = scope.get("client")
    peer = peer_ip(tuple(client) if client is not None else None)
    server = scope.get("server")
    host, port = (server[0], server[1]) if server is not None and server[1] is not None else (None, None)
    if head is not None and head.authority is not None:
        named_host, _, named_port = head.authority.rpartition(":")
        if not named_port.isdecimal():
            named_host, named_port = head.authority, "80"
        if named_host.lower() in names:
            host, port = named_host.lower(), int(named_port)
    return Endpoints(peer_ip=peer, local_host=host, local_port=port)


def _target(scope: Scope) -> bytes:
    raw_path: bytes | None = scope.get("raw_path")
    # A host that has decoded the path and kept no copy: encoding it again is the nearest there is.
    path = raw_path if raw_path is not None else quote(scope["path"], safe="/!$&'()*+,;=:@").encode("ascii")
    root = quote(scope.get("root_path", "")).encode("ascii")
    if root and path.startswith(root + b"/"):
        path = path[len(root) :]
    query: bytes = scope.get("query_string", b"")
    return b"%b?%b" % (path, query) if query else path


def _with_port(authority: str, scheme: str) -> str:
    """`authority` with its port where that is implied by https; the application takes none to mean 80."""
    host, colon, port = authority.rpartition(":")
    if scheme != "https" or (colon and port.isdecimal()):
        return authority
    return f"{host if colon and not port else authority}:{_HTTPS_PORT}"
