"""The README's examples, run as they are printed: only the port is another one."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.process import ServerProcess

ROOT = Path(__file__).resolve().parent.parent.parent


def example(language: str, server: ServerProcess, containing: str) -> str:
    """The README's code block of that language that holds `containing`, with the server's port."""
    blocks = re.findall(rf"```{language}\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    (block,) = [block for block in blocks if containing in block]
    assert "127.0.0.1:8080" in block
    return str(block).replace("127.0.0.1:8080", f"127.0.0.1:{server.port}")


def run(command: list[str]) -> str:
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=55)
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_the_curl_example_answers(smollm2: ServerProcess) -> None:
    answer = json.loads(run(shlex.split(example("sh", smollm2, "curl"))))
    assert "Paris" in answer["choices"][0]["message"]["content"]
    assert answer["choices"][0]["finish_reason"] == "stop"


def test_the_openai_example_streams_a_story_and_its_usage(smollm2: ServerProcess) -> None:
    output = run([sys.executable, "-c", example("python", smollm2, "openai")])
    *story, usage = output.splitlines()
    assert len(" ".join(story).split()) > 20
    assert re.fullmatch(r"\d+ tokens", usage)
