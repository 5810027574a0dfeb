"""The README's way behind TLS, run as it is printed: Hypercorn serves the real model to clients of its public name."""

from __future__ import annotations

import re
import shlex
import signal
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
import trustme

from tests.models import require_model

ROOT = Path(__file__).resolve().parent.parent.parent
NAME = "llm.example.com"
LIMIT_SECONDS = 120.0


def blocks(language: str) -> list[str]:
    """The README's code blocks of a language."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def example_script(model: Path) -> str:
    """The README's llm.py, with the path of a model that is there."""
    (script,) = [block for block in blocks("python") if "poot.hosted" in block]
    assert "path/to/model.gguf" in script
    assert NAME in script
    return script.replace("path/to/model.gguf", str(model))


def example_command() -> list[str]:
    """The README's command, on a free loopback port and without HTTP/3, which takes a package the tests do without."""
    (line,) = [line for block in blocks("sh") for line in block.splitlines() if "hypercorn llm:app" in line]
    program, *arguments = shlex.split(line.replace("--quic-bind 0.0.0.0:8443", ""))
    assert program == ".venv/bin/hypercorn"
    return [
        sys.executable,
        "-m",
        "hypercorn",
        *("127.0.0.1:0" if each == "0.0.0.0:8443" else each for each in arguments),
    ]


@contextmanager
def hosted(folder: Path) -> Iterator[int]:
    """The port of Hypercorn as the README starts it in `folder`; stopped, and its exit status checked, at the end."""
    process = subprocess.Popen(example_command(), stderr=subprocess.PIPE, text=True, cwd=folder)
    assert process.stderr is not None
    try:
        lines = []
        for line in process.stderr:
            lines.append(line)
            if found := re.search(r"Running on https://127\.0\.0\.1:(\d+)", line):
                yield int(found[1])
                break
        else:
            pytest.fail(f"Hypercorn did not start: {''.join(lines)}")
        process.send_signal(signal.SIGTERM)
        rest = process.stderr.read()
        assert process.wait(LIMIT_SECONDS) == 0, rest
        assert "Traceback" not in rest
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        process.stderr.close()


@pytest.mark.time_limit(180)
def test_the_hosted_example_answers_over_tls_under_its_name(tmp_path: Path) -> None:
    (tmp_path / "llm.py").write_text(example_script(require_model("smollm2")), encoding="utf-8")
    authority = trustme.CA()
    issued = authority.issue_cert(NAME)
    issued.private_key_pem.write_to_path(tmp_path / "key.pem")
    issued.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    question = {"prompt": "The capital of France is", "max_tokens": 4, "temperature": 0}
    with (
        hosted(tmp_path) as port,
        httpx.Client(http2=True, verify=trusting, timeout=LIMIT_SECONDS, trust_env=False) as client,
    ):

        def ask(host: str) -> httpx.Response:
            return client.post(
                f"https://127.0.0.1:{port}/v1/completions",
                json=question,
                headers={"Host": host},
                extensions={"sni_hostname": NAME},
            )

        answer = ask(NAME)
        assert answer.status_code == 200, answer.text
        assert answer.http_version == "HTTP/2"
        assert "Paris" in answer.json()["choices"][0]["text"]
        assert ask("elsewhere.example").status_code == 421
