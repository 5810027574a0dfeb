"""RUST_LOG as the reference asks for it, and lines that nobody can forge."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator

import pytest

from poot import log
from poot.errors import ConfigError
from poot.log import TRACE, LogFilter, configure, get_logger, parse_filter


@pytest.fixture
def output() -> Iterator[io.StringIO]:
    yield io.StringIO()
    log.reset()


@pytest.mark.parametrize("value", [None, "", "  "])
def test_unset_is_info(value: str | None) -> None:
    assert parse_filter(value) == LogFilter(default=logging.INFO)


@pytest.mark.parametrize(
    ("value", "level"),
    [
        ("error", logging.ERROR),
        ("warn", logging.WARNING),
        ("info", logging.INFO),
        ("debug", logging.DEBUG),
        ("trace", TRACE),
        ("DEBUG", logging.DEBUG),
        (" Warn ", logging.WARNING),
    ],
)
def test_a_level_sets_the_default(value: str, level: int) -> None:
    assert parse_filter(value) == LogFilter(default=level)


def test_off_is_above_every_level() -> None:
    assert parse_filter("off").default > logging.CRITICAL


def test_targets_are_written_either_way_and_the_last_of_one_counts() -> None:
    parsed = parse_filter("poot::net=debug, warn ,poot.engine=trace,poot::net=error")
    assert parsed == LogFilter(default=logging.WARNING, targets=(("poot.net", logging.ERROR), ("poot.engine", TRACE)))


@pytest.mark.parametrize(
    "value",
    ["loud", "info,", ",", "poot=loud", "=info", "poot::=info", "po ot=info", "poot=", "10", "warning", "a=b=info"],
)
def test_a_value_that_does_not_parse_stops_startup_and_is_named(value: str) -> None:
    with pytest.raises(ConfigError, match=r"^RUST_LOG: .* does not parse; allowed: ") as caught:
        parse_filter(value)
    assert "\n" not in str(caught.value)


def test_a_line_is_time_level_target_message_and_fields(output: io.StringIO) -> None:
    configure(None, stream=output)
    get_logger("poot.net").info("request", path="/health", status=200, ms=1.25, peer="::1")
    time, rest = output.getvalue().split(" ", 1)
    assert rest == "INFO poot.net request path=/health status=200 ms=1.25 peer=::1\n"
    assert len(time) == len("2026-01-01T00:00:00.000Z")
    assert time.endswith("Z")


def test_text_of_a_peer_stays_on_its_line_and_in_its_field(output: io.StringIO) -> None:
    configure("info", stream=output)
    get_logger("poot").info("bad\r\nINFO forged", path='/a b"\n', agent="x=y", empty="")
    (line,) = output.getvalue().splitlines()
    assert line.endswith(' bad\\r\\nINFO forged path="/a b\\"\\n" agent="x=y" empty=""')


def test_targets_and_what_lies_below_them_have_their_own_level(output: io.StringIO) -> None:
    configure("error,poot::net=debug,poot::net::http=off", stream=output)
    get_logger("poot.net").debug("one")
    get_logger("poot.net.connection").debug("two")
    get_logger("poot.net.http.http1").error("three")
    get_logger("poot.engine").warn("four")
    get_logger("poot.engine").error("five")
    assert [line.split()[-1] for line in output.getvalue().splitlines()] == ["one", "two", "five"]


def test_plain_loggers_write_the_same_lines(output: io.StringIO) -> None:
    configure("trace", stream=output)
    logging.getLogger("library").warning("%d things", 3)
    get_logger("poot").trace("fine")
    assert [line.split(" ", 1)[1] for line in output.getvalue().splitlines()] == [
        "WARN library 3 things",
        "TRACE poot fine",
    ]


def test_an_exception_brings_its_traceback_on_indented_lines(output: io.StringIO) -> None:
    configure(None, stream=output)
    try:
        raise ValueError("inner")
    except ValueError as error:
        get_logger("poot").exception("it failed", error, request_id="7")
    first, *rest = output.getvalue().splitlines()
    assert first.endswith("ERROR poot it failed request_id=7")
    assert rest[-1] == "    ValueError: inner"
    assert all(line.startswith("    ") for line in rest)


def test_configuring_again_replaces_what_was_there(output: io.StringIO) -> None:
    first = io.StringIO()
    configure("poot::net=debug", stream=first)
    configure("warn", stream=output)
    get_logger("poot.net").info("hidden")
    get_logger("poot.net").warn("shown")
    assert first.getvalue() == ""
    assert output.getvalue().count("\n") == 1
    assert not get_logger("poot.net").is_enabled(logging.INFO)


def test_a_target_alone_may_be_taken_over_and_is_given_back(
    output: io.StringIO, caplog: pytest.LogCaptureFixture
) -> None:
    level = logging.getLogger().level
    configure("warn,poot::net=info", stream=output, target="poot")
    get_logger("poot.net").info("one")
    get_logger("poot.engine").info("hidden")
    logging.getLogger("host").error("the host's own")
    assert [line.split()[-1] for line in output.getvalue().splitlines()] == ["one"]
    assert [record.name for record in caplog.records] == ["host"], "the host would write poot's lines again"
    assert logging.getLogger().level == level
    log.reset()
    get_logger("poot").error("two")
    assert "two" not in output.getvalue()
    assert caplog.records[-1].name == "poot"
