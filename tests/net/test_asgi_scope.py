"""What an ASGI scope says of a request, and what is refused in it."""

from __future__ import annotations

from typing import Any

import pytest

from poot.api.gate import check_host
from poot.errors import BadRequest, HeadersTooLarge, MisdirectedRequest
from poot.net.asgi_scope import read_endpoints, read_head
from poot.net.exchange import Endpoints
from poot.net.http.head import MAX_HEAD_BYTES
from tests.net.asgi_host import http_scope


def test_a_head_has_what_the_scope_says() -> None:
    head = read_head(http_scope("POST", "/v1/a%2Fb", [(b"X-One", b" 1 "), (b"x-one", b"2")], query_string=b"q=%20"))
    assert (head.method, head.path, head.query) == ("POST", "/v1/a%2Fb", "q=%20")
    assert head.authority == "localhost:8000"
    assert head.get_all(b"x-one") == [b"1", b"2"]
    assert head.http_version == "1.1"


def test_a_path_without_its_raw_form_is_encoded_again() -> None:
    assert read_head(http_scope(path="/v1/é b", raw_path=None)).path == "/v1/%C3%A9%20b"


@pytest.mark.parametrize(
    ("root_path", "path", "expected"),
    [("/llm", "/llm/v1/models", "/v1/models"), ("/llm", "/llmx", "/llmx"), ("/l m", "/l%20m/health", "/health")],
)
def test_the_root_path_is_left_out(root_path: str, path: str, expected: str) -> None:
    assert read_head(http_scope(path=path, root_path=root_path)).path == expected


def test_an_absolute_target_names_the_authority() -> None:
    head = read_head(http_scope(path="http://elsewhere:80/health"))
    assert (head.authority, head.path) == ("elsewhere:80", "/health")


@pytest.mark.parametrize(
    "scope",
    [
        http_scope(fields=[(b"host", b"localhost:8000")]),
        http_scope(headers=[(b"host", b"a b")]),
        http_scope(fields=[(b"a b", b"1")]),
        http_scope(fields=[(b"a", b"1\x00")]),
        http_scope(fields=[(b"a", b"1\r\nb: 2")]),
        http_scope("GE T"),
        http_scope("CONNECT"),
        http_scope(path="no-slash"),
        http_scope(path="/a b"),
        http_scope(query_string=b"a b"),
        http_scope(raw_path=b"/\xc3\xa9"),
    ],
    ids=[
        "second host",
        "bad host",
        "bad name",
        "NUL",
        "line end",
        "bad method",
        "CONNECT",
        "no slash",
        "space in path",
        "space in query",
        "not ASCII",
    ],
)
def test_a_malformed_head_is_refused(scope: dict[str, Any]) -> None:
    with pytest.raises(BadRequest, match="malformed request"):
        read_head(scope)


def test_a_head_may_be_64_kib_and_no_more() -> None:
    used = len(b"/") + len(b"host: localhost:8000\r\n") + len(b"a: \r\n")
    read_head(http_scope(fields=[(b"a", b"x" * (MAX_HEAD_BYTES - used))]))
    with pytest.raises(HeadersTooLarge):
        read_head(http_scope(fields=[(b"a", b"x" * (MAX_HEAD_BYTES - used + 1))]))


@pytest.mark.parametrize(
    ("client", "peer_ip"),
    [(("::ffff:10.0.0.1", 1), "10.0.0.1"), (("fe80::1%eth0", 1), "fe80::1"), (["::1", 1], "::1"), (None, "unix")],
)
def test_the_peer_is_the_scopes_client(client: Any, peer_ip: str) -> None:
    scope = http_scope(client=client)
    assert read_endpoints(scope, read_head(scope), ()).peer_ip == peer_ip


@pytest.mark.parametrize("server", [None, ("/run/poot.sock", None)])
def test_a_unix_socket_has_no_local_address(server: Any) -> None:
    scope = http_scope(server=server)
    assert read_endpoints(scope, read_head(scope), ()) == Endpoints(
        peer_ip="10.0.0.1", local_host=None, local_port=None
    )


@pytest.mark.parametrize(
    ("scheme", "host", "server", "passes"),
    [
        ("http", b"localhost:8000", ("127.0.0.1", 8000), True),
        ("http", b"10.1.1.1:8000", ("10.1.1.1", 8000), True),
        ("http", b"[::1]:8000", ("::1", 8000), True),
        ("http", b"localhost", ("127.0.0.1", 80), True),
        ("https", b"localhost", ("127.0.0.1", 443), True),
        ("https", b"localhost:", ("127.0.0.1", 443), True),
        ("https", b"[::1]", ("::1", 443), True),
        ("https", b"localhost", ("127.0.0.1", 80), False),
        ("https", b"LLM.example.com", ("10.1.1.1", 8443), True),
        ("https", b"llm.example.com:9443", ("10.1.1.1", 8443), True),
        ("http", b"llm.example.com", ("10.1.1.1", 8000), True),
        ("https", b"evil.example.com", ("10.1.1.1", 443), False),
        ("https", b"llm.example.com.evil.org", ("10.1.1.1", 443), False),
    ],
)
def test_the_host_check_passes_the_servers_names_and_addresses(
    scheme: str, host: bytes, server: tuple[str, int], passes: bool
) -> None:
    scope = http_scope(headers=[(b"host", host)], scheme=scheme, server=server)
    head = read_head(scope)
    endpoints = read_endpoints(scope, head, frozenset({"llm.example.com"}))
    if passes:
        check_host(head.authority, endpoints)
    else:
        with pytest.raises(MisdirectedRequest):
            check_host(head.authority, endpoints)
