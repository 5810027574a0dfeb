"""The real GGUF files over real sockets against another implementation's f32 results (tests/data)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.process import ServerProcess, serving
from tests.models import require_model

DATA = Path(__file__).parent.parent / "data"
SMOLLM2 = json.loads((DATA / "smollm2-135m-instruct-q4_1.json").read_text(encoding="utf-8"))
GEMMA3 = json.loads((DATA / "gemma-3-270m-q4_k_m.json").read_text(encoding="utf-8"))

# Where the two best logits are closer than this, rounding may choose either; the ids may differ from there on.
LEAST_GAP = 0.02
LOGIT_TOLERANCE = 2e-3


@pytest.fixture(scope="module")
def gemma3() -> Iterator[ServerProcess]:
    with serving(require_model("gemma3"), "--backend", "cpu", "--max-seq", "512") as server:
        yield server


def check_completion(server: ServerProcess, entry: dict[str, Any]) -> None:
    length = len(entry["greedy_ids"])
    answer = server.post(
        "/v1/completions",
        {
            "prompt": entry["prompt"] if "prompt" in entry else entry["ids"],
            "max_tokens": length,
            "temperature": 0,
            "logprobs": 10,
            "ignore_eos": True,
        },
    )
    assert answer["usage"] == {
        "prompt_tokens": len(entry["ids"]),
        "completion_tokens": length,
        "total_tokens": len(entry["ids"]) + length,
        "prompt_tokens_details": {"cached_tokens": answer["usage"]["prompt_tokens_details"]["cached_tokens"]},
    }
    choice = answer["choices"][0]
    best = sorted(choice["logprobs"]["top_logprobs"][0].values(), reverse=True)
    expected = [logit - entry["logsumexp"] for logit in entry["top10_logits"]]
    assert best == pytest.approx(expected, abs=LOGIT_TOLERANCE)
    sure = next((i for i, gap in enumerate(entry["greedy_gap"]) if gap <= LEAST_GAP), length)
    if sure == length and "prompt" in entry:
        assert choice["text"] == entry["greedy_text"]
    elif "prompt" in entry:
        assert entry["greedy_text"].startswith("".join(choice["logprobs"]["tokens"][:sure]))
        assert sure > 0


@pytest.mark.parametrize("entry", SMOLLM2, ids=lambda entry: entry.get("prompt", "chat"))
def test_smollm2_matches_the_reference(smollm2: ServerProcess, entry: dict[str, Any]) -> None:
    check_completion(smollm2, entry)


@pytest.mark.parametrize("entry", GEMMA3, ids=lambda entry: entry.get("prompt", "chat"))
def test_gemma3_matches_the_reference(gemma3: ServerProcess, entry: dict[str, Any]) -> None:
    check_completion(gemma3, entry)


def test_the_chat_template_gives_the_references_answer(smollm2: ServerProcess) -> None:
    (entry,) = [entry for entry in SMOLLM2 if "messages" in entry]
    answer = smollm2.post(
        "/v1/chat/completions", {"messages": entry["messages"], "temperature": 0, "max_tokens": 24, "logprobs": True}
    )
    choice = answer["choices"][0]
    assert answer["usage"]["prompt_tokens"] == len(entry["ids"])
    assert choice["message"]["content"] == entry["greedy_text"].split("<|im_end|>")[0]
    assert choice["finish_reason"] == "stop"
