"""Which command lines a hosted server takes. That it serves is shown in tests/e2e/test_hosted.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from poot import log
from poot.errors import CheckpointError, ConfigError, NotAvailableError
from poot.hosted import asgi, parse_hosted


def test_flags_mean_what_they_mean_to_poot_serve() -> None:
    config = parse_hosted(["--rows", "8", "model.gguf", "--drain-timeout-secs=5"])
    assert config.model == Path("model.gguf")
    assert config.engine.rows == 8
    assert config.net.drain_timeout_seconds == 5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["model.gguf", "127.0.0.1:8080"], "unexpected argument"),
        (["model.gguf", "--max-connections", "9"], "--max-connections"),
        (["--help"], "--help"),
        (["--version"], "--version"),
        (["--no-such-flag"], "unknown option"),
    ],
)
def test_what_a_host_does_not_take_is_refused_by_name(arguments: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_hosted(arguments)


def test_a_flag_that_is_not_built_is_refused() -> None:
    with pytest.raises(NotAvailableError, match="--expert-pool"):
        parse_hosted(["model.gguf", "--expert-pool", "8"])


def test_a_model_that_is_not_there_stops_the_start(tmp_path: Path) -> None:
    try:
        with pytest.raises(CheckpointError, match=r"none\.gguf"):
            asgi([str(tmp_path / "none.gguf"), "--backend", "cpu"])
    finally:
        log.reset()
