"""The checks of a raw HTTP/1.1 request head, and nothing else: bytes in, a `Head` or one typed error out.

Stricter than RFC 9112 demands and than h11 is, because a head that two parsers read differently is how requests are
smuggled. Refused with 400: bare CR, bare LF, NUL and other control characters, obs-fold, white space before a colon,
a method that is no token, a target that is neither origin-form, absolute-form nor `*`, any version but HTTP/1.0 and
HTTP/1.1, a second or malformed Host. Refused with 431: more than `MAX_HEAD_BYTES`.

Content-Length and Transfer-Encoding are left as they are: which answer they deserve depends on the route, so the
application's gate decides about the request and `body_length` about the connection.
"""

from __future__ import annotations

import re

from poot.errors import BadRequest, HeadersTooLarge, RequestError
from poot.net.exchange import Head

MAX_HEAD_BYTES = 64 * 1024
"""Request line and fields with their line ends. The reference's figure; nginx takes 32 KiB, Node 16 KiB, h11 16 KiB."""

_MAX_LENGTH_DIGITS = 18
"""More than any body; keeps hostile numbers out of int() and inside 63 bits."""

HEAD_END = b"\r\n\r\n"

# RFC 9110 section 5.6.2.
_TOKEN = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
FIELD_NAME = re.compile(_TOKEN)
# RFC 3986 section 3.3 and 3.4: pchar and "/" in a path, "?" as well in a query. "#" is never sent.
_PATH = rb"/(?:[A-Za-z0-9\-._~!$&'()*+,;=:@/]|%[0-9A-Fa-f]{2})*"
_QUERY = rb"(?:[A-Za-z0-9\-._~!$&'()*+,;=:@/?]|%[0-9A-Fa-f]{2})*"
# RFC 3986 section 3.2.2 without userinfo, which RFC 9110 section 4.2.4 has us treat as an error.
_AUTHORITY = rb"(?:\[[0-9A-Fa-f:.]+\]|(?:[A-Za-z0-9\-._~!$&'()*+,;=]|%[0-9A-Fa-f]{2})*)(?::[0-9]{0,5})?"

_REQUEST_LINE = re.compile(rb"(" + _TOKEN + rb") ([^ ]+) (HTTP/[0-9]\.[0-9])")
_ORIGIN_FORM = re.compile(rb"(" + _PATH + rb")(?:\?(" + _QUERY + rb"))?")
_ABSOLUTE_FORM = re.compile(
    rb"[Hh][Tt][Tt][Pp][Ss]?://(" + _AUTHORITY + rb")(" + _PATH + rb")?(?:\?(" + _QUERY + rb"))?"
)
HOST = re.compile(_AUTHORITY)
# RFC 9110 section 5.5: visible ASCII, obs-text, space and tab. Everything else is a control character.
FIELD_VALUE = re.compile(rb"[\t\x20-\x7e\x80-\xff]*")
_FIELD_LINE = re.compile(rb"(%b):(%b)" % (FIELD_NAME.pattern, FIELD_VALUE.pattern))
_BAD_BYTE = re.compile(rb"[^\r]\n|\r[^\n]|\x00")
_LENGTH = re.compile(rb"[0-9]+")


def find_head_end(buffer: bytes | bytearray, scanned: int) -> int | None:
    """Where the head at the start of `buffer` ends, or None when it has not arrived whole.

    Args:
        buffer: everything that arrived since the last request.
        scanned: how many bytes of it earlier calls have seen, so that a head fed byte by byte costs linear time.

    Returns: the index after the blank line.

    Raises:
        BadRequest: a bare CR, bare LF or NUL; raised as soon as it is seen, since such a head may never end.
        HeadersTooLarge: the head is over `MAX_HEAD_BYTES`.
    """
    end = buffer.find(HEAD_END, max(0, scanned - len(HEAD_END) + 1))
    stop = end + len(HEAD_END) if end >= 0 else len(buffer)
    bad = _BAD_BYTE.search(buffer, max(0, scanned - 1), stop)
    # An LF as the very first byte is left to the request line's own check.
    if bad is not None and bad.start() < MAX_HEAD_BYTES:
        raise malformed("a bare CR, bare LF or NUL in the head")
    if stop > MAX_HEAD_BYTES:
        raise HeadersTooLarge(f"the request head is over {MAX_HEAD_BYTES} bytes", close=True)
    return stop if end >= 0 else None


def parse_head(raw: bytes) -> Head:
    """The head in `raw`, which ends with the blank line and which `find_head_end` has passed.

    Raises:
        BadRequest: what is malformed, in words without the peer's bytes.
    """
    request_line, *lines = raw[: -len(HEAD_END)].split(b"\r\n")
    method, target, version = _parse_request_line(request_line)
    headers: list[tuple[bytes, bytes]] = []
    host: bytes | None = None
    for line in lines:
        field = _FIELD_LINE.fullmatch(line)
        if field is None:
            raise malformed(_describe_field(line))
        name = field[1].lower()
        value = field[2].strip(b" \t")
        if name == b"host":
            if host is not None:
                raise malformed("more than one Host field")
            if not HOST.fullmatch(value):
                raise malformed("a Host field that is no host and port")
            host = value
        headers.append((name, value))
    path, query, authority = parse_target(method, target)
    # An absolute-form target replaces Host, which HTTP/1.1 needs all the same (RFC 9112 sections 3.2 and 3.2.2).
    if authority is None or (host is None and version == "1.1"):
        authority = host
    return Head(
        method=method.decode("ascii"),
        path=path.decode("ascii"),
        query=query.decode("ascii"),
        authority=authority.decode("ascii") if authority is not None else None,
        headers=tuple(headers),
        http_version=version,
    )


def body_length(head: Head) -> int | None:
    """How many bytes of body follow an HTTP/1.1 head: 0 without framing fields, None when that cannot be told.

    None means Transfer-Encoding, which poot does not read, or a Content-Length that is malformed, listed or repeated
    (even with equal values, RFC 9112 section 6.3): the connection cannot go on after the answer.
    """
    if head.get(b"transfer-encoding") is not None:
        return None
    lengths = head.get_all(b"content-length")
    if not lengths:
        return 0
    if len(lengths) > 1 or not _LENGTH.fullmatch(lengths[0]):
        return None
    digits = lengths[0].lstrip(b"0")
    return int(digits or b"0") if len(digits) <= _MAX_LENGTH_DIGITS else None


def malformed(what: str) -> RequestError:
    """The error for a head that is no HTTP/1.1 request; the connection ends after its answer."""
    return BadRequest(f"malformed request: {what}", close=True)


def _parse_request_line(line: bytes) -> tuple[bytes, bytes, str]:
    match = _REQUEST_LINE.fullmatch(line)
    if match is None:
        raise malformed("the request line is not method, target and version with one space between them")
    method, target, version = match.groups()
    if version not in (b"HTTP/1.1", b"HTTP/1.0"):
        raise malformed("the version is neither HTTP/1.1 nor HTTP/1.0")
    return method, target, version[5:].decode("ascii")


def parse_target(method: bytes, target: bytes) -> tuple[bytes, bytes, bytes | None]:
    """Path, query and, from an absolute-form target, authority (RFC 9112 section 3.2)."""
    if method == b"CONNECT":
        raise malformed("CONNECT is for proxies")
    if match := _ORIGIN_FORM.fullmatch(target):
        return match[1], match[2] or b"", None
    if target == b"*" and method == b"OPTIONS":
        return target, b"", None
    if (match := _ABSOLUTE_FORM.fullmatch(target)) and match[1]:
        return match[2] or b"/", match[3] or b"", match[1]
    raise malformed("the target is neither a path nor an http URI")


def _describe_field(line: bytes) -> str:
    name, colon, _ = line.partition(b":")
    if line[:1] in (b" ", b"\t"):
        return "a folded header field, or white space before the first field"
    if not colon:
        return "a header field without a colon"
    if name[-1:] in (b" ", b"\t"):
        return "white space before a header field's colon"
    if not FIELD_NAME.fullmatch(name):
        return "a header field name that is no token"
    return "a control character in a header field"
