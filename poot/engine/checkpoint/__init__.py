"""Model files on disk -> one checked `Checkpoint`, whichever of the two forms they came in.

`fields.ConfigReader` reads its configuration with types. Nothing here knows an architecture.
"""

from __future__ import annotations

from pathlib import Path

from poot.engine.checkpoint.directory import open_directory
from poot.engine.checkpoint.fields import ConfigReader
from poot.engine.checkpoint.gguf import open_gguf
from poot.engine.checkpoint.mapped_file import display_path
from poot.engine.checkpoint.types import Checkpoint, FileFormat
from poot.errors import CheckpointError

__all__ = ["Checkpoint", "ConfigReader", "FileFormat", "open_checkpoint"]


def open_checkpoint(path: Path) -> Checkpoint:
    """The model at `path`: a GGUF file, or a directory with config.json and safetensors files.

    Tensors view the mapped files; nothing is read from disk before it is used. Opening takes a tenth of a second for a
    vocabulary of 262,144 tokens.

    Raises:
        CheckpointError: there is no such file or directory, it cannot be read, it is malformed, or it is of a kind that
            poot does not serve. Whatever the files hold, nothing else is raised.
    """
    where = display_path(path)
    if "\0" in str(path):
        raise CheckpointError("a path cannot hold a NUL", path=where)
    try:
        if path.is_dir():
            return open_directory(path)
        if path.is_file() and path.name.endswith((".safetensors", ".safetensors.index.json")):
            raise CheckpointError(
                f"a safetensors model is given by its directory, with config.json beside the weights: "
                f"{display_path(path.parent)}",
                path=where,
            )
        return open_gguf(path)
    except OSError as error:  # a path too long, a loop of links, no right to look
        raise CheckpointError(f"cannot be opened: {error.strerror or error}", path=where) from error
