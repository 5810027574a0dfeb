from __future__ import annotations

from collections.abc import Iterator

import openai
import pytest

from tests.e2e.process import ServerProcess, serving
from tests.models import require_model


@pytest.fixture(scope="session")
def smollm2() -> Iterator[ServerProcess]:
    """One server of the real SmolLM2 GGUF with four rows, shared by all tests of a run."""
    with serving(require_model("smollm2"), "--backend", "cpu", "--max-seq", "2048") as server:
        yield server


@pytest.fixture
def client(smollm2: ServerProcess) -> Iterator[openai.OpenAI]:
    """The official client, as a user of the README would make it."""
    with openai.OpenAI(base_url=f"{smollm2.url}/v1", api_key="unused", max_retries=0, timeout=120) as client:
        yield client
