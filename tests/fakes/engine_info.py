"""What an engine in a test says that it serves."""

from __future__ import annotations

from poot.engine.engine import EngineInfo


def fake_info(
    *, rows: int, max_seq: int, vocab_size: int, task: str = "generate", model_id: str = "fake"
) -> EngineInfo:
    """A model that no file holds: no bytes, no plan, and a limit that is `max_seq`."""
    return EngineInfo(
        model_id=model_id,
        task=task,
        backend="cpu",
        device="none",
        rows=rows,
        max_seq=max_seq,
        vocab_size=vocab_size,
        context_limit=max_seq,
        created=0,
        weight_bytes=0,
        kv_bytes=0,
        terms={},
    )
