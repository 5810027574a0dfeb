"""Invariant: bytes are a GGUF file whose tensors lie inside them, or one `CheckpointError` of one bounded line that
names the file and no byte outside it. Memory follows the file's size, whatever its counts say.
"""

from __future__ import annotations

import torch

from fuzz.refusal import check_refusal
from poot.engine.checkpoint.gguf import parse_gguf
from poot.errors import CheckpointError


def check(data: bytes) -> None:
    """Raises AssertionError when the invariant is broken; anything else that is raised breaks it too."""
    try:
        contents = parse_gguf(memoryview(data), "model")
    except CheckpointError as error:
        check_refusal(error, len(data))
        return
    assert contents.version in (2, 3)
    for weight in contents.tensors.values():
        int(weight.data.reshape(-1).view(torch.uint8).sum())  # reads every byte
    assert sum(weight.num_bytes for weight in contents.tensors.values()) <= len(data)
