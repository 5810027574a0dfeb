"""ConfigReader: what each method takes, and that a refusal names the key, the value and what is allowed."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import pytest

from poot.engine.checkpoint.fields import ConfigReader, quote
from poot.errors import CheckpointError

VALUES: dict[str, Any] = {
    "int": 7,
    "zero": 0,
    "negative": -3,
    "large": 2**63 - 1,
    "huge": 10**5000,
    "float": 1.5,
    "whole": 2.0,
    "nan": math.nan,
    "inf": math.inf,
    "true": True,
    "false": False,
    "str": "silu",
    "null": None,
    "ints": [1, 2, 3],
    "floats": [1, 2.5],
    "strs": ["a", "b"],
    "mixed": [1, "a", None, True, math.nan],
    "empty": [],
    "object": {"type": "yarn", "factor": 4},
    "text": "x" * 500,
    "lines": "a\nb",
}

READER = ConfigReader(VALUES, where="config.json")


def test_values_of_the_right_type_are_given_back() -> None:
    assert READER.require_int("int") == 7
    assert READER.require_int("zero") == 0
    assert READER.require_int("large") == 2**63 - 1
    assert READER.require_int("negative", minimum=-3) == -3
    assert READER.require_int("int", minimum=7, maximum=7) == 7
    assert READER.require_float("float") == 1.5
    assert READER.require_float("float", minimum=1.5, maximum=1.5) == 1.5
    assert isinstance(READER.require_float("int"), float)
    assert READER.require_str("str") == "silu"
    assert READER.require_str("str", choices=["gelu", "silu"]) == "silu"
    assert READER.require_bool("true") is True
    assert READER.require_bool("false") is False
    assert READER.int_list("ints") == (1, 2, 3)
    assert READER.int_list("ints", length=3, minimum=1, maximum=3) == (1, 2, 3)
    assert READER.int_list("empty") == ()
    assert READER.float_list("floats", length=2) == (1.0, 2.5)
    assert READER.string_list("strs", length=2) == ("a", "b")
    assert READER.require_section("object").require_int("factor") == 4
    assert ConfigReader({"x": (1, 2)}, where="f").int_list("x") == (1, 2)


def test_absent_and_null_keys_give_the_default() -> None:
    for key in ("absent", "null"):
        assert not READER.has(key)
        assert READER.optional_int(key, 5) == 5
        assert READER.optional_int(key, None) is None
        assert READER.optional_float(key, 0.5) == 0.5
        assert READER.optional_float(key, None) is None
        assert READER.optional_str(key, "d") == "d"
        assert READER.optional_str(key, None) is None
        assert READER.optional_bool(key, True) is True
        assert READER.optional_bool(key, None) is None
        assert READER.optional_section(key) is None
    assert READER.has("false")
    assert READER.has("zero")


def test_keys_that_are_there_win_over_the_default() -> None:
    assert READER.optional_int("zero", 5) == 0
    assert READER.optional_float("float", 0.5) == 1.5
    assert READER.optional_str("str", "d") == "silu"
    assert READER.optional_bool("false", True) is False
    section = READER.optional_section("object")
    assert section is not None
    assert section.require_str("type") == "yarn"


Read = Callable[[ConfigReader], object]

REFUSALS: list[tuple[Read, str]] = [
    (lambda r: r.require_int("absent"), "absent is missing"),
    (lambda r: r.require_float("absent"), "absent is missing"),
    (lambda r: r.require_str("absent"), "absent is missing"),
    (lambda r: r.require_bool("absent"), "absent is missing"),
    (lambda r: r.int_list("absent"), "absent is missing"),
    (lambda r: r.require_section("absent"), "absent is missing"),
    (lambda r: r.require_int("null"), "null is null, but it is needed"),
    (lambda r: r.string_list("null"), "null is null, but it is needed"),
    (lambda r: r.require_int("true"), "true is True; it must be an integer of at least 0"),
    (lambda r: r.require_int("whole"), "whole is 2.0; it must be an integer of at least 0"),
    (lambda r: r.require_int("str"), "str is 'silu'; it must be an integer of at least 0"),
    (lambda r: r.require_int("ints"), "ints is a list of 3; it must be an integer of at least 0"),
    (lambda r: r.require_int("object"), "object is an object of 2; it must be an integer of at least 0"),
    (lambda r: r.require_int("negative"), "negative is -3; it must be an integer of at least 0"),
    (lambda r: r.require_int("int", minimum=8), "int is 7; it must be an integer of at least 8"),
    (lambda r: r.require_int("int", minimum=1, maximum=6), "int is 7; it must be an integer from 1 to 6"),
    (lambda r: r.require_int("huge"), "huge is an integer beyond 64 bits; it must be an integer of at least 0"),
    (lambda r: r.optional_int("false", 1), "false is False; it must be an integer of at least 0"),
    (lambda r: r.optional_int("int", 1, maximum=6), "int is 7; it must be an integer from 0 to 6"),
    (lambda r: r.require_float("true"), "true is True; it must be a finite number"),
    (lambda r: r.require_float("nan"), "nan is nan; it must be a finite number"),
    (lambda r: r.require_float("inf"), "inf is inf; it must be a finite number"),
    (lambda r: r.require_float("huge"), "huge is an integer beyond 64 bits; it must be a finite number"),
    (lambda r: r.require_float("str"), "str is 'silu'; it must be a finite number"),
    (lambda r: r.require_float("float", minimum=2), "float is 1.5; it must be a finite number of at least 2"),
    (lambda r: r.require_float("float", minimum=0, maximum=1), "float is 1.5; it must be a finite number from 0 to 1"),
    (
        lambda r: r.optional_float("negative", 1.0, minimum=0),
        "negative is -3; it must be a finite number of at least 0",
    ),
    (lambda r: r.require_str("int"), "int is 7; it must be a string"),
    (lambda r: r.require_str("str", choices=["gelu", "a"]), "str is 'silu'; it must be one of a, gelu"),
    (lambda r: r.optional_str("true", None), "true is True; it must be a string"),
    (lambda r: r.require_bool("zero"), "zero is 0; it must be true or false"),
    (lambda r: r.optional_bool("str", False), "str is 'silu'; it must be true or false"),
    (lambda r: r.int_list("int"), "int is 7; it must be a list"),
    (lambda r: r.int_list("str"), "str is 'silu'; it must be a list"),
    (lambda r: r.int_list("ints", length=2), "ints is a list of 3; it must be a list of 2"),
    (lambda r: r.int_list("ints", maximum=2), "ints[2] is 3; it must be an integer from 0 to 2"),
    (lambda r: r.int_list("mixed"), "mixed[1] is 'a'; it must be an integer of at least 0"),
    (lambda r: r.float_list("mixed"), "mixed[1] is 'a'; it must be a finite number"),
    (lambda r: r.float_list("floats", minimum=2), "floats[0] is 1; it must be a finite number of at least 2"),
    (lambda r: r.string_list("mixed"), "mixed[0] is 1; it must be a string"),
    (lambda r: r.require_section("ints"), "ints is a list of 3; it must be an object"),
    (lambda r: r.optional_section("int"), "int is 7; it must be an object"),
]


@pytest.mark.parametrize(("read", "message"), REFUSALS, ids=[message for _, message in REFUSALS])
def test_anything_else_is_refused_naming_key_value_and_what_is_allowed(read: Read, message: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        read(READER)
    assert str(caught.value) == f"config.json: {message}"
    assert caught.value.path == "config.json"


def test_section_is_named_in_errors() -> None:
    with pytest.raises(
        CheckpointError, match=r"^config\.json: object: type is 'yarn'; it must be an integer of at least 0"
    ):
        READER.require_section("object").require_int("type")


def test_caller_may_refuse_by_a_rule_of_its_own() -> None:
    assert str(READER.refuse("int", "even")) == "config.json: int is 7; it must be even"
    assert str(READER.refuse("absent", "even")) == "config.json: absent is None; it must be even"


def test_quoted_values_are_one_short_line() -> None:
    for value in (*VALUES.values(), object, b"x" * 1000, [[1] * 1000], "\u2028\x1b[0m"):
        text = quote(value)
        assert text.isprintable()
        assert len(text) <= 63


def test_json_integers_and_floats_keep_their_types() -> None:
    # What the standard library's parser makes of numbers is what the reader decides by.
    reader = ConfigReader(json.loads('{"a": 1, "b": 1.0, "c": 1e3, "d": -0}'), where="f")
    assert reader.require_int("a") == 1
    assert reader.require_int("d") == 0
    for key in ("b", "c"):
        with pytest.raises(CheckpointError):
            reader.require_int(key)
