"""Strict JSON. Python's own json module, with its leniencies taken away, is the independent reader."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from poot.api.schema.decode import MAX_DEPTH, decode, measure_depth
from poot.errors import BadRequest


class Inner(msgspec.Struct, forbid_unknown_fields=True):
    value: int = 0


class Request(msgspec.Struct, forbid_unknown_fields=True):
    text: str = ""
    count: int = 0
    ratio: float = 0.0
    inner: Inner | None = None
    items: list[Inner] = []
    anything: Any = None


class Demanding(msgspec.Struct, forbid_unknown_fields=True):
    needed: str
    inner: list[Request] = []


DECODER = msgspec.json.Decoder(Request)


def refusal(body: bytes) -> BadRequest:
    with pytest.raises(BadRequest) as caught:
        decode(body, DECODER)
    return caught.value


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b'{"count": 1} x', "not valid JSON"),
        (b'{"count": 1,}', "not valid JSON"),
        (b"{'count': 1}", "not valid JSON"),
        (b'{"count": 01}', "not valid JSON"),
        (b'{"ratio": .5}', "not valid JSON"),
        (b'{"ratio": NaN}', "not valid JSON"),
        (b'{"ratio": Infinity}', "not valid JSON"),
        (b'{"ratio": -Infinity}', "not valid JSON"),
        (b'\xef\xbb\xbf{"count": 1}', "not valid JSON"),
        (b'{"text": "\t"}', "not valid JSON"),
        (b'{"text": "\\x41"}', "not valid JSON"),
        (b'{"text": "\\ud800"}', "not valid JSON"),
        (b'{"text": "\\udc00 low first"}', "not valid JSON"),
        (b'{"text": "\\ud800\\u0041"}', "not valid JSON"),
        (b'{"anything": {"\\ud800": 1}}', "not valid JSON"),
        (b'{"text": "\xff"}', "not UTF-8"),
        (b'{"text": "\xed\xa0\x80"}', "not UTF-8"),
        (b'{"text": "\xc0\xaf"}', "not UTF-8"),
        (b'{"\xff": 1}', "not UTF-8"),
        (b"[]", "expected `object`"),
        (b"null", "expected `object`"),
        (b'"text"', "expected `object`"),
    ],
)
def test_a_body_that_is_no_json_object_is_refused(body: bytes, said: str) -> None:
    error = refusal(body)
    assert said in error.message
    assert error.param is None


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b'{"count": 5.0}', "count"),
        (b'{"count": 5e0}', "count"),
        (b'{"count": "5"}', "count"),
        (b'{"count": true}', "count"),
        (b'{"count": null}', "count"),
        (b'{"ratio": "0.5"}', "ratio"),
        (b'{"ratio": true}', "ratio"),
        (b'{"ratio": 1e999}', "ratio"),
        (b'{"ratio": -1e999}', "ratio"),
        (b'{"text": 5}', "text"),
        (b'{"inner": {"value": "x"}}', "inner.value"),
        (b'{"items": [{"value": 1}, {"value": []}]}', "items[1].value"),
        (b'{"surprise": 1}', "surprise"),
        (b'{"inner": {"surprise": 1}}', "inner.surprise"),
        (b'{"items": [{"surprise": 1}]}', "items[0].surprise"),
        ('{"größe": 1}'.encode(), "größe"),
    ],
)
def test_a_wrong_field_is_named_by_its_path(body: bytes, param: str) -> None:
    error = refusal(body)
    assert error.param == param
    assert param in error.message


def test_a_number_outside_f64_is_refused_also_where_any_value_may_stand() -> None:
    assert refusal(b'{"anything": [1e999]}').param is not None


def test_a_missing_field_is_named() -> None:
    for body, param in [(b"{}", "needed"), (b'{"inner": []}', "needed")]:
        with pytest.raises(BadRequest, match="needed is required") as caught:
            decode(body, msgspec.json.Decoder(Demanding))
        assert caught.value.param == param


def test_a_long_unknown_name_is_cut_in_the_answer() -> None:
    assert len(refusal(b'{"%s": 1}' % (b"x" * 100_000)).message) < 200


def test_of_a_repeated_key_the_last_wins() -> None:
    assert decode(b'{"count": 1, "count": 2, "\\u0063ount": 3}', DECODER).count == 3


def test_integers_do_for_floats_and_pairs_for_characters_beyond_the_plane() -> None:
    request = decode(b' {"ratio": 1, "text": "\\ud83d\\ude42"}\r\n', DECODER)
    assert (request.ratio, request.text) == (1.0, "🙂")


@pytest.mark.parametrize(("opener", "closer"), [(b"[", b"]"), (b'{"a":', b"}")])
def test_depth_128_passes_and_129_does_not(opener: bytes, closer: bytes) -> None:
    def nested(depth: int) -> bytes:
        return b'{"anything":' + opener * (depth - 1) + b"1" + closer * (depth - 1) + b"}"

    def measured(depth: int) -> bytes:
        """The same behind so many brackets that their depth is measured, with some in a string."""
        return b'{"items":[],"anything":[' + b"[]," * 200 + b'1],"text":"[[[[\\"{{{",' + nested(depth)[1:]

    for build in (nested, measured):
        decode(build(MAX_DEPTH), DECODER)
        for depth in (MAX_DEPTH + 1, 1_000_000):
            with pytest.raises(BadRequest):
                decode(build(depth), DECODER)
    assert "128 deep" in refusal(nested(MAX_DEPTH + 1)).message


def test_an_unclosed_nest_is_refused() -> None:
    refusal(b'{"anything":' + b"[" * 1_000_000)


def reference_depth(value: Any) -> int:
    if isinstance(value, list):
        return 1 + max(map(reference_depth, value), default=0)
    if isinstance(value, dict):
        return 1 + max(map(reference_depth, value.values()), default=0)
    return 0


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=30,
)


@given(json_values)
def test_depth_is_that_of_the_value_once_there_are_brackets_enough_to_measure(value: Any) -> None:
    body = json.dumps([value] + [[]] * 200).encode()
    assert measure_depth(body) == max(2, 1 + reference_depth(value))


@given(st.dictionaries(st.sampled_from(["text", "count", "ratio", "inner", "items", "anything", "zzz"]), json_values))
def test_any_json_object_decodes_or_is_a_bad_request(value: dict[str, Any]) -> None:
    try:
        request = decode(json.dumps(value).encode(), DECODER)
    except BadRequest:
        return
    assert "zzz" not in value
    assert request.count == value.get("count", 0)


@given(st.binary(max_size=200) | st.text(alphabet='{}[]":,\\u d8019e.-ntf', max_size=80).map(str.encode))
def test_any_bytes_decode_as_strict_json_does_or_are_a_bad_request(body: bytes) -> None:
    try:
        decode(body, DECODER)
    except BadRequest:
        return
    assert isinstance(json.loads(body.decode("utf-8")), dict)
