"""Date, request ids, error answers and the access log, apart from any connection."""

from __future__ import annotations

import json
import logging
import time
from email.utils import parsedate_to_datetime

import pytest

from poot.errors import NotFound, TooManyRequests
from poot.log import LineFormatter
from poot.net.answers import DateField, choose_request_id, error_response, log_access
from poot.net.exchange import Head


def head_with(*values: bytes, path: str = "/a") -> Head:
    return Head(
        method="GET",
        path=path,
        query="q=1",
        authority="x",
        headers=tuple((b"x-request-id", value) for value in values),
        http_version="1.1",
    )


def test_date_is_the_current_second_in_imf_fixdate(monkeypatch: pytest.MonkeyPatch) -> None:
    date = DateField()
    monkeypatch.setattr(time, "time", lambda: 784111777.9)
    assert date() == b"Sun, 06 Nov 1994 08:49:37 GMT"  # RFC 9110 section 5.6.7's example
    monkeypatch.setattr(time, "time", lambda: 784111778.0)
    assert parsedate_to_datetime(date().decode()).timestamp() == 784111778


def test_one_plain_request_id_is_kept() -> None:
    assert choose_request_id(head_with(b"a-1")) == "a-1"


@pytest.mark.parametrize("head", [None, head_with(), head_with(b"a", b"b"), head_with(b"a b"), head_with(b"a" * 129)])
def test_else_it_is_one_of_ours(head: Head | None) -> None:
    first, second = choose_request_id(head), choose_request_id(head)
    assert first != second
    assert len(first) == 32


def test_an_error_is_json_with_its_fields() -> None:
    response = error_response(TooManyRequests("later", headers=(("Retry-After", "7"),)))
    assert response.status == 429
    assert response.headers == ((b"content-type", b"application/json"), (b"retry-after", b"7"))
    assert json.loads(response.body)["error"] == {
        "message": "later",
        "type": "rate_limit_error",
        "param": None,
        "code": None,
    }


def test_any_message_can_be_sent() -> None:
    assert json.loads(error_response(NotFound("naïve \ud800 \n")).body)["error"]["message"] == "naïve \ud800 \n"


def test_the_access_line_has_no_query_and_a_bounded_path(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "poot.access")
    log_access(
        head_with(path="/" + "p" * 60_000),
        status=404,
        is_complete=True,
        num_bytes=10,
        seconds=0.0015,
        request_id="r",
        peer_ip="127.0.0.1",
        annotations={"tokens": 3},
    )
    line = LineFormatter().format(caplog.records[0])
    assert "method=GET path=/ppp" in line
    assert line.endswith(" status=404 bytes=10 ms=1.5 peer=127.0.0.1 request_id=r tokens=3")
    assert len(line) < 500
    assert "q=1" not in line


def test_nothing_is_put_together_when_nothing_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "poot.access")
    log_access(
        None,
        status=None,
        is_complete=False,
        num_bytes=0,
        seconds=0,
        request_id="r",
        peer_ip="",
        annotations={},
    )
    assert caplog.records == []
