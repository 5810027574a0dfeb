"""Files as mapped bytes, and mapped bytes as tensors. Nothing is copied: pages are read when they are touched."""

from __future__ import annotations

import mmap
import stat
import warnings
from pathlib import Path

import torch

from poot.devices.formats import Format
from poot.errors import CheckpointError

DENSE_DTYPES = {Format.F32: torch.float32, Format.F16: torch.float16, Format.BF16: torch.bfloat16}


def display_path(path: Path) -> str:
    """`path` as error messages show it: always one printable line."""
    text = str(path)
    return text if text.isprintable() else ascii(text)


def map_file(path: Path) -> memoryview:
    """The bytes of a regular file, mapped read-only. Not empty.

    The mapping lives as long as anything that views it. It is shared with the page cache, so the weights cost no memory
    of their own and a file larger than memory can be opened; a private writable mapping would be charged in full on
    systems that do not overcommit. The file must not be truncated while it is mapped.

    Raises:
        CheckpointError: the file is not there, not readable, not a regular file, or empty.
    """
    where = display_path(path)
    try:
        status = path.stat()
        # Asked before opening: to open a pipe would wait for its writer.
        if not stat.S_ISREG(status.st_mode):
            raise CheckpointError("not a regular file", path=where)
        if status.st_size == 0:  # which cannot be mapped
            raise CheckpointError("the file is empty", path=where)
        with path.open("rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise CheckpointError(f"cannot be read: {error.strerror or error}", path=where) from error
    return memoryview(mapped)


def byte_tensor(buffer: memoryview) -> torch.Tensor:
    """uint8 `[len(buffer)]` over `buffer`, which it keeps alive. Never to be written: the pages may be read-only."""
    with warnings.catch_warnings():
        # torch cannot mark a tensor read-only and says so. That weights are never written is `Weight.data`'s contract.
        warnings.filterwarnings("ignore", message="The given buffer is not writable", category=UserWarning)
        return torch.frombuffer(buffer, dtype=torch.uint8)
