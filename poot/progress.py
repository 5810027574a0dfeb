"""How loading shows its progress: a bar on a terminal, a few log lines elsewhere."""

from __future__ import annotations

import logging
import sys
import time
from types import TracebackType
from typing import TextIO

logger = logging.getLogger("poot.load")

BAR_WIDTH = 32
# Redrawing more often than this only costs time.
REDRAW_SECONDS = 0.05


class LoadProgress:
    """A context manager around loading; pass its `update` to the loader.

    Args:
        label: what is loaded.
        stream: where a bar is drawn if it is a terminal; standard error by default.
    """

    def __init__(self, label: str, stream: TextIO | None = None) -> None:
        self._label = label
        self._stream = stream if stream is not None else sys.stderr
        self._is_terminal = self._stream.isatty()
        self._last_drawn = 0.0
        self._last_quarter = 0

    def __enter__(self) -> LoadProgress:
        self._started = time.monotonic()
        if not self._is_terminal:
            logger.info("loading %s", self._label)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._is_terminal:
            self._stream.write("\r\x1b[K")  # the bar makes room for the log
            self._stream.flush()
        if error is None:
            logger.info("loaded %s in %.2f s", self._label, time.monotonic() - self._started)

    def update(self, done_bytes: int, total_bytes: int) -> None:
        """Shows `done_bytes` of `total_bytes`."""
        share = done_bytes / total_bytes if total_bytes else 1.0
        if self._is_terminal:
            now = time.monotonic()
            if now - self._last_drawn < REDRAW_SECONDS and done_bytes < total_bytes:
                return
            self._last_drawn = now
            filled = round(share * BAR_WIDTH)
            bar = "#" * filled + "-" * (BAR_WIDTH - filled)
            self._stream.write(
                f"\r\x1b[Kloading {self._label} [{bar}] {done_bytes / 2**20:.0f}/{total_bytes / 2**20:.0f} MiB"
            )
            self._stream.flush()
        elif (quarter := int(share * 4)) > self._last_quarter:
            self._last_quarter = quarter
            logger.info("loading %s: %d of %d bytes", self._label, done_bytes, total_bytes)
