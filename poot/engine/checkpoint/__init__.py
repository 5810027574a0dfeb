"""Model files on disk -> one checked `Checkpoint`, whichever of the two forms they came in."""

from __future__ import annotations

from pathlib import Path

from poot.engine.checkpoint.gguf import open_gguf
from poot.engine.checkpoint.types import Checkpoint, FileFormat

__all__ = ["Checkpoint", "FileFormat", "open_checkpoint"]


def open_checkpoint(path: Path) -> Checkpoint:
    return open_gguf(path)
