"""Invariant: bytes are a safetensors file whose tensors cover its data exactly, or one `CheckpointError` of one bounded
line that names the file and no byte outside it. Memory follows the file's size, whatever its counts say.
"""

from __future__ import annotations

import torch

from fuzz.refusal import check_refusal
from poot.engine.checkpoint.safetensors import parse_safetensors
from poot.errors import CheckpointError


def check(data: bytes) -> None:
    """Raises AssertionError when the invariant is broken; anything else that is raised breaks it too."""
    try:
        contents = parse_safetensors(memoryview(data), "model")
    except CheckpointError as error:
        check_refusal(error, len(data))
        return
    for weight in contents.tensors.values():
        int(weight.data.reshape(-1).view(torch.uint8).sum())  # reads every byte
    data_bytes = len(data) - 8 - int.from_bytes(data[:8], "little")
    num_bytes = sum(weight.num_bytes for weight in contents.tensors.values())
    # position_ids are covered too, and not kept.
    assert num_bytes <= data_bytes if contents.skipped else num_bytes == data_bytes
