"""Invariant: a head that the wire lets through gets a route or one `RequestError` of the gate's; a POST that passes
has exactly one Content-Length, a plain number within the route's cap, and a Host that names this listener.
"""

from __future__ import annotations

from poot.api.gate import Gate, Route, RouteMatch, check_admin
from poot.api.limits import RateWindow
from poot.errors import RequestError
from poot.metrics import Metrics
from poot.net.exchange import Endpoints, Exchange, Head
from poot.net.http.head import HEAD_END, MAX_HEAD_BYTES, parse_head

_CAP = 1000


async def _handler(exchange: Exchange, match: RouteMatch) -> int:
    raise NotImplementedError


_ROUTES = (
    Route(path="/v1/completions", methods={"POST": _handler}, is_model_request=True, max_body_bytes=_CAP),
    Route(path="/v1/models", methods={"GET": _handler}),
    Route(path="/v1/models/", methods={"GET": _handler}, has_id=True),
    Route(
        path="/v1/lora_adapters",
        methods={"GET": _handler, "POST": _handler},
        checks_host=True,
        is_admin=True,
        max_body_bytes=_CAP,
    ),
)
_BOUND = Endpoints(peer_ip="127.0.0.1", local_host="192.0.2.7", local_port=8080)
_ENDPOINTS = (
    _BOUND,
    Endpoints(peer_ip="::1", local_host="::", local_port=80),
    Endpoints(peer_ip="unix", local_host=None, local_port=None),
)
_OURS = ("localhost", "127.0.0.1", "[::1]", "192.0.2.7")

_rate = RateWindow(requests_per_window=0, clock=lambda: 0.0, refused=Metrics().refused.labels("rate_limit"))
_gates = tuple(Gate(_ROUTES, _rate, count_draining=lambda: None, admin_key=key) for key in (None, "key"))


def check(data: bytes) -> None:
    """Raises AssertionError when the invariant is broken; anything else that is raised breaks it too."""
    if HEAD_END in data or len(data) > MAX_HEAD_BYTES:
        return
    try:
        head = parse_head(data + HEAD_END)
    except RequestError:
        return
    for gate in _gates:
        for endpoints in _ENDPOINTS:
            for is_draining in (False, True):
                _check_gate(gate, head, endpoints, is_draining)


def _check_gate(gate: Gate, head: Head, endpoints: Endpoints, is_draining: bool) -> None:
    try:
        match = gate.check(head, endpoints, is_draining=is_draining)
    except RequestError as error:
        assert 400 <= error.status < 500 or error.status == 503
        assert error.message.isprintable()
        return
    method = "GET" if head.method == "HEAD" else head.method
    assert method in match.route.methods
    assert head.path == match.route.path + match.rest
    assert head.authority or method != "POST"
    if method == "POST":
        assert not is_draining
        (length,) = head.get_all(b"content-length")
        assert length.isdigit()
        assert int(length) <= _CAP
        assert head.get(b"transfer-encoding") is None
        (content_type,) = head.get_all(b"content-type")
        assert content_type.lower().lstrip().startswith(b"application/json")
        if endpoints is _BOUND:
            host, _, port = (head.authority or "").rpartition(":")
            assert int(port) == 8080
            assert host.lower() in _OURS or host.startswith("[")
    if match.route.is_admin:
        check_admin(head, endpoints, None if gate is _gates[0] else "key")
