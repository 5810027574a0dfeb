"""What `make serve` would run, told by make itself without running it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from poot.cli import demo_model

ROOT = Path(__file__).resolve().parent.parent

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


def dry_run(*arguments: str) -> list[str]:
    # MAKEFLAGS of a `make test` that runs this test would reach the inner make.
    environment = {"HOME": str(Path.home()), "PATH": "/usr/bin:/bin:/usr/local/bin"}
    command = ["make", "--dry-run", "--no-print-directory", *arguments]
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    return result.stdout.splitlines()


def test_serve_fetches_the_demo_model_and_serves_it_on_port_8080() -> None:
    *_, fetch, serve = dry_run("serve")
    assert fetch.endswith("scripts/fetch_models.py smollm2")
    assert serve.split()[-2:] == [f'"{demo_model()}"', '"127.0.0.1:8080"']


def test_serve_takes_another_model_port_and_address() -> None:
    *before, serve = dry_run("serve", "MODEL=my.gguf", "PORT=9000", "ARGS=--rows 8")
    assert serve.split()[-4:] == ["--rows", "8", '"my.gguf"', '"127.0.0.1:9000"']
    assert not any("fetch_models" in line for line in before)
    assert dry_run("serve", "ADDR=unix:/tmp/poot.sock")[-1].endswith('"unix:/tmp/poot.sock"')


def test_test_runs_every_check() -> None:
    commands = "\n".join(dry_run("test"))
    for words in ["ruff check", "ruff format --check", "mypy", "pytest", "fetch_models.py smollm2 minilm"]:
        assert words in commands
