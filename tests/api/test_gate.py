"""Every row of the design's table that a head alone decides, and the order of the rows."""

from __future__ import annotations

from dataclasses import replace

import pytest

from poot.api.gate import Gate, Route, RouteMatch, check_admin
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
    RequestError,
    TooManyRequests,
    Unauthorized,
    UnsupportedMediaType,
)
from poot.metrics import Metrics
from poot.net.exchange import Endpoints, Exchange, Head, Headers
from tests.fakes.exchange import LOCAL, make_head

CAP = 1000
JSON = (b"content-type", b"application/json")
LENGTH = (b"content-length", b"10")


async def handler(exchange: Exchange, match: RouteMatch) -> int:
    return 200


ROUTES = (
    Route(path="/v1/completions", methods={"POST": handler}, is_model_request=True, max_body_bytes=CAP),
    Route(path="/v1/models", methods={"GET": handler}),
    Route(path="/v1/models/", methods={"GET": handler}, has_id=True),
    Route(path="/v1/lora_adapters", methods={"GET": handler, "POST": handler}, checks_host=True, max_body_bytes=CAP),
)


class Fixture:
    """A gate with a rate limit, and how often it refused because of a drain."""

    def __init__(self, rate_limit: int = 0) -> None:
        self.num_drained = 0
        rate = RateWindow(
            requests_per_window=rate_limit, clock=lambda: 0.0, refused=Metrics().refused.labels("rate_limit")
        )
        self.gate = Gate(ROUTES, rate, count_draining=self._count)

    def _count(self) -> None:
        self.num_drained += 1

    def check(self, head: Head, endpoints: Endpoints = LOCAL, *, is_draining: bool = False) -> RouteMatch:
        return self.gate.check(head, endpoints, is_draining=is_draining)


def post(
    headers: Headers = (JSON, LENGTH), *, path: str = "/v1/completions", authority: str | None = "localhost:8080"
) -> Head:
    return make_head("POST", path, authority=authority, headers=headers)


def refusal(head: Head, endpoints: Endpoints = LOCAL, *, is_draining: bool = False) -> RequestError:
    with pytest.raises(RequestError) as caught:
        Fixture().check(head, endpoints, is_draining=is_draining)
    return caught.value


def test_a_good_post_finds_its_route() -> None:
    assert Fixture().check(post()) == RouteMatch(ROUTES[0], "")


@pytest.mark.parametrize("path", ["/", "/v1", "/v1/completions/", "/V1/completions", "/v1/models/", "*", "/v1/models2"])
@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS"])
def test_an_unknown_path_is_404(path: str, method: str) -> None:
    error = refusal(make_head(method, path))
    assert isinstance(error, NotFound)


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("GET", "/v1/completions", "POST"),
        ("HEAD", "/v1/completions", "POST"),
        ("POST", "/v1/models", "GET, HEAD"),
        ("DELETE", "/v1/models/x", "GET, HEAD"),
        ("OPTIONS", "/v1/lora_adapters", "GET, HEAD, POST"),
    ],
)
def test_a_wrong_method_is_405_with_allow(method: str, path: str, allow: str) -> None:
    error = refusal(make_head(method, path))
    assert isinstance(error, MethodNotAllowed)
    assert dict(error.headers) == {"Allow": allow}


def test_an_id_may_hold_slashes_and_is_passed_on_as_sent() -> None:
    match = Fixture().check(make_head("GET", "/v1/models/org/a%20model"))
    assert (match.route.label, match.rest) == ("/v1/models/{id}", "org/a%20model")


def test_head_is_taken_where_get_is() -> None:
    assert Fixture().check(make_head("HEAD", "/v1/models")).route is ROUTES[1]


@pytest.mark.parametrize("authority", [None, "", "a b:8080", "[::1:8080", "user@localhost:8080", "localhost:x", ":::"])
def test_a_missing_or_malformed_host_is_400(authority: str | None) -> None:
    error = refusal(post(authority=authority))
    assert isinstance(error, BadRequest)
    assert "Host" in error.message


@pytest.mark.parametrize("authority", ["localhost:99999", "localhost:123456"])
def test_a_port_that_is_none_is_400(authority: str) -> None:
    assert refusal(post(authority=authority)).status == 400


def bound(host: str | None, port: int | None = 8080) -> Endpoints:
    return Endpoints(peer_ip="10.0.0.9", local_host=host, local_port=port)


@pytest.mark.parametrize(
    ("authority", "endpoints"),
    [
        ("localhost:8080", bound("127.0.0.1")),
        ("LocalHost:8080", bound("127.0.0.1")),
        ("127.0.0.1:8080", bound("127.0.0.1")),
        ("127.0.0.1:8080", bound("10.1.2.3")),
        ("10.1.2.3:8080", bound("10.1.2.3")),
        ("[::1]:8080", bound("::1")),
        ("[0:0:0:0:0:0:0:1]:8080", bound("::1")),
        ("[FE80::A]:8080", bound("fe80::a")),
        ("box.lan:8080", bound("Box.lan")),
        ("localhost", bound("127.0.0.1", 80)),
        ("localhost:", bound("127.0.0.1", 80)),
        ("anything.example:8080", bound("0.0.0.0")),
        ("anything.example:8080", bound("::")),
        ("anything.example", bound(None, None)),
    ],
)
def test_a_host_that_names_the_listener_passes(authority: str, endpoints: Endpoints) -> None:
    Fixture().check(post(authority=authority), endpoints)


@pytest.mark.parametrize(
    ("authority", "endpoints"),
    [
        ("evil.example:8080", bound("127.0.0.1")),
        ("localhost.evil.example:8080", bound("127.0.0.1")),
        ("localhost:8081", bound("127.0.0.1")),
        ("localhost", bound("127.0.0.1")),
        ("10.1.2.4:8080", bound("10.1.2.3")),
        ("anything.example:8081", bound("0.0.0.0")),
        ("anything.example", bound("::")),
    ],
)
def test_a_host_that_names_another_is_421(authority: str, endpoints: Endpoints) -> None:
    assert isinstance(refusal(post(authority=authority), endpoints), MisdirectedRequest)


def test_a_get_passes_with_any_host_but_on_the_adapter_route() -> None:
    Fixture().check(make_head("GET", "/v1/models", authority="evil.example"))
    error = refusal(make_head("GET", "/v1/lora_adapters", authority="evil.example:8080"))
    assert isinstance(error, MisdirectedRequest)


@pytest.mark.parametrize(("http_version", "passes"), [("1.1", False), ("1.0", True), ("2", True)])
def test_a_get_without_a_host_passes_where_the_protocol_lets_it(http_version: str, passes: bool) -> None:
    head = replace(make_head("GET", "/v1/models", authority=None), http_version=http_version)
    if passes:
        Fixture().check(head)
    else:
        error = refusal(head)
        assert (error.status, error.close) == (400, True)


@pytest.mark.parametrize(
    ("key", "local_host", "authorization", "kind"),
    [
        (None, "127.0.0.1", None, None),
        (None, "::1", None, None),
        (None, "localhost", None, None),
        (None, None, None, None),
        (None, "0.0.0.0", None, Forbidden),
        (None, "::", b"Bearer k", Forbidden),
        (None, "example.com", None, Forbidden),
        ("k", "127.0.0.1", None, Unauthorized),
        ("k", "0.0.0.0", b"Bearer kk", Unauthorized),
        ("k", None, b"Basic k", Unauthorized),
        ("k", None, b"Bearer", Unauthorized),
        ("k", None, b"Bearer ", Unauthorized),  # malformed over HTTP/2, so no test over sockets has it
        ("k", None, b"Bearer  k", None),
        ("k", "0.0.0.0", b"Bearer k", None),
        ("ü", "127.0.0.1", b"bearer \xc3\xbc", None),
    ],
)
def test_the_admins_route_asks_for_its_key_or_for_a_local_listener(
    key: str | None, local_host: str | None, authorization: bytes | None, kind: type[RequestError] | None
) -> None:
    headers: Headers = () if authorization is None else ((b"authorization", authorization),)
    head = make_head("GET", "/v1/lora_adapters", headers=headers)
    if kind is None:
        check_admin(head, bound(local_host), key)
    else:
        with pytest.raises(kind):
            check_admin(head, bound(local_host), key)


@pytest.mark.parametrize(
    "value",
    [
        b"application/json",
        b"Application/JSON",
        b"application/json; charset=utf-8",
        b"application/json;charset=UTF-8",
        b'application/json ; charset="utf-8"',
        b"application/json;",
    ],
)
def test_json_is_taken(value: bytes) -> None:
    Fixture().check(post(((b"content-type", value), LENGTH)))


@pytest.mark.parametrize(
    "headers",
    [
        (),
        ((b"content-type", b""),),
        ((b"content-type", b"text/plain"),),
        ((b"content-type", b"application/json; charset=latin-1"),),
        ((b"content-type", b"\xa0application/json"),),
        ((b"content-type", b"application/json;\x85charset=utf-8"),),
        ((b"content-type", b"application/json; version=2"),),
        ((b"content-type", b"application/jsonx"),),
        ((b"content-type", b"application/json, text/plain"),),
        (JSON, JSON),
    ],
)
def test_another_content_type_is_415(headers: Headers) -> None:
    assert isinstance(refusal(post((*headers, LENGTH))), UnsupportedMediaType)


def test_transfer_encoding_is_411_alone_and_400_beside_a_content_length() -> None:
    chunked = (b"transfer-encoding", b"chunked")
    alone, both = refusal(post((JSON, chunked))), refusal(post((JSON, chunked, LENGTH)))
    assert (type(alone), type(both)) == (LengthRequired, BadRequest)
    assert alone.close
    assert both.close


@pytest.mark.parametrize("value", [b"", b"+5", b"-5", b"5,5", b"5 5", b"0x5", b"5.0", b"\xb2", b"1_0"])
def test_a_malformed_content_length_is_400_and_closes(value: bytes) -> None:
    error = refusal(post((JSON, (b"content-length", value))))
    assert type(error) is BadRequest
    assert error.close


def test_a_content_length_is_needed_once() -> None:
    missing, repeated = refusal(post((JSON,))), refusal(post((JSON, LENGTH, LENGTH)))
    assert (type(missing), type(repeated)) == (LengthRequired, BadRequest)


@pytest.mark.parametrize("value", [b"0", b"1000", b"0001000", b"0" * 5000 + b"7"])
def test_a_length_up_to_the_cap_passes(value: bytes) -> None:
    Fixture().check(post((JSON, (b"content-length", value))))


@pytest.mark.parametrize("value", [b"1001", b"9" * 19, b"9" * 5000])
def test_a_length_over_the_cap_is_413(value: bytes) -> None:
    error = refusal(post((JSON, (b"content-length", value))))
    assert isinstance(error, ContentTooLarge)
    assert "1000 bytes" in error.message


def test_a_draining_server_refuses_posts_and_answers_gets() -> None:
    fixture = Fixture()
    with pytest.raises(Draining) as caught:
        fixture.check(post(), is_draining=True)
    assert caught.value.close
    assert fixture.num_drained == 1
    fixture.check(make_head("GET", "/v1/models"), is_draining=True)


def test_the_rate_is_spent_by_every_later_answer_and_by_no_earlier_one() -> None:
    fixture = Fixture(rate_limit=3)
    unspent = [
        (make_head("POST", "/nowhere"), NotFound),
        (make_head("POST", "/v1/models"), MethodNotAllowed),
        (post(authority=None), BadRequest),
        (post(authority="evil.example"), MisdirectedRequest),
    ]
    for head, kind in unspent * 2:
        with pytest.raises(kind):
            fixture.check(head)
    for _ in range(5):
        fixture.check(make_head("GET", "/v1/models"))
    with pytest.raises(UnsupportedMediaType):
        fixture.check(post((LENGTH,)))
    with pytest.raises(LengthRequired):
        fixture.check(post((JSON,)))
    fixture.check(post(path="/v1/lora_adapters"))
    with pytest.raises(TooManyRequests):
        fixture.check(post())
    with pytest.raises(TooManyRequests):  # before the content type is looked at
        fixture.check(post(()))


def test_checks_come_in_the_order_of_the_table() -> None:
    everything_wrong: Headers = ((b"content-type", b"text/plain"), (b"transfer-encoding", b"chunked"))
    heads = [
        (make_head("PUT", "/nowhere", authority=None), NotFound),
        (make_head("PUT", "/v1/completions", authority=None), MethodNotAllowed),
        (post(everything_wrong, authority="evil.example"), MisdirectedRequest),
        (post(everything_wrong), UnsupportedMediaType),
        (post((JSON, everything_wrong[1])), LengthRequired),
        (post((JSON, (b"content-length", b"99999"))), ContentTooLarge),
        (post(), Draining),
    ]
    for head, kind in heads:
        assert type(refusal(head, is_draining=True)) is kind
