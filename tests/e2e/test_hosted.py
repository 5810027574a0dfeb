"""The README's way behind TLS, run as it is printed: Hypercorn serves the real model to clients of its public name."""

from __future__ import annotations

import asyncio
import json
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

from tests.e2e import http3_client
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
    """The README's command on free loopback ports, with a short drain: with HTTP/3 Hypercorn always takes all of it."""
    (line,) = [line for block in blocks("sh") for line in block.splitlines() if "hypercorn llm:app" in line]
    program, *arguments = shlex.split(line)
    assert program == ".venv/bin/hypercorn"
    replaced = {"0.0.0.0:8443": "127.0.0.1:0", "30": "1"}
    return [sys.executable, "-m", "hypercorn", *(replaced.get(each, each) for each in arguments)]


@contextmanager
def hosted(folder: Path) -> Iterator[tuple[int, int]]:
    """The TCP and UDP ports of Hypercorn as the README starts it in `folder`; it has ended well at the end."""
    process = subprocess.Popen(example_command(), stderr=subprocess.PIPE, text=True, cwd=folder)
    assert process.stderr is not None
    try:
        log = ""
        for line in process.stderr:
            log += line
            # Each line is there once: poot leaves the host's logging alone.
            if len(ports := re.findall(r"Running on https://127\.0\.0\.1:(\d+)", log)) == 2:
                break
        assert len(ports) == 2, log
        yield int(ports[0]), int(ports[1])
        process.send_signal(signal.SIGTERM)
        log = process.stderr.read()
        assert process.wait(LIMIT_SECONDS) == 0, log
        assert "Traceback" not in log
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        process.stderr.close()


@pytest.mark.time_limit(180)
def test_the_hosted_example_answers_under_its_name_over_http2_and_http3(tmp_path: Path) -> None:
    (tmp_path / "llm.py").write_text(example_script(require_model("smollm2")), encoding="utf-8")
    authority = trustme.CA()
    issued = authority.issue_cert(NAME)
    issued.private_key_pem.write_to_path(tmp_path / "key.pem")
    issued.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    question = {"prompt": "The capital of France is", "max_tokens": 4, "temperature": 0}
    with (
        hosted(tmp_path) as (tcp_port, udp_port),
        httpx.Client(http2=True, verify=trusting, timeout=LIMIT_SECONDS, trust_env=False) as client,
    ):

        def ask(host: str) -> httpx.Response:
            return client.post(
                f"https://127.0.0.1:{tcp_port}/v1/completions",
                json=question,
                headers={"Host": host},
                extensions={"sni_hostname": NAME},
            )

        answer = ask(NAME)
        assert answer.status_code == 200, answer.text
        assert answer.http_version == "HTTP/2"
        assert "Paris" in answer.json()["choices"][0]["text"]
        assert ask("elsewhere.example").status_code == 421
        headers, body = asyncio.run(
            http3_client.post(
                udp_port, NAME, authority.cert_pem.bytes(), "/v1/completions", json.dumps(question).encode()
            )
        )
    assert headers[b":status"] == b"200"
    assert json.loads(body)["choices"] == answer.json()["choices"]
