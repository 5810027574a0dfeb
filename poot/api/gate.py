"""What a request is refused for by its head alone, in the order the design gives, before a byte of its body is read.

Plain synchronous functions of the head and both ends of the connection. The rate window is the only state, and only
a head that found its route and named this server spends from it.
"""

from __future__ import annotations

import hmac
import ipaddress
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from poot.api.limits import RateWindow
from poot.errors import (
    BadRequest,
    ContentTooLarge,
    Draining,
    Forbidden,
    LengthRequired,
    MethodNotAllowed,
    MisdirectedRequest,
    NotFound,
    Unauthorized,
    UnsupportedMediaType,
)
from poot.net.exchange import Endpoints, Exchange, Head

HTTP_PORT = 80
_MAX_LENGTH_DIGITS = 18  # more digits than any cap has; keeps hostile numbers out of int()


Handler = Callable[[Exchange, "RouteMatch"], Awaitable[int]]
"""Answers an exchange and returns the status it sent, or raises a `RequestError` before it sent anything."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Route:
    """A path poot answers.

    Attributes:
        path: the path, or what stands before the id when `has_id`.
        methods: handler by method; HEAD is answered as GET without its body.
        is_model_request: holds an admission place while it is answered.
        checks_host: gets the Host check for every method, not only for POST.
        is_admin: asks for the admin's bearer token.
    """

    path: str
    methods: Mapping[str, Handler]
    has_id: bool = False
    is_model_request: bool = False
    checks_host: bool = False
    is_admin: bool = False
    max_body_bytes: int = 0

    @property
    def label(self) -> str:
        """The route in metrics."""
        return f"{self.path}{{id}}" if self.has_id else self.path

    @property
    def allow(self) -> str:
        """The value of Allow."""
        methods = set(self.methods)
        return ", ".join(sorted(methods | {"HEAD"} if "GET" in methods else methods))


@dataclass(frozen=True, slots=True)
class RouteMatch:
    """A route with what its path carried: the raw text after `path` when the route has an id, else ""."""

    route: Route
    rest: str


class Gate:
    """Checks heads for one server.

    Args:
        routes: exact paths and id prefixes; no two may claim one path.
        rate: the window every POST spends from.
        count_draining: called when a request is refused because the server drains.
        admin_key: the bearer token of the admin routes; None opens them on a loopback listener and nowhere else.
    """

    def __init__(
        self,
        routes: tuple[Route, ...],
        rate: RateWindow,
        *,
        count_draining: Callable[[], None],
        admin_key: str | None = None,
    ) -> None:
        self._exact = {route.path: RouteMatch(route, "") for route in routes if not route.has_id}
        self._prefixes = tuple(route for route in routes if route.has_id)
        self._rate = rate
        self._count_draining = count_draining
        self._admin_key = admin_key

    def find(self, path: str) -> RouteMatch | None:
        """The route of a path, whatever the method."""
        match = self._exact.get(path)
        if match is not None:
            return match
        for route in self._prefixes:
            if path.startswith(route.path) and len(path) > len(route.path):
                return RouteMatch(route, path[len(route.path) :])
        return None

    def check(self, head: Head, endpoints: Endpoints, *, is_draining: bool) -> RouteMatch:
        """The route that is to answer this head.

        Raises:
            RequestError: the first check it fails, in the design's order.
        """
        match = self.find(head.path)
        if match is None:
            raise NotFound("no such path on this server")
        route = match.route
        method = "GET" if head.method == "HEAD" else head.method
        if method not in route.methods:
            raise MethodNotAllowed(
                f"{route.label} takes {route.allow} and no other method", headers=(("Allow", route.allow),)
            )
        if method == "POST" or route.checks_host:
            check_host(head.authority, endpoints)
        elif head.authority is None and head.http_version == "1.1":
            # RFC 9112 section 3.2 asks for it. Whatever it names will do, so that probes and scrapers work.
            raise BadRequest("the Host header field is missing", close=True)
        if method == "POST":
            self._rate.spend(endpoints.peer_ip)
        if route.is_admin:
            check_admin(head, endpoints, self._admin_key)
        if method == "POST":
            check_content_type(head)
            check_length(head, route.max_body_bytes)
            if is_draining:
                self._count_draining()
                raise Draining("the server is shutting down and takes no new requests", close=True)
        return match


_AUTHORITY = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._~!$&'()*+,;=%-]*)(?::(?P<port>[0-9]{0,5}))?")
_LOCAL = ("localhost", "127.0.0.1", "::1")


def check_host(authority: str | None, endpoints: Endpoints) -> None:
    """Passes a Host that names this listener: a page in a browser that was led here by DNS names another one.

    Named are localhost, the loopback addresses and the bound address, with the bound port (80 where none is
    written). A wildcard listener checks only the port; a Unix socket has neither, so any well-formed Host passes.

    Raises:
        BadRequest: there is no Host, or it is malformed (RFC 9110 section 7.2, RFC 3986 section 3.2).
        MisdirectedRequest: it names something else.
    """
    if not authority:
        raise BadRequest("the Host header field is missing or empty", close=True)
    parsed = _AUTHORITY.fullmatch(authority)
    if parsed is None or int(parsed["port"] or 0) > 65535:
        raise BadRequest("the Host header field is malformed", close=True)
    if endpoints.local_host is None:
        return
    port = int(parsed["port"] or HTTP_PORT)
    if port != endpoints.local_port:
        raise MisdirectedRequest(f"Host names port {port}, which is not this server's")
    host = parsed["host"]
    if host in _LOCAL or host == endpoints.local_host:
        return  # as nearly everybody spells it, without reading addresses
    bound = _host_key(endpoints.local_host)
    if bound in ("", "0.0.0.0", "::"):
        return
    if _host_key(host) not in (*_LOCAL, bound):
        raise MisdirectedRequest("Host does not name this server: it takes localhost, loopback and its bound address")


def _host_key(host: str) -> str:
    """A host in the one spelling that compares: lower case, an address in its canonical form."""
    text = host.removeprefix("[").removesuffix("]").lower()
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        return text


def check_admin(head: Head, endpoints: Endpoints, key: str | None) -> None:
    """Passes a request that may change what is served: with the bearer token (RFC 6750), or from this machine.

    Raises:
        Unauthorized: there is a key, and Authorization is missing, repeated or does not carry it.
        Forbidden: there is no key, and the listener is not on loopback (a Unix socket is guarded by its file's mode).
    """
    if key is None:
        if not _is_local(endpoints.local_host):
            raise Forbidden(
                "without --lora-admin-key-file this route is open on a loopback listener only", code="admin_key_unset"
            )
        return
    values = head.get_all(b"authorization")
    scheme, _, token = (values[0] if len(values) == 1 else b"").partition(b" ")
    # Compared in a time that does not depend on how much of it is right.
    if scheme.lower() != b"bearer" or not hmac.compare_digest(token.strip(b" "), key.encode("utf-8")):
        raise Unauthorized(
            "this route needs the bearer token of --lora-admin-key-file",
            headers=(("WWW-Authenticate", 'Bearer realm="poot"'),),
        )


def _is_local(local_host: str | None) -> bool:
    if local_host is None or local_host == "localhost":
        return True
    try:
        return ipaddress.ip_address(local_host).is_loopback
    except ValueError:
        return False


def check_content_type(head: Head) -> None:
    """Passes `application/json`, with or without `charset=utf-8` (RFC 9110 section 8.3).

    Raises:
        UnsupportedMediaType: anything else, other parameters included.
    """
    values = head.get_all(b"content-type")
    if values == [b"application/json"]:
        return
    if len(values) == 1:
        media_type, *parameters = values[0].decode("latin-1").lower().split(";")
        charsets = ("charset=utf-8", 'charset="utf-8"', "")
        # White space is space and tab here; Python's own would take a no-break space as well.
        if media_type.strip(" \t") == "application/json" and all(each.strip(" \t") in charsets for each in parameters):
            return
    raise UnsupportedMediaType("Content-Type must be application/json")


def check_length(head: Head, max_body_bytes: int) -> int:
    """The body's announced length in bytes (RFC 9112 section 6: one Content-Length, and no Transfer-Encoding).

    Raises:
        LengthRequired: Transfer-Encoding, or no Content-Length.
        BadRequest: both, or a Content-Length that is malformed, signed, listed or repeated.
        ContentTooLarge: it is over `max_body_bytes`.
    """
    lengths = head.get_all(b"content-length")
    if head.get(b"transfer-encoding") is not None:
        if lengths:
            raise BadRequest("Content-Length and Transfer-Encoding exclude each other", close=True)
        raise LengthRequired("Transfer-Encoding is not taken; send a Content-Length", close=True)
    if not lengths:
        raise LengthRequired("Content-Length is missing", close=True)
    digits = lengths[0]
    if len(lengths) > 1 or not digits.isdigit():
        raise BadRequest("Content-Length must be one decimal number, sent once", close=True)
    significant = digits.lstrip(b"0") or b"0"
    if len(significant) > _MAX_LENGTH_DIGITS or int(significant) > max_body_bytes:
        raise ContentTooLarge(f"the body is over this route's limit of {max_body_bytes} bytes", close=True)
    return int(significant)
